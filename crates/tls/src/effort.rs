//! What a connection may make its thread do before the others on it have their turn.

use std::task::{Context, Poll, ready};

use tokio::task::coop::poll_proceed;

/// What one share of a task's turn pays for, bytes. Tokio gives a task 128 of these each time it is
/// polled, one of which every system call costs as well: so at most 1 MiB, and of the 256 KiB that a
/// tunnel reads in its turn, a quarter of all shares.
const SHARE: u32 = 8 << 10;

/// What opening a record costs besides its bytes, in bytes: at most 512 records in a turn, which
/// take about as long as the 256 KiB of a bulk transfer.
const RECORD: u32 = 2 << 10;

/// What a handshake message costs, in bytes: keys are derived for it.
const MESSAGE: u32 = 16 << 10;

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
        self.0 += RECORD + length as u32;
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
