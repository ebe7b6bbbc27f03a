use std::future::poll_fn;
use std::io::IoSlice;
use std::pin::pin;
use std::task::Poll;

use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};

use super::*;

async fn connection() -> (Cork, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (ours, theirs) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    // What is not part of the write half is not looked at here, but must stay open.
    let (read, write) = ours.unwrap().into_split();
    std::mem::forget(read);
    (Cork::new(write), theirs.unwrap().0)
}

async fn write(cork: &Cork, bytes: &[u8]) -> io::Result<usize> {
    poll_fn(|cx| cork.poll_write(cx, &[IoSlice::new(bytes)])).await
}

async fn release(cork: &Cork) {
    poll_fn(|cx| {
        cork.release(cx);
        Poll::Ready(())
    })
    .await;
}

#[tokio::test]
async fn frames_leave_together() {
    let (cork, mut peer) = connection().await;
    for frame in ["one ", "two ", "three"] {
        assert_eq!(write(&cork, frame.as_bytes()).await.unwrap(), frame.len());
    }
    let mut seen = [0; 32];
    assert_eq!(peer.try_read(&mut seen).unwrap_err().kind(), io::ErrorKind::WouldBlock, "nothing has left yet");
    release(&cork).await;
    assert_eq!(peer.read(&mut seen).await.unwrap(), 13, "one segment");
    assert_eq!(&seen[..13], b"one two three");
    assert_eq!(cork.0.lock().held.capacity(), 0, "a silent connection holds no memory");
}

#[tokio::test]
async fn a_peer_that_does_not_read_stops_the_writer() {
    let (cork, mut peer) = connection().await;
    let (chunk, mut taken) = (vec![7; 16 << 10], 0);
    // What the system takes, and then no more than is held here.
    loop {
        let mut writing = pin!(write(&cork, &chunk));
        match poll_fn(|cx| Poll::Ready(writing.as_mut().poll(cx))).await {
            Poll::Ready(written) => taken += written.unwrap(),
            Poll::Pending => break,
        }
    }
    assert!(cork.0.lock().held.len() <= FULL + chunk.len());
    // Once the peer reads, all of it arrives, in its order and whole.
    let ending = poll_fn(|cx| cork.poll_shutdown(cx));
    let mut seen = Vec::new();
    let (ended, read) = tokio::join!(ending, peer.read_to_end(&mut seen));
    ended.unwrap();
    assert_eq!((read.unwrap(), seen.iter().all(|byte| *byte == 7)), (taken, true));
}

#[tokio::test]
async fn a_failure_shows_in_the_next_write() {
    let (cork, peer) = connection().await;
    peer.set_zero_linger().unwrap();
    drop(peer);
    // Which write is the first to fail is the system's affair.
    for _ in 0..1000 {
        if write(&cork, b"frame").await.is_err() {
            assert_eq!(cork.0.lock().held.len(), 0, "what nobody takes is not kept");
            return;
        }
        release(&cork).await;
        tokio::task::yield_now().await;
    }
    panic!("the connection's end does not show");
}
