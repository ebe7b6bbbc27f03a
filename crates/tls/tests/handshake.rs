//! Which peers are accepted, which are refused, and with which reason.

#![allow(clippy::unwrap_used, reason = "test code")]

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leno_model::Identity;
use leno_testkit::any_server::AnyServer;
use leno_testkit::certs::{Leaf, TestCa, TestCertificate, self_signed};
use leno_tls::{HandshakeError, MeshIdentity, PeerAlert, PrivateKey, TlsStream, WorkloadCertificate};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

const TIMEOUT: Duration = Duration::from_secs(5);
const ALICE: &str = "spiffe://cluster.local/ns/a/sa/alice";
const BOB: &str = "spiffe://cluster.local/ns/b/sa/bob";

fn id(uri: &str) -> Identity {
    uri.parse().unwrap()
}

fn workload(certificate: &TestCertificate, uri: &str) -> WorkloadCertificate {
    let key = PrivateKey::from_pem(&certificate.key_pem).unwrap();
    WorkloadCertificate::from_issued(id(uri), key, &certificate.chain()).unwrap()
}

fn mesh(ca: &TestCa, uri: &str) -> MeshIdentity {
    MeshIdentity::new(Arc::new(workload(&ca.issue(&Leaf::uri(uri)), uri))).unwrap()
}

type Ends = (TlsStream<DuplexStream>, TlsStream<DuplexStream>);

async fn pair(server: &MeshIdentity, client: &MeshIdentity, expected: &[Identity]) -> Ends {
    let (a, b) = tokio::io::duplex(64 * 1024);
    let (server, client) = tokio::join!(server.accept(a, TIMEOUT), client.connect(b, expected, TIMEOUT));
    (server.unwrap().0, client.unwrap().0)
}

struct Hostile<'a> {
    certificate: Option<&'a TestCertificate>,
    intermediates: bool,
    alpn: Vec<Vec<u8>>,
    tls12: bool,
}

impl Default for Hostile<'_> {
    fn default() -> Self {
        Self { certificate: None, intermediates: true, alpn: vec![b"h2".to_vec()], tls12: false }
    }
}

/// The server's error for a client that breaks the rules, and the error that client gets.
async fn refused(server: &MeshIdentity, hostile: Hostile<'_>) -> (HandshakeError, std::io::Error) {
    let versions: &[&rustls::SupportedProtocolVersion] =
        if hostile.tls12 { &[&rustls::version::TLS12] } else { &[&rustls::version::TLS13] };
    let builder = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer));
    let mut config = match hostile.certificate {
        None => builder.with_no_client_auth(),
        Some(certificate) => {
            let (mut chain, key) = certificate.chain_and_key();
            if !hostile.intermediates {
                chain.truncate(1);
            }
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    };
    config.alpn_protocols = hostile.alpn;
    let (a, b) = tokio::io::duplex(64 * 1024);
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let name = ServerName::try_from("anything").unwrap();
    let client = async {
        let mut stream = connector.connect(name, b).await?;
        stream.write_all(b"hello").await?;
        let mut answer = [0; 1];
        stream.read_exact(&mut answer).await
    };
    let (server, client) = tokio::join!(server.accept(a, TIMEOUT), client);
    (server.expect_err("must be refused"), client.expect_err("must hear so"))
}

async fn refused_with(server: &MeshIdentity, certificate: &TestCertificate) -> HandshakeError {
    refused(server, Hostile { certificate: Some(certificate), ..Hostile::default() }).await.0
}

#[tokio::test]
async fn two_workloads_talk() {
    let root = TestCa::root("root");
    let ca = root.intermediate("one").intermediate("two");
    let (alice, bob) = (mesh(&ca, ALICE), mesh(&ca, BOB));
    let (a, b) = tokio::io::duplex(64 * 1024);
    let expected = [id("spiffe://cluster.local/ns/x/sa/other"), id(BOB)];
    let (server, client) = tokio::join!(bob.accept(a, TIMEOUT), alice.connect(b, &expected, TIMEOUT));
    let ((mut server, seen_by_server), (mut client, seen_by_client)) = (server.unwrap(), client.unwrap());
    assert_eq!(seen_by_server.identity, id(ALICE));
    assert_eq!(seen_by_client.identity, id(BOB));
    assert_eq!(seen_by_server.key_exchange, "X25519MLKEM768");
    assert_eq!(seen_by_client.key_exchange, "X25519MLKEM768");
    assert_eq!(seen_by_client.alpn, b"h2");
    assert_eq!(client.alpn(), Some(&b"h2"[..]));
    assert!(seen_by_client.not_after > SystemTime::now());

    client.write_all(b"ping").await.unwrap();
    client.flush().await.unwrap();
    let mut buffer = [0; 4];
    server.read_exact(&mut buffer).await.unwrap();
    assert_eq!(&buffer, b"ping");
    client.shutdown().await.unwrap();
    assert_eq!(server.read(&mut buffer).await.unwrap(), 0, "close_notify is a clean end");
    server.write_all(b"pong").await.unwrap();
    server.flush().await.unwrap();
    server.flush().await.unwrap();
    client.read_exact(&mut buffer).await.unwrap();
    assert_eq!(&buffer, b"pong", "the other direction outlives a half-close");
}

