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
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::Context;

use crate::waking::{Registered, Sleeper};

mod ledger;
mod shares;

pub(crate) use ledger::{Held, Ledger};
pub use shares::WindowBudget;

/// Largest window, bytes (RFC 9113 §6.9.1).
const LARGEST: usize = (1 << 31) - 1;

/// The window of a stream before it is open, bytes: what may come with the request. It is told with the settings and
/// can't follow what waits; what follows is told with the stream's own headers, and so costs no time.
pub(crate) const BEFORE: u32 = 4 << 10;

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
