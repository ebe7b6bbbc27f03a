//! Programs that stop reading, and a neighbour on the same tunnel.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use leno_testkit::network::may_run;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::support::{Mesh, Pod, echo, exchange, soon};

/// How many readers stop in each direction. Four fill a tunnel's own window.
const READERS: usize = 16;

/// How often the neighbour sends a request, whether or not the last one was answered.
const PERIOD: Duration = Duration::from_millis(5);
const REQUESTS: u32 = 400;
const REQUEST: [u8; 16] = [1; 16];

/// Its p99 may be twice what it is alone. And this much: an unoptimised proxy that shares its
/// processors is at times that late by itself, and one whose window is full answers never.
const AT_LEAST: Duration = Duration::from_millis(20);
const ROUNDS: usize = 3;

/// The 99th percentile of the latency, counted from the time at which each request was due.
async fn p99(stream: &mut TcpStream) -> Duration {
    let (mut read, mut write) = stream.split();
    let begun = Instant::now();
    let ask = async {
        for request in 0..REQUESTS {
            sleep_until(begun + PERIOD * request).await;
            write.write_all(&REQUEST).await.unwrap();
        }
    };
    let hear = async {
        let mut latencies = Vec::new();
        for request in 0..REQUESTS {
            read.read_exact(&mut [0; REQUEST.len()]).await.unwrap();
            latencies.push(begun.elapsed().saturating_sub(PERIOD * request));
        }
        latencies.sort_unstable();
        latencies[latencies.len() * 99 / 100]
    };
    soon("the neighbour's answers", async { tokio::join!(ask, hear).1 }).await
}

/// Asks one request after the other, and is answered each.
async fn is_answered(neighbour: &mut TcpStream) {
    let asking = async {
        for _ in 0..REQUESTS {
            neighbour.write_all(&REQUEST).await.unwrap();
            neighbour.read_exact(&mut [0; REQUEST.len()]).await.unwrap();
        }
    };
    soon("the neighbour's answers", asking).await;
}

/// Two pods, and a program in the second one.
struct Scene {
    _mesh: Mesh,
    client: Pod,
    server: Pod,
    listener: TcpListener,
}

impl Scene {
    async fn new() -> Self {
        // One worker each, so that all connections between the two pods share two tunnels.
        let mut mesh = Mesh::with(|config| config.proxy.worker_threads = 1).await;
        let client = mesh.pod("client", "node-1").await;
        let server = mesh.pod("server", "node-2").await;
        mesh.synced().await;
        let listener = server.listen();
        Self { _mesh: mesh, client, server, listener }
    }

    /// A connection, and the program's end of it.
    async fn open(&self) -> (TcpStream, TcpStream) {
        let to = self.server.app(self.server.v4);
        let mut near = soon("connect", self.client.host().connect(to)).await.unwrap();
        near.write_all(b"x").await.unwrap();
        let (mut far, _) = soon("accept", self.listener.accept()).await.unwrap();
        soon("a byte", far.read_exact(&mut [0])).await.unwrap();
        near.set_nodelay(true).unwrap();
        far.set_nodelay(true).unwrap();
        (near, far)
    }

    /// A connection to a program that answers.
    async fn neighbour(&self) -> TcpStream {
        let (neighbour, mut program) = self.open().await;
        tokio::spawn(async move {
            let (mut read, mut write) = program.split();
            tokio::io::copy(&mut read, &mut write).await
        });
        neighbour
    }

