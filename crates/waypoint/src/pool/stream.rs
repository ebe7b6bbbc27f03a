//! A connection to an endpoint.

use std::future::poll_fn;

use leno_tunnel::TunnelStream;
use tokio::net::TcpStream;

/// A connection to an endpoint.
pub(crate) enum Stream {
    Tunnel(TunnelStream),
    Tcp(TcpStream),
}

impl Stream {
    /// Resolves when the endpoint has said something, or is gone. What it said stays to be read.
    pub(crate) async fn speaks(&mut self) {
        match self {
            Self::Tunnel(stream) => drop(poll_fn(|cx| stream.poll_peek(cx)).await),
            Self::Tcp(stream) => drop(stream.readable().await),
        }
    }
}
