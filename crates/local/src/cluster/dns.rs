//! The cluster's DNS server on each node: sockets inside the node's namespace, answers from the
//! controller's newest mesh.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leno_dns::{Answer, Owner, Parsed, ResponseCode, Transport};
use leno_model::Mesh;
use leno_policy::cluster_dns::{ClusterAnswer, ClusterDomain, lookup};
use leno_telemetry::accepting;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::watch;

/// Seconds an answer may be kept: kube-dns' own, short enough that a replaced pod is noticed.
const TTL: u32 = 5;
/// How long a TCP client may take for its next question.
const PATIENCE: Duration = Duration::from_secs(10);

/// The data that answers are made from.
#[derive(Clone)]
pub(crate) struct Names {
    pub mesh: watch::Receiver<Arc<Mesh>>,
    pub cluster_domain: Arc<str>,
}

impl Names {
    fn respond(&self, query: &[u8], udp: bool, turn: &AtomicUsize) -> Option<Vec<u8>> {
        respond(&self.mesh.borrow().clone(), &self.cluster_domain, query, udp, turn.fetch_add(1, Ordering::Relaxed))
    }
}

/// Answers one DNS message; `None` if it isn't a question. `turn` rotates addresses, so that
/// clients of a headless service spread. `udp` bounds the size.
fn respond(mesh: &Mesh, cluster_domain: &str, query: &[u8], udp: bool, turn: usize) -> Option<Vec<u8>> {
    let question = match leno_dns::parse(query) {
        Parsed::Question(question) => question,
        Parsed::Refusal(refusal) => return Some(refusal),
        Parsed::Garbage => return None,
    };
    // The stage has one network, which has no name.
    let domain = ClusterDomain { mesh, network: &"".into(), name: cluster_domain };
    match lookup(&domain, &question.name()) {
        ClusterAnswer::Unknown => Some(question.error(ResponseCode::NXDomain)),
        ClusterAnswer::Found { mut addresses, targets } => {
            addresses.retain(|address| question.wants(address));
            if let Some(by) = turn.checked_rem(addresses.len()) {
                addresses.rotate_left(by);
            }
            Some(question.answer(&Answer { ttl: TTL, cname: None, addresses, targets }, udp))
        }
    }
}

/// A node's server.
#[derive(Clone)]
struct Server {
    names: Names,
    turn: Arc<AtomicUsize>,
}

impl Owner for Server {
    /// Nobody waits for the last question: a node goes with all that could ask.
    type Counted = ();

    fn count(&self) {}

    async fn reply(&self, message: &[u8], transport: Transport) -> Option<Vec<u8>> {
        self.names.respond(message, transport == Transport::Udp, &self.turn)
    }

    async fn accept(&self, listener: &TcpListener) -> Option<TcpStream> {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => return Some(stream),
                // Out of descriptors, it would spin.
                Err(error) => {
                    if let Some(pause) = accepting::pause_after(&error) {
                        tokio::time::sleep(pause).await;
                    }
                }
            }
        }
    }

    async fn closing(&self) {
        let mut published = self.names.mesh.clone();
        while published.changed().await.is_ok() {}
    }

    async fn stopped(&self) {
        self.closing().await;
    }

    async fn in_time<T: Send>(&self, io: impl Future<Output = io::Result<T>> + Send) -> io::Result<T> {
        tokio::time::timeout(PATIENCE, io).await?
    }
}

/// Serves until the mesh's publisher is gone.
pub(crate) async fn serve(udp: UdpSocket, tcp: TcpListener, names: Names) {
    let server = Server { names, turn: Arc::default() };
    tokio::select! {
        () = leno_dns::serve_udp(server.clone(), udp) => {}
        () = leno_dns::serve_tcp(server.clone(), tcp) => {}
        () = server.closing() => {}
    }
}

/// Binds both sockets of a server; to be called inside the node's namespace.
pub(crate) fn bind(address: SocketAddr) -> io::Result<(std::net::UdpSocket, std::net::TcpListener)> {
    let udp = std::net::UdpSocket::bind(address)?;
    udp.set_nonblocking(true)?;
    let tcp = std::net::TcpListener::bind(address)?;
    tcp.set_nonblocking(true)?;
    Ok((udp, tcp))
}

#[cfg(test)]
#[path = "dns_tests.rs"]
mod tests;
