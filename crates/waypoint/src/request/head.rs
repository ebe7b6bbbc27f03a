//! What a request's head must be like, and what of a head is passed on.

use std::time::Duration;

use http::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE,
};
use http::request::Parts;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Method, StatusCode, Uri, Version};

use crate::pool::Kind;
use crate::request::refusal::{Flag, Refusal};
use crate::request::websocket;
use crate::transport::h1_smuggling::Ambiguity;

/// What a request asks for, apart from its headers.
#[derive(Debug, Clone)]
pub(crate) struct Asks {
    /// The host it names, with its port if it names one.
    pub(crate) authority: Authority,
    /// The path with the query.
    pub(crate) path: PathAndQuery,
    /// Whether it wants to cease to be HTTP.
    pub(crate) upgrade: bool,
    /// Whether it wants that by a CONNECT of HTTP/2 (RFC 8441).
    pub(crate) extended: bool,
    /// Whether it is gRPC.
    pub(crate) grpc: bool,
}

const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");

/// Checks a request and takes out what concerns only the connection that it came by. `default` is the host of a client
/// that names none, as HTTP/1.0 allows.
///
/// # Errors
/// If it is to be refused.
pub(crate) fn prepare(head: &mut Parts, default: impl FnOnce() -> Option<Authority>) -> Result<Asks, Refusal> {
    if let Some(ambiguity) = head.extensions.get::<Ambiguity>() {
        let status = match ambiguity {
            Ambiguity::Coding => StatusCode::NOT_IMPLEMENTED,
            _ => StatusCode::BAD_REQUEST,
        };
        return Err(Refusal::new(status, Flag::ProtocolError, ambiguity.reason()));
    }
    let extended = head.method == Method::CONNECT;
    if extended {
        websocket::handshake(head)?;
    }
    let authority = authority(head)?;
    let authority = match authority {
        Some(authority) => authority,
        None if head.version == Version::HTTP_10 => {
            default().ok_or_else(|| Refusal::malformed("the request names no host"))?
        }
        None => return Err(Refusal::malformed("the request names no host")),
    };
    let path = match head.uri.path_and_query() {
        Some(path) => path.clone(),
        None => PathAndQuery::from_static("/"),
    };
    let is_asterisk = path == "*";
    if is_asterisk && head.method != Method::OPTIONS {
        return Err(Refusal::malformed("only OPTIONS may ask for *"));
    }
    let headers = &mut head.headers;
    let upgrade = extended || head.version == Version::HTTP_11 && wants_upgrade(headers);
    // A refusal in the words of gRPC has the status 200, which would be consent here.
    let grpc =
        !extended && headers.get(CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"));
    strip(headers, upgrade);
    // The body is asked for, and 100 sent, when the endpoint is connected to.
    headers.remove(EXPECT);
    Ok(Asks { authority, path, upgrade, extended, grpc })
}

/// How long a client of gRPC waits (gRPC over HTTP/2, "Timeout": up to eight digits and a unit).
pub(crate) fn grpc_timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(GRPC_TIMEOUT)?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number: u64 =
        digits.parse().ok().filter(|_| (1..=8).contains(&digits.len()) && digits.as_bytes()[0] != b'+')?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

/// The host that a request names.
fn authority(head: &Parts) -> Result<Option<Authority>, Refusal> {
    let mut hosts = head.headers.get_all(HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (None, _) => None,
        (Some(host), None) => {
            let host = Authority::try_from(host.as_bytes()).map_err(|_| Refusal::malformed("the host is malformed"))?;
            Some(host)
        }
        (Some(_), Some(_)) => return Err(Refusal::malformed("the request names several hosts")),
    };
    // A target like `web:80` is for CONNECT alone (RFC 9112 §3.2.3).
    let is_sound = match head.uri.scheme_str() {
        Some(scheme) => scheme == "http" || scheme == "https",
        None => head.uri.authority().is_none(),
    };
    if !is_sound {
        return Err(Refusal::malformed("the target is neither a path nor a URL of HTTP"));
    }
    let asked = head.uri.authority();
    // Of what RFC 3986 allows in a host, names in a mesh need only this. What is left out is read in different ways.
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._:[]".contains(&b);
    if [asked, host.as_ref()].into_iter().flatten().any(|host| !host.as_str().bytes().all(plain)) {
        return Err(Refusal::malformed("the host is malformed"));
    }
    match (asked, host) {
        // RFC 9113 §8.3.1. In HTTP/1.1, the target wins (RFC 9112 §3.2.2).
        (Some(asked), Some(host)) if head.version == Version::HTTP_2 && *asked != host => {
            Err(Refusal::malformed("the request names two different hosts"))
        }
        (Some(asked), _) => Ok(Some(asked.clone())),
        (None, host) => Ok(host),
    }
}

/// Whether a client wants a WebSocket. What else it may want is not passed on, and its request stays one: HTTP/2 or TLS would carry
/// requests that nobody has looked at, and so may what is not known here.
fn wants_upgrade(headers: &HeaderMap) -> bool {
    let named = headers.get_all(CONNECTION).iter().flat_map(|value| value.as_bytes().split(|b| *b == b','));
    let asked = named.map(<[u8]>::trim_ascii).any(|name| name.eq_ignore_ascii_case(b"upgrade"));
    let mut protocols = headers.get_all(UPGRADE).iter();
    let is_websocket = |value: &HeaderValue| value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"websocket");
    asked && protocols.next().is_some_and(is_websocket) && protocols.next().is_none()
}

