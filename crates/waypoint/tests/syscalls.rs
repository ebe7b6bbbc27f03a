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

/// What the names of the waypoint's data-path threads begin with.
const WORKER: &str = "worker-";

const REQUESTS: usize = 1000;

/// A request and its response are each received and sent, and each is waited for: six. What comes to that are the
/// client's WINDOW_UPDATEs. Measured 6.0X; one more for each request is 1.
const MOST_PER_REQUEST: f64 = 6.5;

/// The log's writer is woken for the first line that it finds after it has gathered some: for each one, if requests take
/// longer than it waits. A request that needs a lock or another thread would be 1 more.
const MOST_WAKES_PER_REQUEST: f64 = 1.2;

/// A time limit for what a request waits for, started and stopped, would be 1. Measured 0.00.
const MOST_LIMITED_WAITS_PER_REQUEST: f64 = 0.1;

#[tokio::test]
async fn a_request_asks_little_of_the_kernel() {
    const NAME: &str = "a_request_asks_little_of_the_kernel";
    if !may_run(NAME) {
        return;
    }
    // The memory is looked at some twenty times a second: for each request, on a machine that is slow enough.
    let mesh = Mesh::with(|config| config.waypoint.max_memory = 0).await;
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

    let mut calls = SyscallCounter::without_wakes(WORKER).unwrap();
    assert_eq!(calls.threads(), 1, "worker threads");
    let mut wakes = SyscallCounter::of_wakes(WORKER).unwrap();
    let mut limited = SyscallCounter::of_limited_waits(WORKER).unwrap();
    let mut counts = || [calls.count(), wakes.count(), limited.count()];
    let before = counts();
    for _ in 0..REQUESTS {
        ask().await;
    }
    let [calls, wakes, limited] = per_request(before, counts());
    println!("{calls:.2} system calls, {wakes:.2} wakes and {limited:.2} limited waits per request");

    assert!(calls <= MOST_PER_REQUEST, "{calls:.2} system calls per request");
    assert!(wakes <= MOST_WAKES_PER_REQUEST, "{wakes:.2} wakes of other threads per request");
    assert!(limited <= MOST_LIMITED_WAITS_PER_REQUEST, "{limited:.2} waits with a time limit per request");
}

fn per_request<const COUNTS: usize>(before: [u64; COUNTS], after: [u64; COUNTS]) -> [f64; COUNTS] {
    std::array::from_fn(|index| (after[index] - before[index]) as f64 / REQUESTS as f64)
}
