//! The mesh's own certificate authority: a root that signs nothing but intermediates, and an
//! intermediate that signs everything else.

use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leno_model::{Identity, Name};
use parking_lot::Mutex;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType, SerialNumber, SubjectPublicKeyInfo,
};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use time::OffsetDateTime;
use tokio::sync::watch;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::authority_files::{CA_CERT, CA_KEY, CERT_CHAIN, Contents, Directory, ROOT_CERT, ROOT_KEY, TRUSTED_ROOTS};
use crate::certificate::{describe, parse_pem_certificates, to_pem};
use crate::control::ServerCertificate;
use crate::rotation::Rotation;
use crate::{Clock, Error, PrivateKey};

/// Certificates are valid from this long before they are made: the clocks of two nodes differ,
/// and a certificate that is new to its holder must not be of the future to a peer. Clocks five
/// minutes apart are not rare; twice that leaves a margin.
const CLOCK_SKEW: Duration = Duration::from_secs(600);
const DAY: Duration = Duration::from_secs(24 * 3600);
/// Life of the control plane's own certificate, renewed while it runs.
const SERVER_TTL: Duration = Duration::from_secs(90 * 24 * 3600);
/// A request is a key and a name; the largest sane one (RSA 4096) has 2 KiB.
const MAX_REQUEST: usize = 16 * 1024;

/// How long things live.
#[derive(Debug, Clone)]
pub struct CaOptions {
    /// Life of the root; ten years, as Istio's self-signed one.
    pub root_ttl: Duration,
    /// Life of the signing certificate; one year, renewed at half.
    pub intermediate_ttl: Duration,
    /// The most a workload gets, whatever it asks for; a day, which is what proxies ask for.
    pub max_ttl: Duration,
    /// What tells the time.
    pub clock: Clock,
}

impl Default for CaOptions {
    fn default() -> Self {
        Self { root_ttl: DAY * 3650, intermediate_ttl: DAY * 365, max_ttl: DAY, clock: Clock::system() }
    }
}

/// A root and an intermediate, on disk or in memory.
pub struct CertificateAuthority {
    trust_domain: Name,
    options: CaOptions,
    directory: Option<Directory>,
    rotation: Rotation,
    /// Whether a root has gone that the file of trusted roots still holds. Locked while that file is written.
    stale: Mutex<bool>,
}

pub(crate) struct Root {
    /// All roots to be trusted; the first is the one `key` belongs to.
    pub(crate) certificates: Vec<CertificateDer<'static>>,
    pub(crate) key: Option<KeyPair>,
}

pub(crate) struct Signing {
    issuer: rcgen::Issuer<'static, KeyPair>,
    /// The intermediate first, then what leads to the root, without the root.
    chain: Vec<String>,
    /// The root it leads to.
    pub(crate) root: CertificateDer<'static>,
    not_before: SystemTime,
    pub(crate) not_after: SystemTime,
}

impl CertificateAuthority {
    /// Opens the authority in `directory`, or starts one there if it is empty or missing.
    ///
    /// Reads a `cacerts` directory of Istio's too; without `root-key.pem` its signing
    /// certificate is used until it expires, and not renewed.
    ///
    /// # Errors
    /// If the directory is incomplete, damaged, readable by others, or in use; the text says
    /// what to do.
    pub fn open(directory: &Path, trust_domain: impl Into<Name>, options: CaOptions) -> Result<Self, Error> {
        let trust_domain = trust_domain.into();
        let directory = Directory::open(directory)?;
        let contents = directory.read()?;
        let (root, signing) = Self::load(&directory, &contents, &trust_domain, &options, true)?;
        // What a root signed for a process before this one may be new.
        let had_root = contents.root_cert.is_some();
        let signed_until = if had_root { options.clock.now() + options.max_ttl } else { SystemTime::UNIX_EPOCH };
        let rotation = Rotation::new(root, signing, signed_until);
        let authority = Self { trust_domain, options, directory: Some(directory), rotation, stale: Mutex::new(false) };
        authority.remember_roots()?;
        Ok(authority)
    }

