//! What a connection has a timer for: whether its peer is alive, and when it has to drain.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use h2::{Ping, PingPong};
use tokio::time::{Instant, Sleep};

use crate::timers::sleep_until;

/// What a connection's timer was for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    /// The peer is dead.
    Dead,
    /// No more streams are to be opened. Told once.
    Drain,
}

/// Sends PINGs on a silent connection and tells when the peer is dead. Any byte from the peer
/// proves it alive: a PONG may queue behind megabytes of data on a slow link.
///
/// Its one timer also tells when the connection has to drain.
pub(crate) struct Keepalive {
    ping: Option<PingPong>,
    received: Arc<AtomicU64>,
    seen: u64,
    waiting: bool,
    /// When it is looked at next whether the peer is alive.
    check: Instant,
    drains: Option<Instant>,
    timer: Pin<Box<Sleep>>,
    interval: Duration,
    timeout: Duration,
}

impl Keepalive {
    pub(crate) fn new(
        ping: Option<PingPong>,
        received: Arc<AtomicU64>,
        interval: Duration,
        timeout: Duration,
        drains: Option<Instant>,
    ) -> Box<Self> {
        let check = Instant::now() + interval;
        let timer = Box::pin(sleep_until(drains.map_or(check, |drains| drains.min(check))));
        Box::new(Self { ping, received, seen: 0, waiting: false, check, drains, timer, interval, timeout })
    }

    /// Ready once the peer has been silent for the whole timeout after a PING, and when the connection has
    /// to drain. To be polled again then.
    pub(crate) fn poll_due(&mut self, cx: &mut Context<'_>) -> Poll<Due> {
        loop {
            ready!(self.timer.as_mut().poll(cx));
            let now = Instant::now();
            if self.drains.is_some_and(|drains| drains <= now) {
                self.drains = None;
                self.rearm();
                return Poll::Ready(Due::Drain);
            }
            if self.check > now {
                self.rearm();
                continue;
            }
            let received = self.received.load(Relaxed);
            let alive = received != self.seen;
            if self.waiting && !alive {
                return Poll::Ready(Due::Dead);
            }
            self.seen = received;
            if alive {
                self.waiting = false;
                self.check_after(self.interval);
                continue;
            }
            if let Some(ping) = &mut self.ping {
                // A PONG must be taken before the next PING can be sent; nobody waits for it.
                let _ = ping.poll_pong(&mut Context::from_waker(Waker::noop()));
                let _ = ping.send_ping(Ping::opaque());
            }
            self.waiting = true;
            self.check_after(self.timeout);
        }
    }

    fn check_after(&mut self, pause: Duration) {
        self.check = Instant::now() + pause;
        self.rearm();
    }

    fn rearm(&mut self) {
        let next = self.drains.map_or(self.check, |drains| drains.min(self.check));
        self.timer.as_mut().reset(next);
    }
}