#[tokio::test]
async fn a_client_without_a_certificate_is_refused() {
    let ca = TestCa::root("root");
    let (error, heard) = refused(&mesh(&ca, BOB), Hostile::default()).await;
    assert!(matches!(error, HandshakeError::NoClientCertificate), "{error}");
    assert!(heard.to_string().contains("CertificateRequired"), "{heard}");
}

#[tokio::test]
async fn a_foreign_or_missing_issuer_is_refused() {
    let root = TestCa::root("root");
    let ca = root.intermediate("below");
    let bob = mesh(&ca, BOB);
    // Same name, other key: only the signature tells.
    let twin = TestCa::root("root").issue(&Leaf::uri(ALICE));
    let other = TestCa::root("other").issue(&Leaf::uri(ALICE));
    let own = self_signed(&Leaf::uri(ALICE));
    for certificate in [&twin, &other, &own] {
        let error = refused_with(&bob, certificate).await;
        assert!(matches!(error, HandshakeError::UntrustedCa), "{error}");
    }
    let orphan = ca.issue(&Leaf::uri(ALICE));
    let hostile = Hostile { certificate: Some(&orphan), intermediates: false, ..Hostile::default() };
    let (error, heard) = refused(&bob, hostile).await;
    assert!(matches!(error, HandshakeError::UntrustedCa), "{error}");
    assert!(heard.to_string().contains("UnknownCA"), "{heard}");
}

#[tokio::test]
async fn time_is_checked_both_ways() {
    let ca = TestCa::root("root");
    let bob = mesh(&ca, BOB);
    let now = SystemTime::now();
    let hour = Duration::from_secs(3600);
    let expired = ca.issue(&Leaf { not_before: now - hour * 2, not_after: now - hour, ..Leaf::uri(ALICE) });
    let error = refused_with(&bob, &expired).await;
    assert!(matches!(error, HandshakeError::Expired { .. }), "{error}");
    assert!(error.to_string().contains("expired 36"), "{error}");
    assert!(!error.is_retryable());
    let early = ca.issue(&Leaf { not_before: now + hour, not_after: now + hour * 2, ..Leaf::uri(ALICE) });
    let error = refused_with(&bob, &early).await;
    assert!(matches!(error, HandshakeError::NotYetValid { .. }), "{error}");
    assert!(error.is_retryable());
}

#[tokio::test]
async fn another_trust_domain_is_refused() {
    let ca = TestCa::root("root");
    let bob = mesh(&ca, BOB);
    for uri in ["spiffe://other.domain/ns/a/sa/alice", "spiffe://CLUSTER.LOCAL/ns/a/sa/alice"] {
        let error = refused_with(&bob, &ca.issue(&Leaf::uri(uri))).await;
        let HandshakeError::WrongTrustDomain { got, want } = &error else { panic!("{error}") };
        assert_eq!((&**got, &**want), (&uri[9..uri.len() - "/ns/a/sa/alice".len()], "cluster.local"));
    }
}

#[tokio::test]
async fn exactly_one_uri_of_the_right_shape() {
    let ca = TestCa::root("root");
    let bob = mesh(&ca, BOB);
    let dns = vec!["alice.a.svc.cluster.local".to_owned()];
    for leaf in [
        Leaf { uris: vec![ALICE.to_owned(), BOB.to_owned()], ..Leaf::default() },
        Leaf { uris: vec![ALICE.to_owned(), ALICE.to_owned()], ..Leaf::default() },
        Leaf { uris: vec![ALICE.to_owned(), "https://example.org".to_owned()], ..Leaf::default() },
        Leaf { dns: dns.clone(), ..Leaf::default() },
        Leaf::default(),
        Leaf::uri("spiffe://cluster.local/ns/a/sa/alice\0"),
        Leaf::uri("spiffe://cluster.local/ns/a/sa/\0alice"),
        Leaf::uri("SPIFFE://cluster.local/ns/a/sa/alice"),
        Leaf::uri("spiffe://cluster.local/NS/a/sa/alice"),
        Leaf::uri("spiffe://cluster.local/ns/a/sa/alice/"),
        Leaf::uri("spiffe://cluster.local/ns/a/sa/"),
        Leaf::uri("spiffe://cluster.local/ns/../sa/alice"),
        Leaf::uri(""),
    ] {
        let error = refused_with(&bob, &ca.issue(&leaf)).await;
        assert!(matches!(error, HandshakeError::NotAMeshIdentity(_)), "{leaf:?}: {error}");
    }
    // A DNS name beside the one URI is ignored.
    let both = workload(&ca.issue(&Leaf { dns, ..Leaf::uri(ALICE) }), ALICE);
    pair(&bob, &MeshIdentity::new(Arc::new(both)).unwrap(), &[id(BOB)]).await;
}

