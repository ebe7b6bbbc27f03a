//! How fast a client's frames without use are taken.
//!
//! Each costs the thread a microsecond or more, and its sender next to nothing. A client that sends a few at once, as all
//! do, waits for nothing. One that goes on is read no faster than the thread can bear beside its other clients, and the
//! window of its tunnel then holds it back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Frames without use that a client may send at once.
const BURST: u32 = 1000;

/// Frames without use that each client may send in a millisecond, in the long run.
const OWN: u32 = 1;

/// Frames without use that all clients of a thread may send in a millisecond, besides their own ones. One client alone
/// then sends more than it may send for ten seconds ([`crate::transport::h2_flood`]).
const COMMON: u32 = 16;

/// How many of these may come at once. A timer may be late by some milliseconds.
const COMMON_BURST: u32 = 4 * COMMON;

/// Frames that a client may answer with, whatever it is sent: two WINDOW_UPDATEs, or a PING that measures the delay.
const ANSWERS: u32 = 2;

/// How long a connection pauses that may send no more.
pub(crate) const PAUSE: Duration = Duration::from_millis(1);

/// What all clients of a thread may send.
#[derive(Debug)]
pub(crate) struct Common(Mutex<Credit>);

impl Default for Common {
    fn default() -> Self {
        Self(Mutex::new(Credit::new(COMMON, COMMON_BURST)))
    }
}

/// What one client may send.
#[derive(Debug)]
pub(crate) struct Pace {
    own: Credit,
    common: Arc<Common>,
}

impl Pace {
    pub(crate) fn new(common: Arc<Common>) -> Self {
        Self { own: Credit::new(OWN, BURST), common }
    }

    /// Something without use has come that costs as much as this many frames. Returns false if the client has to pause
    /// after it.
    pub(crate) fn take(&mut self, frames: u32) -> bool {
        if self.own.left >= frames {
            // The clock costs more than many a frame.
            self.own.left -= frames;
            return true;
        }
        self.take_at(frames, Instant::now())
    }

    fn take_at(&mut self, frames: u32, now: Instant) -> bool {
        self.own.take(frames, now) || self.common.0.lock().take(frames, now)
    }

    /// This many bytes of a program were sent to the client, which it may answer.
    pub(crate) fn sent(&mut self, bytes: usize) {
        self.own.left = self.own.left.saturating_add(ANSWERS + (bytes >> 10) as u32).min(BURST);
    }
}

/// Frames that may be sent now, and grow with time.
#[derive(Debug)]
struct Credit {
    /// How many more there are each millisecond.
    rate: u32,
    most: u32,
    left: u32,
    since: Instant,
}

impl Credit {
    fn new(rate: u32, most: u32) -> Self {
        Self { rate, most, left: most, since: Instant::now() }
    }

    fn take(&mut self, frames: u32, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.since).as_millis();
        if passed > 0 {
            self.since = now;
            let grown = self.rate.saturating_mul(u32::try_from(passed).unwrap_or(u32::MAX));
            self.left = self.left.saturating_add(grown).min(self.most);
        }
        let left = self.left.checked_sub(frames);
        self.left = left.unwrap_or(self.left);
        left.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many frames one client after the other may send at once.
    fn taken(clients: &mut [Pace], frames: u32, now: Instant) -> Vec<u32> {
        let one = |pace: &mut Pace| (0..10_000).take_while(|_| pace.take_at(frames, now)).count() as u32;
        clients.iter_mut().map(one).collect()
    }

    /// Clients of one thread, and the time.
    fn clients(count: usize) -> (Vec<Pace>, Instant) {
        let common = Arc::<Common>::default();
        ((0..count).map(|_| Pace::new(common.clone())).collect(), Instant::now())
    }

    #[test]
    fn a_client_waits_when_it_has_sent_many_and_others_do_not() {
        let (mut clients, now) = clients(2);
        assert_eq!(taken(&mut clients[..1], 1, now), [BURST + COMMON_BURST]);
        assert_eq!(
            taken(&mut clients, 1, now),
            [0, BURST],
            "what all may send in common is spent, and not the other's"
        );
        assert_eq!(taken(&mut clients, 1, now + PAUSE), [OWN + COMMON, OWN]);
        let later = now + 10 * PAUSE;
        assert_eq!(
            taken(&mut clients, 1, later),
            [9 * OWN + COMMON_BURST, 9 * OWN],
            "time unused gives no more in common"
        );
        assert_eq!(taken(&mut clients, 1, now + Duration::from_secs(100)), [BURST + COMMON_BURST, BURST]);
    }

    #[test]
    fn what_costs_as_much_as_several_counts_so() {
        let (mut clients, now) = clients(1);
        assert_eq!(taken(&mut clients, 8, now), [(BURST + COMMON_BURST) / 8]);
        clients[0].sent(100);
        clients[0].sent(8 << 10);
        assert_eq!(taken(&mut clients, 1, now), [2 * ANSWERS + 8], "who is sent something may answer");
    }
}
