//! What all pods of the node share.

use std::net::SocketAddr;
use std::sync::Arc;

use leno_proxy::Core;

use crate::config::PodConfig;
use crate::shares::Shares;

/// What all pods of the node share.
pub(crate) struct Context {
    /// What every proxy has.
    pub(crate) core: Arc<Core>,
    pub(crate) config: PodConfig,
    pub(crate) relay: leno_tunnel::RelayOptions,
    /// Where DNS questions about anything but the mesh go.
    pub(crate) resolvers: Vec<SocketAddr>,
    pub(crate) shares: Arc<Shares>,
}
