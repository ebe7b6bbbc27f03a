//! The cluster's DNS server on each node: sockets inside the node's namespace, answers from the
//! controller's newest mesh.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leno_dns::{Answer, Parsed, ResponseCode};
use leno_model::Mesh;
use leno_policy::cluster_dns::{ClusterAnswer, ClusterDomain, lookup};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{Semaphore, watch};

/// Seconds an answer may be kept: kube-dns' own, short enough that a replaced pod is noticed.
const TTL: u32 = 5;
/// Connections over TCP at a time; a resolver that holds more is broken.
const CONNECTIONS: usize = 128;
/// How long a TCP client may take for its next question.
const PATIENCE: Duration = Duration::from_secs(10);

/// What answers are made of.
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

/// Serves until the mesh's publisher is gone.
pub(crate) async fn serve(udp: UdpSocket, tcp: TcpListener, names: Names) {
    let turn = Arc::new(AtomicUsize::new(0));
    let over_udp = serve_udp(udp, names.clone(), turn.clone());
    let over_tcp = serve_tcp(tcp, names.clone(), turn);
    let mut published = names.mesh;
    let stopped = async { while published.changed().await.is_ok() {} };
    tokio::select! { () = over_udp => {}, () = over_tcp => {}, () = stopped => {} }
}

async fn serve_udp(socket: UdpSocket, names: Names, turn: Arc<AtomicUsize>) {
    let mut buffer = [0; 4096];
    loop {
        match socket.recv_from(&mut buffer).await {
            Ok((length, client)) => {
                if let Some(answer) = names.respond(&buffer[..length], true, &turn) {
                    // A client that has gone away is not our trouble.
                    let _ = socket.send_to(&answer, client).await;
                }
            }
            Err(reason) => pause(&reason).await,
        }
    }
}

async fn serve_tcp(listener: TcpListener, names: Names, turn: Arc<AtomicUsize>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = room.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let (names, turn) = (names.clone(), turn.clone());
                tokio::spawn(async move {
                    let _place = place;
                    let _ = converse(stream, &names, &turn).await;
                });
            }
            Err(reason) => pause(&reason).await,
        }
    }
}

async fn converse(mut stream: TcpStream, names: &Names, turn: &AtomicUsize) -> io::Result<()> {
    loop {
        let query = tokio::time::timeout(PATIENCE, leno_dns::read(&mut stream)).await??;
        let Some(answer) = names.respond(&query, false, turn) else { return Ok(()) };
        let Some(framed) = leno_dns::framed(&answer) else { return Ok(()) };
        stream.write_all(&framed).await?;
    }
}

/// Errors of a listening socket pass (ICMP answers, full descriptor table); spinning on them
/// would not.
async fn pause(reason: &io::Error) {
    tracing::debug!(%reason, "DNS socket");
    tokio::time::sleep(Duration::from_millis(20)).await;
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
