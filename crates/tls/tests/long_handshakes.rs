//! How much memory a peer that has proved nothing can make the other side hold.

#![allow(clippy::unwrap_used, reason = "test code")]

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use leno_testkit::any_server::AnyServer;
use leno_testkit::certs::{Leaf, TestCa, TestCertificate};
use leno_tls::{HandshakeError, MeshIdentity, PrivateKey, WorkloadCertificate};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex};
use tokio::sync::Mutex;

/// How many handshakes at a time may hold more than 8 KiB.
const LARGE: usize = 256;

/// The places of large handshakes are the process's, and so every test's of this file. One test counts them: the others
/// take none meanwhile.
static PLACES: Mutex<()> = Mutex::const_new(());

const TIMEOUT: Duration = Duration::from_secs(10);
const ALICE: &str = "spiffe://cluster.local/ns/a/sa/alice";
const BOB: &str = "spiffe://cluster.local/ns/b/sa/bob";

fn mesh(certificate: &TestCertificate, uri: &str) -> MeshIdentity {
    let key = PrivateKey::from_pem(&certificate.key_pem).unwrap();
    let issued = WorkloadCertificate::from_issued(uri.parse().unwrap(), key, &certificate.chain()).unwrap();
    MeshIdentity::new(Arc::new(issued)).unwrap()
}

fn server() -> (TestCa, MeshIdentity) {
    let ca = TestCa::root("root");
    let server = mesh(&ca.issue(&Leaf::uri(BOB)), BOB);
    (ca, server)
}

/// Counts the bytes that are taken.
struct Counting {
    io: DuplexStream,
    taken: Arc<AtomicUsize>,
}

impl AsyncRead for Counting {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(context, into))?;
        self.taken.fetch_add(into.filled().len() - before, Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Counting {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

/// A record with the begin of a ClientHello that says it has `length` bytes.
fn hello(length: u32, begin: &[u8]) -> Vec<u8> {
    let [_, length @ ..] = length.to_be_bytes();
    let message = [&[1], &length[..], begin].concat();
    [&[22, 3, 1], &u16::try_from(message.len()).unwrap().to_be_bytes()[..], &message].concat()
}

#[tokio::test(start_paused = true)]
async fn a_hello_that_will_be_long_is_refused_when_it_says_so() {
    let _places = PLACES.lock().await;
    let (_ca, server) = server();
    let (near, mut far) = duplex(64 << 10);
    far.write_all(&hello(70_000, &[3, 3])).await.unwrap();
    let error = server.accept(near, TIMEOUT).await.unwrap_err();
    assert!(matches!(error, HandshakeError::Protocol(_)), "{error}");
    let mut heard = Vec::new();
    far.read_to_end(&mut heard).await.unwrap();
    assert_eq!(heard, [21, 3, 3, 0, 2, 2, 50], "decode_error, as the library says of a longer one");
}

#[tokio::test(start_paused = true)]
async fn a_hello_in_pieces_of_a_byte_is_refused_early() {
    let _places = PLACES.lock().await;
    let (_ca, server) = server();
    let (near, mut far) = duplex(1 << 20);
    far.write_all(&hello(15_000, &[3, 3])).await.unwrap();
    for _ in 0..100_000 {
        far.write_all(&[22, 3, 1, 0, 1, 0]).await.unwrap();
    }
    let taken = Arc::new(AtomicUsize::new(0));
    let error = server.accept(Counting { io: near, taken: taken.clone() }, TIMEOUT).await.unwrap_err();
    assert!(matches!(error, HandshakeError::Protocol(_)), "{error}");
    assert!(taken.load(Relaxed) <= 24 << 10, "{} bytes", taken.load(Relaxed));
}

/// How the server's side goes where the client shows `extra` bytes of certificates beside its own.
async fn with_certificates_of(extra: usize) -> (Result<(), HandshakeError>, usize) {
    let (ca, server) = server();
    let certificate = ca.issue(&Leaf::uri(ALICE));
    let (mut chain, key) = certificate.chain_and_key();
    let filler = chain[0].clone();
    for _ in 0..extra / filler.len() {
        chain.push(filler.clone());
    }
    let mut config =
        rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyServer))
            .with_client_auth_cert(chain, key)
            .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let (near, far) = duplex(1 << 20);
    let taken = Arc::new(AtomicUsize::new(0));
    let counting = Counting { io: near, taken: taken.clone() };
    let client = async {
        let name = ServerName::try_from("anything").unwrap();
        let mut stream = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, far).await?;
        stream.read(&mut [0]).await
    };
    let serve = async { server.accept(counting, TIMEOUT).await.map(drop) };
    let (served, _) = tokio::join!(serve, client);
    (served, taken.load(Relaxed))
}

#[tokio::test]
async fn long_chains_of_certificates_are_taken_up_to_64_kib() {
    let _places = PLACES.lock().await;
    let (served, taken) = with_certificates_of(60_000).await;
    served.unwrap();
    assert!(taken > 60_000);
    let (served, taken) = with_certificates_of(200_000).await;
    assert!(served.is_err());
    assert!(taken < 76 << 10, "{taken} bytes");
}

#[tokio::test(start_paused = true)]
async fn long_handshakes_share_the_memory_and_the_first_gives_way() {
    let _places = PLACES.lock().await;
    let (ca, server) = server();
    let (server, client) = (Arc::new(server), mesh(&ca.issue(&Leaf::uri(ALICE)), ALICE));
    let mut slow = Vec::new();
    for _ in 0..=LARGE {
        let (near, mut far) = duplex(64 << 10);
        // All but the end of what it says it will send.
        far.write_all(&hello(12_000, &[0; 11_000])[..10_000]).await.unwrap();
        let server = server.clone();
        let accepting = tokio::spawn(async move { server.accept(near, TIMEOUT).await.map(drop) });
        tokio::task::yield_now().await;
        slow.push((far, accepting));
    }
    let begun = tokio::time::Instant::now();
    let error = (&mut slow[0].1).await.unwrap().unwrap_err();
    assert!(matches!(error, HandshakeError::GaveWay { most: LARGE, .. }) && error.is_retryable(), "{error}");
    assert!(begun.elapsed() < Duration::from_millis(1100), "{:?}", begun.elapsed());
    assert!(slow[1..].iter().all(|(_, accepting)| !accepting.is_finished()), "there is room for the others");
    // A handshake that needs no more than 8 KiB does not wait.
    let begun = tokio::time::Instant::now();
    let (near, far) = duplex(64 << 10);
    let bob = [BOB.parse().unwrap()];
    let (served, connected) = tokio::join!(server.accept(near, TIMEOUT), client.connect(far, &bob, TIMEOUT));
    assert!(served.is_ok() && connected.is_ok());
    assert!(begun.elapsed().is_zero());
}
