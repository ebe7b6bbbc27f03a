//! Whether the peer of a connection is alive.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use h2::{Ping, PingPong};
use tokio::time::{Instant, Sleep};

use crate::timers::sleep;

/// Sends PINGs on a silent connection and tells when the peer is dead. Any byte from the peer
/// proves it alive: a PONG may queue behind megabytes of data on a slow link.
pub(crate) struct Keepalive {
    ping: Option<PingPong>,
    received: Arc<AtomicU64>,
    seen: u64,
    waiting: bool,
    timer: Pin<Box<Sleep>>,
    interval: Duration,
    timeout: Duration,
}

impl Keepalive {
    pub(crate) fn new(ping: Option<PingPong>, received: Arc<AtomicU64>, interval: Duration, timeout: Duration) -> Self {
        Self { ping, received, seen: 0, waiting: false, timer: Box::pin(sleep(interval)), interval, timeout }
    }

    /// Ready once the peer has been silent for the whole timeout after a PING.
    pub(crate) fn poll_dead(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.timer.as_mut().poll(cx));
            let received = self.received.load(Relaxed);
            let alive = received != self.seen;
            if self.waiting && !alive {
                return Poll::Ready(());
            }
            self.seen = received;
            if alive {
                self.waiting = false;
                self.rearm(self.interval);
                continue;
            }
            if let Some(ping) = &mut self.ping {
                // A PONG must be taken before the next PING can be sent; nobody waits for it.
                let _ = ping.poll_pong(&mut Context::from_waker(Waker::noop()));
                let _ = ping.send_ping(Ping::opaque());
            }
            self.waiting = true;
            self.rearm(self.timeout);
        }
    }

    fn rearm(&mut self, after: Duration) {
        self.timer.as_mut().reset(Instant::now() + after);
    }
}
