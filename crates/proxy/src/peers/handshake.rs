//! Proving both sides of a tunnel, on a worker: the handshake's timers are kept elsewhere.

use std::net::SocketAddr;
use std::sync::Arc;

use leno_model::Identity;
use leno_tls::MeshIdentity;
use leno_tunnel::timers;
use tokio::net::TcpStream;

use super::failure::Failure;
use super::link::{Link, Proof};
use crate::config::Config;

/// Has the peer that connected from `address` prove who it is, to `own`. Boxed: it lives long.
///
/// # Errors
/// If it can't, or takes too long.
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
    Ok((Box::new(Link::accepted(stream, proof, config.tunnel_max_age)), peer.identity, proof))
}

/// Proves to the peer at `address` that we are `own`, and has it prove to be one of `expected`.
///
/// # Errors
/// If it can't, or takes too long.
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
    Ok(Link::dialled(stream, Proof::of(own, &peer), config.tunnel_max_age))
}
