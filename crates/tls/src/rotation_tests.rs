use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use leno_model::Identity;
use tempfile::TempDir;

use crate::certificate::parse_pem_certificates;
use crate::verify::{Roots, Usage, check_chain};
use crate::{CaOptions, CertificateAuthority, Clock, Error, WorkloadCertificate, certificate_request};

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

fn alice() -> Identity {
    "spiffe://cluster.local/ns/a/sa/alice".parse().unwrap()
}

/// A clock that is set by hand.
fn hand_clock() -> (Arc<Mutex<SystemTime>>, CaOptions) {
    let time = Arc::new(Mutex::new(SystemTime::now()));
    let read = time.clone();
    (time, CaOptions { clock: Clock::new(move || *read.lock()), ..CaOptions::default() })
}

struct Issued {
    certificate: WorkloadCertificate,
    at: SystemTime,
}

fn issue(ca: &CertificateAuthority, clock: &Clock) -> Issued {
    let (key, csr) = certificate_request(&alice()).unwrap();
    let chain = ca.sign(&csr, &alice(), HOUR).unwrap();
    let at = clock.now();
    Issued { certificate: WorkloadCertificate::from_issued_at(alice(), key, &chain, at).unwrap(), at }
}

impl Issued {
    /// Whether a peer with these roots accepts the certificate.
    fn is_good_for(&self, roots: &str) -> bool {
        let roots = Roots::all_of(&parse_pem_certificates(roots).unwrap()).unwrap();
        let chain = parse_pem_certificates(&self.certificate.chain_pem()).unwrap();
        check_chain(&roots, &chain[0], &chain[1..], self.at, Usage::Client).is_ok()
    }
}

fn roots_in(pem: &str) -> usize {
    parse_pem_certificates(pem).unwrap().len()
}

#[test]
fn three_roots_after_one_another() {
    let (time, options) = hand_clock();
    let clock = options.clock.clone();
    let ca = CertificateAuthority::ephemeral("cluster.local", options).unwrap();
    let mut trust = ca.trust();
    for _ in 0..3 {
        let old_roots = ca.root_pem();
        assert_eq!(roots_in(&old_roots), 1);
        let before = issue(&ca, &clock);

        ca.rotate_root().unwrap();
        assert!(ca.announces_a_root() && trust.has_changed().unwrap());
        assert_eq!(roots_in(&trust.borrow_and_update().clone()), 2, "both are to be trusted");
        let meanwhile = issue(&ca, &clock);
        assert!(meanwhile.is_good_for(&old_roots), "who has not heard of the new root meets nothing of it");
        assert_eq!(meanwhile.certificate.roots().len(), 2);

        ca.all_trust_it();
        assert!(!ca.announces_a_root());
        let after = issue(&ca, &clock);
        assert!(!after.is_good_for(&old_roots));
        let both = ca.root_pem();
        assert!([&before, &meanwhile, &after].iter().all(|one| one.is_good_for(&both)));

        *time.lock() += HOUR - Duration::from_secs(60);
        ca.tick();
        assert_eq!(roots_in(&ca.root_pem()), 2, "something the old one signed still lives");
        *time.lock() += Duration::from_secs(61);
        ca.tick();
        assert_eq!(roots_in(&ca.root_pem()), 1, "nothing does any more");
        assert!(after.is_good_for(&ca.root_pem()));
    }
}

#[test]
fn without_a_word_from_the_proxies_a_new_root_signs_when_all_must_have_it() {
    let (time, options) = hand_clock();
    let clock = options.clock.clone();
    let ca = CertificateAuthority::ephemeral("cluster.local", options).unwrap();
    let old_roots = ca.root_pem();
    issue(&ca, &clock);
    ca.rotate_root().unwrap();
    *time.lock() += HOUR - Duration::from_secs(1);
    assert!(issue(&ca, &clock).is_good_for(&old_roots));
    // From now on nobody has a certificate that came without the new root.
    *time.lock() += Duration::from_secs(1);
    assert!(!issue(&ca, &clock).is_good_for(&old_roots));
}

/// Puts the files of another authority into `to`, in an order that nobody should have to know.
fn replace(to: &Path, options: &CaOptions) {
    let other = TempDir::new().unwrap();
    let other = other.path().join("ca");
    drop(CertificateAuthority::open(&other, "cluster.local", options.clone()).unwrap());
    for file in ["root-cert.pem", "ca-key.pem", "root-key.pem", "cert-chain.pem", "ca-cert.pem"] {
        fs::copy(other.join(file), to.join(file)).unwrap();
    }
}

