//! Clients that send on without waiting for the end of the handshake.

#![allow(clippy::unwrap_used, reason = "test code")]

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use leno_tls::{CaOptions, CertificateAuthority, ControlAcceptor, HandshakeError};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

const TIMEOUT: Duration = Duration::from_secs(20);

/// More bytes than a handshake may hold, and more than any buffer has.
const QUEUED: usize = 600 << 10;

/// A ClientHello of so many bytes or a few more: the rest of them are protocols that nobody speaks.
fn client(authority: &CertificateAuthority, hello: usize) -> ClientConnection {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.root_pem().as_bytes()).unwrap()).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let mut padding = Vec::new();
    for number in 0..hello / 201 {
        let mut name = vec![b'x'; 200];
        name[..8].copy_from_slice(&number.to_be_bytes());
        padding.push(name);
    }
    config.alpn_protocols.extend(padding);
    let mut client = ClientConnection::new(Arc::new(config), "127.0.0.1".try_into().unwrap()).unwrap();
    client.set_buffer_limit(None);
    client
}

/// What `client` has to send.
fn flight(client: &mut ClientConnection) -> Vec<u8> {
    let mut flight = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut flight).unwrap();
    }
    flight
}

/// The same handshake messages in records of `size` bytes.
fn in_fragments(mut flight: &[u8], size: usize) -> Vec<u8> {
    let mut messages = Vec::new();
    while let Some((&[_, _, _, high, low], rest)) = flight.split_first_chunk() {
        let (record, after) = rest.split_at(usize::from(u16::from_be_bytes([high, low])));
        messages.extend_from_slice(record);
        flight = after;
    }
    let record = |part: &[u8]| [&[22, 3, 1], &(part.len() as u16).to_be_bytes()[..], part].concat();
    messages.chunks(size).flat_map(record).collect()
}

/// Connects, and sends [`QUEUED`] bytes together with the last message of the handshake. Returns the length of the
/// ClientHello with its records' headers.
async fn connect(mut client: ClientConnection, fragments: Option<usize>, mut pipe: DuplexStream) -> usize {
    let mut hello = flight(&mut client);
    if let Some(size) = fragments {
        hello = in_fragments(&hello, size);
    }
    pipe.write_all(&hello).await.unwrap();
    let mut received = vec![0; 64 << 10];
    while client.is_handshaking() {
        let length = pipe.read(&mut received).await.unwrap();
        if length == 0 {
            return hello.len();
        }
        let mut rest = &received[..length];
        while !rest.is_empty() {
            client.read_tls(&mut rest).unwrap();
            if client.process_new_packets().is_err() {
                return hello.len();
            }
        }
    }
    client.writer().write_all(&vec![7; QUEUED]).unwrap();
    let last = flight(&mut client);
    pipe.write_all(&last).await.unwrap();
    // It stays until the server has read all.
    assert_eq!(pipe.read(&mut received).await.unwrap(), 0);
    hello.len()
}

/// The server's result, and the length of the ClientHello with its records' headers.
async fn serve(hello: usize, fragments: Option<usize>) -> (Result<(), HandshakeError>, usize) {
    let authority = Arc::new(CertificateAuthority::ephemeral("cluster.local", CaOptions::default()).unwrap());
    let acceptor =
        ControlAcceptor::from_authority(authority.clone(), Vec::new(), vec!["127.0.0.1".parse().unwrap()]).unwrap();
    let (near, far) = tokio::io::duplex(4 << 20);
    let serving = async {
        let mut stream = acceptor.accept(far, TIMEOUT).await?;
        let mut data = vec![0; QUEUED];
        stream.read_exact(&mut data).await.unwrap();
        assert!(data.iter().all(|byte| *byte == 7));
        Ok(())
    };
    tokio::join!(serving, connect(client(&authority, hello), fragments, near))
}

#[tokio::test]
async fn what_is_queued_behind_the_handshake_arrives() {
    for (hello, fragments) in [(0, None), (60_000, None), (60_000, Some(1000)), (0, Some(1))] {
        let (served, _) = serve(hello, fragments).await;
        served.unwrap();
    }
}

#[tokio::test]
async fn a_hello_in_too_many_pieces_is_refused() {
    let (served, hello) = serve(4000, Some(1)).await;
    assert!((16 << 10..64 << 10).contains(&hello), "{hello} bytes");
    let error = served.unwrap_err();
    assert!(matches!(error, HandshakeError::Protocol(_)), "{error}");
}
