//! The mesh's rules for certificates, in the form in which the library calls them during a handshake, and the way in
//! which a typed error gets back through the library.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leno_model::{Identity, Name};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, OtherError, PeerMisbehaved, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::provider::algorithms;
use crate::HandshakeError;
use crate::alert::{Alert, PeerAlert};
use crate::verify::{Roots, Usage, check_chain, identity_of};

/// Wraps a typed reason for its way through the library. If TLS has an alert for the reason, the peer gets it.
fn refuse(reason: HandshakeError) -> rustls::Error {
    let seconds =
        |time: SystemTime| UnixTime::since_unix_epoch(time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default());
    rustls::Error::InvalidCertificate(match reason {
        HandshakeError::Expired { not_after, at } => {
            CertificateError::ExpiredContext { time: seconds(at), not_after: seconds(not_after) }
        }
        HandshakeError::NotYetValid { not_before, at } => {
            CertificateError::NotValidYetContext { time: seconds(at), not_before: seconds(not_before) }
        }
        HandshakeError::UntrustedCa => CertificateError::UnknownIssuer,
        reason => {
            let reason: Arc<dyn StdError + Send + Sync> = Arc::new(reason);
            CertificateError::Other(OtherError(reason))
        }
    })
}

/// The typed reason inside an error of the library, if this module put one there; otherwise the best match. `alpn` are
/// our protocols.
pub(super) fn reason_of(error: &rustls::Error, alpn: &[Vec<u8>]) -> HandshakeError {
    let at = |time: &UnixTime| SystemTime::UNIX_EPOCH + Duration::from_secs(time.as_secs());
    match error {
        rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(inner))) => inner
            .downcast_ref::<HandshakeError>()
            .cloned()
            .unwrap_or_else(|| HandshakeError::BadCertificate(inner.to_string())),
        rustls::Error::InvalidCertificate(CertificateError::ExpiredContext { time, not_after }) => {
            HandshakeError::Expired { not_after: at(not_after), at: at(time) }
        }
        rustls::Error::InvalidCertificate(CertificateError::NotValidYetContext { time, not_before }) => {
            HandshakeError::NotYetValid { not_before: at(not_before), at: at(time) }
        }
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            HandshakeError::UntrustedCa
        }
        rustls::Error::InvalidCertificate(CertificateError::NotValidForNameContext { expected, presented }) => {
            HandshakeError::WrongServerName { expected: expected.to_str().into_owned(), presented: presented.clone() }
        }
        rustls::Error::InvalidCertificate(other) => HandshakeError::BadCertificate(other.to_string()),
        rustls::Error::NoCertificatesPresented => HandshakeError::NoClientCertificate,
        rustls::Error::NoApplicationProtocol => HandshakeError::no_common_protocol(alpn),
        rustls::Error::AlertReceived(alert) => HandshakeError::Refused(PeerAlert(Alert(u8::from(*alert)))),
        other => HandshakeError::Protocol(other.to_string()),
    }
}

/// Verifies signatures of a handshake, for client and server alike: those of TLS 1.3 only, with `self.algorithms`.
macro_rules! signatures_by_algorithms {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            // Never reached, since only TLS 1.3 is offered; refusing keeps it that way.
            Err(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into())
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
    };
}

/// Server side: any workload of our trust domain that our roots vouch for.
#[derive(Debug)]
pub(super) struct MeshClientVerifier {
    roots: Arc<Roots>,
    trust_domain: Name,
    algorithms: WebPkiSupportedAlgorithms,
}

impl MeshClientVerifier {
    pub(super) fn new(roots: Arc<Roots>, trust_domain: Name) -> Self {
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

    signatures_by_algorithms!();
}

/// Client side: accepts exactly the identities that the destination may have.
#[derive(Debug)]
pub(super) struct MeshServerVerifier {
    roots: Arc<Roots>,
    expected: Vec<Identity>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl MeshServerVerifier {
    pub(super) fn new(roots: Arc<Roots>, expected: Vec<Identity>) -> Self {
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

    signatures_by_algorithms!();
}
