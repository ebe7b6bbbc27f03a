//! The TLS handshakes of a tunnel, on a worker. Their timers are kept by another thread.

use std::net::SocketAddr;
use std::sync::Arc;

use leno_model::Identity;
use leno_tls::MeshIdentity;
use leno_tunnel::timers;
use tokio::net::TcpStream;

use super::failure::Failure;
use super::link::{Link, Proof};
use crate::config::Config;

/// Accepts TLS from the peer at `address`, with `own` as our identity, and lets the peer prove its own. Boxed, because
/// it lives long.
///
/// # Errors
/// If the handshake fails or takes too long.
#[expect(clippy::disallowed_methods, reason = "entered as it must be")]
pub async fn accept(
    own: &MeshIdentity,
    stream: TcpStream,
    address: SocketAddr,
    config: &Config,
) -> Result<(Box<Link>, Identity, Proof), Failure> {
    let proven = timers::entered(own.accept(stream, config.handshake_timeout)).await;
    let (stream, peer) = proven.map_err(|source| Failure::Handshake { address, source: Arc::new(source) })?;
    let proof = Proof::of(own, &peer);
    Ok((Box::new(Link::accepted(stream, proof, config)), peer.identity, proof))
}

/// Connects TLS to the peer at `address`, with `own` as our identity, and requires the peer to prove one of the
/// `expected` identities.
///
/// # Errors
/// If the handshake fails or takes too long.
#[expect(clippy::disallowed_methods, reason = "entered as it must be")]
pub async fn connect(
    own: &MeshIdentity,
    stream: TcpStream,
    address: SocketAddr,
    expected: &[Identity],
    config: &Config,
) -> Result<Link, Failure> {
    let proven = timers::entered(own.connect(stream, expected, config.handshake_timeout)).await;
    let (stream, peer) = proven.map_err(|source| Failure::Handshake { address, source: Arc::new(source) })?;
    Ok(Link::dialled(stream, Proof::of(own, &peer), config))
}