#[test]
fn files_that_are_replaced_are_taken_over_and_the_old_root_outlives_a_restart() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("ca");
    let (time, options) = hand_clock();
    let clock = options.clock.clone();
    let ca = CertificateAuthority::open(&path, "cluster.local", options.clone()).unwrap();
    assert!(!ca.reload().unwrap());
    let old_roots = ca.root_pem();
    let before = issue(&ca, &clock);

    // Half of a change: refused, and all goes on.
    let key = fs::read(path.join("root-key.pem")).unwrap();
    replace(&path, &options);
    let new_key = fs::read(path.join("root-key.pem")).unwrap();
    fs::write(path.join("root-key.pem"), key).unwrap();
    assert!(matches!(ca.reload(), Err(Error::Directory { .. })));
    assert!(issue(&ca, &clock).is_good_for(&old_roots) && ca.root_pem() == old_roots);

    fs::write(path.join("root-key.pem"), new_key).unwrap();
    assert!(ca.reload().unwrap() && ca.announces_a_root());
    assert!(!ca.reload().unwrap(), "once is enough");
    assert_eq!(roots_in(&ca.root_pem()), 2);
    assert!(issue(&ca, &clock).is_good_for(&old_roots));
    ca.all_trust_it();
    let after = issue(&ca, &clock);
    assert!(!after.is_good_for(&old_roots));

    drop(ca);
    let ca = CertificateAuthority::open(&path, "cluster.local", options).unwrap();
    assert!(before.is_good_for(&ca.root_pem()) && after.is_good_for(&ca.root_pem()));
    assert!(!issue(&ca, &clock).is_good_for(&old_roots));
    *time.lock() += HOUR * 49;
    ca.tick();
    assert!(!before.is_good_for(&ca.root_pem()));
}

/// Istio's way: the bundle of roots first gets a second one, then other files change.
#[test]
fn a_root_that_is_only_to_be_trusted_does_not_sign() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("ca");
    let ca = CertificateAuthority::open(&path, "cluster.local", CaOptions::default()).unwrap();
    let old_roots = ca.root_pem();
    let other = CertificateAuthority::ephemeral("cluster.local", CaOptions::default()).unwrap();
    fs::write(path.join("root-cert.pem"), format!("{old_roots}{}", other.root_pem())).unwrap();
    assert!(ca.reload().unwrap() && !ca.announces_a_root());
    assert_eq!(roots_in(&ca.root_pem()), 2);
    assert!(issue(&ca, &Clock::system()).is_good_for(&old_roots));
    fs::remove_file(path.join("root-cert.pem")).unwrap();
    assert!(ca.reload().is_err());
    assert_eq!(roots_in(&ca.root_pem()), 2);
}

#[test]
fn files_that_are_replaced_while_nothing_runs_keep_the_old_root_trusted_too() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("ca");
    let (time, options) = hand_clock();
    let ca = CertificateAuthority::open(&path, "cluster.local", options.clone()).unwrap();
    let before = issue(&ca, &options.clock);
    drop(ca);
    replace(&path, &options);
    for _ in 0..2 {
        let ca = CertificateAuthority::open(&path, "cluster.local", options.clone()).unwrap();
        assert!(before.is_good_for(&ca.root_pem()));
        *time.lock() += HOUR;
    }
    *time.lock() += HOUR * 23;
    let ca = CertificateAuthority::open(&path, "cluster.local", options).unwrap();
    assert!(!ca.announces_a_root(), "whoever has a certificate got the new root with it");
    // The process before may have signed until just now.
    *time.lock() += HOUR * 25;
    ca.tick();
    assert_eq!(roots_in(&ca.root_pem()), 1);
    assert!(!before.is_good_for(&ca.root_pem()));
}

#[test]
fn a_root_that_waits_to_be_trusted_waits_on_after_a_restart() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("ca");
    let (_time, options) = hand_clock();
    let open = || CertificateAuthority::open(&path, "cluster.local", options.clone()).unwrap();
    let ca = open();
    let old_roots = ca.root_pem();
    replace(&path, &options);
    assert!(ca.reload().unwrap() && ca.announces_a_root());
    drop(ca);
    for _ in 0..2 {
        let ca = open();
        assert!(ca.announces_a_root() && roots_in(&ca.root_pem()) == 2);
        assert!(!ca.reload().unwrap());
        assert!(issue(&ca, &options.clock).is_good_for(&old_roots), "who trusts the old root alone is still served");
    }
    let ca = open();
    ca.all_trust_it();
    assert!(!issue(&ca, &options.clock).is_good_for(&old_roots));
    drop(ca);
    let ca = open();
    assert!(!ca.announces_a_root());
    let after = issue(&ca, &options.clock);
    assert!(!after.is_good_for(&old_roots) && after.is_good_for(&ca.root_pem()));
    let mode = fs::metadata(path.join("in-use-key.pem")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn without_what_signed_before_the_configured_root_signs_at_once() {
    for damage in [|path: &Path| fs::remove_file(path).unwrap(), |path: &Path| fs::write(path, "torn").unwrap()] {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("ca");
        let (_time, options) = hand_clock();
        let ca = CertificateAuthority::open(&path, "cluster.local", options.clone()).unwrap();
        let old_roots = ca.root_pem();
        let before = issue(&ca, &options.clock);
        replace(&path, &options);
        drop(ca);
        damage(&path.join("in-use-key.pem"));
        let ca = CertificateAuthority::open(&path, "cluster.local", options.clone()).unwrap();
        assert!(!ca.announces_a_root() && before.is_good_for(&ca.root_pem()));
        assert!(!issue(&ca, &options.clock).is_good_for(&old_roots));
    }
}

#[test]
fn a_root_replaced_after_a_restart_waits_too() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("ca");
    let (time, options) = hand_clock();
    let ca = CertificateAuthority::open(&path, "cluster.local", options.clone()).unwrap();
    let old_roots = ca.root_pem();
    let before = issue(&ca, &options.clock);
    drop(ca);
    *time.lock() += HOUR / 2;
    let ca = CertificateAuthority::open(&path, "cluster.local", options.clone()).unwrap();
    replace(&path, &options);
    assert!(ca.reload().unwrap());
    ca.tick();
    assert!(ca.announces_a_root() && roots_in(&ca.root_pem()) == 2);
    assert!(before.is_good_for(&ca.root_pem()));
    assert!(issue(&ca, &options.clock).is_good_for(&old_roots));
}

