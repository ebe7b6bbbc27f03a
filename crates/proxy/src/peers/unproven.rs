//! Peers that have connected and not yet proved who they are.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use leno_telemetry::{descriptor_limit, one_host};
use leno_tls::unproven::{Unproven as Places, UnprovenPlace};
use leno_tunnel::timers;

use super::failure::Failure;

/// An address may have one in so many of the proxy's places while others want some. Only the proxies of very many pods
/// that are behind one address, as behind a gateway, come near that, and only while handshakes take long.
const SHARE: usize = 16;

/// Unproven connections may have one in so many of the process's descriptors.
const OF_DESCRIPTORS: usize = 8;

/// All that a proxy has of them, whichever pod they connect to: whoever connects to each pod takes no more of the
/// process than this, and keeps no other address out.
#[derive(Clone)]
pub struct AllUnproven(Arc<Places<IpAddr>>);

impl AllUnproven {
    /// `most` places, or fewer where the process may open few descriptors.
    pub fn new(most: usize) -> Self {
        let most = most.min(descriptor_limit() as usize / OF_DESCRIPTORS);
        Self(Places::new(most, most / SHARE))
    }
}

/// Those of one pod. Who comes when a pod's places are taken gets the one that was taken first.
pub struct Unproven {
    pod: Arc<Places<()>>,
    all: AllUnproven,
}

impl Unproven {
    /// `most` places, one at least, out of those of `all`.
    pub fn new(most: usize, all: &AllUnproven) -> Self {
        Self { pod: Places::unshared(most), all: all.clone() }
    }

    /// Waits for a place for a connection from `peer`: for a second at most. For a worker.
    ///
    /// # Errors
    /// If its address has too many.
    pub async fn place(&self, peer: SocketAddr) -> Result<Place, Failure> {
        let all = timers::entered(self.all.0.place(one_host(peer.ip()))).await;
        let all = all.map_err(|_| Failure::TooManyUnproven { address: peer, most: self.all.0.most() })?;
        // Without shares there is nobody to have too much.
        let pod = timers::entered(self.pod.place(())).await.ok();
        Ok(Place { pod, all, peer })
    }
}

/// A place. Dropping it frees it.
pub struct Place {
    pod: Option<UnprovenPlace<()>>,
    all: UnprovenPlace<IpAddr>,
    peer: SocketAddr,
}

impl Place {
    /// Resolves when the place was given to another connection.
    pub async fn turned_away(&self) -> Failure {
        let of_pod = async {
            match &self.pod {
                Some(place) => place.gave_way().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = of_pod => {
                let most = self.pod.as_ref().map_or(0, UnprovenPlace::among);
                Failure::TurnedAway { address: self.peer, most, setting: "LENO_MAX_UNPROVEN_PEERS" }
            }
            () = self.all.gave_way() => Failure::TurnedAway {
                address: self.peer,
                most: self.all.among(),
                setting: "LENO_MAX_UNPROVEN_PEERS_TOTAL",
            },
        }
    }
}

#[cfg(test)]
#[path = "unproven_tests.rs"]
mod tests;
