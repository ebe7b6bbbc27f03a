//! Why the listener ends a connection, told once a second at most.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// A flood must not become a flood of lines.
const PAUSE: Duration = Duration::from_secs(1);

/// Why a connection to the control plane gets no place, or loses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    /// All places are taken, and its address has more than its share of them.
    #[error("this address has its share of the connections without a token, and there is no place for more")]
    Share,
    /// Another one wanted the place.
    #[error("too many connections without a token; this one had waited longest")]
    GaveWay,
    /// It never said who it is.
    #[error("no request with a good token came in time")]
    NoRequest,
    /// Too many proxies.
    #[error("this control plane has as many proxies as it may have; raise --max-connections or start another one")]
    Full,
}

/// Lets one of many lines through a second.
#[derive(Debug, Default)]
pub(crate) struct Gate(Mutex<(Option<Instant>, u64)>);

impl Gate {
    /// Whether to speak now; if so, how many kept silent since the last one that spoke.
    pub(crate) fn pass(&self) -> Option<u64> {
        let mut state = self.0.lock();
        let now = Instant::now();
        if state.0.is_some_and(|last| now.duration_since(last) < PAUSE) {
            state.1 += 1;
            return None;
        }
        state.0 = Some(now);
        Some(std::mem::take(&mut state.1))
    }
}

/// Tells of refusals.
#[derive(Debug, Default)]
pub(crate) struct Refusals([Gate; 4]);

impl Refusals {
    pub(crate) fn tell(&self, refusal: Refusal, peer: SocketAddr) {
        if let Some(untold) = self.0[refusal as usize].pass() {
            tracing::warn!(%peer, reason = %refusal, untold, "control plane connection refused");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second() {
        let gate = Gate::default();
        assert_eq!(gate.pass(), Some(0));
        assert_eq!((gate.pass(), gate.pass()), (None, None));
        gate.0.lock().0 = Instant::now().checked_sub(PAUSE);
        assert_eq!(gate.pass(), Some(2));
    }
}
