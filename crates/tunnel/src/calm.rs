//! Flood protection: how many HTTP/2 frames without use a peer may send before it counts as flooding. Useful frames
//! (a program's bytes, accepted requests) earn the peer further frames.

use std::time::Duration;

use tokio::time::Instant;

/// The time in which a peer must not use up what it may send.
const WITHIN: Duration = Duration::from_secs(10);

/// Weight of a frame without use. Others weigh less.
const FRAME: u32 = 256;

/// Weight of a frame of DATA. It does not pass through the library, and costs a thirtieth of a frame that does. Each byte
/// for a program earns a weight of one. So frames of one byte are a flood if there are more than 370 000 a second for ten
/// seconds, and frames of eight bytes never are. Programs that write single bytes stay far below that, because their proxy
/// puts all bytes that it finds at once into one frame, and finds more under load.
const DATA: u32 = 8;

/// Most frames without use that a frame of DATA earns: its receiver answers with two WINDOW_UPDATEs, or measures the delay
/// with a PING.
const EARNED_BY_DATA: u32 = 2;

/// Frames that a request earns if it becomes a tunnel: the request itself, a WINDOW_UPDATE, and the trailers that may end
/// the stream. A refused request earns nothing.
const EARNED_BY_TUNNEL: u32 = 3;

/// Counts what one peer sends.
#[derive(Debug)]
pub struct Calm {
    /// The weight that may come within [`WITHIN`], besides what is earned.
    most: u32,
    /// The weight that may still come.
    left: u32,
    since: Instant,
}

impl Calm {
    /// For a peer that may send this many frames without use within ten seconds, besides what it earns; at most sixteen
    /// million.
    pub fn bearing(frames: u32) -> Self {
        let most = frames.saturating_mul(FRAME);
        Self { most, left: most, since: Instant::now() }
    }

    /// A frame of DATA has come, with this many bytes for a program; none if the program no longer reads. Returns false if
    /// the peer floods.
    pub fn received(&mut self, bytes: u32) -> bool {
        let earned = bytes.min(EARNED_BY_DATA * FRAME);
        self.earn(earned.saturating_sub(DATA));
        self.weigh(DATA.saturating_sub(earned))
    }

    /// This many bytes of a program were sent.
    pub fn sent(&mut self, bytes: usize) {
        self.earn(FRAME * (EARNED_BY_DATA + (bytes >> 10) as u32));
    }

    /// A request has become a tunnel.
    pub fn opened(&mut self) {
        self.earn(FRAME * EARNED_BY_TUNNEL);
    }

    /// Something came that costs as much as this many frames without use. Returns false if the peer floods.
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
    /// Leaves the peer with room for one frame.
    pub(crate) fn nearly_spent(&mut self) {
        self.left = FRAME;
    }
}

#[cfg(test)]
#[path = "calm_tests.rs"]
mod tests;
