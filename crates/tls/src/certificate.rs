//! A workload's key and certificate.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use leno_model::Identity;
use rcgen::{CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256, SanType};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::Error;
use crate::library::Credential;
use crate::verify::{self, Roots, Usage};

/// A private key. It leaves this process only if a caller writes it out, and is never printed.
pub struct PrivateKey {
    der: PrivateKeyDer<'static>,
}

impl PrivateKey {
    /// Reads a PEM key: PKCS#8, SEC1 or PKCS#1.
    ///
    /// # Errors
    /// If the text contains no key.
    pub fn from_pem(pem: &str) -> Result<Self, Error> {
        PrivateKeyDer::from_pem_slice(pem.as_bytes())
            .map(|der| Self { der })
            .map_err(|e| Error::Malformed { what: "the private key", reason: e.to_string() })
    }

    pub(crate) fn of(key: &KeyPair) -> Self {
        Self { der: PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())) }
    }

    pub(crate) fn into_der(self) -> PrivateKeyDer<'static> {
        self.der
    }

    /// The key in PKCS#8 DER, for a program that reads its key from a file. `None` if the key was read in another form.
    #[must_use]
    pub fn secret_pkcs8_der(&self) -> Option<&[u8]> {
        match &self.der {
            PrivateKeyDer::Pkcs8(key) => Some(key.secret_pkcs8_der()),
            _ => None,
        }
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(..)")
    }
}

/// A new P-256 key, and a PEM PKCS#10 request for a certificate with `identity` as its only URI SAN and an empty
/// subject. Istio's certificate authority expects this form.
///
/// # Errors
/// If the crypto library can't generate a key.
pub fn certificate_request(identity: &Identity) -> Result<(PrivateKey, String), Error> {
    let wrap = |source| Error::Crypto { what: "a certificate request", source };
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(wrap)?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.subject_alt_names = vec![SanType::URI(identity.to_string().try_into().map_err(wrap)?)];
    let request = params.serialize_request(&key).and_then(|csr| csr.pem()).map_err(wrap)?;
    Ok((PrivateKey::of(&key), request))
}

/// One certificate of a chain, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateInfo {
    /// Serial number, lower-case hex without separators.
    pub serial: String,
    /// Start of validity.
    pub not_before: SystemTime,
    /// End of validity.
    pub not_after: SystemTime,
    /// The certificate itself.
    pub pem: String,
}

/// A workload's certificate, with its key and the roots it was delivered with.
pub struct WorkloadCertificate {
    identity: Identity,
    credential: Credential,
    roots: Arc<Roots>,
    root_certificates: Vec<CertificateDer<'static>>,
    /// How many of the roots came with it.
    issued_roots: usize,
    leaf: CertificateInfo,
}

impl WorkloadCertificate {
    /// Checks and accepts an issuer's answer: the leaf, its intermediates, and last the root bundle, which may be
    /// several PEM blocks (the form of Istio's `CreateCertificate`).
    ///
    /// # Errors
    /// If the chain is not for exactly `identity`, not for `key`, or does not verify against its roots. Such a
    /// certificate would otherwise be refused by every peer.
    pub fn from_issued(identity: Identity, key: PrivateKey, chain: &[String]) -> Result<Self, Error> {
        Self::from_issued_at(identity, key, chain, SystemTime::now())
    }

    /// As [`Self::from_issued`], checked at the time `now`.
    ///
    /// # Errors
    /// As [`Self::from_issued`].
    pub fn from_issued_at(
        identity: Identity,
        key: PrivateKey,
        chain: &[String],
        now: SystemTime,
    ) -> Result<Self, Error> {
        let issued = |reason: String| Error::Issued { identity: identity.clone(), reason };
        let Some((root_pem, own)) = chain.split_last().filter(|(_, own)| !own.is_empty()) else {
            return Err(issued(format!("expected a leaf and a root, got {} certificates", chain.len())));
        };
        let mut certificates = Vec::with_capacity(own.len());
        for pem in own {
            certificates.extend(parse_pem_certificates(pem).map_err(|e| issued(e.to_string()))?);
        }
        let root_certificates = parse_pem_certificates(root_pem).map_err(|e| issued(e.to_string()))?;
        let Some((leaf, intermediates)) = certificates.split_first() else {
            return Err(issued("there is no leaf certificate".to_owned()));
        };
        let roots = Arc::new(Roots::all_of(&root_certificates)?);
        let got = verify::identity_of(leaf).map_err(|e| issued(e.to_string()))?;
        if got != identity {
            return Err(issued(format!("it names {got}")));
        }
        for usage in [Usage::Server, Usage::Client] {
            verify::check_chain(&roots, leaf, intermediates, now, usage).map_err(|e| issued(e.to_string()))?;
        }
        let leaf = describe(leaf)?;
        let credential = Credential::new(certificates, key.into_der())
            .map_err(|e| issued(format!("it does not belong to the key of the request ({e})")))?;
        let issued_roots = root_certificates.len();
        Ok(Self { identity, credential, roots, root_certificates, issued_roots, leaf })
    }

