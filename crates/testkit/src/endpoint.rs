//! The HBONE port of a pod with any certificate that a test gives it. It accepts every client.

#![allow(clippy::unwrap_used, reason = "test code")]

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{Request, Response};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::certs::TestCertificate;
use crate::hbone::room;

/// How HBONE connections end, in the order of their ends: `Ok` if the peer took its leave (`close_notify`).
pub type Ends = mpsc::UnboundedReceiver<Result<(), h2::Error>>;

/// Serves the HBONE connections that come to `address`, and connects each stream to `program`.
///
/// # Panics
/// If nothing can listen there.
pub async fn serve(address: SocketAddr, certificate: &TestCertificate, program: SocketAddr) -> Ends {
    let (chain, key) = certificate.chain_and_key();
    let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind(address).await.unwrap();
    let (tell, ends) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let (acceptor, tell) = (acceptor.clone(), tell.clone());
            tokio::spawn(async move {
                let Ok(tls) = acceptor.accept(tcp).await else { return };
                let _ = tell.send(connection(tls, program).await);
            });
        }
    });
    ends
}

async fn connection(tls: TlsStream<TcpStream>, program: SocketAddr) -> Result<(), h2::Error> {
    let mut http2 = h2::server::handshake(tls).await?;
    while let Some(accepted) = http2.accept().await {
        let (request, respond) = accepted?;
        tokio::spawn(stream(request, respond, program));
    }
    Ok(())
}

async fn stream(request: Request<RecvStream>, mut respond: SendResponse<Bytes>, program: SocketAddr) {
    let (read, write) = TcpStream::connect(program).await.unwrap().into_split();
    let Ok(send) = respond.send_response(Response::new(()), false) else { return };
    tokio::join!(inwards(request.into_body(), write), outwards(read, send));
}

async fn inwards(mut from: RecvStream, mut to: OwnedWriteHalf) {
    while let Some(Ok(bytes)) = from.data().await {
        let _ = from.flow_control().release_capacity(bytes.len());
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}

async fn outwards(mut from: OwnedReadHalf, mut to: SendStream<Bytes>) {
    let mut read = vec![0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut read).await {
        let mut bytes = Bytes::copy_from_slice(&read[..count]);
        while !bytes.is_empty() {
            let Some(free) = room(&mut to, bytes.len()).await else { return };
            if to.send_data(bytes.split_to(free.min(bytes.len())), false).is_err() {
                return;
            }
        }
    }
    let _ = to.send_data(Bytes::new(), true);
}
