//! How much a connection may receive while some of its programs don't read.
//!
//! HTTP/2 gives a connection one receive window for all its streams. What programs that have
//! stopped reading leave in it, nobody else can use: a few of them fill it, and all their
//! neighbours wait. So it grows by what its streams hold, out of a budget that all connections of
//! the process share. How much one stream can hold is not changed by that.

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

#[derive(Debug)]
struct Shares {
    limit: usize,
    used: AtomicUsize,
}

impl WindowBudget {
    /// A budget of so many bytes; with 0, no window ever grows.
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(Shares { limit: bytes, used: AtomicUsize::new(0) }))
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
}

impl Ledger {
    fn hold(&self, bytes: usize) {
        let held = self.held.fetch_add(bytes, SeqCst) + bytes;
        if held > self.high.load(SeqCst) && self.high.swap(usize::MAX, SeqCst) != usize::MAX {
            self.task.wake();
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
}

impl Held {
    pub(crate) fn new(ledger: Arc<Ledger>) -> Self {
        Self { ledger, bytes: 0 }
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
        let ledger = Arc::new(Ledger { held: AtomicUsize::new(0), low, high, task: Sleeper::default() });
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
