//! `pods/portforward` over WebSocket, as a kubelet answers it: to ports that a test provides.

use std::net::SocketAddr;

use futures_util::{SinkExt as _, StreamExt as _};
use http::header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::Body;

/// Channels of the first port that is asked for.
const DATA: u8 = 0;
const ERROR: u8 = 1;

/// The pod and the port that a request wants, as `NAMESPACE/POD:PORT`.
pub(super) fn wanted(target: &str) -> Option<(String, u16)> {
    let (path, query) = target.split_once('?')?;
    let rest = path.strip_prefix("/api/v1/namespaces/")?.strip_suffix("/portforward")?;
    let (namespace, pod) = rest.split_once("/pods/")?;
    let port = query.split('&').find_map(|pair| pair.strip_prefix("ports="))?.parse().ok()?;
    Some((format!("{namespace}/{pod}:{port}"), port))
}

/// Switches protocols, and connects to `address`; without one, nobody listens at that port.
pub(super) fn answer(mut request: Request<Incoming>, port: u16, address: Option<SocketAddr>) -> Response<Body> {
    let key = request.headers().get(SEC_WEBSOCKET_KEY).map(|key| derive_accept_key(key.as_bytes())).unwrap_or_default();
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let Ok(upgraded) = upgrade.await else { return };
        let socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await;
        // A client that is gone wants no more.
        let _ = carry(socket, port, address).await;
    });
    let mut answer = Response::new(Full::default().boxed());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = answer.headers_mut();
    headers.insert(CONNECTION, http::HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, http::HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_PROTOCOL, http::HeaderValue::from_static("v4.channel.k8s.io"));
    headers.extend(key.parse().ok().map(|key| (SEC_WEBSOCKET_ACCEPT, key)));
    answer
}

type Socket = WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>;

async fn carry(
    mut socket: Socket,
    port: u16,
    address: Option<SocketAddr>,
) -> Result<(), tokio_tungstenite::tungstenite::Error> {
    let [low, high] = port.to_le_bytes();
    for channel in [DATA, ERROR] {
        socket.send(Message::binary(vec![channel, low, high])).await?;
    }
    let connected = match address {
        Some(address) => TcpStream::connect(address).await.ok(),
        None => None,
    };
    let Some(mut stream) = connected else {
        let mut message = vec![ERROR];
        message.extend_from_slice(format!("failed to connect to localhost:{port} inside namespace").as_bytes());
        socket.send(Message::binary(message)).await?;
        return socket.close(None).await;
    };
    let mut buffer = vec![0; 16 << 10];
    loop {
        tokio::select! {
            read = stream.read(&mut buffer) => match read {
                Ok(0) | Err(_) => return socket.close(None).await,
                Ok(count) => {
                    let mut message = vec![DATA];
                    message.extend_from_slice(buffer.get(..count).unwrap_or_default());
                    socket.send(Message::binary(message)).await?;
                }
            },
            message = socket.next() => match message {
                Some(Ok(Message::Binary(bytes))) if bytes.first() == Some(&DATA) => {
                    stream.write_all(bytes.get(1..).unwrap_or_default()).await?;
                }
                Some(Ok(Message::Close(_))) | None => return Ok(()),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error),
            },
        }
    }
}