    /// Root and signing certificate of a directory, made and written there if it is to have its own.
    /// A signing certificate that can't be used is made again only if it `may_repair` that.
    fn load(
        directory: &Directory,
        contents: &Contents,
        trust_domain: &Name,
        options: &CaOptions,
        may_repair: bool,
    ) -> Result<(Root, Signing), Error> {
        // These are written after the root was complete.
        let was_complete = contents.ca_cert.is_some() || contents.ca_key.is_some() || contents.cert_chain.is_some();
        let root = match (&contents.root_cert, &contents.root_key) {
            (None, _) if !was_complete => {
                // Either new, or a first start that was cut off before its root was complete;
                // nobody can have trusted that one.
                let root = Root::generate(trust_domain, options)?;
                if let Some(key) = &root.key {
                    directory.write(ROOT_KEY, &key.serialize_pem())?;
                }
                directory.write(ROOT_CERT, &bundle_pem(&root.certificates))?;
                root
            }
            (None, _) => {
                return Err(Error::Directory {
                    path: directory.path().join(ROOT_CERT),
                    problem: "it is missing beside an existing signing certificate".to_owned(),
                    action: RESTORE.to_owned(),
                });
            }
            (Some(certificate), key) => Root::load(directory, certificate, key.as_deref())?,
        };
        let signing = match Self::load_signing(directory, &root, contents) {
            Ok(Some(signing)) if options.clock.now() < signing.not_after => signing,
            Ok(_) if !may_repair => {
                return Err(Error::Directory {
                    path: directory.path().to_owned(),
                    problem: format!("{CA_CERT} has expired, or it or {CA_KEY} is missing"),
                    action: "put both there; the old ones go on".to_owned(),
                });
            }
            Ok(found) => {
                if root.key.is_none() {
                    return Err(match found {
                        Some(_) => Error::AuthorityExpired { renewable: false },
                        None => Error::Directory {
                            path: directory.path().to_owned(),
                            problem: format!("{CA_CERT} or {CA_KEY} is missing, and there is no {ROOT_KEY}"),
                            action: RESTORE.to_owned(),
                        },
                    });
                }
                let signing = root.new_signing(trust_domain, options)?;
                signing.write(directory)?;
                signing
            }
            Err(error) if may_repair && root.key.is_some() => {
                tracing::warn!(%error, "signing certificate is unusable; making a new one from the root");
                let signing = root.new_signing(trust_domain, options)?;
                signing.write(directory)?;
                signing
            }
            Err(error) => return Err(error),
        };
        Ok((root, signing))
    }

    /// Takes over what the directory holds by now, if that is another root or signing certificate;
    /// whether it is. The new one signs once every proxy trusts it ([`Self::all_trust_it`]), or when
    /// everything has ended that was signed before it was announced; the old one stays trusted
    /// until everything has ended that it signed.
    ///
    /// # Errors
    /// As [`Self::open`]; all stays as it was.
    pub fn reload(&self) -> Result<bool, Error> {
        let Some(directory) = &self.directory else { return Ok(false) };
        let contents = directory.read()?;
        // A root that is missing is about to be replaced: a new one of our own would be none that
        // the operator knows of.
        if contents.root_cert.is_none() {
            return Err(Error::Directory {
                path: directory.path().join(ROOT_CERT),
                problem: "it is missing".to_owned(),
                action: "put the new one there; the old one goes on".to_owned(),
            });
        }
        let configured = contents.root_cert.as_deref().map(parse_pem_certificates).transpose()?.unwrap_or_default();
        let signing = contents.ca_cert.as_deref().map(parse_pem_certificates).transpose()?.unwrap_or_default();
        if self.rotation.is_of(&configured, signing.first()) {
            return Ok(false);
        }
        // Below the same root it is the operator's change, half made: one of our own would overwrite it.
        let may_repair = !self.rotation.is_below(configured.first());
        let (root, signing) = Self::load(directory, &contents, &self.trust_domain, &self.options, may_repair)?;
        let _writing = self.stale.lock();
        let mut trusted = parse_pem_certificates(&self.root_pem())?;
        for root in &root.certificates {
            if !trusted.contains(root) {
                trusted.push(root.clone());
            }
        }
        // First, so that the next look tries again what fails here.
        directory.write(TRUSTED_ROOTS, &bundle_pem(&trusted))?;
        self.rotation.announce(root, signing);
        Ok(true)
    }

