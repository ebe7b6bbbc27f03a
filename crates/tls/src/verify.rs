//! What a certificate must be for its holder to be believed.
//!
//! The mesh looks at one thing only: the single URI SAN, compared byte for byte. DNS names, IP
//! addresses and the subject are never consulted.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leno_model::{Identity, Name};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError as RustlsCertificateError, DigitallySignedStruct, DistinguishedName, OtherError, PeerMisbehaved,
    RootCertStore, SignatureScheme,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use webpki::{EndEntityCert, KeyUsage};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::HandshakeError;

/// What the certificate's holder is about to act as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Usage {
    Server,
    Client,
}

/// The identity a certificate names: exactly one URI SAN, of the mesh's shape (SPIFFE X509-SVID
/// §2 allows exactly one; a second would let an issuer's mistake turn into a choice of the
/// attacker's).
pub(crate) fn identity_of(der: &CertificateDer<'_>) -> Result<Identity, HandshakeError> {
    let (rest, certificate) = X509Certificate::from_der(der)
        .map_err(|e| HandshakeError::BadCertificate(format!("it can't be read ({e})")))?;
    if !rest.is_empty() {
        return Err(HandshakeError::BadCertificate("it has bytes after its end".to_owned()));
    }
    let names = certificate
        .subject_alternative_name()
        .map_err(|e| HandshakeError::NotAMeshIdentity(format!("its alternative names can't be read ({e})")))?;
    let Some(names) = names else {
        return Err(HandshakeError::NotAMeshIdentity("it has no alternative names".to_owned()));
    };
    let mut uris = names.value.general_names.iter().filter_map(|name| match name {
        GeneralName::URI(uri) => Some(Ok(*uri)),
        // uniformResourceIdentifier is context tag 6 (RFC 5280 §4.2.1.6).
        GeneralName::Invalid(tag, bytes) if tag.0 == 6 => Some(Err(*bytes)),
        _ => None,
    });
    match (uris.next(), uris.next()) {
        (None, _) => Err(HandshakeError::NotAMeshIdentity("it has no URI name".to_owned())),
        (Some(_), Some(_)) => Err(HandshakeError::NotAMeshIdentity("it has more than one URI name".to_owned())),
        (Some(Err(bytes)), None) => Err(HandshakeError::NotAMeshIdentity(format!(
            "its URI name is not ASCII ({:?})",
            String::from_utf8_lossy(bytes)
        ))),
        (Some(Ok(uri)), None) => {
            uri.parse().map_err(|e: leno_model::IdentityError| HandshakeError::NotAMeshIdentity(e.to_string()))
        }
    }
}

/// How far an issuer's clock may be ahead of ours. Certificates are back-dated for that, but
/// Istio's by two minutes only. There is no such leeway at a certificate's end: its holder
/// renews it long before, by whichever clock.
const TOLERATED: Duration = Duration::from_secs(5 * 60);
/// A chain's certificates can each have a begin of their own; ours have two below the root.
const MAX_BEGINS: usize = 4;

/// Whether a chain leads to one of `roots` at `now`, or at most [`TOLERATED`] later, and the leaf
/// may act as `usage`.
pub(crate) fn check_chain(
    roots: &RootCertStore,
    leaf: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    now: SystemTime,
    usage: Usage,
) -> Result<(), HandshakeError> {
    let mut at = now;
    for _ in 0..MAX_BEGINS {
        match check_chain_at(roots, leaf, intermediates, at, usage) {
            Err(HandshakeError::NotYetValid { not_before, .. }) if not_before <= now + TOLERATED => at = not_before,
            Err(HandshakeError::NotYetValid { not_before, .. }) => {
                return Err(HandshakeError::NotYetValid { not_before, at: now });
            }
            verdict => return verdict,
        }
    }
    Err(HandshakeError::NotYetValid { not_before: at, at: now })
}

fn check_chain_at(
    roots: &RootCertStore,
    leaf: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    now: SystemTime,
    usage: Usage,
) -> Result<(), HandshakeError> {
    let now = UnixTime::since_unix_epoch(now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default());
    let usage = match usage {
        Usage::Server => KeyUsage::server_auth(),
        Usage::Client => KeyUsage::client_auth(),
    };
    EndEntityCert::try_from(leaf)
        .and_then(|leaf| {
            leaf.verify_for_usage(algorithms().all, &roots.roots, intermediates, now, usage, None, None).map(|_| ())
        })
        .map_err(|e| chain_error(&e))
}

fn chain_error(error: &webpki::Error) -> HandshakeError {
    let at = |time: &UnixTime| SystemTime::UNIX_EPOCH + Duration::from_secs(time.as_secs());
    match error {
        webpki::Error::CertExpired { time, not_after } => {
            HandshakeError::Expired { not_after: at(not_after), at: at(time) }
        }
        webpki::Error::CertNotValidYet { time, not_before } => {
            HandshakeError::NotYetValid { not_before: at(not_before), at: at(time) }
        }
        // A signature that doesn't fit is what a root of the same name but another key gives.
        webpki::Error::UnknownIssuer | webpki::Error::InvalidSignatureForPublicKey => HandshakeError::UntrustedCa,
        webpki::Error::CaUsedAsEndEntity => {
            HandshakeError::BadCertificate("it is a certificate authority's own".to_owned())
        }
        webpki::Error::RequiredEkuNotFoundContext(_) => {
            HandshakeError::BadCertificate("its extended key usage does not allow this role".to_owned())
        }
        other => HandshakeError::BadCertificate(other.to_string()),
    }
}