    /// Readers that have stopped, each way, and whose senders can send nothing more.
    async fn stopped_readers(&self) -> Vec<TcpStream> {
        let (mut readers, mut senders) = (Vec::new(), Vec::new());
        for _ in 0..READERS {
            let ((near, far), (from, to)) = (self.open().await, self.open().await);
            readers.extend([near, to]);
            senders.extend([far, from]);
        }

        let sent = Arc::new(AtomicU64::new(0));
        for mut sender in senders {
            let sent = sent.clone();
            tokio::spawn(async move {
                let block = vec![7; 64 << 10];
                while let Ok(count) = sender.write(&block).await {
                    sent.fetch_add(count as u64, Relaxed);
                }
            });
        }

        let stuck = async {
            let mut before = u64::MAX;
            // The test waits until nothing happens.
            while before != sent.load(Relaxed) {
                before = sent.load(Relaxed);
                sleep(Duration::from_millis(500)).await;
            }
        };
        soon("the senders to be stuck", stuck).await;
        readers
    }
}

/// One whose window is full is answered never.
#[tokio::test]
async fn readers_that_stop_do_not_disturb_others_on_the_same_tunnel() {
    if !may_run("readers_that_stop_do_not_disturb_others_on_the_same_tunnel") {
        return;
    }
    let scene = Scene::new().await;
    let mut neighbour = scene.neighbour().await;

    let readers = scene.stopped_readers().await;
    is_answered(&mut neighbour).await;

    // Nor is one that comes later.
    is_answered(&mut scene.neighbour().await).await;
    drop(readers);
}

#[tokio::test]
#[ignore = "measured: .ci/run measured runs it on a quiet machine"]
async fn readers_that_stop_do_not_slow_others_on_the_same_tunnel() {
    if !may_run("readers_that_stop_do_not_slow_others_on_the_same_tunnel") {
        return;
    }
    let scene = Scene::new().await;
    let mut neighbour = scene.neighbour().await;
    let base = p99(&mut neighbour).await;

    let readers = scene.stopped_readers().await;
    let most = (base * 2).max(AT_LEAST);
    let mut seen = Vec::new();
    while !seen.iter().any(|p99| *p99 <= most) {
        assert!(seen.len() < ROUNDS, "p99 {seen:?} beside {READERS} stopped readers each way, alone {base:?}");
        seen.push(p99(&mut neighbour).await);
    }
    drop(readers);
}

/// Callers that fill all there is between them and a program that doesn't read, and are killed. More of them than a pair of
/// pods has room for: what they leave behind would keep every later caller out.
#[tokio::test]
async fn callers_that_reset_behind_a_stopped_reader_leave_nothing() {
    const CALLERS: usize = 40;
    if !may_run("callers_that_reset_behind_a_stopped_reader_leave_nothing") {
        return;
    }
    let mut mesh = Mesh::with(|config| config.proxy.worker_threads = 1).await;
    let client = mesh.pod("client", "node-1").await;
    let server = mesh.pod("server", "node-2").await;
    mesh.synced().await;
    let listener = server.listen();
    let mut callers = Vec::new();
    for _ in 0..CALLERS {
        callers.push(soon("connect", client.host().connect(server.app(server.v4))).await.unwrap());
    }
    let block = vec![7; 64 << 10];
    // A caller is full when it can't write for a while.
    let full = |caller: TcpStream| {
        let block = block.clone();
        tokio::spawn(async move {
            while let Ok(Ok(())) = timeout(Duration::from_millis(500), caller.writable()).await {
                let _ = caller.try_write(&block);
            }
            caller
        })
    };
    let full: Vec<_> = callers.into_iter().map(full).collect();
    let mut programs = Vec::new();
    for caller in full {
        // What the first bytes are sent with is the request for the tunnel: only now a program is connected to.
        programs.push(soon("accept", listener.accept()).await.unwrap().0);
        let caller = soon("a full connection", caller).await.unwrap();
        caller.set_zero_linger().unwrap();
    }
    for program in programs {
        soon("the reset", program.ready(Interest::ERROR)).await.unwrap();
        assert_eq!(program.take_error().unwrap().unwrap().kind(), ErrorKind::ConnectionReset);
    }
    echo(listener);
    let later = soon("connect", client.host().connect(server.app(server.v4))).await.unwrap();
    soon("an answer", exchange(later, b"hello")).await.unwrap();
}
