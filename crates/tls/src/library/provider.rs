//! The cryptography of the mesh, in order of preference, and the keys it uses.

use std::fmt;
use std::sync::{Arc, LazyLock};

use rustls::crypto::aws_lc_rs::{self, cipher_suite, kx_group};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::sign::CertifiedKey;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::Error;

/// AES-GCM only, the 128-bit one first: every server CPU has AES instructions, and the peers of a mesh (ztunnel, Envoy
/// in FIPS mode) never agree on ChaCha20. The hybrid post-quantum group comes first, so that traffic recorded today
/// stays secret. The classical groups serve peers that lack it.
static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| {
    Arc::new(CryptoProvider {
        cipher_suites: vec![cipher_suite::TLS13_AES_128_GCM_SHA256, cipher_suite::TLS13_AES_256_GCM_SHA384],
        kx_groups: vec![kx_group::X25519MLKEM768, kx_group::X25519, kx_group::SECP256R1, kx_group::SECP384R1],
        ..aws_lc_rs::default_provider()
    })
});

/// TLS 1.3 only (RFC 8446): version 1.2 would send certificates in the clear.
pub(super) static VERSIONS: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS13];

/// Cipher suites and key exchange groups. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Provider(Arc<CryptoProvider>);

impl Provider {
    /// Those of the mesh.
    pub(crate) fn mesh() -> Self {
        Self(PROVIDER.clone())
    }

    pub(super) fn library(&self) -> Arc<CryptoProvider> {
        self.0.clone()
    }
}

/// The signature algorithms accepted in handshakes.
pub(super) fn algorithms() -> WebPkiSupportedAlgorithms {
    PROVIDER.signature_verification_algorithms
}

/// A chain of certificates with the key of its leaf, ready for signing. Clones share it.
#[derive(Clone)]
pub(crate) struct Credential(Arc<CertifiedKey>);

impl Credential {
    /// From a chain, leaf first.
    ///
    /// # Errors
    /// If the key does not belong to the leaf, or can't sign handshakes.
    pub(crate) fn new(chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Result<Self, Error> {
        let key = CertifiedKey::from_der(chain, key, &PROVIDER).map_err(|error| Error::Tls(Box::new(error)))?;
        Ok(Self(Arc::new(key)))
    }

    /// The chain, leaf first.
    pub(crate) fn chain(&self) -> &[CertificateDer<'static>] {
        &self.0.cert
    }

    pub(super) fn library(&self) -> Arc<CertifiedKey> {
        self.0.clone()
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credential(..)")
    }
}

#[cfg(test)]
impl Provider {
    /// With no other cipher suite than `suite`.
    pub(crate) fn with_suite(suite: rustls::SupportedCipherSuite) -> Self {
        Self(Arc::new(CryptoProvider { cipher_suites: vec![suite], ..(**PROVIDER).clone() }))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::verify::SIGNATURES;

    /// Certificates' signatures are checked by this crate, handshakes' by the library.
    #[test]
    fn signatures_that_are_understood_are_the_same_everywhere() {
        type Known = &'static [&'static dyn rustls_pki_types::SignatureVerificationAlgorithm];
        let ids = |known: Known| -> BTreeSet<(Vec<u8>, Vec<u8>)> {
            let id = |one: &&'static dyn rustls_pki_types::SignatureVerificationAlgorithm| {
                (one.public_key_alg_id().as_ref().to_vec(), one.signature_alg_id().as_ref().to_vec())
            };
            known.iter().map(id).collect()
        };
        assert_eq!(ids(SIGNATURES), ids(algorithms().all));
    }
}
