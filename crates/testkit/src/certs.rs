//! Certificates that no sound authority signs, for tests that they are refused.

#![allow(clippy::unwrap_used, reason = "test code: a broken certificate generator shall stop the test")]

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

/// A certificate authority that signs anything.
pub struct TestCa {
    issuer: Issuer<'static, KeyPair>,
    /// This authority's certificate and those above it, without the root.
    chain: Vec<String>,
    root_pem: String,
}

/// The contents of a leaf certificate. The default is a sound one without a name.
#[derive(Debug, Clone)]
pub struct Leaf {
    /// URI names.
    pub uris: Vec<String>,
    /// DNS names.
    pub dns: Vec<String>,
    /// Begin of validity.
    pub not_before: SystemTime,
    /// End of validity.
    pub not_after: SystemTime,
    /// Whether it may act as TLS server, if it has any extended key usage.
    pub server_auth: bool,
    /// Whether it may act as TLS client, if it has any extended key usage.
    pub client_auth: bool,
    /// An extended key usage that allows neither.
    pub code_signing: bool,
    /// Whether it claims to be an authority.
    pub ca: bool,
}

impl Default for Leaf {
    fn default() -> Self {
        let now = SystemTime::now();
        Self {
            uris: Vec::new(),
            dns: Vec::new(),
            not_before: now - Duration::from_secs(60),
            not_after: now + Duration::from_secs(3600),
            server_auth: true,
            client_auth: true,
            code_signing: false,
            ca: false,
        }
    }
}

impl Leaf {
    /// A sound leaf with one URI name.
    pub fn uri(uri: &str) -> Self {
        Self { uris: vec![uri.to_owned()], ..Self::default() }
    }
}

/// A signed leaf.
#[derive(Debug, Clone)]
pub struct TestCertificate {
    /// The leaf, in PEM.
    pub leaf_pem: String,
    /// The intermediates up to the root, in PEM.
    pub intermediates: Vec<String>,
    /// The root, in PEM.
    pub root_pem: String,
    /// The key, in PKCS#8 PEM.
    pub key_pem: String,
}

impl TestCertificate {
    /// Leaf, intermediates, root: the form of Istio's `CreateCertificate`.
    pub fn chain(&self) -> Vec<String> {
        let mut chain = vec![self.leaf_pem.clone()];
        chain.extend(self.intermediates.iter().cloned());
        chain.push(self.root_pem.clone());
        chain
    }

    /// Leaf and intermediates, and the key: the form of a TLS library's configuration.
    pub fn chain_and_key(&self) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let chain = std::iter::once(&self.leaf_pem)
            .chain(&self.intermediates)
            .map(|pem| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap())
            .collect();
        (chain, PrivateKeyDer::from_pem_slice(self.key_pem.as_bytes()).unwrap())
    }
}

impl TestCa {
    /// A self-signed root.
    pub fn root(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let params = authority_params(name);
        let certificate = params.self_signed(&key).unwrap();
        Self { issuer: Issuer::new(params, key), chain: Vec::new(), root_pem: certificate.pem() }
    }

    /// An authority below this one.
    pub fn intermediate(&self, name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let params = authority_params(name);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let mut chain = vec![certificate.pem()];
        chain.extend(self.chain.iter().cloned());
        Self { issuer: Issuer::new(params, key), chain, root_pem: self.root_pem.clone() }
    }

    /// The root, in PEM.
    pub fn root_pem(&self) -> &str {
        &self.root_pem
    }

    /// Signs a leaf, whatever it contains.
    pub fn issue(&self, leaf: &Leaf) -> TestCertificate {
        let key = KeyPair::generate().unwrap();
        let certificate = leaf_params(leaf).signed_by(&key, &self.issuer).unwrap();
        TestCertificate {
            leaf_pem: certificate.pem(),
            intermediates: self.chain.clone(),
            root_pem: self.root_pem.clone(),
            key_pem: key.serialize_pem(),
        }
    }
}

/// A leaf that signed itself.
pub fn self_signed(leaf: &Leaf) -> TestCertificate {
    let key = KeyPair::generate().unwrap();
    let certificate = leaf_params(leaf).self_signed(&key).unwrap();
    TestCertificate {
        leaf_pem: certificate.pem(),
        intermediates: Vec::new(),
        root_pem: certificate.pem(),
        key_pem: key.serialize_pem(),
    }
}

fn authority_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

fn leaf_params(leaf: &Leaf) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.not_before = leaf.not_before.into();
    params.not_after = leaf.not_after.into();
    params.subject_alt_names = leaf
        .uris
        .iter()
        .map(|uri| SanType::URI(uri.as_str().try_into().unwrap()))
        .chain(leaf.dns.iter().map(|name| SanType::DnsName(name.as_str().try_into().unwrap())))
        .collect();
    params.is_ca = if leaf.ca { IsCa::Ca(BasicConstraints::Unconstrained) } else { IsCa::ExplicitNoCa };
    for (wanted, usage) in [
        (leaf.server_auth, ExtendedKeyUsagePurpose::ServerAuth),
        (leaf.client_auth, ExtendedKeyUsagePurpose::ClientAuth),
        (leaf.code_signing, ExtendedKeyUsagePurpose::CodeSigning),
    ] {
        if wanted {
            params.extended_key_usages.push(usage);
        }
    }
    params
}
