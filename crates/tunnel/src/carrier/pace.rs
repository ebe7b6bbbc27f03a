//! Predicts whether a message that is sent now is the only one for a while.

use std::cell::Cell;

thread_local! {
    /// How many times this thread has gone to sleep.
    static SLEEPS: Cell<u64> = const { Cell::new(0) };
}

/// Tells that this thread has nothing left to do and is about to sleep. On threads that call this, a stream's message
/// is sent at once as long as each wake-up of the thread brings one message. Otherwise messages are sent when the other
/// tasks have had their turn, together in one record and one system call.
pub fn thread_sleeps() {
    SLEEPS.set(SLEEPS.get().wrapping_add(1));
}

/// Counts the messages of each wake-up of the thread.
#[derive(Default)]
pub(super) struct Pace {
    sleeps: u64,
    sent: u32,
    /// Whether the previous wake-up brought at most one.
    single: bool,
}

impl Pace {
    /// Counts one more message. Returns whether it is likely to be the only one.
    pub(super) fn one_more(&mut self) -> bool {
        let sleeps = SLEEPS.get();
        if sleeps != self.sleeps {
            *self = Self { sleeps, sent: 0, single: self.sent <= 1 };
        }
        self.sent = self.sent.saturating_add(1);
        self.single && self.sent == 1
    }
}
