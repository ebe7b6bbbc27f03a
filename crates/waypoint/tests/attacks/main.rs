//! Clients that attack: what each may cost is bounded, and another client does not notice.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "test code")]

mod floods;
mod kinds;
mod slow;
#[allow(dead_code, reason = "shared with other tests")]
#[path = "../mesh/support.rs"]
mod support;

use leno_testkit::own_memory::anonymous as memory;
use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::AsyncReadExt;
use tokio::sync::Mutex;

/// One test at a time: each looks at the memory of the whole process.
static ALONE: Mutex<()> = Mutex::const_new(());

/// Reads each request to its end. `/large` gets [`LARGE`] bytes, anything else two. Speaks both versions of HTTP.
async fn program() -> SocketAddr {
    let large = Bytes::from(vec![7; LARGE]);
    support::server(move |stream| {
        let large = large.clone();
        async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let large = large.clone();
                async move {
                    let is_large = request.uri().path() == "/large";
                    let _ = request.into_body().collect().await;
                    let body = if is_large { large } else { Bytes::from_static(b"ok") };
                    Ok::<_, Infallible>(Response::new(Full::new(body)))
                }
            });
            let mut first = [0; 3];
            let http2 = stream.peek(&mut first).await.is_ok_and(|count| count == 3 && &first == b"PRI");
            let io = TokioIo::new(stream);
            if http2 {
                let _ = http2::Builder::new(TokioExecutor::new()).serve_connection(io, service).await;
            } else {
                let _ = http1::Builder::new().serve_connection(io, service).await;
            }
        }
    })
    .await
}

const LARGE: usize = 8 << 20;

/// Everything that comes until the end.
async fn rest(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> Vec<u8> {
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
    rest
}
