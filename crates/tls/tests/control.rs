//! The control plane's TLS: who may serve, and what the client says if not.

#![allow(clippy::unwrap_used, reason = "test code")]

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leno_tls::{
    CaOptions, CertificateAuthority, Clock, ControlAcceptor, ControlConnector, HandshakeError, LearntRoots, RootSource,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const TIMEOUT: Duration = Duration::from_secs(5);

fn authority() -> Arc<CertificateAuthority> {
    Arc::new(CertificateAuthority::ephemeral("cluster.local", CaOptions::default()).unwrap())
}

fn acceptor(authority: &Arc<CertificateAuthority>) -> ControlAcceptor {
    let names = vec!["control.leno-system.svc".to_owned()];
    ControlAcceptor::from_authority(authority.clone(), names, vec!["127.0.0.1".parse().unwrap()]).unwrap()
}

async fn dial(acceptor: &ControlAcceptor, roots: RootSource, name: &str) -> Result<(), HandshakeError> {
    let (a, b) = tokio::io::duplex(64 * 1024);
    let connector = ControlConnector::new(roots);
    let (server, client) = tokio::join!(acceptor.accept(a, TIMEOUT), connector.connect(b, name, TIMEOUT));
    let mut client = client?;
    let mut server = server?;
    client.write_all(b"x").await.unwrap();
    client.flush().await.unwrap();
    assert_eq!(server.read_u8().await.unwrap(), b'x');
    Ok(())
}

#[tokio::test]
async fn proves_its_name_or_address() {
    let authority = authority();
    let acceptor = acceptor(&authority);
    let roots = || RootSource::Pem(authority.root_pem());
    dial(&acceptor, roots(), "control.leno-system.svc").await.unwrap();
    dial(&acceptor, roots(), "127.0.0.1").await.unwrap();
    let error = dial(&acceptor, roots(), "other.svc").await.unwrap_err();
    assert!(matches!(error, HandshakeError::WrongServerName { .. }), "{error}");
    assert!(error.to_string().contains("control.leno-system.svc"), "{error}");
    let stranger = RootSource::Pem(self::authority().root_pem());
    let error = dial(&acceptor, stranger, "127.0.0.1").await.unwrap_err();
    assert!(matches!(error, HandshakeError::UntrustedCa), "{error}");
    let error = dial(&acceptor, roots(), "not a name").await.unwrap_err();
    assert!(matches!(error, HandshakeError::Local(_)), "{error}");
}

#[tokio::test]
async fn roots_are_read_anew() {
    let (old, new) = (authority(), authority());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("root-cert.pem");
    let roots = || RootSource::File(path.clone());
    let error = dial(&acceptor(&new), roots(), "127.0.0.1").await.unwrap_err();
    assert!(error.to_string().contains("root-cert.pem"), "{error}");
    std::fs::write(&path, old.root_pem()).unwrap();
    assert!(dial(&acceptor(&new), roots(), "127.0.0.1").await.is_err());
    std::fs::write(&path, format!("{}{}", old.root_pem(), new.root_pem())).unwrap();
    dial(&acceptor(&new), roots(), "127.0.0.1").await.unwrap();
    dial(&acceptor(&old), roots(), "127.0.0.1").await.unwrap();
}

#[test]
fn root_source_as_istio_writes_it() {
    assert_eq!("SYSTEM".parse(), Ok(RootSource::System));
    assert_eq!("./var/run/root-cert.pem".parse(), Ok(RootSource::File("./var/run/root-cert.pem".into())));
    assert!(matches!("-----BEGIN CERTIFICATE-----".parse(), Ok(RootSource::Pem(_))));
}

/// The control plane's own certificate, to a proxy whose clock is five minutes behind.
#[tokio::test]
async fn a_clock_five_minutes_behind_is_good_enough() {
    let ahead = Clock::new(|| SystemTime::now() + Duration::from_secs(300));
    let options = CaOptions { clock: ahead, ..CaOptions::default() };
    let authority = Arc::new(CertificateAuthority::ephemeral("cluster.local", options).unwrap());
    dial(&acceptor(&authority), RootSource::Pem(authority.root_pem()), "127.0.0.1").await.unwrap();
}

#[tokio::test]
async fn roots_learnt_from_the_control_plane_count_beside_the_configured_ones() {
    let (old, new) = (authority(), authority());
    let learnt = LearntRoots::default();
    let beside = |base| RootSource::Beside(Box::new(base), learnt.clone());
    let roots = || beside(RootSource::Pem(old.root_pem()));
    dial(&acceptor(&old), roots(), "127.0.0.1").await.unwrap();
    assert!(dial(&acceptor(&new), roots(), "127.0.0.1").await.is_err());
    learnt.set(new.root_pem());
    dial(&acceptor(&new), roots(), "127.0.0.1").await.unwrap();
    dial(&acceptor(&old), roots(), "127.0.0.1").await.unwrap();
    // Whoever trusts the machine's roots has others vouch for the control plane than the mesh's.
    assert!(dial(&acceptor(&new), beside(RootSource::System), "127.0.0.1").await.is_err());
}

/// Its own certificate is of the root that signs, without a restart.
#[tokio::test]
async fn a_new_root_signs_for_the_control_plane_too() {
    let authority = authority();
    let acceptor = acceptor(&authority);
    let old = RootSource::Pem(authority.root_pem());
    authority.rotate_root().unwrap();
    dial(&acceptor, old.clone(), "127.0.0.1").await.unwrap();
    authority.all_trust_it();
    assert!(dial(&acceptor, old, "127.0.0.1").await.is_err());
    dial(&acceptor, RootSource::Pem(authority.root_pem()), "127.0.0.1").await.unwrap();
}
