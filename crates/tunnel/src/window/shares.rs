//! What all connections of a process share: how much may wait for programs, and what of it each stream may have.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// What all connections of a process together may receive beyond their own windows. Clones are
/// one.
#[derive(Debug, Clone)]
pub struct WindowBudget(pub(super) Arc<Shares>);

/// The window of a stream of whose program nothing is known, bytes, while little waits. The kernel
/// takes so much for a program before that reads a byte, so nothing of it waits here.
pub(super) const FIRST: u32 = 64 << 10;

/// What a stream may leave waiting however much there is already, bytes: without a window, its program
/// would be asked for nothing. With the first [`MANY`] streams it is the one, with the last of very
/// many the other; in between it falls with the square of their number, so that all of them together
/// leave little more than the first.
pub(super) const LEAST: (usize, usize) = (256, 4 << 10);
pub(super) const MANY: usize = 512;

/// Streams that may have stopped before a program that reads on has less than [`FIRST`], though all that may
/// be earned is used up. From there it falls as [`LEAST`] does.
pub(super) const SOME: usize = 64;

/// What all connections together may leave waiting for the first stream of each that stops, bytes. The next one
/// on it has a quarter of that, the third a ninth: who shares no connection with those that have stopped goes on.
const OF_CONNECTIONS: usize = 1 << 20;

/// What may wait for programs that don't read, unless said otherwise, bytes.
const UNREAD: usize = 16 << 20;

#[derive(Debug)]
pub(super) struct Shares {
    pub(super) limit: usize,
    pub(super) used: AtomicUsize,
    /// What is to wait at most for programs that don't read.
    pub(super) unread: usize,
    /// What waits for programs that are not known to read.
    pub(super) waiting: AtomicUsize,
    /// What streams may receive beyond [`FIRST`] whose programs are not known to read.
    pub(super) promised: AtomicUsize,
    /// What waits for programs that have read.
    pub(super) left: AtomicUsize,
    /// What waits for such programs and may yet come for them; as long as nothing waits, beyond [`FIRST`] for each.
    pub(super) earned: AtomicUsize,
    pub(super) streams: AtomicUsize,
    /// Streams, and connections with streams, for which something waits.
    pub(super) stopped: AtomicUsize,
    pub(super) stopped_connections: AtomicUsize,
}

impl WindowBudget {
    /// A budget of so many bytes; with 0, no window ever grows.
    pub fn new(bytes: usize) -> Self {
        Self::with_unread(bytes, UNREAD)
    }

    /// As [`WindowBudget::new`]; and `unread` bytes are what all streams together may hold for
    /// programs that don't read, with little more for each.
    pub fn with_unread(bytes: usize, unread: usize) -> Self {
        let none = || AtomicUsize::new(0);
        Self(Arc::new(Shares {
            limit: bytes,
            used: none(),
            unread,
            waiting: none(),
            promised: none(),
            left: none(),
            earned: none(),
            streams: none(),
            stopped: none(),
            stopped_connections: none(),
        }))
    }

    /// Bytes that wait for programs.
    pub fn waiting(&self) -> usize {
        self.0.waiting.load(Relaxed) + self.0.left.load(Relaxed)
    }

    /// Bytes by which windows are larger now than they begin.
    pub fn used(&self) -> usize {
        self.0.used.load(Relaxed)
    }

    /// As much of `wanted` as there is.
    pub(super) fn take(&self, wanted: usize) -> usize {
        let room = |used| wanted.min(self.0.limit - used);
        let more = |used| (room(used) > 0).then(|| used + room(used));
        self.0.used.fetch_update(Relaxed, Relaxed, more).map_or(0, room)
    }

    pub(super) fn give_back(&self, bytes: usize) {
        self.0.used.fetch_sub(bytes, Relaxed);
    }
}

impl Shares {
    /// The window of a stream whose program is not known to read, and that is promised so many bytes.
    pub(super) fn unknown(&self, promised: u32) -> usize {
        let others = self.promised.load(Relaxed).saturating_sub(promised as usize);
        let waiting = self.waiting.load(Relaxed);
        // A quarter of what is left: it is never used up, but for what everybody may have.
        let left = self.unread.saturating_sub(waiting + others) / 4;
        // What is merely promised makes no window smaller than all begin with, nor do a few programs that have stopped.
        if waiting < self.unread / 2 { left.max(FIRST as usize) } else { left }
    }

    /// The largest window that one may have of what is earned which has so much of it: half of what the others
    /// leave, so that who comes later finds something, too.
    pub(super) fn earned(&self, own: u32) -> usize {
        let others = self.earned.load(Relaxed).saturating_sub(own as usize);
        in_steps((self.limit / 2).saturating_sub(others) / 2)
    }

    /// What a stream may have beside those of its connection that have stopped, whatever waits.
    pub(super) fn beside(&self, stopped: usize) -> usize {
        let connections = self.stopped_connections.load(Relaxed).max(1);
        let first = (OF_CONNECTIONS / connections).min(FIRST as usize);
        first / stopped.max(1).pow(2)
    }
}

/// At most `bytes`, in few steps: or each byte that anybody reads would change windows.
pub(super) fn in_steps(bytes: usize) -> usize {
    let least = 1 << (usize::BITS - bytes.leading_zeros()).saturating_sub(3);
    bytes / least * least
}

/// What is left of `bytes` for each where so many are beyond `many`: all of them together have twice as much as
/// the first.
pub(super) fn falling(bytes: usize, many: usize, beyond: usize) -> usize {
    if beyond <= many { bytes } else { bytes * many * many / (beyond * beyond) }
}