#[tokio::test]
async fn key_usage_counts_if_there_is_any() {
    let ca = TestCa::root("root");
    let bob = mesh(&ca, BOB);
    for leaf in [
        Leaf { client_auth: false, ..Leaf::uri(ALICE) },
        Leaf { client_auth: false, server_auth: false, code_signing: true, ..Leaf::uri(ALICE) },
        Leaf { ca: true, ..Leaf::uri(ALICE) },
    ] {
        let error = refused_with(&bob, &ca.issue(&leaf)).await;
        assert!(matches!(error, HandshakeError::BadCertificate(_)), "{leaf:?}: {error}");
    }
    let none = Leaf { client_auth: false, server_auth: false, ..Leaf::uri(ALICE) };
    let alice = MeshIdentity::new(Arc::new(workload(&ca.issue(&none), ALICE))).unwrap();
    pair(&bob, &alice, &[id(BOB)]).await;
}

#[tokio::test]
async fn the_client_accepts_only_whom_it_expects() {
    let ca = TestCa::root("root");
    let (alice, bob) = (mesh(&ca, ALICE), mesh(&ca, BOB));
    for expected in [vec![], vec![id("spiffe://cluster.local/ns/b/sa/bobby")], vec![id("spiffe://other/ns/b/sa/bob")]] {
        let (a, b) = tokio::io::duplex(64 * 1024);
        let (server, client) = tokio::join!(bob.accept(a, TIMEOUT), alice.connect(b, &expected, TIMEOUT));
        let error = client.expect_err("not whom we expect");
        assert!(matches!(&error, HandshakeError::UnexpectedIdentity { got, .. } if *got == id(BOB)), "{error}");
        let error = server.expect_err("the client goes away");
        assert!(matches!(error, HandshakeError::Refused(_)), "{error}");
    }
    let foreign = mesh(&TestCa::root("root"), BOB);
    let (a, b) = tokio::io::duplex(64 * 1024);
    let expected = [id(BOB)];
    let (_, client) = tokio::join!(foreign.accept(a, TIMEOUT), alice.connect(b, &expected, TIMEOUT));
    assert!(matches!(client, Err(HandshakeError::UntrustedCa)), "{client:?}");
}

#[tokio::test]
async fn a_late_refusal_reaches_the_reader() {
    let (ours, theirs) = (TestCa::root("ours"), TestCa::root("theirs"));
    // The client trusts both roots, the server only its own.
    let mut certificate = ours.issue(&Leaf::uri(ALICE));
    certificate.root_pem.push_str(theirs.root_pem());
    let alice = MeshIdentity::new(Arc::new(workload(&certificate, ALICE))).unwrap();
    let bob = mesh(&theirs, BOB);
    let (a, b) = tokio::io::duplex(64 * 1024);
    let expected = [id(BOB)];
    let (server, client) = tokio::join!(bob.accept(a, TIMEOUT), alice.connect(b, &expected, TIMEOUT));
    assert!(matches!(server, Err(HandshakeError::UntrustedCa)), "{server:?}");
    let (mut stream, _) = client.unwrap();
    let error = stream.read(&mut [0; 1]).await.unwrap_err();
    let alert = PeerAlert::of(&error).expect("an alert");
    assert!(alert.to_string().contains("unknown_ca"), "{alert}");
}