/// Lets a typed reason travel through rustls. Where TLS has an alert of its own for the reason,
/// the peer gets to hear it.
fn refuse(reason: HandshakeError) -> rustls::Error {
    let seconds =
        |time: SystemTime| UnixTime::since_unix_epoch(time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default());
    rustls::Error::InvalidCertificate(match reason {
        HandshakeError::Expired { not_after, at } => {
            RustlsCertificateError::ExpiredContext { time: seconds(at), not_after: seconds(not_after) }
        }
        HandshakeError::NotYetValid { not_before, at } => {
            RustlsCertificateError::NotValidYetContext { time: seconds(at), not_before: seconds(not_before) }
        }
        HandshakeError::UntrustedCa => RustlsCertificateError::UnknownIssuer,
        reason => {
            let reason: Arc<dyn StdError + Send + Sync> = Arc::new(reason);
            RustlsCertificateError::Other(OtherError(reason))
        }
    })
}

/// The typed reason inside a rustls error, if this module put one there; else the best fit.
pub(crate) fn reason_of(error: &rustls::Error, alpn: &dyn Fn() -> String) -> HandshakeError {
    let at = |time: &UnixTime| SystemTime::UNIX_EPOCH + Duration::from_secs(time.as_secs());
    match error {
        rustls::Error::InvalidCertificate(RustlsCertificateError::Other(OtherError(inner))) => inner
            .downcast_ref::<HandshakeError>()
            .cloned()
            .unwrap_or_else(|| HandshakeError::BadCertificate(inner.to_string())),
        rustls::Error::InvalidCertificate(RustlsCertificateError::ExpiredContext { time, not_after }) => {
            HandshakeError::Expired { not_after: at(not_after), at: at(time) }
        }
        rustls::Error::InvalidCertificate(RustlsCertificateError::NotValidYetContext { time, not_before }) => {
            HandshakeError::NotYetValid { not_before: at(not_before), at: at(time) }
        }
        rustls::Error::InvalidCertificate(
            RustlsCertificateError::UnknownIssuer | RustlsCertificateError::BadSignature,
        ) => HandshakeError::UntrustedCa,
        rustls::Error::InvalidCertificate(RustlsCertificateError::NotValidForNameContext { expected, presented }) => {
            HandshakeError::WrongServerName { expected: expected.to_str().into_owned(), presented: presented.clone() }
        }
        rustls::Error::InvalidCertificate(other) => HandshakeError::BadCertificate(other.to_string()),
        rustls::Error::NoCertificatesPresented => HandshakeError::NoClientCertificate,
        rustls::Error::NoApplicationProtocol => HandshakeError::Alpn(alpn()),
        rustls::Error::AlertReceived(alert) => HandshakeError::Refused(crate::PeerAlert::new(*alert)),
        other => HandshakeError::Protocol(other.to_string()),
    }
}

fn algorithms() -> WebPkiSupportedAlgorithms {
    crate::provider::provider().signature_verification_algorithms
}

/// Server side: any workload of our trust domain that our roots vouch for.
#[derive(Debug)]
pub(crate) struct MeshClientVerifier {
    pub(crate) roots: Arc<RootCertStore>,
    pub(crate) trust_domain: Name,
    pub(crate) algorithms: WebPkiSupportedAlgorithms,
}

impl MeshClientVerifier {
    pub(crate) fn new(roots: Arc<RootCertStore>, trust_domain: Name) -> Self {
        Self { roots, trust_domain, algorithms: algorithms() }
    }
}

impl ClientCertVerifier for MeshClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        true
    }

    // Hints would tell every scanner who signs for this mesh, and no mesh client needs them.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(now.as_secs());
        check_chain(&self.roots, end_entity, intermediates, now, Usage::Client).map_err(refuse)?;
        let got = identity_of(end_entity).map_err(refuse)?;
        if *got.trust_domain() != self.trust_domain {
            let reason =
                HandshakeError::WrongTrustDomain { got: got.trust_domain().clone(), want: self.trust_domain.clone() };
            return Err(refuse(reason));
        }
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Client side: exactly one of the identities the destination may have.
#[derive(Debug)]
pub(crate) struct MeshServerVerifier {
    pub(crate) roots: Arc<RootCertStore>,
    pub(crate) expected: Vec<Identity>,
    pub(crate) algorithms: WebPkiSupportedAlgorithms,
}

impl MeshServerVerifier {
    pub(crate) fn new(roots: Arc<RootCertStore>, expected: Vec<Identity>) -> Self {
        Self { roots, expected, algorithms: algorithms() }
    }
}

impl ServerCertVerifier for MeshServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(now.as_secs());
        check_chain(&self.roots, end_entity, intermediates, now, Usage::Server).map_err(refuse)?;
        let got = identity_of(end_entity).map_err(refuse)?;
        if !self.expected.contains(&got) {
            return Err(refuse(HandshakeError::UnexpectedIdentity { got, expected: self.expected.clone() }));
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Never reached, since only TLS 1.3 is offered; refusing keeps it that way.
fn tls12() -> rustls::Error {
    PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into()
}
