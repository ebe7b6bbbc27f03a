//! How many frames that bring nothing a peer may send before it counts as flooding.

use std::time::Duration;

use tokio::time::Instant;

/// Frames that bring nothing, within [`WITHIN`] and beyond what is earned: an honest peer sends one for some that bring
/// something, and a few a minute of its own accord. To bear so many takes a tenth of a second of a thread, in turns.
/// With less, one that comes back each time it is cut would cost more by its handshakes than by its frames.
const MOST: u32 = 100_000;
const WITHIN: Duration = Duration::from_secs(10);

/// What DATA for a program earns, and a kilobyte that is sent: the receiver of either opens two windows, or measures
/// the delay by a PING.
pub(super) const OF_DATA: u32 = 2;

/// What a request or an answer earns.
pub(super) const OF_HEADERS: u32 = 4;

/// What a request costs that its peer gives up before it is answered (CVE-2023-44487): somebody has looked for its
/// destination, and connected to it. Honest peers give up 500 a second at most.
pub(super) const GIVEN_UP: u32 = 20;

/// What a request costs by which its peer breaks a rule. Honest peers break none.
pub(super) const BROKEN: u32 = 500;

/// Counts what one peer sends.
pub(super) struct Calm {
    left: u32,
    since: Instant,
}

impl Default for Calm {
    fn default() -> Self {
        Self { left: MOST, since: Instant::now() }
    }
}

impl Calm {
    /// Something came, or was sent.
    pub(super) fn earn(&mut self, frames: u32) {
        self.left = self.left.saturating_add(frames).min(MOST);
    }

    /// Something came that is worth so many frames that bring nothing; false if those are too many.
    pub(super) fn spend(&mut self, frames: u32) -> bool {
        self.left = self.left.saturating_sub(frames);
        if self.left > 0 {
            return true;
        }
        let now = Instant::now();
        self.left = MOST;
        now - std::mem::replace(&mut self.since, now) >= WITHIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_one_whatever_came_before() {
        for quiet in [Duration::ZERO, 100 * WITHIN] {
            let mut calm = Calm::default();
            tokio::time::advance(quiet).await;
            let borne = (0..).take_while(|_| calm.spend(1)).count();
            assert!((MOST as usize - 1..2 * MOST as usize).contains(&borne), "{borne}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_its_time_and_who_brings_something_is_borne_for_ever() {
        let mut calm = Calm::default();
        for _ in 0..10 * MOST {
            assert!(calm.spend(OF_DATA));
            calm.earn(OF_DATA);
        }
        for _ in 0..100 {
            assert!((0..MOST / 4).all(|_| calm.spend(1)));
            tokio::time::advance(WITHIN / 2).await;
        }
    }
}
