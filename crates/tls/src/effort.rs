//! What a connection may make its thread do before the others on it have their turn.

use std::task::{Context, Poll, ready};

use tokio::task::coop::poll_proceed;

/// What one share of a task's turn pays for, bytes. Tokio gives a task 128 of these each time it is
/// polled, one of which every system call costs as well: so at most 1 MiB, and of the 256 KiB that a
/// tunnel reads in its turn, a quarter of all shares.
const SHARE: u32 = 8 << 10;

/// What a record costs at least, bytes: at most 128 records in a turn.
const RECORD: u32 = SHARE;

/// What a record costs that has less than [`SMALL`] bytes: at most 32 in a turn, for each is taken apart by
/// itself. Of 512, a neighbour was seen to wait for milliseconds, of 128 for one: each step of a request's
/// way waits for a turn.
const SMALL_RECORD: u32 = 4 * SHARE;
const SMALL: usize = 256;

/// What a handshake message costs, in bytes: keys are derived for it. At most 25 in a turn.
const MESSAGE: u32 = 4 * SHARE;

/// What records have cost that was not paid for yet, in bytes.
///
/// It counts what comes, not what that brings: a peer that sends padding, empty records or changes of
/// keys would otherwise keep the thread for as long as it can send.
#[derive(Debug, Default)]
pub(crate) struct Effort(u32);

impl Effort {
    /// A record was opened that took so many bytes.
    pub(crate) fn record(&mut self, length: usize) {
        // No record has more than MAX_RECORD.
        self.0 += if length < SMALL { SMALL_RECORD } else { RECORD.max(length as u32) };
    }

    /// So many handshake messages were understood.
    pub(crate) fn messages(&mut self, count: u32) {
        self.0 = self.0.saturating_add(count.saturating_mul(MESSAGE));
    }

    /// Waits, once the task's turn is used up, for the next one; the task is woken for that.
    pub(crate) fn poll_paid(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.0 >= SHARE {
            ready!(poll_proceed(cx)).made_progress();
            self.0 -= SHARE;
        }
        Poll::Ready(())
    }
}
