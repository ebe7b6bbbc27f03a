//! State that all connections of a process share: how many bytes may wait for programs, and each stream's part of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The bytes that all connections of a process together may receive beyond their own windows. Clones share it.
#[derive(Debug, Clone)]
pub struct WindowBudget(pub(super) Arc<Shares>);

/// The window of a stream, bytes, while nothing is known of its program and little waits. The kernel takes this much for a
/// program before the program reads a byte, so nothing of it waits here.
pub(super) const FIRST: u32 = 64 << 10;

/// Least and largest number of bytes that a stream may leave waiting however much waits already: without a window, it could
/// never make progress. Each of up to [`MANY`] streams may leave the larger number. Beyond that, the number falls with the
/// square of the number of streams, down to the smaller one, so that all together leave little more than the first [`MANY`].
pub(super) const LEAST: (usize, usize) = (256, 4 << 10);
pub(super) const MANY: usize = 512;

/// How many streams may have stopped before a program that reads on gets less than [`FIRST`], even if all earned windows are
/// used up. Beyond that, its window falls as [`LEAST`] does.
pub(super) const SOME: usize = 64;

/// Bytes that may wait for the first stopped stream of each connection, for all connections together. The second stopped
/// stream of a connection may have a quarter of the first one's share, the third a ninth. So a stream whose connection has
/// no stopped streams goes on.
const OF_CONNECTIONS: usize = 1 << 20;

/// Default of the bytes that may wait for programs that don't read.
const UNREAD: usize = 16 << 20;

#[derive(Debug)]
pub(super) struct Shares {
    pub(super) limit: usize,
    pub(super) used: AtomicUsize,
    /// Most bytes that should wait for programs that don't read.
    pub(super) unread: usize,
    /// Bytes that wait for programs that are not known to read.
    pub(super) waiting: AtomicUsize,
    /// Bytes that streams whose programs are not known to read may receive beyond [`FIRST`].
    pub(super) promised: AtomicUsize,
    /// Bytes that wait for programs that have read.
    pub(super) left: AtomicUsize,
    /// Bytes that wait for such programs or may still come for them. A stream for which nothing waits counts only beyond
    /// [`FIRST`].
    pub(super) earned: AtomicUsize,
    pub(super) streams: AtomicUsize,
    /// Streams for which bytes wait, and connections with such streams.
    pub(super) stopped: AtomicUsize,
    pub(super) stopped_connections: AtomicUsize,
}

impl WindowBudget {
    /// A budget of this many bytes. With 0, no window ever grows.
    pub fn new(bytes: usize) -> Self {
        Self::with_unread(bytes, UNREAD)
    }

    /// As [`WindowBudget::new`], with a limit on the bytes that all streams together may hold for programs that don't read.
    /// Each stream may hold a little beyond it.
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

    /// Bytes by which connections' windows are larger now than at their start.
    pub fn used(&self) -> usize {
        self.0.used.load(Relaxed)
    }

    /// Takes as much of `wanted` as is left. Returns how much.
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
    /// The window of a stream whose program is not known to read. `promised` is the stream's own part of what is promised.
    pub(super) fn unknown(&self, promised: u32) -> usize {
        let others = self.promised.load(Relaxed).saturating_sub(promised as usize);
        let waiting = self.waiting.load(Relaxed);
        // A quarter of what is left, so that it is never used up.
        let left = self.unread.saturating_sub(waiting + others) / 4;
        // Promises alone, and a few programs that have stopped, don't make a window smaller than the first one.
        if waiting < self.unread / 2 { left.max(FIRST as usize) } else { left }
    }

    /// The largest window that a stream may earn: half of what the others leave, so that later streams get something, too.
    /// `own` is the stream's part of what is earned.
    pub(super) fn earned(&self, own: u32) -> usize {
        let others = self.earned.load(Relaxed).saturating_sub(own as usize);
        in_steps((self.limit / 2).saturating_sub(others) / 2)
    }

    /// The least window of a stream whose connection has this many stopped streams, whatever else waits.
    pub(super) fn beside(&self, stopped: usize) -> usize {
        let connections = self.stopped_connections.load(Relaxed).max(1);
        let first = (OF_CONNECTIONS / connections).min(FIRST as usize);
        first / stopped.max(1).pow(2)
    }
}

/// `bytes`, rounded down to one of few steps. Otherwise each byte that a program reads would change windows.
pub(super) fn in_steps(bytes: usize) -> usize {
    let least = 1 << (usize::BITS - bytes.leading_zeros()).saturating_sub(3);
    bytes / least * least
}

/// The share of a stream when there are `beyond` of them: `bytes`, or less if there are more than `many`. It falls with the
/// square of their number, so that all together get at most twice as much as the first `many`.
pub(super) fn falling(bytes: usize, many: usize, beyond: usize) -> usize {
    if beyond <= many { bytes } else { bytes * many * many / (beyond * beyond) }
}
