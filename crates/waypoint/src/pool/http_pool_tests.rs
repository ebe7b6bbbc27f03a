use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::test_support::{Tunnel, tunnel};

fn key() -> UpstreamKey {
    UpstreamKey {
        target: "10.0.0.1:80".parse().expect("an address"),
        peer: None,
        tunnel: false,
        passed: None,
        kind: Kind::Http2,
    }
}

fn new() -> New {
    New { max_head: 1 << 16, terms: Terms::default(), counted: None }
}

#[tokio::test(start_paused = true)]
async fn all_who_wait_for_an_endpoint_that_does_not_answer_wait_once() {
    let (pool, key) = (HttpPool::default(), key());
    let attempts = AtomicUsize::new(0);
    let lease = async || {
        let open = async || {
            attempts.fetch_add(1, Relaxed);
            tokio::time::sleep(Duration::from_secs(9)).await;
            Err(Failure::Stopped)
        };
        matches!(pool.lease(&key, new(), open).await, Err(Lack::Failure(Failure::Stopped)))
    };
    let began = tokio::time::Instant::now();
    assert!(join_all((0..20).map(|_| lease())).await.into_iter().all(|failed| failed));
    assert_eq!((attempts.load(Relaxed), began.elapsed().as_secs()), (1, 9));
    // Who comes later tries anew.
    assert!(lease().await);
    assert_eq!(attempts.load(Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn settings_that_never_come_are_not_waited_for() {
    for (answer, stays) in [(&b"HTTP/1.1 400 Bad Request\r\n"[..], true), (b"", false)] {
        let Tunnel { mut peer, here, _pool } = tunnel().await;
        let began = tokio::time::Instant::now();
        let endpoint = tokio::spawn(async move {
            let _ = peer.read_u8().await;
            let _ = peer.write_all(answer).await;
            if stays {
                std::future::pending::<()>().await;
            }
        });
        let made = HttpPool::default().make(&key(), new(), Stream::Tunnel(here)).await;
        assert!(matches!(made, Err(HandshakeError::NotHttp2 | HandshakeError::Ended)));
        assert_eq!(began.elapsed(), Duration::ZERO);
        endpoint.abort();
    }
}
