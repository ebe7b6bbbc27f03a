use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use leno_model::Identity;
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, SanType};
use rustls_pki_types::pem::PemObject;
use tempfile::TempDir;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::issuing::MAX_REQUEST;
use super::*;
use crate::authority_files::CERT_CHAIN;
use crate::certificate::to_pem;
use crate::signing::name;
use crate::{Clock, WorkloadCertificate, certificate_request};

const DAY: Duration = Duration::from_secs(24 * 3600);
const HOUR: Duration = Duration::from_secs(3600);

fn id(uri: &str) -> Identity {
    uri.parse().unwrap()
}

fn alice() -> Identity {
    id("spiffe://cluster.local/ns/a/sa/alice")
}

/// A clock that is set by hand.
fn hand_clock() -> (Arc<Mutex<SystemTime>>, CaOptions) {
    let time = Arc::new(Mutex::new(SystemTime::now()));
    let read = time.clone();
    (time, CaOptions { clock: Clock::new(move || *read.lock()), ..CaOptions::default() })
}

fn open(directory: &TempDir, options: CaOptions) -> Result<CertificateAuthority, Error> {
    CertificateAuthority::open(&directory.path().join("ca"), "cluster.local", options)
}

fn issue(ca: &CertificateAuthority, ttl: Duration) -> WorkloadCertificate {
    let (key, csr) = certificate_request(&alice()).unwrap();
    let chain = ca.sign(&csr, &alice(), ttl).unwrap();
    WorkloadCertificate::from_issued_at(alice(), key, &chain, ca.options.clock.now()).unwrap()
}

fn file(directory: &TempDir, name: &str) -> std::path::PathBuf {
    directory.path().join("ca").join(name)
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn what_a_leaf_says() {
    let ca = CertificateAuthority::ephemeral("cluster.local", CaOptions::default()).unwrap();
    let certificate = issue(&ca, HOUR);
    let now = SystemTime::now();
    assert!(certificate.not_before() <= now - Duration::from_secs(599), "back-dated for skewed clocks");
    let left = certificate.not_after().duration_since(now).unwrap();
    assert!(left > HOUR - Duration::from_secs(60) && left <= HOUR, "{left:?}");

    let leaf = parse_pem_certificates(&certificate.chain_pem()).unwrap().swap_remove(0);
    let (_, leaf) = X509Certificate::from_der(&leaf).unwrap();
    assert_eq!(leaf.subject().iter().count(), 0);
    let usage = leaf.extended_key_usage().unwrap().unwrap().value;
    assert!(usage.server_auth && usage.client_auth && !usage.any);
    assert!(leaf.key_usage().unwrap().unwrap().value.digital_signature());
    let constraints = leaf.basic_constraints().unwrap().unwrap();
    assert!(!constraints.value.ca);
    let names = leaf.subject_alternative_name().unwrap().unwrap();
    assert!(names.critical, "RFC 5280 §4.2.1.6: critical, for the subject is empty");
    assert_eq!(names.value.general_names, [GeneralName::URI("spiffe://cluster.local/ns/a/sa/alice")]);
    assert_eq!(certificate.chain().len(), 2, "leaf and intermediate");
    assert_ne!(issue(&ca, HOUR).serial(), certificate.serial());
}

#[test]
fn a_request_for_somebody_else_is_refused() {
    let ca = CertificateAuthority::ephemeral("cluster.local", CaOptions::default()).unwrap();
    let (_, csr) = certificate_request(&id("spiffe://cluster.local/ns/a/sa/mallory")).unwrap();
    assert!(matches!(ca.sign(&csr, &alice(), HOUR), Err(Error::Request(_))));

    let foreign = id("spiffe://elsewhere/ns/a/sa/alice");
    let (_, csr) = certificate_request(&foreign).unwrap();
    assert!(matches!(ca.sign(&csr, &foreign, HOUR), Err(Error::ForeignTrustDomain { .. })));

    // A name beside the right one.
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["api.example.org".to_owned()]).unwrap();
    params.subject_alt_names.push(SanType::URI(alice().to_string().try_into().unwrap()));
    let csr = params.serialize_request(&key).unwrap().pem().unwrap();
    assert!(matches!(ca.sign(&csr, &alice(), HOUR), Err(Error::Request(_))));

    // No name at all is fine: the name comes from us anyway.
    let csr = CertificateParams::default().serialize_request(&key).unwrap().pem().unwrap();
    let chain = ca.sign(&csr, &alice(), HOUR).unwrap();
    let leaf = parse_pem_certificates(&chain[0]).unwrap().swap_remove(0);
    assert_eq!(crate::verify::identity_of(&leaf).unwrap(), alice());
}

