//! The rules that a certificate must meet.
//!
//! The mesh looks only at the single URI SAN, compared byte for byte. DNS names, IP addresses and the subject are never
//! used.

use std::fmt;
use std::time::{Duration, SystemTime};

use leno_model::Identity;
use rustls_pki_types::{CertificateDer, SignatureVerificationAlgorithm, TrustAnchor, UnixTime};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::{Error, HandshakeError};

/// The role in which the certificate's holder acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Usage {
    Server,
    Client,
}

/// Supported signature algorithms of certificates.
pub(crate) static SIGNATURES: &[&dyn SignatureVerificationAlgorithm] = webpki::ALL_VERIFICATION_ALGS;

/// Trust anchors (RFC 5280 §6.1.1).
#[derive(Clone)]
pub(crate) struct Roots(Vec<TrustAnchor<'static>>);

impl Roots {
    /// From a bundle. One unreadable root makes it an error: silently trusting fewer roots than were configured would
    /// show only when a rotation reaches the missing one.
    pub(crate) fn all_of(certificates: &[CertificateDer<'static>]) -> Result<Self, Error> {
        let anchor = |certificate| Self::anchor(certificate).map_err(unreadable);
        certificates.iter().map(anchor).collect::<Result<_, _>>().map(Self)
    }

    /// From a bundle that may contain certificates of any age: those that can be read.
    pub(crate) fn readable_of(certificates: &[CertificateDer<'static>]) -> Self {
        Self(certificates.iter().filter_map(|certificate| Self::anchor(certificate).ok()).collect())
    }

    fn anchor(certificate: &CertificateDer<'static>) -> Result<TrustAnchor<'static>, webpki::Error> {
        Ok(anchor_from_trusted_cert(certificate)?.to_owned())
    }

    pub(crate) fn into_anchors(self) -> Vec<TrustAnchor<'static>> {
        self.0
    }
}

impl fmt::Debug for Roots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Roots({})", self.0.len())
    }
}

fn unreadable(error: webpki::Error) -> Error {
    Error::Malformed { what: "the root certificate", reason: error.to_string() }
}

/// The identity in a certificate: exactly one URI SAN, in the mesh's form. SPIFFE X509-SVID §2 allows exactly one. With
/// a second one, an issuer's mistake would become an attacker's choice.
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

/// How far an issuer's clock may be ahead of ours. Certificates are back-dated for that, but Istio's by only two
/// minutes. There is no such tolerance at the end of validity, because the holder renews its certificate long before.
const TOLERATED: Duration = Duration::from_secs(5 * 60);
/// Most certificates of a chain that have a start of validity of their own. Ours have two below the root.
const MAX_BEGINS: usize = 4;

/// Whether a chain leads to one of `roots` at `now`, or at most [`TOLERATED`] later, and the leaf may be used for
/// `usage`.
pub(crate) fn check_chain(
    roots: &Roots,
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
    roots: &Roots,
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
        .and_then(|leaf| leaf.verify_for_usage(SIGNATURES, &roots.0, intermediates, now, usage, None, None).map(|_| ()))
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
        // A root with the same name and another key gives a signature that does not fit.
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

#[cfg(test)]
#[path = "verify_tests.rs"]
mod tests;
