//! Where peers' tunnels come in, and what all of them share.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use leno_capture::NamespaceId;
use leno_model::Identity;
use leno_proxy::Core;
use leno_proxy::peers::{Silent, Unproven};
use leno_proxy::tunnels::{Destination, Tunnel};
use leno_tls::MeshIdentity;
use leno_tunnel::RelayOptions;
use leno_tunnel::server::InboundConnect;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::WaypointConfig;
use crate::connection;
use crate::failure::Failure;
use crate::lane::Lane;
use crate::own::Own;
use crate::report;
use crate::tunnels::{OpenTunnel, Tunnels};

/// What all connections of a waypoint share.
pub(crate) struct Gate {
    pub(crate) core: Arc<Core>,
    pub(crate) config: WaypointConfig,
    pub(crate) own: Own,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) relay: RelayOptions,
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
    /// The lane of a tunnel.
    pub(crate) fn lane(&self, tunnel: &Tunnel) -> &Lane {
        &self.lanes[tunnel.worker.index()]
    }
}

impl Destination for Gate {
    type Failure = Failure;
    type Open = OpenTunnel;

    fn without_address(error: io::Error) -> Failure {
        Failure::NoAddress(Arc::new(error))
    }

    fn core(&self) -> &Core {
        &self.core
    }

    fn unproven(&self) -> &Unproven {
        &self.unproven
    }

    fn open(&self, peer: SocketAddr) -> Result<OpenTunnel, Failure> {
        self.tunnels.open(peer)
    }

    fn proven(&self, _: &mut OpenTunnel, _: &Identity) -> Result<(), Failure> {
        Ok(())
    }

    async fn identity(&self) -> Result<Arc<MeshIdentity>, Failure> {
        let (_, own) = self.own.workload().await?;
        Ok(self.core.identity(&own).await?)
    }

    fn stopping(&self) -> impl Future<Output = ()> + Send {
        self.closing.cancelled()
    }

    async fn draining(&self) -> Instant {
        self.draining.cancelled().await;
        Instant::now() + self.core.config.drain_deadline
    }

    fn stopped(&self) -> impl Future<Output = ()> + Send {
        self.stopped.cancelled()
    }

    fn connected(&self, _: &TcpStream) {}

    fn request(self: &Arc<Self>, tunnel: &Arc<Tunnel>, request: InboundConnect) {
        let carried = self.carried.token();
        let (gate, tunnel) = (self.clone(), tunnel.clone());
        tokio::spawn(async move {
            let _carried = carried;
            connection::carry(gate, tunnel, request).await;
        });
    }

    fn refused(self: &Arc<Self>, peer: SocketAddr, local: Option<SocketAddr>, failure: &Failure) {
        report::tunnel_refused(self, peer, local, failure);
    }

    fn ended(self: &Arc<Self>, tunnel: &Tunnel, error: &leno_tunnel::Error) {
        report::tunnel_ended(self, tunnel, error);
    }
}
