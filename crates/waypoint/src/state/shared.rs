//! What all connections of a waypoint share.

use std::sync::Arc;
use std::time::Duration;

use leno_capture::NamespaceId;
use leno_proxy::Core;
use leno_proxy::peers::{Silent, Unproven};
use leno_proxy::tunnels::Tunnel;
use leno_telemetry::spans::Spans;
use leno_tunnel::RelayOptions;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::balance::Balancers;
use crate::body::client::Room;
use crate::config::WaypointConfig;
use crate::memory_pressure::{Level, Pressure};
use crate::state::ext_authz_slots::Authorizers;
use crate::state::jwks::{Errand, KeyStore};
use crate::state::own_workload::Own;
use crate::state::policies::Guards;
use crate::state::rate_limits::Rates;
use crate::state::route_tables::Tables;
use crate::state::tunnel_limit::Tunnels;
use crate::state::worker::Lane;

/// How long a client may take nothing of what waits for it, when memory is short.
const STALLED: Duration = Duration::from_secs(1);

/// What all connections of a waypoint share.
pub(crate) struct Gate {
    pub(crate) core: Arc<Core>,
    pub(crate) config: WaypointConfig,
    pub(crate) own: Own,
    pub(crate) tables: Tables,
    pub(crate) rates: Rates,
    pub(crate) guards: Guards,
    /// The keys of issuers of tokens.
    pub(crate) keys: KeyStore,
    /// Who waits for external authorisers.
    pub(crate) authorizers: Authorizers,
    /// What is to be read outside of the mesh.
    pub(crate) errands: mpsc::Sender<Errand>,
    pub(crate) lanes: Vec<Lane>,
    /// What is known of the endpoints of services.
    pub(crate) balancers: Balancers,
    pub(crate) relay: RelayOptions,
    /// Where spans of requests are told, if anybody takes them.
    pub(crate) spans: Option<Spans>,
    pub(crate) pressure: Pressure,
    /// Copies of requests that may be on their way.
    pub(crate) copies: Arc<Semaphore>,
    /// The memory for bodies that wait for what authorisers say.
    pub(crate) bodies: Room,
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

    /// Whether there is room for one request more. If memory is short, clients that don't read are let go.
    pub(crate) fn has_room(&self) -> bool {
        let (level, is_news) = self.pressure.look(self.core.trim);
        if is_news {
            let open = self.lanes.iter().flat_map(|lane| lane.open.all());
            open.filter_map(|one| one.upgrade()).for_each(|one| one.let_go(STALLED));
        }
        level < Level::Full
    }

    /// The lane of a tunnel.
    pub(crate) fn lane(&self, tunnel: &Tunnel) -> &Lane {
        &self.lanes[tunnel.worker.index()]
    }
}
