//! How much a connection, and each of its streams, may receive while some programs don't read.
//!
//! HTTP/2 gives a connection one receive window for all its streams. What programs that have
//! stopped reading leave in it, nobody else can use: a few of them fill it, and all their
//! neighbours wait. So it grows by what its streams hold, out of a budget that all connections of
//! the process share.
//!
//! Each stream has a window of its own, which bounds what waits for its program. It is as large as
//! a fast program far away needs, as long as little waits in the process. The more waits, the less
//! the next program that stops may leave waiting: thousands of them together hold little more than
//! [`WindowBudget::with_unread`] says. A program that reads on earns a larger window by that; but it may
//! stop as well, and what its peer was told that it may send can't be taken back. So what is earned comes
//! out of a sum of its own, half of the budget: those that read on share what those that have stopped
//! leave of it, and give way to each other with each byte they read.
//!
//! Whatever others leave waiting, a stream has a window on which it goes on, smaller with the number
//! of streams that have stopped; the streams of its own connection count most, which are between the
//! same two pods.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::task::Context;

use crate::waking::{Registered, Sleeper};

/// Largest window, bytes (RFC 9113 §6.9.1).
const LARGEST: usize = (1 << 31) - 1;

/// What all connections of a process together may receive beyond their own windows. Clones are
/// one.
#[derive(Debug, Clone)]
pub struct WindowBudget(Arc<Shares>);

/// The window of a stream before it is open, bytes: what may come with the request. It is told with the settings and
/// can't follow what waits; what follows is told with the stream's own headers, and so costs no time.
pub(crate) const BEFORE: u32 = 4 << 10;

/// The window of a stream of whose program nothing is known, bytes, while little waits. The kernel
/// takes so much for a program before that reads a byte, so nothing of it waits here.
const FIRST: u32 = 64 << 10;

/// What a stream may leave waiting however much there is already, bytes: without a window, its program
/// would be asked for nothing. With the first [`MANY`] streams it is the one, with the last of very
/// many the other; in between it falls with the square of their number, so that all of them together
/// leave little more than the first.
const LEAST: (usize, usize) = (256, 4 << 10);
const MANY: usize = 512;

/// Streams that may have stopped before a program that reads on has less than [`FIRST`], though all that may
/// be earned is used up. From there it falls as [`LEAST`] does.
const SOME: usize = 64;

/// What all connections together may leave waiting for the first stream of each that stops, bytes. The next one
/// on it has a quarter of that, the third a ninth: who shares no connection with those that have stopped goes on.
const OF_CONNECTIONS: usize = 1 << 20;

/// What may wait for programs that don't read, unless said otherwise, bytes.
const UNREAD: usize = 16 << 20;

#[derive(Debug)]
struct Shares {
    limit: usize,
    used: AtomicUsize,
    /// What is to wait at most for programs that don't read.
    unread: usize,
    /// What waits for programs that are not known to read.
    waiting: AtomicUsize,
    /// What streams may receive beyond [`FIRST`] whose programs are not known to read.
    promised: AtomicUsize,
    /// What waits for programs that have read.
    left: AtomicUsize,
    /// What waits for such programs and may yet come for them; as long as nothing waits, beyond [`FIRST`] for each.
    earned: AtomicUsize,
    streams: AtomicUsize,
    /// Streams, and connections with streams, for which something waits.
    stopped: AtomicUsize,
    stopped_connections: AtomicUsize,
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
    fn take(&self, wanted: usize) -> usize {
        let room = |used| wanted.min(self.0.limit - used);
        let more = |used| (room(used) > 0).then(|| used + room(used));
        self.0.used.fetch_update(Relaxed, Relaxed, more).map_or(0, room)
    }

    fn give_back(&self, bytes: usize) {
        self.0.used.fetch_sub(bytes, Relaxed);
    }
}

impl Shares {
    /// The window of a stream whose program is not known to read, and that is promised so many bytes.
    fn unknown(&self, promised: u32) -> usize {
        let others = self.promised.load(Relaxed).saturating_sub(promised as usize);
        let waiting = self.waiting.load(Relaxed);
        // A quarter of what is left: it is never used up, but for what everybody may have.
        let left = self.unread.saturating_sub(waiting + others) / 4;
        // What is merely promised makes no window smaller than all begin with, nor do a few programs that have stopped.
        if waiting < self.unread / 2 { left.max(FIRST as usize) } else { left }
    }

    /// The largest window that one may have of what is earned which has so much of it: half of what the others
    /// leave, so that who comes later finds something, too.
    fn earned(&self, own: u32) -> usize {
        let others = self.earned.load(Relaxed).saturating_sub(own as usize);
        in_steps((self.limit / 2).saturating_sub(others) / 2)
    }

    /// What a stream may have beside those of its connection that have stopped, whatever waits.
    fn beside(&self, stopped: usize) -> usize {
        let connections = self.stopped_connections.load(Relaxed).max(1);
        let first = (OF_CONNECTIONS / connections).min(FIRST as usize);
        first / stopped.max(1).pow(2)
    }
}

