//! The receive windows of connections and streams, while some programs don't read.
//!
//! HTTP/2 gives a connection one receive window for all its streams. What waits in it for programs that have stopped
//! reading can't be used by others. A few such programs would fill it, and all their neighbours would wait. So the
//! connection's window of 16 MiB grows by what its streams hold, from a budget that all connections of the process
//! share (`LENO_WINDOW_BUDGET`, 64 MiB).
//!
//! Each stream has a window of its own, which bounds what waits for its program. A peer is told of it when the stream
//! opens; before, it has the 4 KiB that may come with a request. As long as little waits in the process, the window is
//! as large as a fast program far away needs: up to 4 MiB, or 64 KiB beside many streams that lie idle. The more waits
//! for programs that don't read (`LENO_UNREAD_BUDGET`, 16 MiB), the less the next program that stops may leave waiting.
//! So thousands of them together hold little more than [`WindowBudget::with_unread`] says.
//!
//! A program that keeps reading earns a larger window: each byte that it has read, beyond what a kernel takes for a
//! program that does not (`carrier::stream::Proof`), earns one. But it may stop as well, and what its peer was told
//! that it may send can't be taken back. So earned windows come out of a separate sum, half of the window budget. A
//! program that reads may have half of what the others leave of it, and gives way to others with each byte it reads.
//!
//! Beyond these sums, each stream has a small window, so that it can always make progress: 64 KiB beside up to 64
//! streams that have stopped, then less, with the square of their number, down to 256 bytes. The streams of its own
//! connection count most, because they are between the same two pods.

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

/// The window of a stream before it is open, bytes: what may come with the request. It is announced in the settings and
/// can't follow what waits. The stream's later window is announced with its own headers, which costs no time.
pub(crate) const BEFORE: u32 = 4 << 10;

/// The receive window of one connection, owned by its task. What it took from the budget is given back when it is
/// dropped.
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

    /// Call it in each turn of the connection's task, before HTTP/2's own. The task is woken when it is due. Returns
    /// the window's new size if it changes.
    ///
    /// It grows as soon as it should, and shrinks only when about half of what is held has gone, because what is in
    /// transit through fast streams rises and falls all the time.
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
            // A change before the bounds were set has woken nobody.
            if (low..=high).contains(&self.ledger.held.load(SeqCst)) {
                break;
            }
        }
        // At most `LARGEST`, because `wanted` is.
        (self.granted != before).then_some((self.base + self.granted) as u32)
    }

    /// What may be held before the window grows: less than what makes neighbours wait, more than what is in transit
    /// through a few fast streams.
    fn free(&self) -> usize {
        self.base / 4
    }

    /// The step by which the window grows.
    fn step(&self) -> usize {
        (self.base / 16).max(1)
    }

    /// The part of the budget that the window should have.
    fn wanted(&self, held: usize) -> usize {
        held.saturating_sub(self.free()).next_multiple_of(self.step()).min(LARGEST.saturating_sub(self.base))
    }

    /// The least that may be held before the window shrinks.
    fn low(&self) -> usize {
        if self.granted == 0 { 0 } else { (self.free() + self.granted) / 2 + 1 }
    }

    /// The most that may be held before the next turn is due, if this much is held now.
    fn high(&self, held: usize) -> usize {
        let high = self.free() + self.granted;
        // It is exceeded already, because the budget was used up. Asking at each byte would not help.
        if held > high { held + self.step() } else { high }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.budget.give_back(self.granted);
        // Streams may outlive the task, and must not keep its memory alive.
        self.ledger.task.forget();
    }
}

/// Stores a value that differs. Most turns change nothing, and storing shared values is expensive.
fn set(bound: &AtomicUsize, to: usize) {
    if bound.load(SeqCst) != to {
        bound.store(to, SeqCst);
    }
}

#[cfg(test)]
#[path = "window_tests.rs"]
mod tests;
