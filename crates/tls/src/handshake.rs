//! Mutual TLS between mesh peers.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leno_model::Identity;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::certificate::describe;
use crate::library::{Acceptor, Facts, MeshSide, Provider, mesh};
use crate::verify::identity_of;
use crate::{Error, HandshakeError, TlsStream, WorkloadCertificate};

/// HTTP/2, the only application protocol of HBONE (RFC 9113 §3.2).
pub const ALPN_H2: &[u8] = b"h2";

/// Time limit of a handshake. A healthy one takes milliseconds. Without a limit, a peer that accepts and stays silent
/// would hold a socket for ever.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// One workload's certificate, ready for handshakes in both directions. Built once per certificate and shared by all
/// connections that use it.
#[derive(Debug)]
pub struct MeshIdentity {
    /// The certificate.
    pub certificate: Arc<WorkloadCertificate>,
    server: Acceptor,
    client: MeshSide,
}

/// The peer of a connection.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Its verified identity.
    pub identity: Identity,
    /// End of its certificate's validity.
    pub not_after: SystemTime,
    /// The key exchange, by its IANA name.
    pub key_exchange: &'static str,
    /// The agreed application protocol.
    pub alpn: Vec<u8>,
}

impl MeshIdentity {
    /// For handshakes that speak HBONE.
    ///
    /// # Errors
    /// If the TLS library refuses the certificate.
    pub fn new(certificate: Arc<WorkloadCertificate>) -> Result<Self, Error> {
        Self::with_alpn(certificate, &[ALPN_H2])
    }

    /// For handshakes that agree on one of `alpn`: the first that both sides support. Without agreement, the peer is
    /// refused.
    ///
    /// # Errors
    /// If the TLS library refuses the certificate.
    pub fn with_alpn(certificate: Arc<WorkloadCertificate>, alpn: &[&[u8]]) -> Result<Self, Error> {
        Self::with(certificate, alpn, &Provider::mesh())
    }

    pub(crate) fn with(
        certificate: Arc<WorkloadCertificate>,
        alpn: &[&[u8]],
        provider: &Provider,
    ) -> Result<Self, Error> {
        let trust_domain = certificate.identity().trust_domain();
        let (server, client) = mesh(certificate.credential(), certificate.trusted(), trust_domain, alpn, provider)?;
        Ok(Self { certificate, server, client })
    }

    /// Our identity.
    pub fn identity(&self) -> &Identity {
        self.certificate.identity()
    }

    /// Accepts a peer of our trust domain.
    ///
    /// # Errors
    /// [`HandshakeError`] names the rule the peer broke.
    pub async fn accept<IO>(&self, io: IO, timeout: Duration) -> Result<(TlsStream<IO>, Peer), HandshakeError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        // Boxed: its state is large and not needed afterwards.
        let accepting = Box::pin(self.server.accept(io));
        let (stream, facts) = within(timeout, accepting).await?;
        let peer = peer_of(facts, self.server.alpn())?;
        Ok((stream, peer))
    }

    /// Connects to a peer that must be one of `expected`.
    ///
    /// The server checks our certificate only after this returns (TLS 1.3). Its refusal is the error of the first read;
    /// see [`crate::PeerAlert`].
    ///
    /// # Errors
    /// [`HandshakeError`] names the rule the peer broke.
    pub async fn connect<IO>(
        &self,
        io: IO,
        expected: &[Identity],
        timeout: Duration,
    ) -> Result<(TlsStream<IO>, Peer), HandshakeError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let connecting = Box::pin(self.client.connect(io, expected));
        let (stream, facts) = within(timeout, connecting).await?;
        let peer = peer_of(facts, self.client.alpn())?;
        Ok((stream, peer))
    }
}

/// Runs a handshake under its time limit.
pub(crate) async fn within<S>(
    timeout: Duration,
    handshake: impl Future<Output = Result<S, HandshakeError>>,
) -> Result<S, HandshakeError> {
    tokio::time::timeout(timeout, handshake).await.unwrap_or(Err(HandshakeError::Timeout(timeout)))
}

fn peer_of(facts: Facts, alpn: &[Vec<u8>]) -> Result<Peer, HandshakeError> {
    // A peer that offers no protocol at all passes the TLS library's own check.
    let agreed = facts.alpn.ok_or_else(|| HandshakeError::no_common_protocol(alpn))?;
    let leaf = facts.leaf.ok_or(HandshakeError::NoClientCertificate)?;
    let not_after = describe(&leaf).map_err(|e| HandshakeError::BadCertificate(e.to_string()))?.not_after;
    Ok(Peer { identity: identity_of(&leaf)?, not_after, key_exchange: facts.key_exchange, alpn: agreed.into() })
}

#[cfg(test)]
impl MeshIdentity {
    pub(crate) fn acceptor(&self) -> &Acceptor {
        &self.server
    }
}
