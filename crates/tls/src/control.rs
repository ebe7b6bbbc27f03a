//! TLS for the control plane's gRPC endpoint, and for other servers with a certificate for their host name. The server shows
//! that certificate; the client authenticates with a token inside the connection.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::certificate::{ServerCertificate, parse_pem_certificates};
use crate::handshake::{ALPN_H2, within};
use crate::library::{Acceptor, ControlSide};
use crate::verify::Roots;
use crate::{CertificateAuthority, Error, HandshakeError, TlsStream};

/// HTTP/1.1 (RFC 7301 §6).
const ALPN_HTTP1: &[u8] = b"http/1.1";

/// Server side.
#[derive(Clone)]
pub struct ControlAcceptor {
    inner: Arc<Inner>,
}

struct Inner {
    state: Mutex<(Acceptor, SystemTime)>,
    /// Identifies the authority's root that it chains to.
    number: AtomicU64,
    renewal: Option<Renewal>,
}

struct Renewal {
    authority: Arc<CertificateAuthority>,
    dns_names: Vec<String>,
    addresses: Vec<IpAddr>,
}

impl ControlAcceptor {
    /// With a certificate of the caller's, used as long as this lives.
    ///
    /// # Errors
    /// If the TLS library refuses the certificate or its key.
    pub fn new(certificate: ServerCertificate) -> Result<Self, Error> {
        let state = Mutex::new(acceptor(certificate)?);
        Ok(Self { inner: Arc::new(Inner { state, number: AtomicU64::new(0), renewal: None }) })
    }

    /// With certificates of the mesh's own authority. They are renewed at half their life, and when the authority has a
    /// new root.
    ///
    /// # Errors
    /// As [`CertificateAuthority::server_certificate`].
    pub fn from_authority(
        authority: Arc<CertificateAuthority>,
        dns_names: Vec<String>,
        addresses: Vec<IpAddr>,
    ) -> Result<Self, Error> {
        let number = AtomicU64::new(authority.signing_number());
        let state = Mutex::new(acceptor(authority.server_certificate(&dns_names, &addresses)?)?);
        let renewal = Some(Renewal { authority, dns_names, addresses });
        Ok(Self { inner: Arc::new(Inner { state, number, renewal }) })
    }

    /// Accepts a client that speaks HTTP/2.
    ///
    /// # Errors
    /// If the client gives up, speaks no TLS 1.3 or no `h2`, or takes longer than `timeout`.
    pub async fn accept<IO>(&self, io: IO, timeout: Duration) -> Result<TlsStream<IO>, HandshakeError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let acceptor = self.inner.acceptor();
        Ok(within(timeout, acceptor.accept(io)).await?.0)
    }
}

impl fmt::Debug for ControlAcceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlAcceptor").field("renews", &self.inner.renewal.is_some()).finish()
    }
}

impl Inner {
    fn acceptor(&self) -> Acceptor {
        let mut state = self.state.lock();
        if let Some(renewal) = &self.renewal
            && (SystemTime::now() >= state.1
                || self.number.load(Ordering::Relaxed) != renewal.authority.signing_number())
        {
            // Before the certificate is made: if a root comes in between, another certificate is made.
            self.number.store(renewal.authority.signing_number(), Ordering::Relaxed);
            let renewed =
                renewal.authority.server_certificate(&renewal.dns_names, &renewal.addresses).and_then(acceptor);
            match renewed {
                Ok(renewed) => *state = renewed,
                Err(error) => tracing::warn!(%error, "cannot renew the control plane's own certificate yet"),
            }
        }
        state.0.clone()
    }
}

/// The acceptor for a certificate, and when the certificate must be replaced.
fn acceptor(certificate: ServerCertificate) -> Result<(Acceptor, SystemTime), Error> {
    let renew_at = certificate.half_life();
    let (chain, key) = certificate.into_parts();
    Ok((Acceptor::control(chain, key.into_der(), ALPN_H2)?, renew_at))
}

/// The source of the roots that a control plane's certificate must chain to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RootSource {
    /// A PEM file. It is read for every connection, so replacing a root needs no restart.
    File(PathBuf),
    /// PEM text.
    Pem(String),
    /// The machine's own trust store.
    System,
    /// One of these, and the roots that the control plane has announced since.
    Beside(Box<Self>, LearntRoots),
}

/// Roots that a control plane has announced over a connection that older roots vouched for. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct LearntRoots(Arc<Mutex<String>>);

impl LearntRoots {
    /// Replaces them; PEM.
    pub fn set(&self, pem: String) {
        *self.0.lock() = pem;
    }
}

