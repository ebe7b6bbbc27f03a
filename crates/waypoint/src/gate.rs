//! What all connections of a waypoint share.

use std::sync::Arc;

use leno_capture::NamespaceId;
use leno_proxy::Core;
use leno_proxy::peers::{Silent, Unproven};
use leno_proxy::tunnels::Tunnel;
use leno_telemetry::spans::Spans;
use leno_tunnel::RelayOptions;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::balance::Balancers;
use crate::config::WaypointConfig;
use crate::guards::Guards;
use crate::lane::Lane;
use crate::own::Own;
use crate::routes::Tables;
use crate::tunnels::Tunnels;

/// What all connections of a waypoint share.
pub(crate) struct Gate {
    pub(crate) core: Arc<Core>,
    pub(crate) config: WaypointConfig,
    pub(crate) own: Own,
    pub(crate) tables: Tables,
    pub(crate) guards: Guards,
    pub(crate) lanes: Vec<Lane>,
    /// What is known of the endpoints of services.
    pub(crate) balancers: Balancers,
    pub(crate) relay: RelayOptions,
    /// Where spans of requests are told, if anybody takes them.
    pub(crate) spans: Option<Spans>,
    /// Copies of requests that may be on their way.
    pub(crate) copies: Arc<Semaphore>,
    /// Endpoints that don't answer.
    pub(crate) silent: Silent,
    /// The network namespace of this process.
    pub(crate) here: NamespaceId,
    /// The connections in tunnels.
    pub(crate) carried: TaskTracker,
    pub(crate) tunnels: Tunnels,
    pub(crate) unproven: Unproven,
    /// No new tunnels.
    pub(crate) closing: CancellationToken,
    /// Peers are to open nothing more in their tunnels.
    pub(crate) draining: CancellationToken,
    /// Everything ends.
    pub(crate) stopped: CancellationToken,
}

impl Gate {
    /// The part of new traces whose spans are told; `None` if nobody takes any.
    pub(crate) fn trace_share(&self) -> Option<f64> {
        self.spans.as_ref().map(|_| self.config.trace_sampling / 100.0)
    }

    /// The lane of a tunnel.
    pub(crate) fn lane(&self, tunnel: &Tunnel) -> &Lane {
        &self.lanes[tunnel.worker.index()]
    }
}
