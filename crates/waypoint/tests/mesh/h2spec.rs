//! Checks the listener for requests with h2spec, which tests servers for conformance to HTTP/2 (RFC 7540, 7541).
//!
//! Runs where `LENO_H2SPEC` names it: `go install github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible`.

use std::convert::Infallible;
use std::ffi::OsStr;
use std::future::pending;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use leno_model::AppProtocol;
use leno_testkit::skips::skip;
use tokio::process::Command;

use crate::support::{Mesh, server};

const PATIENCE: Duration = Duration::from_secs(120);

/// Cases that need an answer: they look at it, or go on after it.
const ANSWERED: [&str; 18] = [
    "generic/2/2",
    "generic/2/3",
    "generic/2/5",
    "generic/3.1",
    "generic/3.2",
    "generic/3.3",
    "generic/3.9/2",
    "generic/3.10",
    "generic/4",
    "generic/5",
    "http2/4.2/1",
    "http2/5.1/11",
    "http2/5.1/12",
    "http2/5.1/13",
    "http2/6.5.3/1",
    "http2/6.9.1/1",
    "http2/6.9.2",
    "http2/6.10/1",
];

/// Cases that need none. Some of them expect a stream to be open still when their next frame comes. On a busy machine an
/// answer may have ended it by then.
const UNANSWERED: [&str; 52] = [
    "generic/1",
    "generic/2/1",
    "generic/2/4",
    "generic/3.4",
    "generic/3.5",
    "generic/3.7",
    "generic/3.8",
    "generic/3.9/1",
    "http2/3.5",
    "http2/4.1",
    "http2/4.2/2",
    "http2/4.2/3",
    "http2/4.3",
    "http2/5.1/1",
    "http2/5.1/2",
    "http2/5.1/3",
    "http2/5.1/4",
    "http2/5.1/5",
    "http2/5.1/6",
    "http2/5.1/7",
    "http2/5.1/8",
    "http2/5.1/9",
    "http2/5.1/10",
    "http2/5.1.1",
    "http2/5.1.2",
    "http2/5.3",
    "http2/5.4",
    "http2/5.5",
    "http2/6.1",
    "http2/6.2",
    "http2/6.3",
    "http2/6.4",
    "http2/6.5/1",
    "http2/6.5/2",
    "http2/6.5/3",
    "http2/6.5.2",
    "http2/6.5.3/2",
    "http2/6.7",
    "http2/6.8",
    "http2/6.9/1",
    "http2/6.9/2",
    "http2/6.9/3",
    "http2/6.9.1/2",
    "http2/6.9.1/3",
    "http2/6.10/2",
    "http2/6.10/3",
    "http2/6.10/4",
    "http2/6.10/5",
    "http2/6.10/6",
    "http2/7",
    "http2/8",
    "hpack",
];

/// All cases of this version of h2spec.
const CASES: u32 = 146;

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_as_h2spec_wants_them() {
    let Some(program) = std::env::var_os("LENO_H2SPEC") else {
        skip("requests_are_as_h2spec_wants_them", "needs LENO_H2SPEC=PATH of h2spec, a program of Go's");
        return;
    };
    let answered = passed(&program, &ANSWERED, Endpoint::Answers).await;
    let unanswered = passed(&program, &UNANSWERED, Endpoint::KeepsSilent).await;
    assert_eq!(answered + unanswered, CASES, "{answered} with answers, {unanswered} without");
}

/// What the endpoint behind the waypoint does with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Endpoint {
    Answers,
    KeepsSilent,
}

/// Runs cases of h2spec, none of which may fail, and counts them.
async fn passed(program: &OsStr, cases: &[&str], behaviour: Endpoint) -> u32 {
    let mesh = Mesh::new().await;
    let endpoint = server(move |stream| async move {
        let service = service_fn(move |request: Request<Incoming>| async move {
            if behaviour == Endpoint::KeepsSilent {
                pending::<()>().await;
            }
            let body: &[u8] = if request.method() == Method::HEAD { b"" } else { b"a body" };
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(body))))
        });
        let _ = http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
    });
    mesh.service(AppProtocol::Http2, &[endpoint.await]).await;
    let port = mesh.bridged().await.port().to_string();

    let mut command = Command::new(program);
    command.args(["--strict", "--host", "127.0.0.1", "--port", &port]).args(cases).kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, command.output()).await;
    let output = output.expect("h2spec ends").expect("LENO_H2SPEC names a program");

    let told = String::from_utf8_lossy(&output.stdout);
    let (_, counts) = told.rsplit_once("tests, ").unwrap_or_else(|| panic!("{told}"));
    assert!(output.status.success() && counts.contains(" 0 skipped, 0 failed"), "{behaviour:?}: {told}");
    let (count, _) = counts.split_once(" passed").unwrap_or_else(|| panic!("{told}"));
    count.parse().unwrap_or_else(|_| panic!("{told}"))
}
