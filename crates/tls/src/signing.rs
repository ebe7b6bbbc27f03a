//! Roots and signing certificates: creating them, reading them from a directory, writing them to one.

use std::time::{Duration, SystemTime};

use leno_model::Name;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, PublicKeyData, SerialNumber,
};
use rustls_pki_types::CertificateDer;
use time::OffsetDateTime;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::authority_files::{CA_CERT, CA_KEY, CERT_CHAIN, Contents, Directory, IN_USE, ROOT_CERT, ROOT_KEY};
use crate::certificate::{describe, parse_pem_certificates, to_pem};
use crate::{Clock, Error, PrivateKey};

/// Certificates are valid from this long before they are made. The clocks of two nodes differ, and a new certificate
/// must not lie in a peer's future. Differences of five minutes are not rare; twice that leaves a margin.
pub(crate) const CLOCK_SKEW: Duration = Duration::from_secs(600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Lifetimes.
#[derive(Debug, Clone)]
pub struct CaOptions {
    /// Lifetime of the root; ten years, as Istio's self-signed root.
    pub root_ttl: Duration,
    /// Lifetime of the signing certificate; one year. It is renewed at half of it.
    pub intermediate_ttl: Duration,
    /// Longest lifetime of a workload's certificate; one day, which is what proxies request.
    pub max_ttl: Duration,
    /// The wall clock.
    pub clock: Clock,
}

impl Default for CaOptions {
    fn default() -> Self {
        Self { root_ttl: DAY * 3650, intermediate_ttl: DAY * 365, max_ttl: DAY, clock: Clock::system() }
    }
}

pub(crate) struct Root {
    /// All trusted roots. The first one belongs to `key`.
    pub(crate) certificates: Vec<CertificateDer<'static>>,
    pub(crate) key: Option<KeyPair>,
}

pub(crate) struct Signing {
    pub(crate) issuer: rcgen::Issuer<'static, KeyPair>,
    /// The intermediate first, then the certificates up to the root, without the root.
    pub(crate) chain: Vec<String>,
    /// The root that it chains to.
    pub(crate) root: CertificateDer<'static>,
    not_before: SystemTime,
    pub(crate) not_after: SystemTime,
}

/// What to do about damaged files.
pub(crate) const RESTORE: &str = "restore it from a backup, or remove the directory to start a new authority (every workload then gets a new \
     certificate, and until it has, peers refuse each other)";

impl Root {
    pub(crate) fn generate(trust_domain: &Name, options: &CaOptions) -> Result<Self, Error> {
        let make = crypto("the root certificate");
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(&make)?;
        let now = options.clock.now();
        let mut params = params(now - CLOCK_SKEW, now + options.root_ttl);
        params.distinguished_name = name(trust_domain, "Leno root");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key).map_err(&make)?;
        Ok(Self { certificates: vec![certificate.der().clone()], key: Some(key) })
    }

    pub(crate) fn load(directory: &Directory, pem: &str, key: Option<&str>) -> Result<Self, Error> {
        let broken = |problem: String| Error::Directory {
            path: directory.path().join(ROOT_CERT),
            problem,
            action: RESTORE.to_owned(),
        };
        let certificates = parse_pem_certificates(pem).map_err(|e| broken(e.to_string()))?;
        let key = match key {
            Some(key) => {
                let key = key_pair(key).map_err(|e| broken(format!("{ROOT_KEY} beside it can't be read ({e})")))?;
                check_authority(&certificates[0], &key).map_err(|e| broken(format!("with {ROOT_KEY}: {e}")))?;
                Some(key)
            }
            None => None,
        };
        Ok(Self { certificates, key })
    }

    pub(crate) fn new_signing(&self, trust_domain: &Name, options: &CaOptions) -> Result<Signing, Error> {
        let make = crypto("a signing certificate");
        let Some(root_key) = &self.key else { return Err(Error::AuthorityExpired { renewable: false }) };
        let now = options.clock.now();
        let root_end = describe(&self.certificates[0])?.not_after;
        if now >= root_end {
            return Err(Error::AuthorityExpired { renewable: true });
        }
        let issuer = rcgen::Issuer::from_ca_cert_der(&self.certificates[0], root_key).map_err(&make)?;
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(&make)?;
        let mut params = params(now - CLOCK_SKEW, (now + options.intermediate_ttl).min(root_end));
        params.distinguished_name = name(trust_domain, "Leno intermediate");
        // It may sign leaves only, so that a stolen one can't create further authorities.
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        let (not_before, not_after) = (params.not_before.into(), params.not_after.into());
        let certificate = params.signed_by(&key, &issuer).map_err(&make)?;
        let issuer = rcgen::Issuer::from_ca_cert_der(certificate.der(), key).map_err(&make)?;
        Ok(Signing {
            issuer,
            chain: vec![certificate.pem()],
            root: self.certificates[0].clone(),
            not_before,
            not_after,
        })
    }
}

