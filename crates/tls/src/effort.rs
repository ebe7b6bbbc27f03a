//! How much work a connection may give its thread before the thread's other tasks have their turn.

use std::task::{Context, Poll, ready};

use tokio::task::coop::poll_proceed;

/// What one unit of a task's budget pays for, bytes. Tokio gives a task 128 units each time it is polled, and every
/// system call costs one as well. So a turn handles at most 1 MiB, and the 256 KiB that a tunnel reads per turn cost a
/// quarter of the budget.
const SHARE: u32 = 8 << 10;

/// The least that a record costs, bytes: at most 128 records in a turn.
const RECORD: u32 = SHARE;

/// The cost of a record with less than [`SMALL`] bytes: at most 32 in a turn, because each is handled by itself. With
/// 512 in a turn, another connection of the thread waited for milliseconds, with 128 for one millisecond. Each step of a request waits for a
/// turn.
const SMALL_RECORD: u32 = 4 * SHARE;
const SMALL: usize = 256;

/// The cost of a handshake message, bytes, because keys are derived for it. At most 25 in a turn.
const MESSAGE: u32 = 4 * SHARE;

/// The cost of received records that the task has not paid for yet, bytes.
///
/// Every record counts, whatever it carries. Otherwise a peer that sends padding, empty records or key changes would
/// keep the thread busy for as long as it can send.
#[derive(Debug, Default)]
pub(crate) struct Effort(u32);

impl Effort {
    /// A record of this length was opened.
    pub(crate) fn record(&mut self, length: usize) {
        // No record is longer than MAX_RECORD.
        self.0 += if length < SMALL { SMALL_RECORD } else { RECORD.max(length as u32) };
    }

    /// This many handshake messages were handled.
    pub(crate) fn messages(&mut self, count: u32) {
        self.0 = self.0.saturating_add(count.saturating_mul(MESSAGE));
    }

    /// If the task's budget is used up, waits for the next turn. The task is woken for it.
    pub(crate) fn poll_paid(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.0 >= SHARE {
            ready!(poll_proceed(cx)).made_progress();
            self.0 -= SHARE;
        }
        Poll::Ready(())
    }
}
