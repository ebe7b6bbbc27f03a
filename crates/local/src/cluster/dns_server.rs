//! The cluster's DNS server on each node: sockets inside the node's namespace, answers from the
//! controller's newest mesh.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leno_model::Mesh;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{Semaphore, watch};

use crate::cluster::dns::{Domain, respond};
use crate::cluster::services::DeclaredPorts;

/// Connections over TCP at a time; a resolver that holds more is broken.
const CONNECTIONS: usize = 128;
/// How long a TCP client may take for its next question.
const PATIENCE: Duration = Duration::from_secs(10);

/// What answers are made of.
#[derive(Clone)]
pub(crate) struct Names {
    pub mesh: watch::Receiver<Arc<Mesh>>,
    pub ports: watch::Receiver<Arc<DeclaredPorts>>,
    pub cluster_domain: Arc<str>,
}

impl Names {
    fn respond(&self, query: &[u8], udp: bool, turn: &AtomicUsize) -> Option<Vec<u8>> {
        let (mesh, ports) = (self.mesh.borrow().clone(), self.ports.borrow().clone());
        let domain = Domain { mesh: &mesh, ports: &ports, name: &self.cluster_domain };
        respond(&domain, query, udp, turn.fetch_add(1, Ordering::Relaxed))
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
        let length = tokio::time::timeout(PATIENCE, stream.read_u16()).await??;
        let mut query = vec![0; usize::from(length)];
        tokio::time::timeout(PATIENCE, stream.read_exact(&mut query)).await??;
        let Some(answer) = names.respond(&query, false, turn) else { return Ok(()) };
        let Ok(length) = u16::try_from(answer.len()) else { return Ok(()) };
        let mut framed = length.to_be_bytes().to_vec();
        framed.extend(answer);
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
