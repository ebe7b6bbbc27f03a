//! Mutual TLS between mesh peers.

use std::future::Future;
use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leno_model::Identity;
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::server::NoServerSessionStorage;
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, NamedGroup, ServerConfig};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::certificate::describe;
use crate::establish::{self, Facts};
use crate::provider::{VERSIONS, provider};
use crate::verify::{MeshClientVerifier, MeshServerVerifier, identity_of, reason_of};
use crate::{Error, HandshakeError, TlsStream, WorkloadCertificate};

/// HTTP/2, the one application protocol HBONE runs over (RFC 9113 §3.2).
pub const ALPN_H2: &[u8] = b"h2";

/// How long a handshake may take before the peer is given up on. A healthy one takes
/// milliseconds; a peer that accepts and says nothing would otherwise hold a socket for ever.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// One workload's certificate, ready for handshakes in both directions. Built once per
/// certificate and shared by every connection that uses it.
#[derive(Debug)]
pub struct MeshIdentity {
    /// The certificate.
    pub certificate: Arc<WorkloadCertificate>,
    server: Arc<ServerConfig>,
    client: ClientConfig,
}

/// Who is on the other side.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Its verified identity.
    pub identity: Identity,
    /// End of its certificate's validity.
    pub not_after: SystemTime,
    /// The key exchange that was used, as IANA names it.
    pub key_exchange: &'static str,
    /// The application protocol that was agreed on.
    pub alpn: Vec<u8>,
}

impl MeshIdentity {
    /// Handshakes that speak HBONE.
    ///
    /// # Errors
    /// If the TLS library refuses the certificate.
    pub fn new(certificate: Arc<WorkloadCertificate>) -> Result<Self, Error> {
        Self::with_alpn(certificate, &[ALPN_H2])
    }

    /// Handshakes that agree on one of `alpn`, the first that both sides have; no agreement
    /// refuses the peer.
    ///
    /// # Errors
    /// If the TLS library refuses the certificate.
    pub fn with_alpn(certificate: Arc<WorkloadCertificate>, alpn: &[&[u8]]) -> Result<Self, Error> {
        Self::with(certificate, alpn, &provider())
    }

    pub(crate) fn with(
        certificate: Arc<WorkloadCertificate>,
        alpn: &[&[u8]],
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, Error> {
        let alpn: Vec<Vec<u8>> = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        let roots = certificate.root_store();
        let key = Arc::new(SingleCertAndKey::from(certificate.certified_key().clone()));

        let verifier = MeshClientVerifier::new(roots.clone(), certificate.identity().trust_domain().clone());
        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(VERSIONS)?
            .with_client_cert_verifier(Arc::new(verifier))
            .with_cert_resolver(key.clone());
        server.alpn_protocols.clone_from(&alpn);
        // A resumed session would skip the certificate checks above.
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        server.enable_secret_extraction = true;

        let mut client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(VERSIONS)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(MeshServerVerifier::new(roots.clone(), Vec::new())))
            .with_client_cert_resolver(key);
        client.alpn_protocols = alpn;
        client.resumption = Resumption::disabled();
        // A workload has no host name, and the peer knows by its listener whom it is.
        client.enable_sni = false;
        client.enable_secret_extraction = true;

        Ok(Self { certificate, server: Arc::new(server), client })
    }

    /// Who we are.
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
        // Boxed: its state is large, and gone once it is over.
        let accepting = Box::pin(establish::accept(self.server.clone(), io));
        let (stream, facts) = within(timeout, accepting, &self.server.alpn_protocols).await?;
        let peer = peer_of(facts, &self.server.alpn_protocols)?;
        Ok((stream, peer))
    }

    /// Connects to a peer that must be one of `expected`.
    ///
    /// The server judges our certificate only after this returns (TLS 1.3): its refusal is the
    /// error of the first read, see [`crate::PeerAlert`].
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
        let mut config = self.client.clone();
        let verifier = MeshServerVerifier::new(self.certificate.root_store().clone(), expected.to_vec());
        config.dangerous().set_certificate_verifier(Arc::new(verifier));
        // An address as server name is never sent (RFC 6066 §3), and the verifier ignores it.
        let nobody = ServerName::from(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let connecting = Box::pin(establish::connect(Arc::new(config), nobody, io));
        let (stream, facts) = within(timeout, connecting, &self.client.alpn_protocols).await?;
        let peer = peer_of(facts, &self.client.alpn_protocols)?;
        Ok((stream, peer))
    }
}

/// Runs a handshake under its time limit, and finds the reason if it fails.
pub(crate) async fn within<S>(
    timeout: Duration,
    handshake: impl Future<Output = io::Result<S>>,
    alpn: &[Vec<u8>],
) -> Result<S, HandshakeError> {
    match tokio::time::timeout(timeout, handshake).await {
        Err(_) => Err(HandshakeError::Timeout(timeout)),
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            Some(reason) => Err(reason_of(reason, &|| alpn_text(alpn))),
            None => Err(HandshakeError::Io(Arc::new(error))),
        },
    }
}

pub(crate) fn alpn_text(alpn: &[Vec<u8>]) -> String {
    alpn.iter().map(|protocol| String::from_utf8_lossy(protocol)).collect::<Vec<_>>().join(", ")
}

fn peer_of(facts: Facts, alpn: &[Vec<u8>]) -> Result<Peer, HandshakeError> {
    // A peer that offers no protocol at all passes the TLS library's own check.
    let agreed = facts.alpn.ok_or_else(|| HandshakeError::Alpn(alpn_text(alpn)))?;
    let leaf = facts.leaf.ok_or(HandshakeError::NoClientCertificate)?;
    let not_after = describe(&leaf).map_err(|e| HandshakeError::BadCertificate(e.to_string()))?.not_after;
    Ok(Peer {
        identity: identity_of(&leaf)?,
        not_after,
        key_exchange: facts.key_exchange.map_or("unknown", group_name),
        alpn: agreed.into(),
    })
}

fn group_name(group: NamedGroup) -> &'static str {
    match group {
        NamedGroup::X25519MLKEM768 => "X25519MLKEM768",
        NamedGroup::X25519 => "X25519",
        NamedGroup::secp256r1 => "secp256r1",
        NamedGroup::secp384r1 => "secp384r1",
        _ => "other",
    }
}

#[cfg(test)]
impl MeshIdentity {
    pub(crate) fn server_config(&self) -> Arc<ServerConfig> {
        self.server.clone()
    }
}
