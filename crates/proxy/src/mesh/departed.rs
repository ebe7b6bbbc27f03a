//! Addresses that have just left the mesh.
//!
//! When a service is removed, its proxies and the machines that forward its address are told at different moments. A
//! proxy that no longer knows the address would pass a connection on in plaintext, and a rule that still exists could
//! lead it to a pod in the mesh. The same can happen with a pod's address that is soon given to another pod. So
//! connections to such addresses are refused for a moment.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How long they are refused. Rules follow within milliseconds on one machine, and within a second or two in a busy
/// cluster.
pub const MOMENT: Duration = Duration::from_secs(5);

/// Addresses that have just left the mesh.
#[derive(Default)]
pub(crate) struct Departed(Mutex<Left>);

#[derive(Default)]
struct Left {
    /// When each address left.
    at: HashMap<IpAddr, Instant>,
    /// The same in order of time, so that expired entries are found without looking at the others.
    order: VecDeque<(Instant, IpAddr)>,
}

impl Departed {
    /// Notes that these addresses left at `now`.
    pub(crate) fn left(&self, addresses: impl IntoIterator<Item = IpAddr>, now: Instant) {
        let mut departed = self.0.lock();
        while let Some((left, address)) = departed.order.pop_front_if(|(left, _)| now.duration_since(*left) >= MOMENT) {
            // It may have come back and left again meanwhile.
            if departed.at.get(&address) == Some(&left) {
                departed.at.remove(&address);
            }
        }
        if departed.at.is_empty() {
            *departed = Left::default();
        }
        for address in addresses {
            departed.at.insert(address, now);
            departed.order.push_back((now, address));
        }
    }

    /// Whether `address` left shortly before `now`. Callers must have checked that nobody has the address now, because
    /// an address that comes back is not removed from this list.
    pub(crate) fn contains(&self, address: IpAddr, now: Instant) -> bool {
        self.0.lock().at.get(&address).is_some_and(|left| now.duration_since(*left) < MOMENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_passes() {
        let (departed, now) = (Departed::default(), Instant::now());
        let [one, two]: [IpAddr; 2] = ["10.0.0.1".parse().expect("an address"), "fd00::1".parse().expect("an address")];
        departed.left([one], now);
        assert!(departed.contains(one, now) && !departed.contains(two, now));
        let later = now + MOMENT;
        assert!(departed.contains(one, later - Duration::from_millis(1)) && !departed.contains(one, later));
        departed.left([two], later);
        assert!(departed.contains(two, later) && departed.0.lock().at.len() == 1, "old ones are dropped");
    }
}
