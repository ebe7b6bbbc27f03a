//! The key by which tunnels are shared.

use std::net::SocketAddr;

use leno_capture::NamespaceId;
use leno_model::{Identity, Mesh, WorkloadUid};

/// The key of a tunnel. Connections share a tunnel if they leave one namespace under one identity, for one peer that
/// must prove one of the same identities.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TunnelKey {
    /// The network namespace it leaves: a pod's or the proxy's own. An address may be reused by another pod; a
    /// namespace can't be while somebody holds it.
    pub from: NamespaceId,
    /// Our identity. A new certificate for the same identity may use an old tunnel until that drains
    /// ([`crate::peers::Link`]).
    pub source: Identity,
    /// The identities that the peer may prove.
    pub expected: Vec<Identity>,
    /// UID of the peer's workload. If its address passes to another pod, the key changes.
    pub peer: WorkloadUid,
    /// The peer's HBONE address.
    pub address: SocketAddr,
}

impl TunnelKey {
    /// Whether the peer is gone or has changed since the tunnel was made. No connection would be given to such a
    /// tunnel, but it would be kept until it has been idle for long enough.
    pub fn is_obsolete(&self, mesh: &Mesh) -> bool {
        mesh.workload(&self.peer).is_none_or(|peer| {
            peer.not_understood.is_some()
                || !peer.addresses.contains(&self.address.ip())
                || peer.identity().is_none_or(|identity| !self.expected.contains(&identity))
        })
    }
}
