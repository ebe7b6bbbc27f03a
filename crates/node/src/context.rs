//! State shared by all pods of the node.

use std::net::SocketAddr;
use std::sync::Arc;

use leno_proxy::Core;

use crate::config::PodConfig;
use crate::shares::Shares;

/// State shared by all pods of the node.
pub(crate) struct Context {
    /// The parts of every proxy.
    pub(crate) core: Arc<Core>,
    pub(crate) config: PodConfig,
    pub(crate) relay: leno_tunnel::RelayOptions,
    /// The resolvers for DNS questions about names outside the mesh.
    pub(crate) resolvers: Vec<SocketAddr>,
    pub(crate) shares: Arc<Shares>,
}
