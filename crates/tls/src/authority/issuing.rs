//! What the authority issues: workloads' certificates, and the control plane's own.

use std::net::IpAddr;
use std::time::Duration;

use leno_model::Identity;
use rcgen::{
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType,
    SubjectPublicKeyInfo,
};
use rustls_pki_types::pem::PemObject;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer;

use super::CertificateAuthority;
use crate::certificate::ServerCertificate;
use crate::signing::{CLOCK_SKEW, crypto, params};
use crate::{Error, PrivateKey};

/// Life of the control plane's own certificate, renewed while it runs.
const SERVER_TTL: Duration = Duration::from_secs(90 * 24 * 3600);
/// A request is a key and a name; the largest sane one (RSA 4096) has 2 KiB.
pub(super) const MAX_REQUEST: usize = 16 * 1024;

impl CertificateAuthority {
    /// Signs a workload's request. The result is the leaf, the intermediates, and last the root
    /// bundle, as Istio's `CreateCertificate` answers.
    ///
    /// The name comes from `identity`, which the caller has authorised; a request that names
    /// anything else is refused. `ttl` is cut to what the options and the signing certificate
    /// allow.
    ///
    /// # Errors
    /// If the request is malformed, not signed by its own key, or names somebody else; if
    /// `identity` is of another trust domain; if the signing certificate has expired.
    pub fn sign(&self, csr_pem: &str, identity: &Identity, ttl: Duration) -> Result<Vec<String>, Error> {
        if *identity.trust_domain() != self.trust_domain {
            return Err(Error::ForeignTrustDomain { identity: identity.clone(), own: self.trust_domain.clone() });
        }
        let key = check_request(csr_pem, identity)?;
        let uri = identity.to_string().try_into().map_err(crypto("a workload certificate"))?;
        let usages = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        // The leaf is signed before the roots are read. Then the root that it needs is among them.
        let mut chain = self.sign_leaf(&key, vec![SanType::URI(uri)], &usages, ttl.min(self.options.max_ttl))?;
        chain.push(self.root_pem());
        Ok(chain)
    }

    /// A certificate for the control plane's own endpoint, valid for the given names. It names
    /// no workload, so no mesh peer believes its holder to be one.
    ///
    /// # Errors
    /// If a name is not ASCII, or the signing certificate has expired.
    pub fn server_certificate(&self, dns_names: &[String], addresses: &[IpAddr]) -> Result<ServerCertificate, Error> {
        let make = crypto("the control plane's certificate");
        let mut names = Vec::with_capacity(dns_names.len() + addresses.len());
        for name in dns_names {
            names.push(SanType::DnsName(name.as_str().try_into().map_err(&make)?));
        }
        names.extend(addresses.iter().map(|address| SanType::IpAddress(*address)));
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(&make)?;
        let chain = self.sign_leaf(&key, names, &[ExtendedKeyUsagePurpose::ServerAuth], SERVER_TTL)?;
        ServerCertificate::from_pem(&chain.concat(), PrivateKey::of(&key))
    }

    fn sign_leaf(
        &self,
        key: &impl PublicKeyData,
        names: Vec<SanType>,
        usages: &[ExtendedKeyUsagePurpose],
        ttl: Duration,
    ) -> Result<Vec<String>, Error> {
        let signing = self.current_signing()?;
        let now = self.options.clock.now();
        let end = (now + ttl).min(signing.not_after);
        // The control plane's own certificate is replaced as soon as another root signs.
        if usages.contains(&ExtendedKeyUsagePurpose::ClientAuth) {
            self.rotation.signs_until(&signing, end);
        }
        let mut params = params(now - CLOCK_SKEW, end);
        params.subject_alt_names = names;
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = usages.to_vec();
        params.use_authority_key_identifier_extension = true;
        let leaf = params.signed_by(key, &signing.issuer).map_err(crypto("a certificate"))?;
        Ok([leaf.pem()].into_iter().chain(signing.chain.iter().cloned()).collect())
    }
}

/// Checks a PKCS#10 request and returns its key. What it asks for beyond a name is ignored.
fn check_request(csr_pem: &str, identity: &Identity) -> Result<SubjectPublicKeyInfo, Error> {
    let refused = |why: String| Error::Request(why);
    if csr_pem.len() > MAX_REQUEST {
        return Err(refused(format!("it has {} bytes, more than {MAX_REQUEST}", csr_pem.len())));
    }
    let der = rustls_pki_types::CertificateSigningRequestDer::from_pem_slice(csr_pem.as_bytes())
        .map_err(|e| refused(format!("it is not a PEM certificate request ({e})")))?;
    let (_, request) =
        X509CertificationRequest::from_der(&der).map_err(|e| refused(format!("it is not a PKCS#10 request ({e})")))?;
    request.verify_signature().map_err(|_| refused("it is not signed by the key it is for".to_owned()))?;
    for extension in request.requested_extensions().into_iter().flatten() {
        let ParsedExtension::SubjectAlternativeName(names) = extension else { continue };
        for name in &names.general_names {
            if !matches!(name, GeneralName::URI(uri) if *uri == identity.to_string()) {
                return Err(refused(format!("it asks for {name}, but the caller may only have {identity}")));
            }
        }
    }
    SubjectPublicKeyInfo::from_der(request.certification_request_info.subject_pki.raw)
        .map_err(|e| refused(format!("its key can't be used ({e}); use ECDSA P-256")))
}