#[test]
fn a_broken_request_is_refused() {
    let ca = CertificateAuthority::ephemeral("cluster.local", CaOptions::default()).unwrap();
    for csr in ["", "garbage", "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"] {
        assert!(matches!(ca.sign(csr, &alice(), HOUR), Err(Error::Request(_))), "{csr:?}");
    }
    assert!(matches!(ca.sign(&"x".repeat(MAX_REQUEST + 1), &alice(), HOUR), Err(Error::Request(_))));
    // Another key than the one that signed.
    let (_, csr) = certificate_request(&alice()).unwrap();
    let der = rustls_pki_types::CertificateSigningRequestDer::from_pem_slice(csr.as_bytes()).unwrap();
    let mut der = der.to_vec();
    let last = der.len() - 1;
    der[last] ^= 1;
    let forged = to_pem(&der).replace("CERTIFICATE", "CERTIFICATE REQUEST");
    assert!(matches!(ca.sign(&forged, &alice(), HOUR), Err(Error::Request(_))));
}

#[test]
fn a_restart_keeps_the_root_and_the_modes_are_tight() {
    let directory = TempDir::new().unwrap();
    let ca = open(&directory, CaOptions::default()).unwrap();
    assert_eq!(mode(&directory.path().join("ca")), 0o700);
    assert_eq!(mode(&file(&directory, ROOT_KEY)), 0o600);
    assert_eq!(mode(&file(&directory, CA_KEY)), 0o600);
    let (root, before) = (ca.root_pem(), issue(&ca, HOUR));
    let busy = open(&directory, CaOptions::default()).unwrap_err();
    assert!(busy.to_string().contains("another process"), "{busy}");
    drop(ca);
    let ca = open(&directory, CaOptions::default()).unwrap();
    assert_eq!(ca.root_pem(), root);
    let after = issue(&ca, HOUR);
    assert_eq!(before.chain()[1], after.chain()[1], "same intermediate");
}

#[test]
fn the_intermediate_is_renewed_at_half_life() {
    let directory = TempDir::new().unwrap();
    let (time, options) = hand_clock();
    let ca = open(&directory, options.clone()).unwrap();
    let mut serials = vec![issue(&ca, HOUR).chain()[1].serial.clone()];
    for _ in 0..3 {
        *time.lock() += DAY * 180;
        assert_eq!(&issue(&ca, HOUR).chain()[1].serial, serials.last().unwrap());
        *time.lock() += DAY * 3;
        let old = issue(&ca, HOUR);
        let new = old.chain()[1].serial.clone();
        assert!(!serials.contains(&new), "a new one after half its life");
        serials.push(new);
    }
    let root = ca.root_pem();
    drop(ca);
    let ca = open(&directory, options).unwrap();
    assert_eq!(ca.root_pem(), root);
    assert_eq!(&issue(&ca, HOUR).chain()[1].serial, serials.last().unwrap(), "the renewed one was written");
}

#[test]
fn a_leaf_never_outlives_its_issuer() {
    let (_, options) = hand_clock();
    let ca =
        CertificateAuthority::ephemeral("cluster.local", CaOptions { intermediate_ttl: HOUR * 2, ..options.clone() })
            .unwrap();
    assert_eq!(issue(&ca, HOUR * 48).not_after(), issue(&ca, HOUR * 48).chain()[1].not_after);
    let ca = CertificateAuthority::ephemeral("cluster.local", options).unwrap();
    let left = issue(&ca, DAY * 1000).not_after().duration_since(SystemTime::now()).unwrap();
    assert!(left <= DAY, "{left:?}");
    assert!(matches!(CaOptions::default(), CaOptions { max_ttl, .. } if max_ttl == DAY));
}