    /// The roots that came with it, followed by those of `more` that differ from them.
    fn roots_with(&self, more: &[CertificateDer<'static>]) -> Vec<CertificateDer<'static>> {
        let mut roots = self.root_certificates[..self.issued_roots].to_vec();
        for root in more {
            if !roots.contains(root) {
                roots.push(root.clone());
            }
        }
        roots
    }

    /// The same certificate with a holder that trusts its own roots and `more`; `None` if the holder does already.
    pub(crate) fn trusting(&self, more: &[CertificateDer<'static>]) -> Result<Option<Self>, Error> {
        let root_certificates = self.roots_with(more);
        if root_certificates == self.root_certificates {
            return Ok(None);
        }
        Ok(Some(Self {
            identity: self.identity.clone(),
            credential: self.credential.clone(),
            roots: Arc::new(Roots::all_of(&root_certificates)?),
            root_certificates,
            issued_roots: self.issued_roots,
            leaf: self.leaf.clone(),
        }))
    }

    /// The identity of its holder.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Start of the leaf's validity.
    pub fn not_before(&self) -> SystemTime {
        self.leaf.not_before
    }

    /// End of the leaf's validity.
    pub fn not_after(&self) -> SystemTime {
        self.leaf.not_after
    }

    /// The leaf's serial number in hex.
    pub fn serial(&self) -> &str {
        &self.leaf.serial
    }

    /// The leaf and its intermediates in PEM.
    pub fn chain_pem(&self) -> String {
        self.credential.chain().iter().map(|der| to_pem(der)).collect()
    }

    /// The roots in PEM.
    pub fn root_pem(&self) -> String {
        self.root_certificates.iter().map(|der| to_pem(der)).collect()
    }

    /// The leaf and its intermediates, for people.
    pub fn chain(&self) -> Vec<CertificateInfo> {
        self.credential.chain().iter().filter_map(|der| describe(der).ok()).collect()
    }

    /// The roots, for people.
    pub fn roots(&self) -> Vec<CertificateInfo> {
        self.root_certificates.iter().filter_map(|der| describe(der).ok()).collect()
    }

    /// Whether peers still accept it at `now`.
    pub fn is_valid_at(&self, now: SystemTime) -> bool {
        now < self.leaf.not_after
    }

    /// How a peer with the same roots judges it at `now`.
    #[cfg(test)]
    pub(crate) fn check_at(&self, now: SystemTime) -> Result<(), crate::HandshakeError> {
        self.check_with(self, now)
    }

    /// How `peer` judges it at `now`.
    #[cfg(test)]
    pub(crate) fn check_with(&self, peer: &Self, now: SystemTime) -> Result<(), crate::HandshakeError> {
        let (leaf, intermediates) = self.credential.chain().split_first().expect("it was checked when it came");
        verify::check_chain(&peer.roots, leaf, intermediates, now, Usage::Server)
    }

    pub(crate) fn credential(&self) -> &Credential {
        &self.credential
    }

    pub(crate) fn trusted(&self) -> &Arc<Roots> {
        &self.roots
    }
}

impl fmt::Debug for WorkloadCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkloadCertificate")
            .field("identity", &self.identity)
            .field("serial", &self.leaf.serial)
            .field("not_after", &self.leaf.not_after)
            .finish_non_exhaustive()
    }
}

/// A server's certificate chain and key.
#[derive(Debug)]
pub struct ServerCertificate {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKey,
    not_before: SystemTime,
    not_after: SystemTime,
}

impl ServerCertificate {
    /// Reads a PEM chain, leaf first.
    ///
    /// # Errors
    /// If the text contains no certificate.
    pub fn from_pem(chain_pem: &str, key: PrivateKey) -> Result<Self, Error> {
        let chain = parse_pem_certificates(chain_pem)?;
        let info = describe(&chain[0])?;
        Ok(Self { chain, key, not_before: info.not_before, not_after: info.not_after })
    }

    /// End of its validity.
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }

    pub(crate) fn half_life(&self) -> SystemTime {
        self.not_before + self.not_after.duration_since(self.not_before).unwrap_or_default() / 2
    }

    pub(crate) fn into_parts(self) -> (Vec<CertificateDer<'static>>, PrivateKey) {
        (self.chain, self.key)
    }
}

/// All certificates of a PEM text. There is at least one.
pub(crate) fn parse_pem_certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, Error> {
    let malformed = |reason: String| Error::Malformed { what: "the certificate PEM", reason };
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|e| malformed(e.to_string()))?;
    if certificates.is_empty() {
        return Err(malformed("it holds no CERTIFICATE block".to_owned()));
    }
    Ok(certificates)
}

pub(crate) fn describe(der: &CertificateDer<'_>) -> Result<CertificateInfo, Error> {
    let (_, certificate) = X509Certificate::from_der(der)
        .map_err(|e| Error::Malformed { what: "the certificate", reason: e.to_string() })?;
    let at = |seconds: i64| {
        let distance = std::time::Duration::from_secs(seconds.unsigned_abs());
        if seconds < 0 { SystemTime::UNIX_EPOCH - distance } else { SystemTime::UNIX_EPOCH + distance }
    };
    Ok(CertificateInfo {
        serial: certificate.raw_serial().iter().map(|byte| format!("{byte:02x}")).collect(),
        not_before: at(certificate.validity().not_before.timestamp()),
        not_after: at(certificate.validity().not_after.timestamp()),
        pem: to_pem(der),
    })
}

/// PEM (RFC 7468) of a certificate.
pub(crate) fn to_pem(der: &[u8]) -> String {
    encode_pem("CERTIFICATE", der)
}

pub(crate) fn encode_pem(label: &str, der: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = format!("-----BEGIN {label}-----\n");
    // RFC 7468 §2: lines of 64 characters, which is 48 bytes.
    for line in der.chunks(48) {
        for group in line.chunks(3) {
            let bits = group.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
            for position in 0..4 {
                let index = (bits >> (18 - 6 * position)) & 0x3f;
                out.push(if position <= group.len() { char::from(ALPHABET[index as usize]) } else { '=' });
            }
        }
        out.push('\n');
    }
    out.push_str("-----END ");
    out.push_str(label);
    out.push_str("-----\n");
    out
}
