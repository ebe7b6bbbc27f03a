//! Checks the listener for requests with h2spec, which tests servers for conformance to HTTP/2 (RFC 7540, 7541).
//!
//! Runs where `LENO_H2SPEC` names it: `go install github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible`.

use std::convert::Infallible;
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

/// Some of its cases expect a stream to be open still when their next frame comes. On a busy machine, the answer may have ended
/// it by then. All must pass in one run.
const TRIES: u32 = 3;

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_as_h2spec_wants_them() {
    let Some(program) = std::env::var_os("LENO_H2SPEC") else {
        skip("requests_are_as_h2spec_wants_them", "needs LENO_H2SPEC=PATH of h2spec, a program of Go's");
        return;
    };
    let mesh = Mesh::new().await;
    let endpoint = server(|stream| async move {
        let service = service_fn(|request: Request<Incoming>| async move {
            let body: &[u8] = if request.method() == Method::HEAD { b"" } else { b"a body" };
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(body))))
        });
        let _ = http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
    });
    mesh.service(AppProtocol::Http2, &[endpoint.await]).await;
    let port = mesh.bridged().await.port().to_string();
    let mut told = String::new();
    for _ in 0..TRIES {
        let mut command = Command::new(&program);
        command.args(["--strict", "--host", "127.0.0.1", "--port", &port]).kill_on_drop(true);
        let output = tokio::time::timeout(PATIENCE, command.output()).await;
        let output = output.expect("h2spec ends").expect("LENO_H2SPEC names a program");
        told = String::from_utf8_lossy(&output.stdout).into_owned();
        let (_, counts) = told.rsplit_once("tests, ").unwrap_or_else(|| panic!("{told}"));
        println!("h2spec: {}", counts.trim());
        if output.status.success() && counts.contains(" 0 failed") {
            return;
        }
    }
    panic!("{told}");
}