/// At most `bytes`, in few steps: or each byte that anybody reads would change windows.
fn in_steps(bytes: usize) -> usize {
    let least = 1 << (usize::BITS - bytes.leading_zeros()).saturating_sub(3);
    bytes / least * least
}

/// What is left of `bytes` for each where so many are beyond `many`: all of them together have twice as much as
/// the first.
fn falling(bytes: usize, many: usize, beyond: usize) -> usize {
    if beyond <= many { bytes } else { bytes * many * many / (beyond * beyond) }
}

/// What the streams of one connection hold, and who is told when that is much more or less.
#[derive(Debug)]
pub(crate) struct Ledger {
    held: AtomicUsize,
    /// Streams that hold something.
    stopped: AtomicUsize,
    /// The connection's task is woken when `held` gets below or above; set again in its turn.
    low: AtomicUsize,
    high: AtomicUsize,
    task: Sleeper,
    budget: WindowBudget,
}

impl Ledger {
    fn hold(&self, bytes: usize) {
        let held = self.held.fetch_add(bytes, SeqCst) + bytes;
        if held > self.high.load(SeqCst) && self.high.swap(usize::MAX, SeqCst) != usize::MAX {
            self.task.wake();
        }
    }

    /// One stream more holds something, or one less.
    fn stopped(&self, more: bool) {
        let shares = &*self.budget.0;
        if more {
            shares.stopped.fetch_add(1, Relaxed);
            if self.stopped.fetch_add(1, Relaxed) == 0 {
                shares.stopped_connections.fetch_add(1, Relaxed);
            }
        } else {
            shares.stopped.fetch_sub(1, Relaxed);
            if self.stopped.fetch_sub(1, Relaxed) == 1 {
                shares.stopped_connections.fetch_sub(1, Relaxed);
            }
        }
    }

    fn give_back(&self, bytes: usize) {
        let held = self.held.fetch_sub(bytes, SeqCst) - bytes;
        if held < self.low.load(SeqCst) && self.low.swap(0, SeqCst) != 0 {
            self.task.wake();
        }
    }
}

/// What one stream has handed out and not been told to have left the process. Counts as gone when
/// dropped.
pub(crate) struct Held {
    ledger: Arc<Ledger>,
    /// A stream's window bounds it.
    bytes: u32,
    /// What is counted of the stream among what is promised or, if its program has read, among what is earned.
    claim: u32,
    has_read: bool,
}

impl Held {
    pub(crate) fn new(ledger: Arc<Ledger>) -> Self {
        ledger.budget.0.streams.fetch_add(1, Relaxed);
        Self { ledger, bytes: 0, claim: 0, has_read: false }
    }

    fn shares(&self) -> &Shares {
        &self.ledger.budget.0
    }

    /// What waits for programs of its kind.
    fn waiting(&self) -> &AtomicUsize {
        let shares = self.shares();
        if self.has_read { &shares.left } else { &shares.waiting }
    }

    /// What the stream's window is to be, if it may be `largest` and its program is known to have read so much.
    pub(crate) fn window(&mut self, largest: u32, read: u64) -> u32 {
        if read > 0 && !self.has_read {
            self.claim(0);
            self.waiting().fetch_sub(self.bytes as usize, Relaxed);
            self.has_read = true;
            self.waiting().fetch_add(self.bytes as usize, Relaxed);
        }
        let shares = self.shares();
        let beside = shares.beside(self.ledger.stopped.load(Relaxed));
        let window = if self.has_read {
            let earned = shares.unknown(0).max(read as usize).next_power_of_two().min(shares.earned(self.claim));
            let least = falling(FIRST as usize, SOME, shares.stopped.load(Relaxed)).max(LEAST.0);
            earned.max(least)
        } else {
            let least = falling(LEAST.1, MANY, shares.streams.load(Relaxed)).max(LEAST.0);
            in_steps(shares.unknown(self.claim).max(least))
        };
        window.max(beside).min(largest as usize) as u32
    }

    /// Whether so much waits in the process that what surrounds it counts.
    pub(crate) fn is_much(&self) -> bool {
        let shares = self.shares();
        shares.waiting.load(Relaxed) + shares.left.load(Relaxed) >= shares.unread / 4
    }

    /// So many bytes may still come, whether or not the program reads on.
    pub(crate) fn promise(&mut self, bytes: u32) {
        let claim = match self.bytes {
            // Of what the kernel takes nothing waits, if the program comes to stop.
            0 => bytes.saturating_sub(FIRST),
            held if self.has_read => held + bytes,
            _ => bytes.saturating_sub(FIRST),
        };
        self.claim(claim);
    }