#[tokio::test]
async fn an_old_or_unagreed_protocol_is_refused() {
    let ca = TestCa::root("root");
    let bob = mesh(&ca, BOB);
    let alice = ca.issue(&Leaf::uri(ALICE));
    for alpn in [vec![], vec![b"http/1.1".to_vec()]] {
        let (a, b) = tokio::io::duplex(64 * 1024);
        let (chain, key) = alice.chain_and_key();
        let mut config =
            rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
                .with_protocol_versions(&[&rustls::version::TLS13])
                .unwrap()
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AnyServer))
                .with_client_auth_cert(chain, key)
                .unwrap();
        config.alpn_protocols = alpn;
        let name = ServerName::try_from("anything").unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let (server, _) = tokio::join!(bob.accept(a, TIMEOUT), connector.connect(name, b));
        assert!(matches!(server, Err(HandshakeError::Alpn(_))), "{server:?}");
    }
    let hostile = Hostile { certificate: Some(&alice), tls12: true, ..Hostile::default() };
    let (error, _) = refused(&bob, hostile).await;
    assert!(matches!(error, HandshakeError::Protocol(_)), "{error}");
}

#[tokio::test]
async fn a_second_lane_is_agreed_on_and_falls_back() {
    let ca = TestCa::root("root");
    let lane = |uri: &str, alpn: &[&[u8]]| {
        MeshIdentity::with_alpn(Arc::new(workload(&ca.issue(&Leaf::uri(uri)), uri)), alpn).unwrap()
    };
    let lean: &[&[u8]] = &[b"lean/1", b"h2"];
    let (server, _) = pair(&lane(BOB, lean), &lane(ALICE, lean), &[id(BOB)]).await;
    assert_eq!(server.alpn(), Some(&b"lean/1"[..]));
    let (server, _) = pair(&lane(BOB, lean), &mesh(&ca, ALICE), &[id(BOB)]).await;
    assert_eq!(server.alpn(), Some(&b"h2"[..]));
}

#[tokio::test(start_paused = true)]
async fn a_silent_peer_times_out() {
    let ca = TestCa::root("root");
    let bob = mesh(&ca, BOB);
    let (a, _silent) = tokio::io::duplex(1024);
    let error = bob.accept(a, Duration::from_secs(10)).await.unwrap_err();
    assert!(matches!(error, HandshakeError::Timeout(_)), "{error}");
    let (a, _silent) = tokio::io::duplex(1 << 20);
    let error = bob.connect(a, &[id(ALICE)], Duration::from_secs(10)).await.unwrap_err();
    assert!(matches!(error, HandshakeError::Timeout(_)), "{error}");
    assert!(error.is_retryable());
}

#[tokio::test]
async fn a_peer_that_talks_something_else_or_leaves() {
    let ca = TestCa::root("root");
    let bob = mesh(&ca, BOB);
    let (a, mut peer) = tokio::io::duplex(1024);
    peer.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let error = bob.accept(a, TIMEOUT).await.unwrap_err();
    assert!(matches!(error, HandshakeError::Protocol(_)), "{error}");
    let (a, peer) = tokio::io::duplex(1024);
    drop(peer);
    let error = bob.accept(a, TIMEOUT).await.unwrap_err();
    assert!(matches!(error, HandshakeError::Io(_)), "{error}");
}

#[test]
fn what_an_issuer_answers_is_checked() {
    let ca = TestCa::root("root").intermediate("below");
    let good = ca.issue(&Leaf::uri(ALICE));
    let key = || PrivateKey::from_pem(&good.key_pem).unwrap();
    let taken = |identity: &str, key: PrivateKey, chain: &[String]| {
        WorkloadCertificate::from_issued(id(identity), key, chain).map_err(|e| e.to_string())
    };
    let certificate = taken(ALICE, key(), &good.chain()).unwrap();
    assert_eq!(certificate.chain().len(), 2);
    assert_eq!(certificate.roots().len(), 1);
    assert_eq!(certificate.chain_pem(), format!("{}{}", good.leaf_pem, good.intermediates[0]));
    assert_eq!(certificate.root_pem(), good.root_pem);

    assert!(taken(BOB, key(), &good.chain()).unwrap_err().contains(ALICE));
    let other_key = PrivateKey::from_pem(&ca.issue(&Leaf::uri(ALICE)).key_pem).unwrap();
    assert!(taken(ALICE, other_key, &good.chain()).unwrap_err().contains("key of the request"));
    assert!(taken(ALICE, key(), &[]).unwrap_err().contains("0 certificates"));
    assert!(taken(ALICE, key(), std::slice::from_ref(&good.leaf_pem)).unwrap_err().contains("1 certificates"));
    let gap = [good.leaf_pem.clone(), good.root_pem.clone()];
    assert!(taken(ALICE, key(), &gap).unwrap_err().contains("intermediate"));
    let garbage = ["-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_owned(), good.root_pem.clone()];
    assert!(taken(ALICE, key(), &garbage).is_err());
}
