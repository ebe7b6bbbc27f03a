//! TCP and TLS to endpoints, out of this process's own network namespace.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use leno_model::Identity;
use leno_proxy::peers::{self, Failure, Link};
use leno_tunnel::timers::timeout;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

use crate::state::shared::Gate;

/// Connects, within `waited`.
pub(super) async fn tcp(address: SocketAddr, waited: Duration) -> Result<TcpStream, Failure> {
    let connecting = async {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        // The kernel finds out that the peer of an idle connection has vanished.
        let probes = TcpKeepalive::new().with_time(Duration::from_secs(60)).with_interval(Duration::from_secs(10));
        SockRef::from(&stream).set_tcp_keepalive(&probes.with_retries(6))?;
        Ok(stream)
    };
    let connected = timeout(waited, connecting).await.map_err(|_| Failure::ConnectTimeout { address, waited })?;
    connected.map_err(|source| Failure::Connect { address, source: Arc::new(source) })
}

/// Connects to a peer's HBONE port and does the TLS handshake.
pub(super) async fn tls(
    gate: &Gate,
    identity: &leno_tls::MeshIdentity,
    address: SocketAddr,
    expected: &[Identity],
    waited: Duration,
) -> Result<Link, Failure> {
    let stream = tcp(address, waited).await?;
    peers::connect(identity, stream, address, expected, &gate.core.config).await
}
