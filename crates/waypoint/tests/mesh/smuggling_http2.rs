//! Requests in HTTP/2 that mean something else to whoever writes them down as HTTP/1.1. Each is answered with 400, or its
//! stream or its connection ends, and the program gets nothing.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use leno_model::AppProtocol;
use leno_testkit::frames::{Frames, kind};
use parking_lot::Mutex;
use tokio::net::TcpStream;

use crate::support::{Mesh, server, soon};

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

type Fields = &'static [(&'static str, &'static str)];

/// The pseudo-headers of an ordinary request.
const GET: Fields = &[(":method", "GET"), (":scheme", "http"), (":authority", "web"), (":path", "/")];
const POST: Fields = &[(":method", "POST"), (":scheme", "http"), (":authority", "web"), (":path", "/")];

/// Name; fields; the body, if there is one.
const REFUSED: &[(&str, &[Fields], Option<&str>)] = &[
    ("CR and LF in a value", &[GET, &[("x", "a\r\nhost: b")]], None),
    ("LF in a value", &[GET, &[("x", "a\nb")]], None),
    ("CR in a value", &[GET, &[("x", "a\rb")]], None),
    ("NUL in a value", &[GET, &[("x", "a\0b")]], None),
    ("LF in a name", &[GET, &[("x\ny", "a")]], None),
    ("CR and LF in a name", &[GET, &[("x: a\r\ny", "a")]], None),
    ("NUL in a name", &[GET, &[("x\0", "a")]], None),
    ("colon in a name", &[GET, &[("x:y", "a")]], None),
    ("space in a name", &[GET, &[("x ", "a")]], None),
    ("capital in a name", &[GET, &[("X", "a")]], None),
    ("empty name", &[GET, &[("", "a")]], None),
    ("chunks", &[POST, &[("transfer-encoding", "chunked")]], Some("0\r\n\r\n")),
    ("a connection's header", &[GET, &[("connection", "close")]], None),
    ("keep-alive", &[GET, &[("keep-alive", "timeout=5")]], None),
    ("a proxy's header", &[GET, &[("proxy-connection", "close")]], None),
    ("an upgrade", &[GET, &[("upgrade", "h2c")]], None),
    ("codings that are offered", &[GET, &[("te", "gzip")]], None),
    ("two paths", &[GET, &[(":path", "/admin")]], None),
    ("two hosts", &[GET, &[(":authority", "other")]], None),
    ("two methods", &[GET, &[(":method", "POST")]], None),
    (
        "pseudo-header behind a header",
        &[&[(":method", "GET"), (":scheme", "http"), ("x", "a"), (":authority", "web"), (":path", "/")]],
        None,
    ),
    ("an unknown pseudo-header", &[GET, &[(":x", "a")]], None),
    ("a response's pseudo-header", &[GET, &[(":status", "200")]], None),
    ("host against authority", &[GET, &[("host", "other")]], None),
    ("host twice", &[GET, &[("host", "web"), ("host", "web")]], None),
    ("no method", &[&[(":scheme", "http"), (":authority", "web"), (":path", "/")]], None),
    ("no path", &[&[(":method", "GET"), (":scheme", "http"), (":authority", "web")]], None),
    ("no scheme", &[&[(":method", "GET"), (":authority", "web"), (":path", "/")]], None),
    (
        "a scheme that is not HTTP's",
        &[&[(":method", "GET"), (":scheme", "ftp"), (":authority", "web"), (":path", "/")]],
        None,
    ),
    ("no host", &[&[(":method", "GET"), (":scheme", "http"), (":path", "/")]], None),
    ("empty path", &[&[(":method", "GET"), (":scheme", "http"), (":authority", "web"), (":path", "")]], None),
    (
        "path without a slash",
        &[&[(":method", "GET"), (":scheme", "http"), (":authority", "web"), (":path", "a")]],
        None,
    ),
    (
        "path that is a URL",
        &[&[(":method", "GET"), (":scheme", "http"), (":authority", "web"), (":path", "http://other/")]],
        None,
    ),
    (
        "space in the path",
        &[&[(":method", "GET"), (":scheme", "http"), (":authority", "web"), (":path", "/ HTTP/1.1")]],
        None,
    ),
    (
        "CR and LF in the path",
        &[&[(":method", "GET"), (":scheme", "http"), (":authority", "web"), (":path", "/\r\nx: y")]],
        None,
    ),
    (
        "backslash in the path",
        &[&[(":method", "GET"), (":scheme", "http"), (":authority", "web"), (":path", "/\\a")]],
        None,
    ),
    ("asterisk for GET", &[&[(":method", "GET"), (":scheme", "http"), (":authority", "web"), (":path", "*")]], None),
    (
        "space in the method",
        &[&[(":method", "GET /"), (":scheme", "http"), (":authority", "web"), (":path", "/")]],
        None,
    ),
    (
        "CR and LF in the method",
        &[&[(":method", "GET\r\n"), (":scheme", "http"), (":authority", "web"), (":path", "/")]],
        None,
    ),
    ("user in the host", &[&[(":method", "GET"), (":scheme", "http"), (":authority", "a@web"), (":path", "/")]], None),
    ("path in the host", &[&[(":method", "GET"), (":scheme", "http"), (":authority", "web/a"), (":path", "/")]], None),
    (
        "CR and LF in the host",
        &[&[(":method", "GET"), (":scheme", "http"), (":authority", "web\r\nx: y"), (":path", "/")]],
        None,
    ),
    ("space in the host", &[&[(":method", "GET"), (":scheme", "http"), (":authority", "web b"), (":path", "/")]], None),
    ("empty host", &[&[(":method", "GET"), (":scheme", "http"), (":authority", ""), (":path", "/")]], None),
    ("CONNECT", &[&[(":method", "CONNECT"), (":authority", "web:80")]], None),
    (
        "CONNECT with a path",
        &[&[(":method", "CONNECT"), (":scheme", "http"), (":authority", "web:80"), (":path", "/")]],
        None,
    ),
    ("less body than said", &[POST, &[("content-length", "10")]], Some("short")),
    ("more body than said", &[POST, &[("content-length", "2")]], Some("longer")),
    ("a length and no body", &[POST, &[("content-length", "5")]], None),
    ("length with a plus", &[POST, &[("content-length", "+5")]], Some("hello")),
    ("a list of lengths", &[POST, &[("content-length", "5, 5")]], Some("hello")),
    ("two lengths", &[POST, &[("content-length", "5"), ("content-length", "6")]], Some("hello")),
];

