//! How many frames that bring nothing a peer may send before it counts as flooding.

use std::time::Duration;

use tokio::time::Instant;

/// Frames that bring nothing, within [`WITHIN`] and beyond what is earned: an honest peer sends one for some that bring
/// something, and a few a minute of its own accord. To bear so many takes a tenth of a second of a thread, in turns.
/// With less, one that comes back each time it is cut would cost more by its handshakes than by its frames.
const MOST: u32 = 100_000;
const WITHIN: Duration = Duration::from_secs(10);

/// What such a frame weighs. Others weigh less.
const FRAME: u32 = 256;

/// What a frame of DATA weighs: it goes by the library, and costs a thirtieth of one that does not. Each byte that a
/// program gains earns one of it, so that frames of one byte are a flood from 370 000 a second on, for ten seconds, and
/// frames of eight never. Programs that say a byte at a time are far from that: their proxy sends what it finds, and finds
/// more the less often it can look.
const DATA: u32 = 8;

/// The most that a frame of DATA earns, frames that bring nothing: who receives it opens two windows, or measures the
/// delay by a PING.
const EARNED_BY_DATA: u32 = 2;

/// What a request earns that becomes a tunnel: itself, the stream's window that its peer opens, and the trailers that may
/// end it. One that is refused earns nothing, however many there are.
const EARNED_BY_TUNNEL: u32 = 3;

/// What a request costs that its peer gives up before it is answered (CVE-2023-44487): somebody has looked for its
/// destination, and connected to it. Honest peers give up 500 a second at most.
pub(super) const GIVEN_UP: u32 = 20;

/// What a request costs by which its peer breaks a rule. Honest peers break none.
pub(super) const BROKEN: u32 = 500;

/// Counts what one peer sends.
pub(super) struct Calm {
    /// What may still come, by weight.
    left: u32,
    since: Instant,
}

impl Default for Calm {
    fn default() -> Self {
        Self { left: MOST * FRAME, since: Instant::now() }
    }
}

impl Calm {
    /// A frame of DATA has come, by which a program gains so many bytes, or none where nobody listens any more; false if
    /// there were too many with too few.
    pub(super) fn received(&mut self, bytes: u32) -> bool {
        let earned = bytes.min(EARNED_BY_DATA * FRAME);
        self.earn(earned.saturating_sub(DATA));
        self.weigh(DATA.saturating_sub(earned))
    }

    /// So many bytes of a program were sent.
    pub(super) fn sent(&mut self, bytes: usize) {
        self.earn(FRAME * (EARNED_BY_DATA + (bytes >> 10) as u32));
    }

    /// A request has become a tunnel.
    pub(super) fn opened(&mut self) {
        self.earn(FRAME * EARNED_BY_TUNNEL);
    }

    /// Something came that is worth so many frames that bring nothing; false if those are too many.
    pub(super) fn spend(&mut self, frames: u32) -> bool {
        self.weigh(frames.saturating_mul(FRAME))
    }

    fn earn(&mut self, weight: u32) {
        self.left = self.left.saturating_add(weight).min(MOST * FRAME);
    }

    fn weigh(&mut self, weight: u32) -> bool {
        self.left = self.left.saturating_sub(weight);
        if self.left > 0 {
            return true;
        }
        let now = Instant::now();
        self.left = MOST * FRAME;
        now - std::mem::replace(&mut self.since, now) >= WITHIN
    }
}

#[cfg(test)]
impl Calm {
    /// Almost nothing may come any more.
    pub(super) fn nearly_spent(&mut self) {
        self.left = FRAME;
    }
}

#[cfg(test)]
#[path = "calm_tests.rs"]
mod tests;
