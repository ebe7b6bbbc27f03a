//! A receive window as its receiver keeps it (RFC 9113 §6.9).

/// What the peer may still send, and what it has yet to be told of.
#[derive(Debug)]
pub(super) struct Credit {
    /// The peer may still send so many bytes; less than nothing if it has sent some before it knew how many.
    available: i32,
    /// So many more are not held against it: it may not have heard yet.
    lenient: u16,
    /// So many more are consumed and not yet told of.
    owed: u32,
    /// So many will not be told of when they are consumed: the window shrinks.
    withheld: u32,
}

impl Credit {
    pub(super) fn new(window: u32) -> Self {
        Self::with_leniency(window, 0)
    }

    /// A window that the peer takes for larger by so many bytes until it hears of it (RFC 9113 §6.9.3).
    pub(super) fn with_leniency(window: u32, lenient: u16) -> Self {
        // Not more than 2^31-1, as any window.
        Self { available: window as i32, lenient, owed: 0, withheld: 0 }
    }

    /// The peer has sent so many bytes; false if it must not have.
    pub(super) fn take(&mut self, bytes: u32) -> bool {
        let rest = i64::from(self.available) - i64::from(bytes);
        if rest < -i64::from(self.lenient) {
            return false;
        }
        self.available = rest as i32;
        true
    }

    /// So many of the received bytes are consumed.
    pub(super) fn give(&mut self, bytes: u32) {
        let kept = bytes.min(self.withheld);
        self.withheld -= kept;
        self.owed += bytes - kept;
    }

    /// What the peer is to be told now, once it is worth a frame: half as much as the peer still
    /// may send. To be asked after each [`Credit::take`], too, or what is left of the window could
    /// go to one whose bytes are never consumed.
    pub(super) fn due(&mut self) -> Option<u32> {
        if self.owed == 0 || i64::from(self.owed) < i64::from(self.available / 2) {
            return None;
        }
        self.available += self.owed as i32;
        Some(std::mem::take(&mut self.owed))
    }

    /// What the peer may still send, or is to be told that it may.
    pub(super) fn outstanding(&self) -> u32 {
        self.available.saturating_add_unsigned(self.owed).max(0) as u32
    }

    /// The window is to be larger, or smaller, by so many bytes.
    pub(super) fn resize(&mut self, from: u32, to: u32) {
        if to > from {
            self.give(to - from);
        } else {
            self.withheld += from - to;
            let kept = self.owed.min(self.withheld);
            self.owed -= kept;
            self.withheld -= kept;
        }
    }
}

#[cfg(test)]
impl Credit {
    /// The window, if all that came is consumed.
    pub(super) fn whole(&self) -> u32 {
        self.available as u32 + self.owed + self.withheld
    }

    /// What the peer may send now.
    pub(super) fn open(&self) -> i64 {
        self.available.into()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Send(u32),
        Consume(u32),
        Resize(u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0u32..50).prop_map(Step::Send),
            (0u32..50).prop_map(Step::Consume),
            (100u32..300).prop_map(Step::Resize),
        ]
    }

    proptest! {
        #[test]
        fn the_peer_never_has_more_than_the_window_and_gets_all_of_it(steps in prop::collection::vec(step(), 0..200)) {
            let mut credit = Credit::new(100);
            // What the peer may send, what it has sent and nobody has consumed.
            let (mut window, mut peer, mut held, mut largest) = (100u32, 100u32, 0u32, 100u32);
            for step in steps {
                match step {
                    Step::Send(bytes) => {
                        let bytes = bytes.min(peer);
                        prop_assert!(credit.take(bytes));
                        peer -= bytes;
                        held += bytes;
                    }
                    Step::Consume(bytes) => {
                        let bytes = bytes.min(held);
                        credit.give(bytes);
                        held -= bytes;
                    }
                    Step::Resize(to) => {
                        credit.resize(window, to);
                        window = to;
                        largest = largest.max(to);
                    }
                }
                if let Some(more) = credit.due() {
                    peer += more;
                }
                prop_assert!(peer + held <= largest);
                prop_assert!(!credit.take(peer + 1));
                // Nobody waits who could be let on.
                prop_assert!(peer > 0 || held >= window);
            }
            credit.give(held);
            while let Some(more) = credit.due() {
                peer += more;
            }
            prop_assert!(peer + credit.owed + credit.withheld == window + 2 * credit.withheld, "{peer} {credit:?} {window}");
        }
    }
}
