use tokio::io::AsyncWriteExt as _;

use super::*;

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    (client, listener.accept().await.unwrap().0)
}

/// More bytes than all buffers hold, both ways at once, then one end after the other.
#[tokio::test]
async fn bytes_and_ends_pass_through() {
    const LENGTH: usize = 20 << 20;
    let ((a, left), (right, b)) = (pair().await, pair().await);
    let relaying = relay(left, right);
    let ends = async move {
        let ((mut a_in, mut a_out), (mut b_in, mut b_out)) = (a.into_split(), b.into_split());
        let text: Vec<u8> = (0..LENGTH).map(|at| ((at * 31) >> 3) as u8).collect();
        let (mut at_b, mut at_a) = (Vec::new(), Vec::new());
        let (there, back) = tokio::join!(
            async {
                let (sent, got) = tokio::join!(
                    async {
                        a_out.write_all(&text).await?;
                        a_out.shutdown().await
                    },
                    b_in.read_to_end(&mut at_b)
                );
                sent.and(got)
            },
            async {
                let (sent, got) = tokio::join!(b_out.write_all(&text), async {
                    at_a.resize(LENGTH, 0);
                    a_in.read_exact(&mut at_a).await
                });
                sent.and(got)
            }
        );
        there.unwrap();
        back.unwrap();
        assert!(at_b == text && at_a == text);
        // One direction is over; the other still works.
        b_out.write_all(b"later").await.unwrap();
        let mut later = [0; 5];
        a_in.read_exact(&mut later).await.unwrap();
        assert_eq!(&later, b"later");
        b_out.shutdown().await.unwrap();
        assert_eq!(a_in.read(&mut later).await.unwrap(), 0);
    };
    let (outcome, ()) = tokio::join!(relaying, ends);
    outcome.unwrap();
}

#[tokio::test]
async fn a_reset_is_passed_on() {
    let ((a, left), (right, mut b)) = (pair().await, pair().await);
    SockRef::from(&a).set_linger(Some(Duration::ZERO)).unwrap();
    drop(a);
    assert!(relay(left, right).await.is_err());
    let error = b.read(&mut [0; 8]).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}
