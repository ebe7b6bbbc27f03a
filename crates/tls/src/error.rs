//! Errors, in words for the operator.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leno_model::{Identity, Name};

use crate::alert::PeerAlert;

/// Errors of keys, certificates and the certificate authority.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Key generation or signing failed inside the crypto library.
    #[error("cannot make {what}: {source}")]
    Crypto {
        /// What was to be made.
        what: &'static str,
        /// The library's reason.
        #[source]
        source: rcgen::Error,
    },
    /// The TLS library refused a key or certificate.
    #[error("cannot use the certificate for TLS: {0}; does the key belong to it?")]
    Tls(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// PEM or DER that is not valid.
    #[error("{what} is not valid: {reason}")]
    Malformed {
        /// What was being read.
        what: &'static str,
        /// Why it is not valid.
        reason: String,
    },
    /// The issuer's answer is not a valid certificate for the request.
    #[error("the issuer returned an unusable certificate for {identity}: {reason}; check the certificate authority")]
    Issued {
        /// The identity that the certificate was requested for.
        identity: Identity,
        /// What is wrong with it.
        reason: String,
    },
    /// A certificate signing request that must not be granted.
    #[error("certificate request refused: {0}")]
    Request(String),
    /// An identity outside the authority's trust domain.
    #[error("this authority signs for trust domain {own}, not for {identity}; align the trust domains of both sides")]
    ForeignTrustDomain {
        /// The requested identity.
        identity: Identity,
        /// The trust domain of the authority.
        own: Name,
    },
    /// The authority's directory can't be used as it is.
    #[error("certificate authority in {}: {problem}; {action}", path.display())]
    Directory {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong.
        problem: String,
        /// What the operator can do.
        action: String,
    },
    /// A file could not be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// The signing certificate has expired.
    #[error(
        "the authority's signing certificate has expired{}; \
         {}", 
        if *.renewable { " together with its root" } else { "" },
        if *.renewable { "remove its directory to start a new authority (every workload then gets a new certificate)" }
        else { "replace ca-cert.pem, ca-key.pem and cert-chain.pem, or add root-key.pem to have it renewed" }
    )]
    AuthorityExpired {
        /// Whether the root's key is held, so that only the root's own expiry can be the cause.
        renewable: bool,
    },
}

impl Error {
    /// Whether the same call can succeed later without any change.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::File { source, .. } => {
                !matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied)
            }
            _ => false,
        }
    }
}

/// Why a handshake failed: the rule that the peer broke, or the failure underneath.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The client showed no certificate.
    #[error("the peer presented no certificate; only mesh workloads may connect to this port")]
    NoClientCertificate,
    /// The peer's certificate does not chain to one of our roots.
    #[error(
        "the peer's certificate was not issued by this mesh's certificate authority; check that both sides \
         use the same root, and that the peer sends its intermediate certificates"
    )]
    UntrustedCa,
    /// The peer's certificate has expired.
    #[error("the peer's certificate expired {}; check that the peer can reach its certificate authority, and both clocks", ago(*.at, *.not_after))]
    Expired {
        /// When it expired.
        not_after: SystemTime,
        /// The time of the check.
        at: SystemTime,
    },
    /// The peer's certificate is not valid yet.
    #[error("the peer's certificate becomes valid only {}; check both clocks", ahead(*.at, *.not_before))]
    NotYetValid {
        /// When it becomes valid.
        not_before: SystemTime,
        /// The time of the check.
        at: SystemTime,
    },
    /// The peer has a valid certificate of another trust domain.
    #[error("the peer belongs to trust domain {got}, this workload to {want}; trust domains do not mix")]
    WrongTrustDomain {
        /// The peer's trust domain.
        got: Name,
        /// Ours.
        want: Name,
    },
    /// The peer has a valid certificate that names no workload: no URI name, several, or one of another form.
    #[error("the peer's certificate names no single workload identity: {0}")]
    NotAMeshIdentity(String),
    /// The peer is another workload than expected.
    #[error(
        "the peer is {got}, expected {}; \
         its address may have been reused, or configuration is behind", 
        one_of(.expected)
    )]
    UnexpectedIdentity {
        /// The peer's identity.
        got: Identity,
        /// The identities that were expected.
        expected: Vec<Identity>,
    },
    /// The server's certificate is for another name (control plane only).
    #[error("the server's certificate is not for {expected} but for {}; check the address and the server's own names", if presented.is_empty() { "no name at all".to_owned() } else { presented.join(", ") })]
    WrongServerName {
        /// The name that was dialled.
        expected: String,
        /// The names in the certificate.
        presented: Vec<String>,
    },
    /// The certificate is unacceptable for another reason: wrong key usage, a CA's own certificate, bad encoding or
    /// signature.
    #[error("the peer's certificate is unacceptable: {0}")]
    BadCertificate(String),
    /// The peers have no application protocol in common.
    #[error("the peer does not agree on an application protocol (ALPN); this side speaks {0}")]
    Alpn(String),
    /// The peer refused us with an alert.
    #[error("the peer refused the handshake: {0}")]
    Refused(PeerAlert),
    /// The handshake took too long.
    #[error("the TLS handshake took longer than {} s; the peer may be overloaded or not a mesh proxy", .0.as_secs_f64())]
    Timeout(Duration),
    /// The peer does not speak TLS 1.3 as required.
    #[error("the peer does not speak TLS as the mesh requires: {0}")]
    Protocol(String),
    /// The handshake needed much memory, and others needed it, too.
    #[error(
        "the handshake was ended before the peer had proved its identity, because others needed its memory: at most {most} \
         handshakes at a time may hold more than {} KiB; find out who sends such long certificate chains and does not \
         finish",
        .own >> 10
    )]
    GaveWay {
        /// How many handshakes at a time may hold more than `own`.
        most: usize,
        /// Bytes.
        own: usize,
    },
    /// Our own side can't take part: bad server name, unreadable roots.
    #[error("{0}")]
    Local(String),
    /// The connection broke.
    #[error("the connection broke during the TLS handshake: {0}")]
    Io(#[source] Arc<io::Error>),
}

