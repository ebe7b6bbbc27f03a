#![allow(clippy::unwrap_used, reason = "test code")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::JoinSet;

use super::*;

/// Many handshakes, each of which has a step to compute at the same moment.
const MANY: usize = 100;

#[test]
fn sockets_are_looked_at_between_any_two_steps() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    runtime.block_on(async {
        let steps = Arc::new(AtomicUsize::new(0));
        // What the thread carries: a byte that goes to and fro by way of the kernel.
        let (mut near, mut far) = UnixStream::pair().unwrap();
        near.write_u8(0).await.unwrap();
        let counted = steps.clone();
        let carried = tokio::spawn(async move {
            let (mut seen, mut most) = (0, 0);
            while seen < MANY {
                far.read_u8().await.unwrap();
                far.write_u8(0).await.unwrap();
                near.read_u8().await.unwrap();
                near.write_u8(0).await.unwrap();
                let now = counted.load(Relaxed);
                most = most.max(now - seen);
                seen = now;
            }
            most
        });
        let mut handshakes = JoinSet::new();
        for _ in 0..MANY {
            let steps = steps.clone();
            handshakes.spawn(async move {
                let _turn = turn().await;
                steps.fetch_add(1, Relaxed);
            });
        }
        handshakes.join_all().await;
        // Two ways of a byte, each of which may have to wait for one step, and one to begin with.
        let most = carried.await.unwrap();
        assert!(most <= 4, "{most} steps in a row");
    });
}

#[test]
fn one_that_gives_up_lets_the_next_one_compute() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let held = turn().await;
        let waiting = tokio::spawn(turn());
        let given_up = tokio::spawn(turn());
        tokio::task::yield_now().await;
        given_up.abort();
        drop(held);
        assert!(waiting.await.unwrap().is_some());
        assert!(turn().await.is_some());
    });
}
