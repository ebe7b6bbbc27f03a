//! Tokio's time is paused here and advanced by the tests; the kernel's is not.

use std::future::poll_fn;

use socket2::SockRef;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::time::advance;

use super::*;

/// The bytes sent before the socket fails.
const REST: &[u8] = b"the rest";

/// Two ends of a connection with small buffers, so that the kernel is soon full.
async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    SockRef::from(&listener).set_recv_buffer_size(4 << 10).unwrap();
    let (near, accepted) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    let (near, far) = (near.unwrap(), accepted.unwrap().0);
    SockRef::from(&near).set_send_buffer_size(4 << 10).unwrap();
    (near, far)
}

async fn send_rest(far: &mut TcpStream, near: &TcpStream) {
    far.write_all(REST).await.unwrap();
    near.readable().await.unwrap();
}

fn reset(far: TcpStream) {
    far.set_zero_linger().unwrap();
    drop(far);
}

/// Fills the kernel's buffer of `near` with bytes that `far` has no room for.
fn fill(near: &TcpStream) {
    let mut refused = 0;
    while refused < 3 {
        match io::Write::write(&mut &*SockRef::from(near), &[0; 64 << 10]) {
            Ok(_) => refused = 0,
            Err(_) => {
                refused += 1;
                // On a busy machine, bytes on their way are acknowledged later, and make room.
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

async fn poll<'a>(watch: &mut ResetWatch<'a>, socket: &'a TcpStream, moved: u64) -> Poll<io::Error> {
    poll_fn(|cx| Poll::Ready(watch.poll(cx, socket, moved))).await
}

/// What a read returns now: bytes, the end, or a failure.
fn read(near: &TcpStream) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 64];
    let length = io::Read::read(&mut &*SockRef::from(near), &mut bytes)?;
    bytes.truncate(length);
    Ok(bytes)
}

async fn is_never_told<'a>(watch: &mut ResetWatch<'a>, socket: &'a TcpStream) -> bool {
    for _ in 0..3 {
        if poll(watch, socket, 0).await.is_ready() {
            return false;
        }
        advance(PATIENCE + Duration::from_millis(1)).await;
    }
    true
}

#[tokio::test(start_paused = true)]
async fn a_reset_is_told_once_nothing_moves() {
    let (near, mut far) = pair().await;
    send_rest(&mut far, &near).await;
    let mut watch = ResetWatch::default();
    assert!(poll(&mut watch, &near, 0).await.is_pending());
    reset(far);
    near.ready(Interest::ERROR).await.unwrap();
    for moved in 0..10 {
        assert!(poll(&mut watch, &near, moved).await.is_pending(), "{moved}");
        advance(PATIENCE + Duration::from_millis(1)).await;
    }
    assert!(poll(&mut watch, &near, 10).await.is_pending());
    advance(PATIENCE - Duration::from_millis(1)).await;
    assert!(poll(&mut watch, &near, 10).await.is_pending());
    advance(Duration::from_millis(2)).await;
    let Poll::Ready(error) = poll(&mut watch, &near, 10).await else { panic!("not told") };
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_goes_on_gets_what_came_and_the_failure() {
    let (near, mut far) = pair().await;
    send_rest(&mut far, &near).await;
    reset(far);
    near.ready(Interest::ERROR).await.unwrap();
    let mut watch = ResetWatch::default();
    assert!(poll(&mut watch, &near, 0).await.is_pending());
    assert_eq!(read(&near).unwrap(), REST);
    assert_eq!(read(&near).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
}

/// A host that is gone sends nothing; the kernel gives up.
#[tokio::test(start_paused = true)]
async fn a_connection_that_timed_out_is_no_complete_one() {
    for goes_on in [false, true] {
        let (near, mut far) = pair().await;
        send_rest(&mut far, &near).await;
        SockRef::from(&near).set_tcp_user_timeout(Some(Duration::from_millis(100))).unwrap();
        fill(&near);
        let mut watch = ResetWatch::default();
        assert!(poll(&mut watch, &near, 0).await.is_pending());
        near.ready(Interest::ERROR).await.unwrap();
        assert!(poll(&mut watch, &near, 0).await.is_pending());
        if goes_on {
            assert_eq!(read(&near).unwrap(), REST);
            assert_eq!(read(&near).unwrap_err().kind(), io::ErrorKind::TimedOut);
        } else {
            advance(PATIENCE + Duration::from_millis(1)).await;
            let Poll::Ready(error) = poll(&mut watch, &near, 0).await else { panic!("not told") };
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_has_ended_is_complete_whatever_comes_then() {
    for seen in [false, true] {
        let (near, mut far) = pair().await;
        send_rest(&mut far, &near).await;
        let mut watch = ResetWatch::default();
        assert!(poll(&mut watch, &near, 0).await.is_pending());
        far.shutdown().await.unwrap();
        near.ready(Interest::PRIORITY).await.unwrap();
        if seen {
            assert!(poll(&mut watch, &near, 0).await.is_pending());
        }
        reset(far);
        near.ready(Interest::ERROR).await.unwrap();
        assert!(is_never_told(&mut watch, &near).await, "{seen}");
        assert_eq!(read(&near).unwrap(), REST);
        assert_eq!(read(&near).unwrap(), b"");
    }
}

/// In this case the kernel reports the same error as for a reset that lost bytes.
#[tokio::test(start_paused = true)]
async fn what_has_ended_is_complete_where_this_side_has_ended_too() {
    let (near, mut far) = pair().await;
    send_rest(&mut far, &near).await;
    fill(&near);
    super::super::end(&near).unwrap();
    let mut watch = ResetWatch::default();
    assert!(poll(&mut watch, &near, 0).await.is_pending());
    far.shutdown().await.unwrap();
    near.ready(Interest::PRIORITY).await.unwrap();
    assert!(poll(&mut watch, &near, 0).await.is_pending());
    reset(far);
    near.ready(Interest::ERROR).await.unwrap();
    assert!(is_never_told(&mut watch, &near).await);
    assert_eq!(read(&near).unwrap(), REST);
    assert_eq!(read(&near).unwrap(), b"");
    assert_eq!(near.take_error().unwrap().unwrap().kind(), io::ErrorKind::ConnectionReset);
}