impl Signing {
    /// The signing certificate of a directory; `None` if it or its key is missing.
    pub(crate) fn load(directory: &Directory, root: &Root, contents: &Contents) -> Result<Option<Self>, Error> {
        let (Some(certificate), Some(key)) = (&contents.ca_cert, &contents.ca_key) else { return Ok(None) };
        let path = directory.path().join(CA_CERT);
        let broken = |problem: String| Error::Directory { path: path.clone(), problem, action: RESTORE.to_owned() };
        let certificate = parse_pem_certificates(certificate).map_err(|e| broken(e.to_string()))?.swap_remove(0);
        let key = key_pair(key).map_err(|e| broken(format!("{CA_KEY} can't be read ({e})")))?;
        check_authority(&certificate, &key).map_err(&broken)?;
        let info = describe(&certificate)?;
        // Istio's chain file holds the signing certificate and the root as well.
        let rest = match &contents.cert_chain {
            Some(chain) => parse_pem_certificates(chain).map_err(|e| broken(format!("{CERT_CHAIN}: {e}")))?,
            None => Vec::new(),
        };
        let rest: Vec<_> = rest.into_iter().filter(|c| *c != certificate && !root.certificates.contains(c)).collect();
        let mut top = &certificate;
        let mut above: Vec<_> = rest.iter().collect();
        while let Some(position) = above.iter().position(|issuer| signed_by(top, issuer)) {
            top = above.swap_remove(position);
        }
        let of = if root.certificates.contains(&certificate) {
            &certificate
        } else {
            let found = root.certificates.iter().find(|root| signed_by(top, root));
            found.ok_or_else(|| broken(format!("it was not signed by {ROOT_CERT}")))?
        };
        let chain = if *of == certificate {
            Vec::new()
        } else {
            [&certificate].into_iter().chain(&rest).map(|der| to_pem(der)).collect()
        };
        let of = of.clone();
        let issuer = rcgen::Issuer::from_ca_cert_der(&certificate, key)
            .map_err(|e| broken(format!("it can't be used to sign ({e})")))?;
        Ok(Some(Self { issuer, chain, root: of, not_before: info.not_before, not_after: info.not_after }))
    }

    pub(crate) fn write(&self, directory: &Directory) -> Result<(), Error> {
        directory.write(CA_KEY, &self.issuer.key().serialize_pem())?;
        directory.write(CERT_CHAIN, &self.chain.concat())?;
        directory.write(CA_CERT, &self.chain[0])
    }

    /// Records it, with its root, as the one that signs, for a process that starts while another one is announced. It
    /// is one file, so that key and certificate belong together.
    pub(crate) fn write_in_use(&self, directory: &Directory) -> Result<(), Error> {
        let mut text = self.issuer.key().serialize_pem();
        self.chain.iter().for_each(|certificate| text.push_str(certificate));
        text.push_str(&to_pem(&self.root));
        directory.write(IN_USE, &text)
    }

