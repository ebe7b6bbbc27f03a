//! An HBONE peer with any certificate that a test gives it. It accepts every server.

#![allow(clippy::unwrap_used, reason = "test code")]

use std::future::poll_fn;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Method, Request, StatusCode};
use rustls::ClientConfig;
use rustls::crypto::aws_lc_rs;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::any_server::AnyServer;
use crate::certs::TestCertificate;

/// A mesh client's TLS handshake that does not check the server's certificate. In TLS 1.3 it succeeds even if the
/// server refuses the client. The refusal shows in the first read.
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
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer));
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

/// The TLS stream of such a peer.
pub type Tls = TlsStream<TcpStream>;

/// The HBONE connection of such a peer.
pub struct Peer {
    send: SendRequest<Bytes>,
    driver: AbortHandle,
}

/// The response on a stream.
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// Sends bytes to the program. Useless if the request was refused.
    pub send: SendStream<Bytes>,
    /// Receives bytes from the program.
    pub receive: RecvStream,
}

impl Peer {
    /// Starts HTTP/2 on an established TLS connection.
    ///
    /// # Errors
    /// If the transport fails.
    pub async fn start(tls: Tls) -> Result<Self, h2::Error> {
        let (send, connection) = h2::client::handshake(tls).await?;
        // A transport error also shows on every stream.
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

    /// Sends a CONNECT and does not wait for the answer.
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

/// Reads exactly `wanted` bytes and releases their flow-control capacity.
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

/// Waits until some bytes may be sent. `None` when the stream accepts no more.
pub async fn room(send: &mut SendStream<Bytes>, want: usize) -> Option<usize> {
    send.reserve_capacity(want);
    if send.capacity() > 0 {
        return Some(send.capacity());
    }
    poll_fn(|cx| send.poll_capacity(cx)).await.and_then(Result::ok)
}
