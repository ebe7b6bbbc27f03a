//! A client's connection as those see it who open streams on it.

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

/// A peer that was heard within this time is taken for alive. One that died without a word is
/// found out by the first request, which is then made again elsewhere, unless a program's first
/// bytes went with it. A peer that was not is asked for a sign of life together with the request.
pub(crate) const LIVELY: Duration = Duration::from_secs(1);

/// One connection that streams can be opened on. While anyone holds it, HTTP/2 keeps the
/// transport open; so its own task must not.
pub(crate) struct Connection {
    pub(crate) send: SendRequest<Bytes>,
    /// What its streams' bytes go by.
    pub(crate) carrier: Handle,
    active: AtomicUsize,
    limit: usize,
    /// The peer's SETTINGS have come.
    pub(crate) settled: AtomicBool,
    pub(crate) created: Instant,
    /// When it stops taking new streams.
    drains: Option<Instant>,
    /// Half of the streams it may carry were open at some time.
    was_large: AtomicBool,
    /// Milliseconds after `created` when the last stream ended.
    idle_since: AtomicU64,
    /// The connection's task waits for the last stream to end, without a timer.
    awaits_idle: AtomicBool,
    task: Sleeper,
    /// It was given up because its peer was silent.
    pub(crate) fell_silent: AtomicBool,
    /// Milliseconds after `created` when something came from the peer.
    pub(crate) heard: Arc<AtomicU64>,
    /// The peer has answered a request with another status than 200.
    pub(crate) has_refused: AtomicBool,
}

/// A stream's place on a connection; free again when dropped.
pub(crate) struct Permit {
    pub(crate) connection: Arc<Connection>,
}

impl Drop for Permit {
    fn drop(&mut self) {
        // Before the count goes down: who then sees zero also sees since when.
        let now = self.connection.created.elapsed().as_millis() as u64;
        self.connection.idle_since.store(now, Relaxed);
        if self.connection.active.fetch_sub(1, SeqCst) == 1 && self.connection.awaits_idle.swap(false, SeqCst) {
            self.connection.task.wake();
        }
    }
}

impl Connection {
    /// One without streams. `drains`: when it stops taking new ones.
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

    /// Whether it takes no new streams at `now`, because what proved its two sides is about to end. Looked
    /// at by who wants to open one: no timer is needed.
    pub(crate) fn drains_by(&self, now: Instant) -> bool {
        self.drains.is_some_and(|drains| drains <= now)
    }

    /// Whether one more stream could be opened at once: fewer are than this side wants and the
    /// peer allows. With the pool's lock held, no other stream takes it meanwhile.
    ///
    /// False before the peer has told its limit: requests beyond it would wait on this
    /// connection until a stream ends, which may be never.
    pub(crate) fn has_room(&self) -> bool {
        self.settled.load(Acquire) && self.active() < self.limit.min(self.send.current_max_send_streams())
    }

    /// A place for one more stream, whatever the limits: HTTP/2 holds the request back until
    /// the peer allows it.
    pub(crate) fn acquire(self: &Arc<Self>) -> Permit {
        let active = self.active.fetch_add(1, Relaxed) + 1;
        if 2 * active >= self.limit {
            self.was_large.store(true, Relaxed);
        }
        Permit { connection: self.clone() }
    }

    /// Whether a program's bytes may be sent here before the peer has answered. Only to one that
    /// has spoken HTTP/2 (before, not even its verdict on our certificate is known) and was heard a
    /// moment ago. And not to one that has refused a request: bytes that reach it after a refusal
    /// may count as errors, and enough of these end the connection.
    pub(crate) fn takes_early_bytes(&self) -> bool {
        self.settled.load(Acquire) && self.is_lively() && !self.has_refused.load(Relaxed)
    }

    /// Whether the peer was heard a moment ago.
    pub(crate) fn is_lively(&self) -> bool {
        let heard = self.created + Duration::from_millis(self.heard.load(Relaxed));
        heard.elapsed() < LIVELY
    }

    /// Ready unless streams are open. The task of `cx` is woken when the last has ended.
    pub(crate) fn poll_idle(&self, registered: &mut Registered, cx: &Context<'_>) -> Poll<()> {
        if self.active() > 0 {
            registered.renew(cx, &self.task);
            self.awaits_idle.store(true, SeqCst);
            // The last may have ended meanwhile, and found nobody to wake.
            if self.active.load(SeqCst) > 0 {
                return Poll::Pending;
            }
            self.awaits_idle.store(false, SeqCst);
        }
        Poll::Ready(())
    }

    /// Streams open now.
    pub(crate) fn active(&self) -> usize {
        self.active.load(Acquire)
    }

    /// How long it is kept without a stream. HTTP/2 never gives back the tables of many streams,
    /// and they are worth less than the next handshake only where there are such often.
    pub(crate) fn patience(&self, settings: &Settings) -> Duration {
        settings.idle_timeout / if self.was_large.load(Relaxed) { 2 } else { 1 }
    }

    /// When the last stream ended.
    pub(crate) fn idle_since(&self) -> Instant {
        self.created + Duration::from_millis(self.idle_since.load(Relaxed))
    }
}
