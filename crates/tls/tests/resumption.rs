//! No session is ever resumed, and nothing is sent or taken before a handshake is over: each connection is authorised by the
//! certificates of its own handshake, so none outlives a certificate or a policy.

#![allow(clippy::unwrap_used, reason = "test code")]

use std::sync::Arc;
use std::time::Duration;

use leno_model::Identity;
use leno_testkit::certs::{Leaf, TestCa, TestCertificate};
use leno_tls::{MeshIdentity, PrivateKey, WorkloadCertificate};
use rustls::{HandshakeKind, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::{TlsAcceptor, TlsConnector};

const TIMEOUT: Duration = Duration::from_secs(5);
const ALICE: &str = "spiffe://cluster.local/ns/a/sa/alice";
const HOST: &str = "bob.example";

fn issue(ca: &TestCa) -> TestCertificate {
    ca.issue(&Leaf { dns: vec![HOST.into()], ..Leaf::uri(ALICE) })
}

fn mesh(certificate: &TestCertificate) -> (Identity, MeshIdentity) {
    let id: Identity = ALICE.parse().unwrap();
    let key = PrivateKey::from_pem(&certificate.key_pem).unwrap();
    let issued = WorkloadCertificate::from_issued(id.clone(), key, &certificate.chain()).unwrap();
    (id, MeshIdentity::new(Arc::new(issued)).unwrap())
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// A client that resumes sessions, as usual clients do.
fn keeps_sessions(certificate: &TestCertificate) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(certificate.root_pem.as_bytes()).unwrap()).unwrap();
    let (chain, key) = certificate.chain_and_key();
    let mut config = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    config.enable_early_data = true;
    Arc::new(config).into()
}

/// A client that keeps sessions, twice. Without a ticket there are no early bytes either.
#[tokio::test]
async fn a_client_is_offered_no_session() {
    let ca = TestCa::root("root");
    let certificate = issue(&ca);
    let (_, server) = mesh(&certificate);
    let connector = keeps_sessions(&certificate);
    for _ in 0..2 {
        let (near, far) = tokio::io::duplex(64 << 10);
        let client = async {
            let mut stream = connector.connect(ServerName::try_from(HOST).unwrap(), near).await.unwrap();
            stream.write_all(b"ping").await.unwrap();
            stream.flush().await.unwrap();
            let mut answer = [0; 4];
            // What the server sends after the handshake comes before this.
            stream.read_exact(&mut answer).await.unwrap();
            let connection = stream.get_ref().1;
            assert_eq!(connection.handshake_kind(), Some(HandshakeKind::Full));
            assert_eq!(connection.tls13_tickets_received(), 0);
            assert!(!connection.is_early_data_accepted());
        };
        let served = async {
            let (mut stream, peer) = server.accept(far, TIMEOUT).await.unwrap();
            assert_eq!(peer.identity.to_string(), ALICE);
            let mut bytes = [0; 4];
            stream.read_exact(&mut bytes).await.unwrap();
            stream.write_all(&bytes).await.unwrap();
            stream.flush().await.unwrap();
        };
        tokio::join!(client, served);
    }
}

/// A server that hands out tickets and would take early data, twice.
#[tokio::test]
async fn a_server_that_offers_sessions_is_not_taken_up() {
    let certificate = issue(&TestCa::root("root"));
    let (id, client) = mesh(&certificate);
    let (chain, key) = certificate.chain_and_key();
    let mut config = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    config.max_early_data_size = 1 << 14;
    assert!(config.send_tls13_tickets > 0);
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let other = keeps_sessions(&certificate);
    let mut handshakes = Vec::new();
    for by_leno in [true, true, false, false] {
        let (near, far) = tokio::io::duplex(64 << 10);
        let served = async {
            let mut stream = acceptor.accept(far).await.unwrap();
            stream.write_all(b"pong").await.unwrap();
            stream.flush().await.unwrap();
            stream.get_ref().1.handshake_kind().unwrap()
        };
        let connected = async {
            let mut bytes = [0; 4];
            // The tickets arrive before these bytes.
            if by_leno {
                let (mut stream, _) = client.connect(near, std::slice::from_ref(&id), TIMEOUT).await.unwrap();
                stream.read_exact(&mut bytes).await.unwrap();
            } else {
                let mut stream = other.connect(ServerName::try_from(HOST).unwrap(), near).await.unwrap();
                stream.read_exact(&mut bytes).await.unwrap();
            }
        };
        handshakes.push(tokio::join!(served, connected).0);
    }
    // The last connection shows that the server does resume sessions for a client that wants it.
    use HandshakeKind::{Full, Resumed};
    assert_eq!(handshakes, [Full, Full, Full, Resumed]);
}
