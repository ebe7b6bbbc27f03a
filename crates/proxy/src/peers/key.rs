//! What a tunnel may be shared by.

use std::net::SocketAddr;

use leno_capture::NamespaceId;
use leno_model::{Identity, Mesh, WorkloadUid};

/// What a tunnel may be shared by: what goes out of one namespace, under one identity, to one peer that
/// must prove one of the same identities.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TunnelKey {
    /// The namespace it goes out of, a pod's or the proxy's own: an address may be reused by another pod, a
    /// namespace isn't while somebody holds it.
    pub from: NamespaceId,
    /// Who we are. A new certificate for the same identity may use an old tunnel until that drains ([`crate::peers::Link`]).
    pub source: Identity,
    /// Who the peer must be.
    pub expected: Vec<Identity>,
    /// Uid of the peer's workload: an address that has passed to another pod makes another key.
    pub peer: WorkloadUid,
    /// The peer's HBONE address.
    pub address: SocketAddr,
}

impl TunnelKey {
    /// Whether the peer is gone, or no longer what it was when the tunnel was made. Nothing would be given to such a
    /// tunnel, for it is found by what its peer is; but it would be kept ready until it has been idle for long enough.
    pub fn is_obsolete(&self, mesh: &Mesh) -> bool {
        mesh.workload(&self.peer).is_none_or(|peer| {
            peer.not_understood.is_some()
                || !peer.addresses.contains(&self.address.ip())
                || peer.identity().is_none_or(|identity| !self.expected.contains(&identity))
        })
    }
}
