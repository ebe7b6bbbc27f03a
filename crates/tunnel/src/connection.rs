//! A client's connection, for callers that open streams on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use tokio::time::Instant;

use crate::Settings;
use crate::carrier::Handle;
use crate::waking::{Registered, Sleeper};

/// A peer that sent something within this time is taken to be alive. If it has died since, the first request finds out,
/// and is made again elsewhere unless a program's first bytes went with it. A peer that was silent for longer is sent a
/// PING together with the request.
pub(crate) const LIVELY: Duration = Duration::from_secs(1);

/// One connection on which streams can be opened. While anybody holds it, HTTP/2 keeps the transport open. So the
/// connection's own task must not hold it.
pub(crate) struct Connection {
    pub(crate) send: SendRequest<Bytes>,
    /// Carries its streams' bytes.
    pub(crate) carrier: Handle,
    active: AtomicUsize,
    limit: usize,
    /// Whether the peer's SETTINGS have come.
    pub(crate) settled: AtomicBool,
    pub(crate) created: Instant,
    /// When it stops accepting new streams.
    drains: Option<Instant>,
    /// Whether half of the streams that it may carry were open at some time.
    was_large: AtomicBool,
    /// Milliseconds after `created` when the last stream ended.
    idle_since: AtomicU64,
    /// Whether the connection's task waits for the end of the last stream, without a timer.
    awaits_idle: AtomicBool,
    task: Sleeper,
    /// Whether it was given up because its peer was silent.
    pub(crate) fell_silent: AtomicBool,
    /// Milliseconds after `created` when something came from the peer.
    pub(crate) heard: Arc<AtomicU64>,
    /// Whether the peer has answered a request with another status than 200.
    pub(crate) has_refused: AtomicBool,
}

/// A stream's place on a connection. It is free again when this is dropped.
pub(crate) struct Permit {
    pub(crate) connection: Arc<Connection>,
}

impl Drop for Permit {
    fn drop(&mut self) {
        // The time is stored before the count goes down. So whoever reads a count of zero also reads its time.
        let now = self.connection.created.elapsed().as_millis() as u64;
        self.connection.idle_since.store(now, Relaxed);
        if self.connection.active.fetch_sub(1, SeqCst) == 1 && self.connection.awaits_idle.swap(false, SeqCst) {
            self.connection.task.wake();
        }
    }
}

impl Connection {
    /// A connection without streams. `drains` is when it stops accepting new ones.
    pub(crate) fn new(send: SendRequest<Bytes>, carrier: Handle, limit: usize, drains: Option<Instant>) -> Self {
        Self {
            send,
            carrier,
            active: AtomicUsize::new(0),
            limit,
            settled: AtomicBool::new(false),
            was_large: AtomicBool::new(false),
            created: Instant::now(),
            drains,
            idle_since: AtomicU64::new(0),
            awaits_idle: AtomicBool::new(false),
            task: Sleeper::default(),
            fell_silent: AtomicBool::new(false),
            heard: Arc::default(),
            has_refused: AtomicBool::new(false),
        }
    }

    /// Whether new streams can't be opened any more: GOAWAY was received or the transport ended.
    pub(crate) fn is_gone(&self) -> bool {
        let mut send = self.send.clone();
        matches!(send.poll_ready(&mut Context::from_waker(Waker::noop())), Poll::Ready(Err(_)))
    }

    /// Whether it accepts no new streams at `now`, because a certificate of its handshake is about to expire. It is checked
    /// when a stream is opened, so no timer is needed.
    pub(crate) fn drains_by(&self, now: Instant) -> bool {
        self.drains.is_some_and(|drains| drains <= now)
    }

    /// Whether one more stream could be opened at once: fewer streams are open than this side wants and the peer allows.
    /// While the caller holds the pool's lock, no other stream takes the place.
    ///
    /// False until the peer has announced its limit: requests beyond it would wait on this connection until a stream ends,
    /// which may never happen.
    pub(crate) fn has_room(&self) -> bool {
        self.settled.load(Acquire) && self.active() < self.limit.min(self.send.current_max_send_streams())
    }

    /// A place for one more stream, whatever the limits. HTTP/2 holds the request back until the peer allows it.
    pub(crate) fn acquire(self: &Arc<Self>) -> Permit {
        let active = self.active.fetch_add(1, Relaxed) + 1;
        if 2 * active >= self.limit {
            self.was_large.store(true, Relaxed);
        }
        Permit { connection: self.clone() }
    }

    /// Whether a program's bytes may be sent here before the peer has answered. The peer must have spoken HTTP/2 (before, it
    /// is not even known whether it accepts our certificate) and must have sent something within [`LIVELY`]. It must not
    /// have refused a request: bytes that reach it after a refusal may count as errors, and enough of these end the
    /// connection.
    pub(crate) fn takes_early_bytes(&self) -> bool {
        self.settled.load(Acquire) && self.is_lively() && !self.has_refused.load(Relaxed)
    }

    /// Whether the peer sent something within [`LIVELY`].
    pub(crate) fn is_lively(&self) -> bool {
        let heard = self.created + Duration::from_millis(self.heard.load(Relaxed));
        heard.elapsed() < LIVELY
    }

    /// Ready if no stream is open. Otherwise, the task of `cx` is woken when the last one has ended.
    pub(crate) fn poll_idle(&self, registered: &mut Registered, cx: &Context<'_>) -> Poll<()> {
        if self.active() > 0 {
            registered.renew(cx, &self.task);
            self.awaits_idle.store(true, SeqCst);
            // The last stream may have ended before `awaits_idle` was set. Then nobody was woken.
            if self.active.load(SeqCst) > 0 {
                return Poll::Pending;
            }
            self.awaits_idle.store(false, SeqCst);
        }
        Poll::Ready(())
    }

    /// The number of open streams.
    pub(crate) fn active(&self) -> usize {
        self.active.load(Acquire)
    }

    /// How long it is kept without a stream. After many streams it is kept for half the time, because HTTP/2 never frees the
    /// tables that it needed for them.
    pub(crate) fn patience(&self, settings: &Settings) -> Duration {
        settings.idle_timeout / if self.was_large.load(Relaxed) { 2 } else { 1 }
    }

    /// When the last stream ended.
    pub(crate) fn idle_since(&self) -> Instant {
        self.created + Duration::from_millis(self.idle_since.load(Relaxed))
    }
}
