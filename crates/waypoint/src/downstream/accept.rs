//! Peers' tunnels: who may open them, and how long they live.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use leno_model::Identity;
use leno_proxy::Core;
use leno_proxy::peers::Unproven;
use leno_proxy::tunnels::{Destination, Tunnel};
use leno_tls::MeshIdentity;
use leno_tunnel::server::InboundConnect;
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::connection::record;
use crate::downstream::dispatch;
use crate::failure::Failure;
use crate::state::shared::Gate;
use crate::state::tunnel_limit::OpenTunnel;

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
            dispatch::carry(gate, tunnel, request).await;
        });
    }

    fn refused(self: &Arc<Self>, peer: SocketAddr, local: Option<SocketAddr>, failure: &Failure) {
        record::tunnel_refused(self, peer, local, failure);
    }

    fn ended(self: &Arc<Self>, tunnel: &Tunnel, error: &leno_tunnel::Error) {
        record::tunnel_ended(self, tunnel, error);
    }
}
