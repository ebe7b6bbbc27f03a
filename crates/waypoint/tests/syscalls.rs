//! What a request asks of the kernel at a waypoint: a regression fails here without a clock. Alone in its process, for the
//! worker is found by name.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::disallowed_methods, reason = "test code")]

#[allow(dead_code, reason = "the tests of the mesh use the rest")]
#[path = "mesh/support.rs"]
mod support;

use leno_model::AppProtocol;
use leno_testkit::network::may_run;
use leno_testkit::syscalls::SyscallCounter;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use support::{Mesh, server, soon};

const REQUESTS: usize = 1000;

/// A request and its response are each received and sent, and each is waited for: six. Measured 6.58 on a busy machine;
/// one more for each request is 1.
const MOST_PER_REQUEST: f64 = 7.2;

/// One of the waypoint's own for each request, started and stopped, would be 2. Measured 0.16.
const MOST_TIMERS_PER_REQUEST: f64 = 0.4;

#[tokio::test]
async fn a_request_asks_little_of_the_kernel() {
    const NAME: &str = "a_request_asks_little_of_the_kernel";
    if !may_run(NAME) {
        return;
    }
    let mesh = Mesh::new().await;
    let answer = server(|mut stream| async move {
        let mut read = [0; 4096];
        while stream.read(&mut read).await.is_ok_and(|length| length > 0) {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
        }
    })
    .await;
    mesh.service(AppProtocol::Http11, &[answer]).await;
    let mut stream = TcpStream::connect(mesh.bridged().await).await.unwrap();
    let mut ask = async || {
        stream.write_all(b"GET /x HTTP/1.1\r\nhost: web\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\nok") {
            assert!(stream.read_buf(&mut answer).await.unwrap() > 0, "{}", String::from_utf8_lossy(&answer));
        }
    };
    soon("the first answer", ask()).await;

    let mut counter = SyscallCounter::new("worker-").unwrap();
    assert_eq!(counter.threads(), 1, "worker threads");
    let mut timers = SyscallCounter::of_timers("worker-").unwrap();
    let (before, timers_before) = (counter.count(), timers.count());
    for _ in 0..REQUESTS {
        ask().await;
    }
    let per_request = (counter.count() - before) as f64 / REQUESTS as f64;
    let timers = (timers.count() - timers_before) as f64 / REQUESTS as f64;
    println!("{per_request:.2} system calls and {timers:.2} timers per request");
    assert!(per_request <= MOST_PER_REQUEST, "{per_request:.2} system calls per request");
    assert!(timers <= MOST_TIMERS_PER_REQUEST, "{timers:.2} timers per request");
}
