//! Connections out of a pod's namespace: to peers, and to the pod's own program.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use leno_capture::sockets::{self, ConnectOptions, Probes};
use leno_model::Identity;
use leno_proxy::peers::{self, Failure, Link};
use leno_tunnel::timers::timeout;
use tokio::net::{TcpSocket, TcpStream};

use crate::pod::Pod;

/// The ports that the proxy connects from. Programs use others by themselves (32768 and up on Linux, 49152 and up
/// elsewhere). For connection tracking, two connections between the same addresses and ports are one. If the ranges
/// overlapped, a caller's next connection could come from a port that the proxy has just used in its name, and would
/// hang. And a program's connection from a port that the proxy has just used to the same destination would pass as the
/// proxy's, in the clear.
const OWN_PORTS: std::ops::Range<u16> = 16_384..32_768;
/// How many of these ports are tried before the kernel chooses one.
const PORT_ATTEMPTS: usize = 8;

/// Connects from the pod's namespace to another pod's.
pub(crate) async fn tcp(pod: &Pod, address: SocketAddr) -> Result<TcpStream, Failure> {
    elsewhere(pod, address, &ConnectOptions::default()).await
}

async fn elsewhere(pod: &Pod, address: SocketAddr, options: &ConnectOptions) -> Result<TcpStream, Failure> {
    let source = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    from_own_port(pod, address, source, options).await
}

/// Connects to the pod's own program. With `source`, it connects from an address that need not be the pod's. `caller`
/// is the port from which a plaintext connection came from that address.
pub(crate) async fn program(
    pod: &Pod,
    address: SocketAddr,
    source: Option<IpAddr>,
    caller: Option<u16>,
) -> Result<TcpStream, Failure> {
    let options = ConnectOptions { probes: Probes::Never, path: pod.short_path().clone() };
    // The caller is a proxy like this one that does not know yet that the pod is in the mesh. If it used the same port
    // in its caller's name, some of its connections would meet another one, and both would be reset.
    let is_proxy = caller.is_some_and(|port| OWN_PORTS.contains(&port));
    let stream = match source {
        Some(source) if !is_proxy => from_own_port(pod, address, source, &options).await?,
        _ => {
            let source = source.map(|source| SocketAddr::new(source, 0));
            within(pod, address, connect(pod, address, source, &options)).await?
        }
    };
    sockets::established(&stream);
    Ok(stream)
}

async fn from_own_port(
    pod: &Pod,
    address: SocketAddr,
    source: IpAddr,
    options: &ConnectOptions,
) -> Result<TcpStream, Failure> {
    let attempt = async |port| connect(pod, address, Some(SocketAddr::new(source, port)), options).await;
    let connecting = async {
        for _ in 0..PORT_ATTEMPTS {
            match attempt(rand::random_range(OWN_PORTS)).await {
                Err(failure) if failure.is_port_taken() => {}
                other => return other,
            }
        }
        attempt(0).await
    };
    within(pod, address, connecting).await
}

async fn within(
    pod: &Pod,
    address: SocketAddr,
    connecting: impl Future<Output = Result<TcpStream, Failure>>,
) -> Result<TcpStream, Failure> {
    let waited = pod.context().core.config.connect_timeout;
    timeout(waited, connecting).await.unwrap_or(Err(Failure::ConnectTimeout { address, waited }))
}

async fn connect(
    pod: &Pod,
    address: SocketAddr,
    source: Option<SocketAddr>,
    options: &ConnectOptions,
) -> Result<TcpStream, Failure> {
    let socket = sockets::connector(pod.netns(), address, source, options);
    let socket = TcpSocket::from_std_stream(socket.map_err(|e| Failure::Socket(Arc::new(e)))?.into());
    socket.connect(address).await.map_err(|e| Failure::Connect { address, source: Arc::new(e) })
}

/// Connects to a peer's HBONE port and does the TLS handshake.
pub(crate) async fn tls(
    pod: &Pod,
    identity: &leno_tls::MeshIdentity,
    address: SocketAddr,
    expected: &[Identity],
) -> Result<Link, Failure> {
    let options = ConnectOptions { probes: Probes::Tunnel, path: pod.short_path().clone() };
    let stream = elsewhere(pod, address, &options).await?;
    pod.verify_short_path(&stream);
    peers::connect(identity, stream, address, expected, &pod.context().core.config).await
}