/// Copies these files of one directory to another.
fn copy(from: &Path, to: &Path, files: &[&str]) {
    for file in files {
        fs::copy(from.join(file), to.join(file)).unwrap();
    }
}

const ALL: [&str; 5] = ["root-key.pem", "root-cert.pem", "ca-key.pem", "cert-chain.pem", "ca-cert.pem"];

#[test]
fn a_root_that_comes_back_is_trusted_for_what_it_signed_at_first() {
    let directory = TempDir::new().unwrap();
    let (path, saved) = (directory.path().join("ca"), directory.path().join("saved"));
    let (_time, options) = hand_clock();
    let ca = CertificateAuthority::open(&path, "cluster.local", options.clone()).unwrap();
    fs::create_dir(&saved).unwrap();
    copy(&path, &saved, &ALL);
    let first = issue(&ca, &options.clock);
    replace(&path, &options);
    assert!(ca.reload().unwrap());
    ca.all_trust_it();
    copy(&saved, &path, &ALL);
    assert!(ca.reload().unwrap());
    ca.all_trust_it();
    replace(&path, &options);
    assert!(ca.reload().unwrap());
    ca.tick();
    assert!(ca.announces_a_root(), "the first root's certificates live");
    ca.all_trust_it();
    ca.tick();
    assert!(first.is_good_for(&ca.root_pem()));
}

#[test]
fn a_root_is_announced_once_it_is_written_down() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("ca");
    let (_time, options) = hand_clock();
    let ca = CertificateAuthority::open(&path, "cluster.local", options.clone()).unwrap();
    issue(&ca, &options.clock);
    replace(&path, &options);
    // A directory in the way of the temporary file.
    let obstacle = path.join(".trusted-roots.pem.new");
    fs::create_dir(&obstacle).unwrap();
    assert!(ca.reload().is_err() && !ca.announces_a_root());
    fs::remove_dir(obstacle).unwrap();
    assert!(ca.reload().unwrap() && ca.announces_a_root());
    assert_eq!(roots_in(&fs::read_to_string(path.join("trusted-roots.pem")).unwrap()), 2);
}

#[test]
fn files_that_come_one_at_a_time_are_not_overwritten() {
    let orders = [
        ["ca-cert.pem", "ca-key.pem", "cert-chain.pem", "root-cert.pem", "root-key.pem"],
        ["cert-chain.pem", "ca-cert.pem", "root-key.pem", "ca-key.pem", "root-cert.pem"],
    ];
    for order in orders {
        let directory = TempDir::new().unwrap();
        let (path, other) = (directory.path().join("ca"), directory.path().join("other"));
        let (_time, options) = hand_clock();
        let ca = CertificateAuthority::open(&path, "cluster.local", options.clone()).unwrap();
        let old_roots = ca.root_pem();
        drop(CertificateAuthority::open(&other, "cluster.local", options.clone()).unwrap());
        for file in order {
            assert!(issue(&ca, &options.clock).is_good_for(&old_roots));
            copy(&other, &path, &[file]);
            let _ = ca.reload();
        }
        assert!(ca.announces_a_root());
        for file in ALL {
            assert_eq!(fs::read(path.join(file)).unwrap(), fs::read(other.join(file)).unwrap(), "{file} {order:?}");
        }
        ca.all_trust_it();
        assert!(!issue(&ca, &options.clock).is_good_for(&old_roots));
    }
}

#[test]
fn a_root_that_has_gone_is_not_written_down() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("ca");
    let (time, options) = hand_clock();
    let ca = CertificateAuthority::open(&path, "cluster.local", options.clone()).unwrap();
    let before = issue(&ca, &options.clock);
    replace(&path, &options);
    assert!(ca.reload().unwrap());
    ca.all_trust_it();
    *time.lock() += HOUR * 2;
    // Whichever call notices that the root has gone, the next check writes the file.
    issue(&ca, &options.clock);
    ca.tick();
    assert_eq!(roots_in(&fs::read_to_string(path.join("trusted-roots.pem")).unwrap()), 1);
    drop(ca);
    replace(&path, &options);
    let ca = CertificateAuthority::open(&path, "cluster.local", options).unwrap();
    assert!(!before.is_good_for(&ca.root_pem()) && roots_in(&ca.root_pem()) == 2);
}