/// What passes, and what the program gets of it.
const HARMLESS: &[(&str, &[Fields], Option<&str>, &str)] = &[
    ("host that is the authority", &[GET, &[("host", "web")]], None, "GET web / "),
    (
        "host instead of authority",
        &[&[(":method", "GET"), (":scheme", "http"), (":path", "/")], &[("host", "web")]],
        None,
        "GET web / ",
    ),
    (
        "a fragment is nobody's",
        &[&[(":method", "GET"), (":scheme", "http"), (":authority", "web"), (":path", "/a#b")]],
        None,
        "GET web /a {",
    ),
    ("trailers are taken", &[GET, &[("te", "trailers")]], None, "GET web / "),
    ("the right length", &[POST, &[("content-length", "5")]], Some("hello"), "POST web / hello"),
];

/// Literal fields without indexing (RFC 7541 §6.2.2), with what no encoder would let pass.
fn block(fields: &[Fields]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields.iter().copied().flatten() {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

type Seen = Arc<Mutex<Vec<String>>>;

/// Notes the whole requests that it gets.
async fn recorder() -> (std::net::SocketAddr, Seen) {
    let seen = Seen::default();
    let noted = seen.clone();
    let at = server(move |stream| {
        let noted = noted.clone();
        async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let noted = noted.clone();
                async move {
                    let (head, body) = request.into_parts();
                    let host = head.uri.authority().map(ToString::to_string).unwrap_or_default();
                    // One that breaks off was no request.
                    if let Ok(body) = body.collect().await {
                        let body = String::from_utf8_lossy(&body.to_bytes()).into_owned();
                        noted.lock().push(format!(
                            "{} {host} {} {body}{:?}",
                            head.method,
                            head.uri.path(),
                            head.headers
                        ));
                    }
                    Ok::<_, Infallible>(Response::new(Full::new(Bytes::from("ok"))))
                }
            });
            let _ = http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
        }
    });
    (at.await, seen)
}

/// The first of: the status of the answer, a reset, the end of the connection.
async fn ask(to: std::net::SocketAddr, fields: &[Fields], body: Option<&str>) -> String {
    let mut frames = Frames::start(TcpStream::connect(to).await.unwrap()).await.unwrap();
    let flags = if body.is_some() { END_HEADERS } else { END_HEADERS | END_STREAM };
    frames.queue(kind::HEADERS, flags, 1, &block(fields));
    if let Some(body) = body {
        frames.queue_data(1, body.as_bytes(), true);
    }
    frames.flush().await.unwrap();
    let answer = async {
        while let Some(frame) = frames.next().await {
            match frame.kind {
                // The index of a status in HPACK's static table, or the three digits themselves.
                kind::HEADERS if frame.payload[0] == 0x88 => return "200".to_owned(),
                kind::HEADERS if frame.payload[0] == 0x8c => return "400".to_owned(),
                kind::HEADERS => return format!("{:?}", frame.payload),
                kind::RST_STREAM => return "reset".to_owned(),
                kind::GOAWAY => return "end".to_owned(),
                _ => {}
            }
        }
        "end".to_owned()
    };
    soon("an answer", answer).await
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_smuggled_out_of_http2() {
    let mesh = Mesh::new().await;
    let (at, seen) = recorder().await;
    mesh.service(AppProtocol::Http2, &[at]).await;
    let to = mesh.bridged().await;
    let mut wrong = Vec::new();
    for (name, fields, body) in REFUSED {
        let answer = ask(to, fields, *body).await;
        // The next one is alone.
        assert_eq!(ask(to, &[GET], None).await, "200", "after {name}");
        let told = std::mem::take(&mut *seen.lock());
        let alone = told.len() == 1 && told[0].starts_with("GET web / {");
        if !alone || !["400", "reset", "end"].contains(&answer.as_str()) {
            wrong.push(format!("{name}: {answer}, program: {told:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    for (name, fields, body, expected) in HARMLESS {
        assert_eq!(ask(to, fields, *body).await, "200", "{name}");
        let told = std::mem::take(&mut *seen.lock());
        assert!(told.len() == 1 && told[0].starts_with(expected), "{name}: the program got {told:?}");
    }
}
