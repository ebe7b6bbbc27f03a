//! What the readiness port of a proxy tells from outside.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use leno_capture::NetworkNamespace;
use leno_model::ports;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;

/// How long one that has left the agent may take to give up its own ports before it is taken for one that comes back, and how
/// often that is looked at.
const GIVING_WAY: Duration = Duration::from_secs(1);
const GIVING_WAY_LOOKS: Duration = Duration::from_millis(5);

/// Whether a proxy that has left the agent has also given up its port: then it drains, or is dead. Both Leno's and ztunnel do
/// so before anything else. One that only lost its connection keeps the port, and the next could not open it.
pub(super) async fn gives_way(namespace: &NetworkNamespace) -> bool {
    let end = Instant::now() + GIVING_WAY;
    while Instant::now() < end {
        let refused = async {
            let socket = namespace.run(TcpSocket::new_v4).ok()?.ok()?;
            socket.connect(SocketAddr::from(([127, 0, 0, 1], ports::READINESS))).await.err()
        };
        if refused.await.is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            return true;
        }
        tokio::time::sleep(GIVING_WAY_LOOKS).await;
    }
    false
}

/// Asks the proxy in its node's namespace.
pub(super) async fn is_ready(namespace: &NetworkNamespace) -> bool {
    let ask = async {
        let socket = namespace.run(TcpSocket::new_v4).map_err(io::Error::other)??;
        let mut stream = socket.connect(SocketAddr::from(([127, 0, 0, 1], ports::READINESS))).await?;
        stream.write_all(b"GET /healthz/ready HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await?;
        let mut head = [0; 12];
        stream.read_exact(&mut head).await?;
        io::Result::Ok(head.ends_with(b" 200"))
    };
    matches!(tokio::time::timeout(Duration::from_secs(1), ask).await, Ok(Ok(true)))
}
