//! How many HTTP/2 frames that bring nothing a peer may send before it counts as flooding.

use std::time::Duration;

use tokio::time::Instant;

/// Within so long.
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

/// Counts what one peer sends.
#[derive(Debug)]
pub struct Calm {
    /// What may come within [`WITHIN`], beyond what is earned, by weight.
    most: u32,
    /// What of it may still come.
    left: u32,
    since: Instant,
}

impl Calm {
    /// For a peer that may send so many frames that bring nothing within ten seconds, beyond what is earned; at most
    /// sixteen million.
    pub fn bearing(frames: u32) -> Self {
        let most = frames.saturating_mul(FRAME);
        Self { most, left: most, since: Instant::now() }
    }

    /// A frame of DATA has come, by which a program gains so many bytes, or none where nobody listens any more; false if
    /// there were too many with too few.
    pub fn received(&mut self, bytes: u32) -> bool {
        let earned = bytes.min(EARNED_BY_DATA * FRAME);
        self.earn(earned.saturating_sub(DATA));
        self.weigh(DATA.saturating_sub(earned))
    }

    /// So many bytes of a program were sent.
    pub fn sent(&mut self, bytes: usize) {
        self.earn(FRAME * (EARNED_BY_DATA + (bytes >> 10) as u32));
    }

    /// A request has become a tunnel.
    pub fn opened(&mut self) {
        self.earn(FRAME * EARNED_BY_TUNNEL);
    }

    /// Something came that is worth so many frames that bring nothing; false if those are too many.
    pub fn spend(&mut self, frames: u32) -> bool {
        self.weigh(frames.saturating_mul(FRAME))
    }

    fn earn(&mut self, weight: u32) {
        self.left = self.left.saturating_add(weight).min(self.most);
    }

    fn weigh(&mut self, weight: u32) -> bool {
        self.left = self.left.saturating_sub(weight);
        if self.left > 0 {
            return true;
        }
        let now = Instant::now();
        self.left = self.most;
        now - std::mem::replace(&mut self.since, now) >= WITHIN
    }
}

#[cfg(test)]
impl Calm {
    /// Almost nothing may come any more.
    pub(crate) fn nearly_spent(&mut self) {
        self.left = FRAME;
    }
}

#[cfg(test)]
#[path = "calm_tests.rs"]
mod tests;
