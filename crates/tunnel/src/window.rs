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
//! [`WindowBudget::with_unread`] says. A program that reads on earns a larger window by that.

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

/// The window of a stream that is told before anything is known of its program, bytes. The kernel
/// takes so much for a program before that reads a byte, so nothing of it waits here.
pub(crate) const FIRST: u32 = 64 << 10;

/// What a stream may leave waiting however much there is already, bytes: without a window, its program
/// would be asked for nothing. With the first [`MANY`] streams it is the one, with the last of very
/// many the other; in between it falls with the square of their number, so that all of them together
/// leave little more than the first.
const LEAST: (usize, usize) = (256, 4 << 10);
const MANY: usize = 512;

/// What may wait for programs that don't read, unless said otherwise, bytes.
const UNREAD: usize = 16 << 20;

#[derive(Debug)]
struct Shares {
    limit: usize,
    used: AtomicUsize,
    /// What is to wait at most for programs that don't read.
    unread: usize,
    /// What waits for programs.
    waiting: AtomicUsize,
    /// What streams may receive beyond [`FIRST`] whose programs are not known to read.
    promised: AtomicUsize,
    streams: AtomicUsize,
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
            streams: none(),
        }))
    }

    /// Bytes that wait for programs.
    pub fn waiting(&self) -> usize {
        self.0.waiting.load(Relaxed)
    }

    /// The window, of `largest` bytes at most, of a stream whose program is known to have read so many
    /// bytes, and to which so many are promised.
    fn of_stream(&self, largest: u32, read: u64, promised: u32) -> u32 {
        let shares = &*self.0;
        let others = shares.promised.load(Relaxed).saturating_sub(promised as usize);
        let waiting = shares.waiting.load(Relaxed);
        let many = shares.streams.load(Relaxed).max(MANY);
        let least = (LEAST.1 * MANY * MANY / (many * many)).max(LEAST.0);
        // A quarter of what is left: it is never used up, but for what everybody may have.
        let left = shares.unread.saturating_sub(waiting + others) / 4;
        // What is merely promised makes no window smaller than all begin with, nor do a few programs that have stopped.
        let room = if waiting < shares.unread / 2 { left.max(FIRST as usize) } else { left };
        let window = room.max(least).max(read as usize);
        // In few steps, or each byte would change it.
        window.next_power_of_two().min(largest as usize) as u32
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

/// What the streams of one connection hold, and who is told when that is much more or less.
#[derive(Debug)]
pub(crate) struct Ledger {
    held: AtomicUsize,
    /// The connection's task is woken when `held` gets below or above; set again in its turn.
    low: AtomicUsize,
    high: AtomicUsize,
    task: Sleeper,
    budget: WindowBudget,
}

impl Ledger {
    fn hold(&self, bytes: usize) {
        self.budget.0.waiting.fetch_add(bytes, Relaxed);
        let held = self.held.fetch_add(bytes, SeqCst) + bytes;
        if held > self.high.load(SeqCst) && self.high.swap(usize::MAX, SeqCst) != usize::MAX {
            self.task.wake();
        }
    }

    fn give_back(&self, bytes: usize) {
        self.budget.0.waiting.fetch_sub(bytes, Relaxed);
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
    /// What of the stream's window is promised.
    promised: u32,
}

impl Held {
    pub(crate) fn new(ledger: Arc<Ledger>) -> Self {
        ledger.budget.0.streams.fetch_add(1, Relaxed);
        Self { ledger, bytes: 0, promised: 0 }
    }

    /// What the stream's window is to be, if it may be `largest` and its program has read so much.
    pub(crate) fn window(&self, largest: u32, read: u64) -> u32 {
        self.ledger.budget.of_stream(largest, read, self.promised)
    }

    /// So many bytes may still come for a program that is not known to read.
    pub(crate) fn promise(&mut self, bytes: u32) {
        let promised = bytes.saturating_sub(FIRST);
        let before = std::mem::replace(&mut self.promised, promised);
        let all = &self.ledger.budget.0.promised;
        if promised > before {
            all.fetch_add((promised - before) as usize, Relaxed);
        } else if promised < before {
            all.fetch_sub((before - promised) as usize, Relaxed);
        }
    }

    /// So many bytes more were received.
    pub(crate) fn hold(&mut self, bytes: usize) {
        self.bytes += bytes as u32;
        self.ledger.hold(bytes);
    }

    /// So many bytes have left this process, or all that are held; says how many.
    pub(crate) fn give_back(&mut self, bytes: usize) -> usize {
        let bytes = bytes.min(self.bytes as usize);
        self.bytes -= bytes as u32;
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
        self.ledger.give_back(self.bytes as usize);
        self.promise(0);
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
        let (held, task) = (AtomicUsize::new(0), Sleeper::default());
        let ledger = Arc::new(Ledger { held, low, high, task, budget: budget.clone() });
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