impl HandshakeError {
    /// The peer supports none of our protocols.
    pub(crate) fn no_common_protocol(ours: &[Vec<u8>]) -> Self {
        let names: Vec<_> = ours.iter().map(|protocol| String::from_utf8_lossy(protocol)).collect();
        Self::Alpn(names.join(", "))
    }

    /// Whether a new attempt at the same peer can succeed without any change.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Timeout(_) | Self::Io(_) | Self::GaveWay { .. } | Self::NotYetValid { .. })
    }

    /// A word for metrics and log fields.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoClientCertificate => "no_client_certificate",
            Self::UntrustedCa => "untrusted_ca",
            Self::Expired { .. } => "expired",
            Self::NotYetValid { .. } => "not_yet_valid",
            Self::WrongTrustDomain { .. } => "wrong_trust_domain",
            Self::NotAMeshIdentity(_) => "not_a_mesh_identity",
            Self::UnexpectedIdentity { .. } => "unexpected_identity",
            Self::WrongServerName { .. } => "wrong_server_name",
            Self::BadCertificate(_) => "bad_certificate",
            Self::Alpn(_) => "alpn",
            Self::Refused(_) => "refused_by_peer",
            Self::Timeout(_) => "timeout",
            Self::Protocol(_) => "protocol",
            Self::GaveWay { .. } => "gave_way",
            Self::Local(_) => "local",
            Self::Io(_) => "io",
        }
    }
}

/// Why an issuer gave no certificate.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct IssueError {
    /// The issuer's message.
    pub message: String,
    /// Whether asking again can help.
    pub retryable: bool,
}

impl IssueError {
    /// Whether asking again can help.
    pub fn is_retryable(&self) -> bool {
        self.retryable
    }
}

/// Why there is no usable certificate for an identity now.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CertificateError {
    /// The issuer was asked and refused or failed.
    #[error("no certificate for {identity}: {reason} (attempt {attempts}, next in {} s)", .next.as_secs())]
    Unavailable {
        /// The identity.
        identity: Identity,
        /// The last failure.
        reason: String,
        /// Failures in a row.
        attempts: u32,
        /// Until the next attempt.
        next: Duration,
    },
    /// The issuer has not answered yet.
    #[error(
        "no certificate for {identity} within {} s; check that the certificate authority is reachable",
        .waited.as_secs_f64()
    )]
    Timeout {
        /// The identity.
        identity: Identity,
        /// How long the caller waited.
        waited: Duration,
    },
    /// The identity left this node during the wait.
    #[error("no certificate for {0}: no workload on this node has that identity any more")]
    Forgotten(Identity),
}

impl CertificateError {
    /// Whether asking again later can help. It always can, because the manager keeps trying.
    pub fn is_retryable(&self) -> bool {
        !matches!(self, Self::Forgotten(_))
    }
}

fn one_of(expected: &[Identity]) -> impl fmt::Display {
    match expected {
        [] => "nobody (the destination has no identity)".to_owned(),
        [one] => one.to_string(),
        several => format!("one of {}", several.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
    }
}

fn ago(at: SystemTime, then: SystemTime) -> String {
    at.duration_since(then).map_or_else(|_| "just now".to_owned(), |d| format!("{} s ago", d.as_secs()))
}

fn ahead(at: SystemTime, then: SystemTime) -> String {
    then.duration_since(at).map_or_else(|_| "now".to_owned(), |d| format!("in {} s", d.as_secs()))
}