    /// What signed when the directory was last in use; `None` if that is not recorded.
    pub(crate) fn read_in_use(directory: &Directory) -> Result<Option<Self>, Error> {
        let Some(text) = directory.read_in_use()? else { return Ok(None) };
        let broken = |problem: String| Error::Directory {
            path: directory.path().join(IN_USE),
            problem,
            action: "remove it if no root is being replaced".to_owned(),
        };
        let key = key_pair(&text).map_err(|e| broken(e.to_string()))?;
        let mut certificates = parse_pem_certificates(&text).map_err(|e| broken(e.to_string()))?;
        // It is never empty, and the root is the last one.
        let root = certificates.pop().ok_or_else(|| broken("it holds no certificate".to_owned()))?;
        let certificate = certificates.first().unwrap_or(&root);
        check_authority(certificate, &key).map_err(&broken)?;
        let info = describe(certificate)?;
        let issuer = rcgen::Issuer::from_ca_cert_der(certificate, key).map_err(|e| broken(e.to_string()))?;
        let chain = certificates.iter().map(|der| to_pem(der)).collect();
        Ok(Some(Self { issuer, chain, root, not_before: info.not_before, not_after: info.not_after }))
    }

    /// The certificate itself.
    pub(crate) fn is(&self, certificate: &CertificateDer<'_>) -> bool {
        match self.chain.first() {
            Some(own) => *own == to_pem(certificate),
            None => self.root == *certificate,
        }
    }

    pub(crate) fn wants_renewal(&self, now: SystemTime) -> bool {
        let life = self.not_after.duration_since(self.not_before).unwrap_or_default();
        now >= self.not_before + life / 2
    }
}

/// The bundle holds certificates and nothing else that was in a file.
pub(crate) fn bundle_pem(certificates: &[CertificateDer<'_>]) -> String {
    certificates.iter().map(|der| to_pem(der)).collect()
}

/// A key in the formats of all usual tools: PKCS#8, SEC1 (also after its parameters, as OpenSSL writes it), PKCS#1.
fn key_pair(pem: &str) -> Result<KeyPair, Error> {
    let key = PrivateKey::from_pem(pem)?.into_der();
    KeyPair::try_from(&key).map_err(crypto("use of the key"))
}

fn check_authority(certificate: &CertificateDer<'_>, key: &KeyPair) -> Result<(), String> {
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|e| format!("it can't be read ({e})"))?;
    if !parsed.is_ca() {
        return Err("it is not a certificate authority's (CA:TRUE is missing)".to_owned());
    }
    if parsed.public_key().raw != key.subject_public_key_info() {
        return Err("it does not belong to its key".to_owned());
    }
    Ok(())
}

fn signed_by(certificate: &CertificateDer<'_>, issuer: &CertificateDer<'_>) -> bool {
    let (Ok((_, certificate)), Ok((_, issuer))) =
        (X509Certificate::from_der(certificate), X509Certificate::from_der(issuer))
    else {
        return false;
    };
    certificate.issuer() == issuer.subject() && certificate.verify_signature(Some(issuer.public_key())).is_ok()
}

pub(crate) fn params(not_before: SystemTime, not_after: SystemTime) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.not_before = OffsetDateTime::from(not_before);
    params.not_after = OffsetDateTime::from(not_after);
    params.distinguished_name = DistinguishedName::new();
    // RFC 5280 §4.1.2.2 requires a positive number of at most 20 bytes. 127 random bits never repeat.
    let mut serial: [u8; 16] = rand::random();
    serial[0] &= 0x7f;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    params
}

pub(crate) fn name(trust_domain: &Name, common: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::OrganizationName, trust_domain.to_string());
    name.push(DnType::CommonName, common);
    name
}

pub(crate) fn crypto(what: &'static str) -> impl Fn(rcgen::Error) -> Error {
    move |source| Error::Crypto { what, source }
}
