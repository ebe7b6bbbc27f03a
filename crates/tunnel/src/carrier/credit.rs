//! A receive window, as its receiver keeps it (RFC 9113 §6.9).

/// The bytes that the peer may still send, and those that it will be granted.
#[derive(Debug)]
pub(super) struct Credit {
    /// Bytes that the peer may still send. Negative if it sent some before it knew the limit.
    available: i32,
    /// Bytes that it may send beyond that because it may not have heard of the limit yet.
    lenient: u16,
    /// Bytes that were consumed and that the peer was not told of yet.
    owed: u32,
    /// Bytes that the peer won't be told of when they are consumed, because the window shrinks.
    withheld: u32,
}

impl Credit {
    pub(super) fn new(window: u32) -> Self {
        Self::with_leniency(window, 0)
    }

    /// A window that the peer takes to be larger by `lenient` bytes until it hears of it (RFC 9113 §6.9.3).
    pub(super) fn with_leniency(window: u32, lenient: u16) -> Self {
        // At most 2^31-1, as any window.
        Self { available: window as i32, lenient, owed: 0, withheld: 0 }
    }

    /// The peer has sent this many bytes. Returns false if that exceeds the window.
    pub(super) fn take(&mut self, bytes: u32) -> bool {
        let rest = i64::from(self.available) - i64::from(bytes);
        if rest < -i64::from(self.lenient) {
            return false;
        }
        self.available = rest as i32;
        true
    }

    /// This many of the received bytes were consumed.
    pub(super) fn give(&mut self, bytes: u32) {
        let kept = bytes.min(self.withheld);
        self.withheld -= kept;
        self.owed += bytes - kept;
    }

    /// The increment to tell the peer now, if it is worth a frame: half as much as the peer may still send. Ask after
    /// each [`Credit::take`] as well. Otherwise the rest of the window could be used up by a stream whose bytes are
    /// never consumed.
    pub(super) fn due(&mut self) -> Option<u32> {
        if self.owed == 0 || i64::from(self.owed) < i64::from(self.available / 2) {
            return None;
        }
        self.available += self.owed as i32;
        Some(std::mem::take(&mut self.owed))
    }

    /// Bytes that the peer may still send, including those that it will be told of.
    pub(super) fn outstanding(&self) -> u32 {
        self.available.saturating_add_unsigned(self.owed).max(0) as u32
    }

    /// Changes the size of the window.
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
    /// The size of the window when everything received is consumed.
    pub(super) fn whole(&self) -> u32 {
        self.available as u32 + self.owed + self.withheld
    }

    /// Bytes that the peer may send now.
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
                // No waiting stream could be woken.
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
