use std::future::{pending, ready};

use super::*;

#[tokio::test]
async fn what_waits_in_the_queue_is_taken_before_the_listener_closes() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
    let to = listener.local_addr().expect("its address");
    let mut callers = Vec::new();
    for _ in 0..5 {
        callers.push(TcpStream::connect(to).await.expect("a connection"));
    }
    let mut taken = vec![accept_next(&listener, pending()).await.expect("the first")];
    while let Some(accepted) = accept_next(&listener, ready(())).await {
        taken.push(accepted);
    }
    let peers: Vec<_> = taken.iter().map(|(_, peer)| *peer).collect();
    let wanted: Vec<_> = callers.iter().map(|caller| caller.local_addr().expect("its address")).collect();
    assert_eq!(peers, wanted);
    // They are ready for this runtime.
    let (mut near, mut far) = (callers.remove(4), taken.remove(4).0);
    tokio::io::AsyncWriteExt::write_all(&mut far, b"!").await.expect("room");
    assert_eq!(tokio::io::AsyncReadExt::read_u8(&mut near).await.expect("a byte"), b'!');
}
