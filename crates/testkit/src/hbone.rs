//! A peer that speaks HBONE with whatever certificate a test gives it, and believes anybody.

#![allow(clippy::unwrap_used, reason = "test code")]

use std::future::poll_fn;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Method, Request, StatusCode};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::certs::TestCertificate;

/// TLS as a mesh client does it, but without looking at the server's certificate. In TLS 1.3
/// this succeeds even if the server will not have us: that shows with the first read.
///
/// # Errors
/// If the handshake fails.
pub async fn tls(tcp: TcpStream, certificate: Option<&TestCertificate>) -> io::Result<Tls> {
    tls_with_alpn(tcp, certificate, &[b"h2"]).await
}

/// As [`tls`], with other application protocols.
///
/// # Errors
/// If the handshake fails.
pub async fn tls_with_alpn(tcp: TcpStream, certificate: Option<&TestCertificate>, alpn: &[&[u8]]) -> io::Result<Tls> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Gullible(provider)));
    let mut config = match certificate {
        None => builder.with_no_client_auth(),
        Some(certificate) => {
            let (chain, key) = certificate.chain_and_key();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    };
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    config.enable_sni = false;
    TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("peer").unwrap(), tcp).await
}

/// Such a peer's side of TLS.
pub type Tls = TlsStream<TcpStream>;

/// The HBONE connection of such a peer.
pub struct Peer {
    send: SendRequest<Bytes>,
    driver: AbortHandle,
}

/// What came back on a stream.
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// Bytes to the program; for a refused request, of no use.
    pub send: SendStream<Bytes>,
    /// Bytes from the program.
    pub receive: RecvStream,
}

impl Peer {
    /// Starts HTTP/2 on an established TLS connection.
    ///
    /// # Errors
    /// If the transport fails.
    pub async fn start(tls: Tls) -> Result<Self, h2::Error> {
        let (send, connection) = h2::client::handshake(tls).await?;
        // Its error is also that of every stream on it.
        let driver = tokio::spawn(async move { drop(connection.await) }).abort_handle();
        Ok(Self { send, driver })
    }

    /// Sends a CONNECT and waits for the answer.
    ///
    /// # Errors
    /// If the stream is reset or the connection ends.
    pub async fn connect(&self, authority: &str) -> Result<Answer, h2::Error> {
        let mut request = Request::new(());
        *request.method_mut() = Method::CONNECT;
        *request.uri_mut() = authority.parse().unwrap();
        self.request(request).await
    }

    /// Sends any request and waits for the answer.
    ///
    /// # Errors
    /// If the stream is reset or the connection ends.
    pub async fn request(&self, request: Request<()>) -> Result<Answer, h2::Error> {
        let (answer, send) = self.send.clone().ready().await?.send_request(request, false)?;
        let (head, receive) = answer.await?.into_parts();
        Ok(Answer { status: head.status, headers: head.headers, send, receive })
    }

    /// Sends a CONNECT and does not wait.
    ///
    /// # Errors
    /// If the connection has ended.
    pub async fn begin(&self, authority: &str) -> Result<(h2::client::ResponseFuture, SendStream<Bytes>), h2::Error> {
        let mut request = Request::new(());
        *request.method_mut() = Method::CONNECT;
        *request.uri_mut() = authority.parse().unwrap();
        self.send.clone().ready().await?.send_request(request, false)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Reads exactly `wanted` bytes, giving the window back.
///
/// # Panics
/// If fewer come.
pub async fn read(receive: &mut RecvStream, wanted: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < wanted {
        let chunk = receive.data().await.expect("end of stream").expect("stream failed");
        receive.flow_control().release_capacity(chunk.len()).unwrap();
        bytes.extend_from_slice(&chunk);
    }
    bytes
}

/// Waits for the end of the stream.
///
/// # Panics
/// If more bytes or an error come first.
pub async fn end(receive: &mut RecvStream) {
    while let Some(chunk) = receive.data().await {
        assert!(chunk.expect("stream failed").is_empty(), "more bytes");
    }
}

/// Bytes that may be sent now, once some may; `None` when the stream takes no more.
pub async fn room(send: &mut SendStream<Bytes>, want: usize) -> Option<usize> {
    send.reserve_capacity(want);
    if send.capacity() > 0 {
        return Some(send.capacity());
    }
    poll_fn(|cx| send.poll_capacity(cx)).await.and_then(Result::ok)
}

#[derive(Debug)]
struct Gullible(Arc<CryptoProvider>);

impl ServerCertVerifier for Gullible {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
