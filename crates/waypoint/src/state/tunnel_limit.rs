//! How many tunnels each peer has.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use leno_telemetry::one_host;
use parking_lot::Mutex;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::failure::Failure;

/// The tunnels that are open, by the host at their other end.
pub(crate) struct Tunnels {
    by_host: Arc<Mutex<HashMap<IpAddr, usize>>>,
    all: TaskTracker,
    most: usize,
}

/// Counts one tunnel until it is dropped.
pub(crate) struct OpenTunnel {
    host: IpAddr,
    by_host: Arc<Mutex<HashMap<IpAddr, usize>>>,
    _all: TaskTrackerToken,
}

impl Tunnels {
    /// None yet; `most` for each host.
    pub(crate) fn new(most: usize) -> Self {
        Self { by_host: Arc::default(), all: TaskTracker::new(), most }
    }

    /// Counts one more.
    pub(crate) fn open(&self, peer: SocketAddr) -> Result<OpenTunnel, Failure> {
        let host = one_host(peer.ip());
        let mut by_host = self.by_host.lock();
        let count = by_host.entry(host).or_default();
        if *count >= self.most {
            return Err(Failure::TooManyTunnels { address: peer, most: self.most });
        }
        *count += 1;
        drop(by_host);
        Ok(OpenTunnel { host, by_host: self.by_host.clone(), _all: self.all.token() })
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// Resolves when there are none, if no more are opened.
    pub(crate) async fn closed(&self) {
        self.all.close();
        self.all.wait().await;
    }
}

impl Drop for OpenTunnel {
    fn drop(&mut self) {
        let mut by_host = self.by_host.lock();
        if let Some(count) = by_host.get_mut(&self.host) {
            *count -= 1;
            if *count == 0 {
                by_host.remove(&self.host);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_its_limit_and_gets_it_back() {
        let tunnels = Tunnels::new(2);
        let peer = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let (first, _second) = (tunnels.open(peer("10.0.0.1:1")), tunnels.open(peer("10.0.0.1:2")));
        assert!(matches!(tunnels.open(peer("10.0.0.1:3")), Err(Failure::TooManyTunnels { most: 2, .. })));
        assert!(tunnels.open(peer("10.0.0.2:1")).is_ok(), "another host");
        drop(first);
        assert!(tunnels.open(peer("10.0.0.1:3")).is_ok());
        assert_eq!(tunnels.count(), 1);
    }
}