#[test]
fn an_expired_root_signs_nothing() {
    let (time, options) = hand_clock();
    let ca = CertificateAuthority::ephemeral("cluster.local", options).unwrap();
    *time.lock() += DAY * 3651;
    let (_, csr) = certificate_request(&alice()).unwrap();
    let error = ca.sign(&csr, &alice(), HOUR).unwrap_err();
    assert!(matches!(error, Error::AuthorityExpired { renewable: true }), "{error}");
}

#[test]
fn a_rotation_by_hand() {
    let ca = CertificateAuthority::ephemeral("cluster.local", CaOptions::default()).unwrap();
    let before = issue(&ca, HOUR);
    ca.rotate_intermediate().unwrap();
    let after = issue(&ca, HOUR);
    assert_ne!(before.chain()[1].serial, after.chain()[1].serial);
    assert_eq!(before.root_pem(), after.root_pem());
}

#[test]
fn a_torn_directory_heals_or_says_what_to_do() {
    let directory = TempDir::new().unwrap();
    drop(open(&directory, CaOptions::default()).unwrap());
    let reopen = || open(&directory, CaOptions::default());

    // Cut off while the intermediate was replaced: the key is new, the certificate old.
    fs::write(file(&directory, CA_KEY), KeyPair::generate().unwrap().serialize_pem()).unwrap();
    issue(&reopen().unwrap(), HOUR);
    // Cut off while the intermediate was made for the first time.
    fs::remove_file(file(&directory, CA_CERT)).unwrap();
    issue(&reopen().unwrap(), HOUR);
    fs::write(file(&directory, CA_CERT), "-----BEGIN CERTIFICATE-----\ntorn").unwrap();
    issue(&reopen().unwrap(), HOUR);

    // Without the root's key the same is fatal.
    let root_key = fs::read(file(&directory, ROOT_KEY)).unwrap();
    fs::remove_file(file(&directory, ROOT_KEY)).unwrap();
    issue(&reopen().unwrap(), HOUR);
    let good = fs::read(file(&directory, CA_CERT)).unwrap();
    fs::write(file(&directory, CA_CERT), "torn").unwrap();
    let error = reopen().unwrap_err().to_string();
    assert!(error.contains("ca-cert.pem") && error.contains("backup"), "{error}");
    fs::remove_file(file(&directory, CA_CERT)).unwrap();
    assert!(reopen().unwrap_err().to_string().contains("backup"));

    // A signing certificate without a root is never answered with a new root.
    fs::write(file(&directory, CA_CERT), good).unwrap();
    let root = fs::read(file(&directory, ROOT_CERT)).unwrap();
    fs::remove_file(file(&directory, ROOT_CERT)).unwrap();
    assert!(reopen().unwrap_err().to_string().contains("root-cert.pem"));
    let good = fs::read(file(&directory, CA_CERT)).unwrap();
    fs::remove_file(file(&directory, CA_CERT)).unwrap();
    assert!(reopen().unwrap_err().to_string().contains("root-cert.pem"));
    fs::write(file(&directory, CA_CERT), good).unwrap();
    fs::write(file(&directory, ROOT_CERT), &root[..root.len() / 2]).unwrap();
    assert!(reopen().unwrap_err().to_string().contains("root-cert.pem"));

    // Another root's key.
    fs::write(file(&directory, ROOT_CERT), &root).unwrap();
    fs::write(file(&directory, ROOT_KEY), KeyPair::generate().unwrap().serialize_pem()).unwrap();
    fs::set_permissions(file(&directory, ROOT_KEY), fs::Permissions::from_mode(0o600)).unwrap();
    assert!(reopen().unwrap_err().to_string().contains("root-key.pem"));
    fs::write(file(&directory, ROOT_KEY), root_key).unwrap();
    issue(&reopen().unwrap(), HOUR);
}

