//! The timer of a connection: it finds dead peers, and tells when the connection must stop taking streams.
//!
//! The peer is watched only while something waits for it. An idle connection checks nothing and sends nothing; the
//! kernel's own probes find out within two minutes that its peer has vanished.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use h2::{Ping, PingPong};
use tokio::time::{Instant, Sleep};

use crate::Settings;
use crate::carrier::Handle;
use crate::timers::sleep_until;

/// What a connection's timer reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    /// The peer is dead.
    Dead,
    /// No more streams may be opened. Reported once.
    Drain,
}

/// Reports when the peer is dead, as long as anything waits for it. Otherwise it rests: an idle connection wakes nobody
/// and sends nothing.
///
/// Any byte from the peer proves that it is alive, because a PONG may queue behind megabytes of data on a slow link. So
/// do acknowledgements of its system while data is under way, because our PING may queue as well.
///
/// The same timer also reports when the connection has to drain.
pub(crate) struct Keepalive {
    carrier: Handle,
    ping: Option<PingPong>,
    interval: Duration,
    timeout: Duration,
    /// The time of the next check; `None` while it rests.
    check: Option<Instant>,
    drains: Option<Instant>,
    timer: Pin<Box<Sleep>>,
    /// Whether the timer is set for `check` or `drains`.
    armed: bool,
    /// Bytes received by the last check.
    seen: u64,
    /// When that number last grew, as far as checks have shown.
    heard: Instant,
    /// Bytes acknowledged by the last check.
    acknowledged: u64,
    /// When that number last grew, as far as checks have shown.
    acknowledged_at: Instant,
}

impl Keepalive {
    /// Boxed, so that the task of a connection which also has another one stays small.
    pub(crate) fn new(
        carrier: &Handle,
        ping: Option<PingPong>,
        settings: &Settings,
        drains: Option<Instant>,
    ) -> Box<Self> {
        let now = Instant::now();
        Box::new(Self {
            carrier: carrier.clone(),
            ping,
            interval: settings.ping_interval,
            timeout: settings.ping_timeout,
            check: None,
            drains,
            timer: Box::pin(sleep_until(drains.unwrap_or(now))),
            armed: drains.is_some(),
            seen: 0,
            heard: now,
            acknowledged: 0,
            acknowledged_at: now,
        })
    }

    /// Ready when the peer is dead, and when the connection has to drain. Poll it again in the latter case.
    pub(crate) fn poll_due(&mut self, cx: &mut Context<'_>) -> Poll<Due> {
        loop {
            let look = self.carrier.look(cx);
            let now = Instant::now();
            if self.check.is_none() && look.watched {
                (self.seen, self.heard) = (look.received, now);
                // Acknowledgements from a time when nothing waited don't tell whether the peer is alive now.
                self.is_acknowledging();
                self.check_soon(now);
            }
            if look.probe {
                self.ping();
            }
            if !self.armed {
                return Poll::Pending;
            }
            ready!(self.timer.as_mut().poll(cx));
            self.armed = false;
            if self.drains.is_some_and(|drains| drains <= now) {
                self.drains = None;
                self.rearm();
                return Poll::Ready(Due::Drain);
            }
            let Some(check) = self.check.filter(|check| *check <= now) else {
                self.rearm();
                continue;
            };
            // While this side did not run (the machine was overloaded or paused), it could not receive anything.
            self.heard += now - check;
            self.acknowledged_at += now - check;
            if look.received != self.seen {
                (self.seen, self.heard) = (look.received, now);
            }
            if !self.carrier.waits_or_rests() {
                self.check = None;
                self.rearm();
                continue;
            }
            // At every check, not only after a long silence: an acknowledgement counts from the check that finds it.
            if self.is_acknowledging() {
                self.acknowledged_at = now;
            }
            if now - self.heard >= self.interval {
                if now - self.heard.max(self.acknowledged_at) >= self.interval + self.timeout {
                    return Poll::Ready(Due::Dead);
                }
                self.ping();
            }
            self.check_soon(now);
        }
    }

    /// Checks often enough that the time of the peer's last byte is known well enough.
    fn check_soon(&mut self, now: Instant) {
        self.check = Some(now + self.interval / 2);
        self.rearm();
    }

    fn rearm(&mut self) {
        let next = match (self.check, self.drains) {
            (Some(check), Some(drains)) => check.min(drains),
            (Some(next), None) | (None, Some(next)) => next,
            (None, None) => return,
        };
        self.timer.as_mut().reset(next);
        self.armed = true;
    }

    /// Sends a PING, unless one is under way.
    fn ping(&mut self) {
        if let Some(ping) = &mut self.ping {
            // The PONG must be taken before the next PING can be sent. Nobody waits for it.
            let _ = ping.poll_pong(&mut Context::from_waker(Waker::noop()));
            let _ = ping.send_ping(Ping::opaque());
        }
    }

    /// Whether the peer's system has acknowledged more since the last call, and has more to acknowledge. If everything
    /// was acknowledged, the peer itself is silent.
    fn is_acknowledging(&mut self) -> bool {
        let Some(now) = self.carrier.acknowledged() else { return false };
        let before = std::mem::replace(&mut self.acknowledged, now.bytes);
        now.more_is_on_its_way && now.bytes > before && before > 0
    }
}

#[cfg(test)]
#[path = "keepalive_tests.rs"]
mod tests;
