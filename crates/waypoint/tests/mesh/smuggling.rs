//! Requests that two parsers may read in different ways. Each is answered with 400, or its connection ends, and nothing of it
//! reaches the program; or it is harmless, and then the program gets exactly one request.

use std::sync::Arc;

use leno_model::AppProtocol;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{Mesh, server, soon};

/// What comes after a request that is to be refused: if it is answered, the request was cut in the wrong place.
const SECOND: &str = "GET /smuggled HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\r\n";

/// Name and bytes; what must not pass.
const REFUSED: &[(&str, &str)] = &[
    ("CL.TE", "POST / HTTP/1.1\r\nhost: web\r\ncontent-length: 6\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nX"),
    (
        "TE.CL",
        "POST / HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n1\r\nX\r\n0\r\n\r\n",
    ),
    (
        "chunks and a length that is none",
        "POST / HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\r\ncontent-length: x\r\n\r\n0\r\n\r\n",
    ),
    ("bare LF after the request line", "GET / HTTP/1.1\nhost: web\r\n\r\n"),
    ("bare LF after a header", "GET / HTTP/1.1\r\nhost: web\nx: y\r\n\r\n"),
    ("bare LF ends the head", "GET / HTTP/1.1\r\nhost: web\r\n\n"),
    ("bare LF before the request", "\nGET / HTTP/1.1\r\nhost: web\r\n\r\n"),
    ("bare CR ends the head", "GET / HTTP/1.1\r\nhost: web\r\n\r"),
    ("bare CR after the request line", "GET / HTTP/1.1\rhost: web\r\n\r\n"),
    (
        "TE with a space before the colon",
        "POST / HTTP/1.1\r\nhost: web\r\ntransfer-encoding : chunked\r\n\r\n0\r\n\r\n",
    ),
    ("TE in a folded line", "POST / HTTP/1.1\r\nhost: web\r\ntransfer-encoding:\r\n chunked\r\n\r\n0\r\n\r\n"),
    ("TE in quotes", "POST / HTTP/1.1\r\nhost: web\r\ntransfer-encoding: \"chunked\"\r\n\r\n0\r\n\r\n"),
    ("TE with a NUL", "POST / HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\0\r\n\r\n0\r\n\r\n"),
    ("folded length", "POST / HTTP/1.1\r\nhost: web\r\ncontent-length:\r\n 5\r\n\r\nhello"),
    ("NUL in a name", "GET / HTTP/1.1\r\nhost: web\r\nx\0: a\r\n\r\n"),
    ("CR in a name", "GET / HTTP/1.1\r\nhost: web\r\nx\ry: a\r\n\r\n"),
    ("tab before the colon", "GET / HTTP/1.1\r\nhost: web\r\ncontent-length\t: 5\r\n\r\nhello"),
    ("NUL in the target", "GET /a\0b HTTP/1.1\r\nhost: web\r\n\r\n"),
    ("two targets", "GET / /admin HTTP/1.1\r\nhost: web\r\n\r\n"),
    ("target without a slash", "GET a HTTP/1.1\r\nhost: web\r\n\r\n"),
    ("target of another scheme", "GET ftp://web/ HTTP/1.1\r\nhost: web\r\n\r\n"),
    ("absolute target with a user", "GET http://a@web/ HTTP/1.1\r\nhost: web\r\n\r\n"),
    ("absolute target and two hosts", "GET http://web/ HTTP/1.1\r\nhost: web\r\nhost: web\r\n\r\n"),
    ("the same host twice", "GET / HTTP/1.1\r\nhost: web\r\nhost: web\r\n\r\n"),
    ("two hosts in one line", "GET / HTTP/1.1\r\nhost: web, other\r\n\r\n"),
    ("empty host", "GET / HTTP/1.1\r\nhost:\r\n\r\n"),
    ("asterisk for GET", "GET * HTTP/1.1\r\nhost: web\r\n\r\n"),
    ("chunk without its CRLF", "POST / HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello0\r\n\r\n"),
    ("chunk with bare LF", "POST / HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\r\n\r\n5\nhello\n0\n\n"),
    (
        "space before a chunk's size",
        "POST / HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\r\n\r\n 5\r\nhello\r\n0\r\n\r\n",
    ),
    (
        "CR in a chunk's extension",
        "POST / HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\r\n\r\n5;a\rb\r\nhello\r\n0\r\n\r\n",
    ),
    ("no chunk size", "POST / HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\r\n\r\n;a=b\r\nhello\r\n0\r\n\r\n"),
    ("bare LF in the trailers", "POST / HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: y\n\r\n"),
    ("TE.TE, identity last", "POST / HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n"),
    (
        "TE twice",
        "POST / HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n0\r\n\r\n",
    ),
    ("TE unknown", "POST / HTTP/1.1\r\nhost: web\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n"),
    ("TE with a vertical tab", "POST / HTTP/1.1\r\nhost: web\r\ntransfer-encoding: \x0bchunked\r\n\r\n0\r\n\r\n"),
    ("TE in HTTP/1.0", "POST / HTTP/1.0\r\nhost: web\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("two lengths", "POST / HTTP/1.1\r\nhost: web\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nXY"),
    ("a list of two lengths", "POST / HTTP/1.1\r\nhost: web\r\ncontent-length: 1, 2\r\n\r\nXY"),
    ("length with a plus", "POST / HTTP/1.1\r\nhost: web\r\ncontent-length: +5\r\n\r\nhello"),
    ("hexadecimal length", "POST / HTTP/1.1\r\nhost: web\r\ncontent-length: 0x5\r\n\r\nhello"),
    ("negative length", "POST / HTTP/1.1\r\nhost: web\r\ncontent-length: -1\r\n\r\n"),
    ("length beyond 64 bits", "POST / HTTP/1.1\r\nhost: web\r\ncontent-length: 18446744073709551617\r\n\r\nX"),
    ("empty length", "POST / HTTP/1.1\r\nhost: web\r\ncontent-length: \r\n\r\n"),
    ("folded header", "GET / HTTP/1.1\r\nhost: web\r\nx: 1\r\n 2\r\n\r\n"),
    ("NUL in a value", "GET / HTTP/1.1\r\nhost: web\r\nx: a\0b\r\n\r\n"),
    ("CR in a value", "GET / HTTP/1.1\r\nhost: web\r\nx: a\rb\r\n\r\n"),
    ("space before the colon", "GET / HTTP/1.1\r\nhost: web\r\ncontent-length : 5\r\n\r\nhello"),
    ("space before a name", "GET / HTTP/1.1\r\n host: web\r\n\r\n"),
    ("no name", "GET / HTTP/1.1\r\nhost: web\r\n: x\r\n\r\n"),
    ("no colon", "GET / HTTP/1.1\r\nhost: web\r\nx\r\n\r\n"),
    ("two hosts", "GET / HTTP/1.1\r\nhost: web\r\nhost: other\r\n\r\n"),
    ("no host", "GET / HTTP/1.1\r\nx: y\r\n\r\n"),
    ("host with a path", "GET / HTTP/1.1\r\nhost: web/x\r\n\r\n"),
    ("host with a user", "GET / HTTP/1.1\r\nhost: a@web\r\n\r\n"),
    ("space in the target", "GET /a b HTTP/1.1\r\nhost: web\r\n\r\n"),
    ("bad version", "GET / HTTP/1.2\r\nhost: web\r\n\r\n"),
    (
        "chunk size with a sign",
        "POST / HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\r\n\r\n+5\r\nhello\r\n0\r\n\r\n",
    ),
    (
        "chunk size with 0x",
        "POST / HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
    ),
    (
        "chunk size beyond 64 bits",
        "POST / HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\r\n\r\n10000000000000005\r\nhello\r\n0\r\n\r\n",
    ),
    (
        "chunk longer than said",
        "POST / HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhello\r\n0\r\n\r\n",
    ),
    (
        "LF in a chunk's extension",
        "POST / HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\r\n\r\n5;a\nb\r\nhello\r\n0\r\n\r\n",
    ),
    ("CONNECT", "CONNECT web:80 HTTP/1.1\r\nhost: web:80\r\n\r\n"),
];

/// What passes, and what the program gets: the body, or a header in its only form.
const HARMLESS: &[(&str, &str, &str)] = &[
    (
        "the same length twice",
        "POST / HTTP/1.1\r\nhost: web\r\ncontent-length: 5\r\ncontent-length: 5\r\n\r\nhello",
        "hello",
    ),
    (
        "chunked in capitals",
        "POST / HTTP/1.1\r\nhost: web\r\nTransfer-Encoding: CHUNKED\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "hello",
    ),
    (
        "a chunk's extension",
        "POST / HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\n\r\n",
        "hello",
    ),
    (
        "a target that names the host wins (RFC 9112 §3.2.2)",
        "GET http://web/ HTTP/1.1\r\nhost: other\r\n\r\n",
        "host: web\r\n",
    ),
    ("a fragment is nobody's", "GET /a#b HTTP/1.1\r\nhost: web\r\n\r\n", "GET /a HTTP/1.1\r\n"),
    ("codings that are offered", "GET / HTTP/1.1\r\nhost: web\r\nte: trailers, deflate\r\n\r\n", "te: trailers\r\n"),
    (
        "a body that looks like a request",
        "POST / HTTP/1.1\r\nhost: web\r\ncontent-length: 27\r\n\r\nTransfer-Encoding: chunked\n",
        "chunked",
    ),
    (
        "HTTP/2 by upgrade is nobody's",
        "GET / HTTP/1.1\r\nhost: web\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n\r\n",
        "GET / HTTP/1.1\r\n",
    ),
];

/// What would make the program speak something else on a connection that others share.
const NEVER_PASSED: &[&str] = &["upgrade", "h2c", "http2-settings"];

/// What the program has read.
type Seen = Arc<Mutex<Vec<u8>>>;

async fn recorder() -> (std::net::SocketAddr, Seen) {
    let seen = Seen::default();
    let noted = seen.clone();
    let at = server(move |mut stream| {
        let noted = noted.clone();
        async move {
            let mut read = [0; 4096];
            let mut own = Vec::new();
            while let Ok(count @ 1..) = stream.read(&mut read).await {
                noted.lock().extend_from_slice(&read[..count]);
                own.extend_from_slice(&read[..count]);
                let text = String::from_utf8_lossy(&own).into_owned();
                if text.ends_with("\r\n0\r\n\r\n") || text.contains("\r\n\r\n") && !text.contains("transfer-encoding") {
                    own.clear();
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
                }
            }
        }
    });
    (at.await, seen)
}

/// What comes back until the connection ends, or is silent for a moment after an answer.
async fn exchange(to: std::net::SocketAddr, bytes: &str) -> String {
    let mut stream = TcpStream::connect(to).await.unwrap();
    let _ = stream.write_all(bytes.as_bytes()).await;
    let mut answer = Vec::new();
    soon("the end", async {
        let mut read = [0; 4096];
        while let Ok(count @ 1..) = stream.read(&mut read).await {
            answer.extend_from_slice(&read[..count]);
        }
    })
    .await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_smuggled() {
    let mesh = Mesh::new().await;
    let (at, seen) = recorder().await;
    mesh.service(AppProtocol::Http11, &[at]).await;
    let to = mesh.bridged().await;
    let mut wrong = Vec::new();
    for (name, bytes) in REFUSED {
        let answer = exchange(to, &format!("{bytes}{SECOND}")).await;
        let told = std::mem::take(&mut *seen.lock());
        let told = String::from_utf8_lossy(&told).into_owned();
        // A body that breaks off may have begun to go out; it must not be ended, for then it would count.
        let sound = !told.contains("smuggled") && !told.ends_with("0\r\n\r\n");
        if !sound || !(answer.is_empty() || answer.starts_with("HTTP/1.1 4")) {
            wrong.push(format!("{name}: {answer:?}, program: {told:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    for (name, bytes, body) in HARMLESS {
        let answer = exchange(to, &format!("{bytes}{SECOND}")).await;
        let told = String::from_utf8_lossy(&seen.lock()).into_owned();
        assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 2, "{name}: {answer:?}, program: {told:?}");
        assert!(told.contains(body) && told.matches(" HTTP/1.1\r\n").count() == 2, "{name}: {told:?}");
        let passed = told.to_ascii_lowercase();
        assert!(!NEVER_PASSED.iter().any(|never| passed.contains(never)), "{name}: {told:?}");
        seen.lock().clear();
    }
}