#[test]
fn a_first_start_that_was_cut_off_starts_over() {
    let directory = TempDir::new().unwrap();
    drop(open(&directory, CaOptions::default()).unwrap());
    for name in [ROOT_CERT, CA_CERT, CA_KEY, CERT_CHAIN] {
        fs::remove_file(file(&directory, name)).unwrap();
    }
    issue(&open(&directory, CaOptions::default()).unwrap(), HOUR);
}

#[test]
fn a_readable_key_is_refused() {
    let directory = TempDir::new().unwrap();
    drop(open(&directory, CaOptions::default()).unwrap());
    for name in [ROOT_KEY, CA_KEY] {
        fs::set_permissions(file(&directory, name), fs::Permissions::from_mode(0o640)).unwrap();
        let error = open(&directory, CaOptions::default()).unwrap_err().to_string();
        assert!(error.contains("chmod 600") && error.contains(name), "{error}");
        fs::set_permissions(file(&directory, name), fs::Permissions::from_mode(0o600)).unwrap();
    }
    fs::set_permissions(directory.path().join("ca"), fs::Permissions::from_mode(0o777)).unwrap();
    assert!(open(&directory, CaOptions::default()).unwrap_err().to_string().contains("chmod 700"));
}

#[test]
fn istio_layout_with_the_root_in_the_chain() {
    let directory = TempDir::new().unwrap();
    drop(open(&directory, CaOptions::default()).unwrap());
    fs::remove_file(file(&directory, ROOT_KEY)).unwrap();
    let chain = format!(
        "{}{}",
        fs::read_to_string(file(&directory, CA_CERT)).unwrap(),
        fs::read_to_string(file(&directory, ROOT_CERT)).unwrap()
    );
    fs::write(file(&directory, CERT_CHAIN), chain).unwrap();
    let ca = open(&directory, CaOptions::default()).unwrap();
    assert_eq!(issue(&ca, HOUR).chain().len(), 2, "the root is not part of the chain");
    assert!(ca.rotate_intermediate().is_err());
}

/// A certificate authority as users make it for Istio: RSA, several intermediates, no root key.
#[test]
fn a_plugged_in_authority_of_another_make() {
    use rcgen::{PKCS_RSA_SHA256, RsaKeySize};

    let rsa = || KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048).unwrap();
    let authority = |common: &str| {
        let mut params = CertificateParams::default();
        params.distinguished_name = name(&"Example".into(), common);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
    };
    let (root_params, root_key) = (authority("root"), rsa());
    let root = root_params.self_signed(&root_key).unwrap();
    let root_issuer = rcgen::Issuer::new(root_params, root_key);
    let (middle_params, middle_key) = (authority("middle"), rsa());
    let middle = middle_params.signed_by(&middle_key, &root_issuer).unwrap();
    let middle_issuer = rcgen::Issuer::new(middle_params, middle_key);
    let key = rsa();
    let signing = authority("signing").signed_by(&key, &middle_issuer).unwrap();

    let directory = TempDir::new().unwrap();
    drop(Directory::open(&directory.path().join("ca")).unwrap());
    let write = |name: &str, text: String| {
        fs::write(file(&directory, name), text).unwrap();
        fs::set_permissions(file(&directory, name), fs::Permissions::from_mode(0o600)).unwrap();
    };
    write(ROOT_CERT, root.pem());
    write(CA_CERT, signing.pem());
    write(CA_KEY, key.serialize_pem());
    write(CERT_CHAIN, format!("{}{}{}", signing.pem(), middle.pem(), root.pem()));
    let ca = open(&directory, CaOptions::default()).unwrap();
    let certificate = issue(&ca, HOUR);
    assert_eq!(certificate.chain().len(), 3, "leaf, signing, middle");
    assert_eq!(certificate.root_pem(), root.pem());
    drop(ca);

    // The signing certificate as its own root.
    write(ROOT_CERT, root.pem());
    write(CA_CERT, root.pem());
    write(CA_KEY, root_issuer.key().serialize_pem());
    fs::remove_file(file(&directory, CERT_CHAIN)).unwrap();
    assert_eq!(issue(&open(&directory, CaOptions::default()).unwrap(), HOUR).chain().len(), 1);
}