    fn claim(&mut self, bytes: u32) {
        let before = std::mem::replace(&mut self.claim, bytes);
        let shares = self.shares();
        let all = if self.has_read { &shares.earned } else { &shares.promised };
        if bytes > before {
            all.fetch_add((bytes - before) as usize, Relaxed);
        } else if bytes < before {
            all.fetch_sub((before - bytes) as usize, Relaxed);
        }
    }

    /// So many bytes more were received.
    pub(crate) fn hold(&mut self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        if self.bytes == 0 {
            self.ledger.stopped(true);
        }
        self.bytes += bytes as u32;
        self.waiting().fetch_add(bytes, Relaxed);
        self.ledger.hold(bytes);
    }

    /// So many bytes have left this process, or all that are held; says how many.
    pub(crate) fn give_back(&mut self, bytes: usize) -> usize {
        let bytes = bytes.min(self.bytes as usize);
        if bytes == 0 {
            return 0;
        }
        self.bytes -= bytes as u32;
        if self.bytes == 0 {
            self.ledger.stopped(false);
        }
        self.waiting().fetch_sub(bytes, Relaxed);
        self.ledger.give_back(bytes);
        bytes
    }
}

#[cfg(test)]
impl Held {
    /// Bytes held by this one and by all of the connection.
    pub(crate) fn all(&self) -> (usize, usize) {
        (self.bytes as usize, self.ledger.held.load(Relaxed))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.give_back(usize::MAX);
        self.claim(0);
        self.ledger.budget.0.streams.fetch_sub(1, Relaxed);
    }
}

/// The receive window of one connection, in the hands of its task. What it took from the budget
/// goes back when it is dropped.
pub(crate) struct Window {
    ledger: Arc<Ledger>,
    budget: WindowBudget,
    /// Bytes it has without the budget.
    base: usize,
    /// Bytes it has from the budget.
    granted: usize,
    /// With the ledger's `task`.
    registered: Registered,
}

impl Window {
    pub(crate) fn new(base: u32, budget: WindowBudget) -> Self {
        let (low, high) = (AtomicUsize::new(0), AtomicUsize::new(usize::MAX));
        let (held, stopped) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let task = Sleeper::default();
        let ledger = Arc::new(Ledger { held, stopped, low, high, task, budget: budget.clone() });
        Self { ledger, budget, base: base as usize, granted: 0, registered: Registered::default() }
    }

    pub(crate) fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// To be called in each turn of the connection's task, before HTTP/2's own, and the task is
    /// woken when it is due. Gives the window's new size if it changes.
    ///
    /// It grows as soon as it should, and shrinks only when about half of what is held has gone:
    /// what is in transit through fast streams rises and falls all the time.
    pub(crate) fn turn(&mut self, cx: &Context<'_>) -> Option<u32> {
        self.registered.renew(cx, &self.ledger.task);
        let before = self.granted;
        loop {
            let held = self.ledger.held.load(SeqCst);
            let wanted = self.wanted(held);
            if wanted > self.granted {
                self.granted += self.budget.take(wanted - self.granted);
            } else if held < self.low() {
                self.budget.give_back(self.granted - wanted);
                self.granted = wanted;
            }
            let (low, high) = (self.low(), self.high(held));
            set(&self.ledger.low, low);
            set(&self.ledger.high, high);
            // What changed before the bounds were set has woken nobody.
            if (low..=high).contains(&self.ledger.held.load(SeqCst)) {
                break;
            }
        }
        // Not more than `LARGEST`, for `wanted` is not.
        (self.granted != before).then_some((self.base + self.granted) as u32)
    }

    /// What may be held before the window grows: less than makes neighbours wait, and more than is
    /// in transit through a few fast streams.
    fn free(&self) -> usize {
        self.base / 4
    }

    /// What the window grows by.
    fn step(&self) -> usize {
        (self.base / 16).max(1)
    }

    /// What the window should have from the budget.
    fn wanted(&self, held: usize) -> usize {
        held.saturating_sub(self.free()).next_multiple_of(self.step()).min(LARGEST.saturating_sub(self.base))
    }

    /// The least that may be held before the window shrinks.
    fn low(&self) -> usize {
        if self.granted == 0 { 0 } else { (self.free() + self.granted) / 2 + 1 }
    }

    /// The most that may be held before the next turn is due, if so much is held in this one.
    fn high(&self, held: usize) -> usize {
        let high = self.free() + self.granted;
        // Beyond it already: the budget was used up. Asking at each byte would be of no help.
        if held > high { held + self.step() } else { high }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.budget.give_back(self.granted);
        // Streams may outlive the task; its memory must not live as long as they do.
        self.ledger.task.forget();
    }
}

/// Stores what is not there yet: most turns change nothing, and a store for all to see is dear.
fn set(bound: &AtomicUsize, to: usize) {
    if bound.load(SeqCst) != to {
        bound.store(to, SeqCst);
    }
}

#[cfg(test)]
#[path = "window_tests.rs"]
mod tests;
