//! WebSockets that a client asks for in HTTP/2 (RFC 8441). Their programs are asked in HTTP/1.1.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{CONNECTION, HeaderName, HeaderValue, UPGRADE};
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode};
use hyper::ext::Protocol;

use crate::request::refusal::{Flag, Refusal};

const WEBSOCKET: &str = "websocket";
const SEC_WEBSOCKET_KEY: HeaderName = HeaderName::from_static("sec-websocket-key");
const SEC_WEBSOCKET_ACCEPT: HeaderName = HeaderName::from_static("sec-websocket-accept");

/// Makes of a CONNECT that asks for a WebSocket (RFC 8441 §5) the GET that asks a program for it (RFC 6455 §4.1). That is
/// what policies and routes see.
///
/// # Errors
/// If it asks for something else.
pub(crate) fn handshake(head: &mut Parts) -> Result<(), Refusal> {
    let Some(protocol) = head.extensions.get::<Protocol>() else {
        return Err(Refusal::malformed("a tunnel within a connection (CONNECT) is not carried"));
    };
    if protocol.as_str() != WEBSOCKET {
        let reason =
            format!("CONNECT with the protocol {:?} is not carried, only that of WebSockets", protocol.as_str());
        return Err(Refusal::new(StatusCode::NOT_IMPLEMENTED, Flag::ProtocolError, reason));
    }
    // Sixteen bytes by chance (RFC 6455 §4.1). Base64 is always a header's value.
    let nonce = STANDARD.encode(rand::random::<[u8; 16]>());
    let nonce = HeaderValue::try_from(nonce).map_err(|_| Refusal::malformed("no key for a WebSocket could be made"))?;
    head.method = Method::GET;
    head.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    head.headers.insert(UPGRADE, HeaderValue::from_static(WEBSOCKET));
    head.headers.insert(SEC_WEBSOCKET_KEY, nonce);
    Ok(())
}

/// Makes of a program's consent what a client of HTTP/2 gets.
pub(crate) fn consent(headers: &mut HeaderMap) -> StatusCode {
    headers.remove(SEC_WEBSOCKET_ACCEPT);
    StatusCode::OK
}