impl PartialEq for LearntRoots {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for LearntRoots {}

impl FromStr for RootSource {
    type Err = std::convert::Infallible;

    /// As Istio's `XDS_ROOT_CA`: `SYSTEM`, PEM text, or else a path.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "SYSTEM" => Self::System,
            pem if pem.contains("-----BEGIN ") => Self::Pem(pem.to_owned()),
            path => Self::File(path.into()),
        })
    }
}

/// The places where distributions keep their bundle of roots. The first one that exists is used, unless `SSL_CERT_FILE`
/// names another.
const SYSTEM_BUNDLES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

impl RootSource {
    fn read(&self) -> Result<String, HandshakeError> {
        let from_file = |path: &std::path::Path| {
            std::fs::read_to_string(path).map_err(|error| {
                HandshakeError::Local(format!(
                    "cannot read the control plane's root certificate {}: {error}; is the file mounted, or the \
                     setting right?",
                    path.display()
                ))
            })
        };
        match self {
            Self::Pem(pem) => Ok(pem.clone()),
            // A client that trusts the machine's store has not trusted this mesh's authority and need not.
            Self::Beside(base, _) if **base == Self::System => base.read(),
            Self::Beside(base, learnt) => Ok(format!("{}\n{}", base.read()?, learnt.0.lock())),
            Self::File(path) => from_file(path),
            Self::System => {
                let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
                let found = named
                    .or_else(|| SYSTEM_BUNDLES.iter().map(PathBuf::from).find(|path| path.exists()))
                    .ok_or_else(|| {
                        HandshakeError::Local(
                            "this system has no root certificates; install its ca-certificates package or name \
                                 a file"
                                .to_owned(),
                        )
                    })?;
                from_file(&found)
            }
        }
    }
}

/// Client side.
#[derive(Debug, Clone)]
pub struct ControlConnector {
    roots: RootSource,
}

impl ControlConnector {
    /// A connector that trusts `roots`, which are read for every connection.
    pub fn new(roots: RootSource) -> Self {
        Self { roots }
    }

    /// Connects to a server that must prove to be `server_name`, a DNS name or an address.
    ///
    /// # Errors
    /// If the roots can't be read, the server does not prove its name or speaks no `h2`, or it takes longer than
    /// `timeout`.
    pub async fn connect<IO>(
        &self,
        io: IO,
        server_name: &str,
        timeout: Duration,
    ) -> Result<TlsStream<IO>, HandshakeError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let (stream, alpn) = self.agree(io, server_name, ALPN_H2, timeout).await?;
        if alpn.as_deref() != Some(ALPN_H2) {
            return Err(HandshakeError::Alpn("h2".to_owned()));
        }
        Ok(stream)
    }

    /// As [`Self::connect`], to speak HTTP/1.1. A server that agrees on no protocol is taken to speak it, too (RFC 9112).
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub async fn connect_http1<IO>(
        &self,
        io: IO,
        server_name: &str,
        timeout: Duration,
    ) -> Result<TlsStream<IO>, HandshakeError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let (stream, alpn) = self.agree(io, server_name, ALPN_HTTP1, timeout).await?;
        if alpn.is_some_and(|alpn| *alpn != *ALPN_HTTP1) {
            return Err(HandshakeError::Alpn("http/1.1".to_owned()));
        }
        Ok(stream)
    }

    async fn agree<IO>(
        &self,
        io: IO,
        server_name: &str,
        alpn: &[u8],
        timeout: Duration,
    ) -> Result<(TlsStream<IO>, Option<Box<[u8]>>), HandshakeError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let local = |e: String| HandshakeError::Local(e);
        let name = ServerName::try_from(server_name.to_owned())
            .map_err(|_| local(format!("{server_name:?} is neither a DNS name nor an address")))?;
        let certificates = parse_pem_certificates(&self.roots.read()?)
            .map_err(|e| local(format!("the control plane's root certificate: {e}")))?;
        // A system's bundle may contain a root that this library can't read. A configured one may not.
        let of_system = match &self.roots {
            RootSource::Beside(base, _) => **base == RootSource::System,
            source => *source == RootSource::System,
        };
        let roots = if of_system {
            Roots::readable_of(&certificates)
        } else {
            Roots::all_of(&certificates).map_err(|e| local(e.to_string()))?
        };
        let side = ControlSide::new(roots, alpn).map_err(|e| local(e.to_string()))?;
        let (stream, facts) = within(timeout, side.connect(name, io)).await?;
        Ok((stream, facts.alpn))
    }
}
