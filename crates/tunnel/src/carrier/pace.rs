//! Whether what is sent now is likely to be all for a while.

use std::cell::Cell;

thread_local! {
    /// How often this thread has gone to sleep.
    static SLEEPS: Cell<u64> = const { Cell::new(0) };
}

/// Says that this thread has nothing left to do and is about to sleep. Where that is said, what a
/// stream sends leaves at once as long as each waking of the thread brings one message; where it
/// is not, and where there are more, it leaves when the others have had their turn, all of it in
/// one record and one system call.
pub fn thread_sleeps() {
    SLEEPS.set(SLEEPS.get().wrapping_add(1));
}

/// How many messages one waking of the thread brings.
#[derive(Default)]
pub(super) struct Pace {
    sleeps: u64,
    sent: u32,
    /// The waking before brought one at most.
    single: bool,
}

impl Pace {
    /// One more is sent; says whether it is likely to be the only one.
    pub(super) fn one_more(&mut self) -> bool {
        let sleeps = SLEEPS.get();
        if sleeps != self.sleeps {
            *self = Self { sleeps, sent: 0, single: self.sent <= 1 };
        }
        self.sent = self.sent.saturating_add(1);
        self.single && self.sent == 1
    }
}
