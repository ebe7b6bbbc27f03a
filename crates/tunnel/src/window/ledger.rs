//! Counts the bytes that the streams of a connection hold for their programs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

use super::shares::{FIRST, LEAST, MANY, SOME, Shares, WindowBudget, falling, in_steps};
use crate::waking::Sleeper;

/// The bytes that the streams of one connection hold. It wakes the connection's task when there are much more or fewer.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub(super) held: AtomicUsize,
    /// The number of streams that hold bytes.
    pub(super) stopped: AtomicUsize,
    /// The connection's task is woken when `held` gets below `low` or above `high`. Its turn sets both again.
    pub(super) low: AtomicUsize,
    pub(super) high: AtomicUsize,
    pub(super) task: Sleeper,
    pub(super) budget: WindowBudget,
}

impl Ledger {
    fn hold(&self, bytes: usize) {
        let held = self.held.fetch_add(bytes, SeqCst) + bytes;
        if held > self.high.load(SeqCst) && self.high.swap(usize::MAX, SeqCst) != usize::MAX {
            self.task.wake();
        }
    }

    /// One stream more holds bytes, or one less.
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

/// The received bytes of one stream that have not left the process. They count as gone when this is dropped.
pub(crate) struct Held {
    ledger: Arc<Ledger>,
    /// Bounded by the stream's window.
    pub(super) bytes: u32,
    /// The stream's part of `Shares::promised` or, if its program has read, of `Shares::earned`.
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

    /// The counter of bytes that wait for programs of its kind.
    fn waiting(&self) -> &AtomicUsize {
        let shares = self.shares();
        if self.has_read { &shares.left } else { &shares.waiting }
    }

    /// The window that the stream should have, at most `largest`, if its program is known to have read `read` bytes.
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

    /// Whether so many bytes wait in the process that the unused parts of their buffers matter.
    pub(crate) fn is_much(&self) -> bool {
        let shares = self.shares();
        shares.waiting.load(Relaxed) + shares.left.load(Relaxed) >= shares.unread / 4
    }

    /// The peer may still send this many bytes, whether or not the program reads on.
    pub(crate) fn promise(&mut self, bytes: u32) {
        let claim = match self.bytes {
            // If the program stops, the kernel still takes the first bytes, so these don't wait here.
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

    /// This many bytes more were received.
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

    /// This many bytes have left this process, or all that are held if these are fewer. Returns how many.
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
    /// Bytes held by this stream, and by all streams of the connection.
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