/// Takes out the headers that concern one connection only (RFC 9110 §7.6.1), and with `upgrade` leaves what asks for or
/// grants another protocol.
pub(crate) fn strip(headers: &mut HeaderMap, upgrade: bool) {
    if headers.contains_key(CONNECTION) {
        let named = headers.get_all(CONNECTION).iter().flat_map(|value| value.as_bytes().split(|b| *b == b','));
        let named = named.filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok());
        // Nobody may take out what says where the message ends or whom it is for.
        let needed =
            |name: &HeaderName| [HOST, CONTENT_LENGTH, TRANSFER_ENCODING, UPGRADE, CONNECTION, TE].contains(name);
        let named = named.filter(|name| !needed(name)).collect::<Vec<_>>();
        for name in named {
            headers.remove(name);
        }
        headers.remove(CONNECTION);
        for name in [KEEP_ALIVE, PROXY_CONNECTION, HTTP2_SETTINGS] {
            headers.remove(name);
        }
    } else if headers.contains_key(KEEP_ALIVE) || headers.contains_key(PROXY_CONNECTION) {
        headers.remove(KEEP_ALIVE);
        headers.remove(PROXY_CONNECTION);
    }
    headers.remove(TRANSFER_ENCODING);
    headers.remove(PROXY_AUTHENTICATE);
    headers.remove(PROXY_AUTHORIZATION);
    if upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    } else {
        headers.remove(UPGRADE);
    }
    if let Some(te) = headers.get(TE) {
        let trailers =
            te.as_bytes().split(|b| *b == b',').any(|one| one.trim_ascii().eq_ignore_ascii_case(b"trailers"));
        if trailers {
            headers.insert(TE, HeaderValue::from_static("trailers"));
        } else {
            headers.remove(TE);
        }
    }
}

/// Writes a request's target as the endpoint's protocol wants it.
pub(crate) fn aim(head: &mut Parts, asks: &Asks, kind: Kind) {
    let mut uri = http::uri::Parts::default();
    uri.path_and_query = Some(asks.path.clone());
    match kind {
        Kind::Http1 => {
            head.version = Version::HTTP_11;
            if let Ok(host) = HeaderValue::from_str(asks.authority.as_str()) {
                head.headers.insert(HOST, host);
            }
            if head.headers.contains_key(TE) && !asks.upgrade {
                head.headers.insert(CONNECTION, HeaderValue::from_static("te"));
            }
        }
        Kind::Http2 => {
            head.version = Version::HTTP_2;
            head.headers.remove(HOST);
            uri.scheme = Some(Scheme::HTTP);
            uri.authority = Some(asks.authority.clone());
        }
    }
    if let Ok(uri) = Uri::from_parts(uri) {
        head.uri = uri;
    }
}

#[cfg(test)]
#[path = "head_tests.rs"]
mod tests;
