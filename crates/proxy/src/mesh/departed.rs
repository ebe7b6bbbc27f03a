//! Addresses that have just left the mesh.
//!
//! Who takes a service away tells the proxies and the machines that forward its address, and not
//! all at one instant. A proxy that knows nothing of an address any more would pass a connection
//! on as it is, and a rule that still stands would lead it to a pod in the mesh, in the clear. The
//! same goes for a pod's address that soon is another pod's. So these are refused for a moment.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How long they are refused. Rules follow within milliseconds on one machine and within a second
/// or two in a busy cluster.
pub const MOMENT: Duration = Duration::from_secs(5);

/// The addresses.
#[derive(Default)]
pub(crate) struct Departed(Mutex<Left>);

#[derive(Default)]
struct Left {
    /// When each left.
    at: HashMap<IpAddr, Instant>,
    /// In that order: those whose moment has passed are found without a look at the others.
    order: VecDeque<(Instant, IpAddr)>,
}

impl Departed {
    /// These have left at `now`.
    pub(crate) fn left(&self, addresses: impl IntoIterator<Item = IpAddr>, now: Instant) {
        let mut departed = self.0.lock();
        while let Some((left, address)) = departed.order.pop_front_if(|(left, _)| now.duration_since(*left) >= MOMENT) {
            // It may have come back and left again.
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

    /// Whether `address` has left only a moment before `now`. Whoever asks must have found that
    /// nobody has it: one that came back is not taken off the list.
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
