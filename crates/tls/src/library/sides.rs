//! The settings of both sides of a handshake: certificates, versions, protocols, and nothing that would allow a
//! connection without a certificate.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use leno_model::{Identity, Name};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::server::NoServerSessionStorage;
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};

use super::establish::{self, Facts};
use super::provider::{Credential, Provider, VERSIONS};
use super::verifiers::{MeshClientVerifier, MeshServerVerifier};
use crate::stream::TlsStream;
use crate::verify::Roots;
use crate::{Error, HandshakeError};

/// The accepting side. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Acceptor(Arc<ServerConfig>);

/// The connecting side, for other workloads.
#[derive(Debug)]
pub(crate) struct MeshSide {
    config: ClientConfig,
    roots: Arc<Roots>,
}

/// The connecting side, for a control plane.
#[derive(Debug)]
pub(crate) struct ControlSide(Arc<ClientConfig>);

/// Both sides of mutual TLS for one workload. Each shows `credential` and trusts `roots`. The accepting side lets in
/// peers of `trust_domain`.
///
/// # Errors
/// If the library refuses the certificate.
pub(crate) fn mesh(
    credential: &Credential,
    roots: &Arc<Roots>,
    trust_domain: &Name,
    alpn: &[&[u8]],
    provider: &Provider,
) -> Result<(Acceptor, MeshSide), Error> {
    let alpn: Vec<Vec<u8>> = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    let key = Arc::new(SingleCertAndKey::from(credential.library()));

    let verifier = MeshClientVerifier::new(roots.clone(), trust_domain.clone());
    let mut server = ServerConfig::builder_with_provider(provider.library())
        .with_protocol_versions(VERSIONS)
        .map_err(refused)?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(key.clone());
    server.alpn_protocols.clone_from(&alpn);
    // A resumed session would skip the certificate checks above.
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.send_tls13_tickets = 0;
    server.enable_secret_extraction = true;

    let mut client = ClientConfig::builder_with_provider(provider.library())
        .with_protocol_versions(VERSIONS)
        .map_err(refused)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(MeshServerVerifier::new(roots.clone(), Vec::new())))
        .with_client_cert_resolver(key);
    client.alpn_protocols = alpn;
    client.resumption = Resumption::disabled();
    // A workload has no host name, and the peer knows by its listener which workload is meant.
    client.enable_sni = false;
    client.enable_secret_extraction = true;

    Ok((Acceptor(Arc::new(server)), MeshSide { config: client, roots: roots.clone() }))
}

impl Acceptor {
    /// Lets in every client and shows this certificate.
    ///
    /// # Errors
    /// If the library refuses the certificate or its key.
    pub(crate) fn control(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        alpn: &[u8],
    ) -> Result<Self, Error> {
        let mut config = ServerConfig::builder_with_provider(Provider::mesh().library())
            .with_protocol_versions(VERSIONS)
            .map_err(refused)?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(refused)?;
        config.alpn_protocols = vec![alpn.to_vec()];
        config.send_tls13_tickets = 0;
        config.enable_secret_extraction = true;
        Ok(Self(Arc::new(config)))
    }

    /// The protocols, one of which must be agreed on.
    pub(crate) fn alpn(&self) -> &[Vec<u8>] {
        &self.0.alpn_protocols
    }

    /// # Errors
    /// If the handshake fails.
    pub(crate) async fn accept<IO>(&self, io: IO) -> Result<(TlsStream<IO>, Facts), HandshakeError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        establish::accept(&self.0, io).await
    }
}

impl MeshSide {
    /// The protocols, one of which must be agreed on.
    pub(crate) fn alpn(&self) -> &[Vec<u8>] {
        &self.config.alpn_protocols
    }

    /// Connects to one of `expected`.
    ///
    /// # Errors
    /// If the handshake fails.
    pub(crate) async fn connect<IO>(
        &self,
        io: IO,
        expected: &[Identity],
    ) -> Result<(TlsStream<IO>, Facts), HandshakeError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let mut config = self.config.clone();
        let verifier = MeshServerVerifier::new(self.roots.clone(), expected.to_vec());
        config.dangerous().set_certificate_verifier(Arc::new(verifier));
        // An address is never sent as server name (RFC 6066 §3), and the verifier ignores it.
        let nobody = ServerName::from(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        establish::connect(&Arc::new(config), nobody, io).await
    }
}

impl ControlSide {
    /// Trusts `roots` and shows no certificate.
    ///
    /// # Errors
    /// If there is no root.
    pub(crate) fn new(roots: Roots, alpn: &[u8]) -> Result<Self, Error> {
        let roots = RootCertStore::from_iter(roots.into_anchors());
        let provider = Provider::mesh().library();
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .build()
            .map_err(|error| Error::Tls(Box::new(error)))?;
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(VERSIONS)
            .map_err(refused)?
            .with_webpki_verifier(verifier)
            .with_no_client_auth();
        config.alpn_protocols = vec![alpn.to_vec()];
        config.resumption = Resumption::disabled();
        config.enable_secret_extraction = true;
        Ok(Self(Arc::new(config)))
    }

    /// Connects to a server that must prove to be `name`.
    ///
    /// # Errors
    /// If the handshake fails.
    pub(crate) async fn connect<IO>(
        &self,
        name: ServerName<'static>,
        io: IO,
    ) -> Result<(TlsStream<IO>, Facts), HandshakeError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        establish::connect(&self.0, name, io).await
    }
}

fn refused(error: rustls::Error) -> Error {
    Error::Tls(Box::new(error))
}

#[cfg(test)]
impl Acceptor {
    /// For the library's own streams.
    pub(crate) fn library(&self) -> Arc<ServerConfig> {
        self.0.clone()
    }
}