    /// Trusts what was trusted when the directory was last in use, though it is no longer configured,
    /// until everything must have ended that was signed then.
    fn remember_roots(&self) -> Result<(), Error> {
        let Some(directory) = &self.directory else { return Ok(()) };
        let now = self.options.clock.now();
        let configured = parse_pem_certificates(&self.root_pem())?;
        let (known, written) = match directory.read_dated(TRUSTED_ROOTS)? {
            Some((pem, written)) => (parse_pem_certificates(&pem)?, written),
            None => (Vec::new(), now),
        };
        let changed = configured.iter().any(|root| !known.contains(root));
        // What the old root signed last lives for one life; the new one may have waited for one before that.
        let since = if changed { now } else { written };
        self.rotation.remember(known, since + 2 * self.options.max_ttl);
        let gone = self.rotation.tick(now);
        if changed || gone { directory.write(TRUSTED_ROOTS, &self.root_pem()) } else { Ok(()) }
    }

    /// Makes a new root, for an authority that lives in memory; see [`Self::reload`].
    ///
    /// # Errors
    /// If the crypto library can't make keys.
    pub fn rotate_root(&self) -> Result<(), Error> {
        let root = Root::generate(&self.trust_domain, &self.options)?;
        let signing = root.new_signing(&self.trust_domain, &self.options)?;
        self.rotation.announce(root, signing);
        Ok(())
    }

    /// Changes when another root begins to sign.
    pub(crate) fn signing_number(&self) -> u64 {
        self.rotation.number()
    }

    /// Whether a new signing certificate waits for its root to be trusted.
    pub fn announces_a_root(&self) -> bool {
        self.rotation.announces()
    }

    /// Every proxy trusts [`Self::trust`] as it is now: what was announced may sign.
    pub fn all_trust_it(&self) {
        self.rotation.sign_with_the_next();
    }

    /// The roots to hand to everybody, as one PEM bundle, as it changes. That of the signing
    /// certificate is the first.
    pub fn trust(&self) -> watch::Receiver<Arc<str>> {
        self.rotation.trust()
    }

    /// Drops roots that nothing needs any more, and lets a new one sign that has waited long enough.
    pub fn tick(&self) {
        self.advance(self.options.clock.now());
        let Some(directory) = &self.directory else { return };
        let mut stale = self.stale.lock();
        if *stale {
            // Else a start after the next change would trust again what has gone.
            match directory.write(TRUSTED_ROOTS, &self.root_pem()) {
                Ok(()) => *stale = false,
                Err(error) => tracing::warn!(%error, "a root that is no longer trusted stays in its file for now"),
            }
        }
    }

    /// As [`Self::tick`], without the files.
    fn advance(&self, now: SystemTime) {
        if self.rotation.tick(now) {
            *self.stale.lock() = true;
        }
    }

    /// An authority that lives as long as this process.
    ///
    /// # Errors
    /// If the crypto library can't make keys.
    pub fn ephemeral(trust_domain: impl Into<Name>, options: CaOptions) -> Result<Self, Error> {
        let trust_domain = trust_domain.into();
        let root = Root::generate(&trust_domain, &options)?;
        let signing = root.new_signing(&trust_domain, &options)?;
        let rotation = Rotation::new(root, signing, SystemTime::UNIX_EPOCH);
        Ok(Self { trust_domain, options, directory: None, rotation, stale: Mutex::new(false) })
    }

    /// The trust domain this authority signs for.
    pub fn trust_domain(&self) -> &Name {
        &self.trust_domain
    }

    /// The roots to hand to everybody, as one PEM bundle.
    pub fn root_pem(&self) -> String {
        self.trust().borrow().to_string()
    }

    /// End of the signing certificate's validity.
    pub fn signing_not_after(&self) -> SystemTime {
        self.rotation.signing().not_after
    }

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
        // Before the roots are read: those that the certificate needs are among them then.
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

    /// Replaces the signing certificate now. Certificates signed before stay valid: their
    /// holders present the old intermediate themselves.
    ///
    /// # Errors
    /// If the root's key is not held, the root has expired, or the files can't be written.
    pub fn rotate_intermediate(&self) -> Result<(), Error> {
        self.rotation.renew(|_, _| true, |root| self.renew(root))
    }

    fn renew(&self, root: &Root) -> Result<Signing, Error> {
        let signing = root.new_signing(&self.trust_domain, &self.options)?;
        if let Some(directory) = &self.directory {
            signing.write(directory)?;
        }
        tracing::info!(not_after = ?signing.not_after, "made a new signing certificate");
        Ok(signing)
    }

    /// The signing certificate, renewed if it is past half its life.
    fn current_signing(&self) -> Result<Arc<Signing>, Error> {
        let now = self.options.clock.now();
        self.advance(now);
        let renewed = self
            .rotation
            .renew(|signing, root| root.key.is_some() && signing.wants_renewal(now), |root| self.renew(root));
        let current = self.rotation.signing();
        match renewed {
            _ if now >= current.not_after => Err(renewed.err().unwrap_or(Error::AuthorityExpired { renewable: false })),
            // The old one still signs; the next request tries again.
            Err(error) => {
                tracing::warn!(%error, "cannot renew the signing certificate yet");
                Ok(current)
            }
            Ok(()) => Ok(current),
        }
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
        // The control plane's own is replaced as soon as another root signs.
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

    fn load_signing(directory: &Directory, root: &Root, contents: &Contents) -> Result<Option<Signing>, Error> {
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
        Ok(Some(Signing { issuer, chain, root: of, not_before: info.not_before, not_after: info.not_after }))
    }
}

impl fmt::Debug for CertificateAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificateAuthority")
            .field("trust_domain", &self.trust_domain)
            .field("directory", &self.directory.as_ref().map(Directory::path))
            .finish_non_exhaustive()
    }
}

const RESTORE: &str = "restore it from a backup, or remove the directory to start a new authority (every workload then gets a new \
     certificate, and until it has, peers refuse each other)";

impl Root {
    fn generate(trust_domain: &Name, options: &CaOptions) -> Result<Self, Error> {
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

    fn load(directory: &Directory, pem: &str, key: Option<&str>) -> Result<Self, Error> {
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

    fn new_signing(&self, trust_domain: &Name, options: &CaOptions) -> Result<Signing, Error> {
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
        // It signs leaves only: a stolen one can't make further authorities.
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
    fn write(&self, directory: &Directory) -> Result<(), Error> {
        directory.write(CA_KEY, &self.issuer.key().serialize_pem())?;
        directory.write(CERT_CHAIN, &self.chain.concat())?;
        directory.write(CA_CERT, &self.chain[0])
    }

    /// The certificate itself.
    pub(crate) fn is(&self, certificate: &CertificateDer<'_>) -> bool {
        match self.chain.first() {
            Some(own) => *own == to_pem(certificate),
            None => self.root == *certificate,
        }
    }

    fn wants_renewal(&self, now: SystemTime) -> bool {
        let life = self.not_after.duration_since(self.not_before).unwrap_or_default();
        now >= self.not_before + life / 2
    }
}

/// What is handed out holds certificates and nothing else that was in a file.
pub(crate) fn bundle_pem(certificates: &[CertificateDer<'_>]) -> String {
    certificates.iter().map(|der| to_pem(der)).collect()
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

/// A key as any tool writes it: PKCS#8, SEC1 (also after its parameters, as OpenSSL does), PKCS#1.
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

fn params(not_before: SystemTime, not_after: SystemTime) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.not_before = OffsetDateTime::from(not_before);
    params.not_after = OffsetDateTime::from(not_after);
    params.distinguished_name = DistinguishedName::new();
    // RFC 5280 §4.1.2.2 wants it positive and at most 20 bytes; 127 random bits never repeat.
    let mut serial: [u8; 16] = rand::random();
    serial[0] &= 0x7f;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    params
}

fn name(trust_domain: &Name, common: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::OrganizationName, trust_domain.to_string());
    name.push(DnType::CommonName, common);
    name
}

fn crypto(what: &'static str) -> impl Fn(rcgen::Error) -> Error {
    move |source| Error::Crypto { what, source }
}

#[cfg(test)]
#[path = "authority_tests.rs"]
mod tests;
