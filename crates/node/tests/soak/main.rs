//! A node proxy gives back what it took: descriptors and memory. And other connections are served meanwhile; that their
//! latency does not suffer, either, is measured by tests that are ignored otherwise.
//!
//! Each proxy is a process of its own. On every run the numbers are small; with `LENO_SOAK=1` they
//! are those of the field, which takes twenty minutes and wants an optimised proxy:
//!
//! ```sh
//! LENO_SOAK=1 LENO_SOAK_PROXY=target/dist/leno cargo test -p leno-node --test soak -- --nocapture --include-ignored
//! ```
//!
//! `LENO_SOAK_LOGS` names a directory for the proxies' logs.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "test code, which tells what it measured"
)]

mod changes;
mod configuration;
mod half_open;
mod neighbour;
mod others;
mod process;
mod size;
mod stalled;
#[path = "../support/mod.rs"]
mod support;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use leno_testkit::network::may_run;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Mutex;

use neighbour::Neighbour;
use process::{MESSAGE, Process, order};
use size::Size;
use support::{Mesh, Pod, soon};

// What the program has.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Gives the kernel back what the calling thread has freed.
#[allow(unsafe_code, reason = "the only way to ask the allocator for anything")]
pub(crate) fn trim() {
    unsafe extern "C" {
        fn mi_collect(force: bool);
    }
    // SAFETY: `void mi_collect(bool)` may be called at any time by any thread.
    unsafe { mi_collect(true) }
}

/// One test at a time: each measures how a neighbour fares on this machine.
pub(crate) static ALONE: Mutex<()> = Mutex::const_new(());

/// How much more memory than fresh a proxy may hold, and how long it may take to get there. An
/// unoptimised one's text hides much in that, so [`Size::left`] says it in bytes, too.
const MOST: f64 = 1.25;
const WITHIN: Duration = Duration::from_secs(60);

/// Connections at a time while they are opened: it is not a flood that is tested.
const LANES: usize = 4;

/// A mesh of two nodes, each with a proxy of its own and two pods.
pub(crate) struct Field {
    pub(crate) size: Size,
    pub(crate) mesh: Mesh,
    /// A program here talks to the one there, on the other node.
    pub(crate) client: Pod,
    pub(crate) server: Pod,
    /// Others on the same nodes.
    beside: (Pod, Pod),
    proxies: Vec<Process>,
    /// That of [`Self::server`] first.
    pub(crate) programs: Vec<Process>,
    /// Descriptors and memory of each proxy that has carried a few connections and has none now.
    fresh: Vec<(usize, process::Memory)>,
}

impl Field {
    pub(crate) async fn new() -> Self {
        Self::of(Size::of_this_run()).await
    }

    /// One in which latencies are measured.
    pub(crate) async fn measured() -> Self {
        Self::of(Size { measured: true, ..Size::of_this_run() }).await
    }

    async fn of(size: Size) -> Self {
        let mut mesh = Mesh::new().await;
        let mut proxies = Vec::new();
        for node in ["node-1", "node-2"] {
            proxies.push(mesh.node_apart(node, |socket, control| Process::proxy(node, socket, control, &size)));
        }
        let client = mesh.pod("client", "node-1").await;
        let server = mesh.pod("server", "node-2").await;
        let beside = (mesh.pod("caller", "node-1").await, mesh.pod("called", "node-2").await);
        mesh.synced().await;
        let programs = vec![Process::program("server", &server), Process::program("called", &beside.1)];
        let mut field = Self { size, mesh, client, server, beside, proxies, programs, fresh: Vec::new() };
        field.settle().await;
        field
    }

    /// What the first connections pull in, all have: the code itself, certificates.
    async fn settle(&mut self) {
        let before: Vec<_> = self.proxies.iter().map(|proxy| (proxy.descriptors(), proxy.memory())).collect();
        for (from, to) in [(&self.client, &self.server), (&self.beside.0, &self.beside.1)] {
            let done = async {
                // The program may not listen yet.
                while short(from, to.app(to.v4)).await.is_err() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            soon("the first answer", done).await;
            for _ in 0..LANES {
                soon("an answer", short(from, to.app(to.v4))).await.unwrap();
            }
        }
        for (proxy, before) in self.proxies.iter().zip(before) {
            self.fresh.push((before.0, proxy.memory()));
            println!("{}: fresh {before:?}, after its first connections {:?}", proxy.name(), proxy.memory());
        }
    }

    /// Where the program listens.
    pub(crate) fn target(&self) -> SocketAddr {
        self.server.app(self.server.v4)
    }

    pub(crate) fn proxies(&self) -> &[Process] {
        &self.proxies
    }

    /// A request loop between others on the same proxies.
    pub(crate) fn neighbour(&self) -> Neighbour {
        let (from, to) = &self.beside;
        Neighbour::start(from.namespace(), to.app(to.v4))
    }

    /// Memory of both proxies that fresh ones don't have.
    pub(crate) fn taken(&self) -> Vec<usize> {
        let taken = |(proxy, fresh): (&Process, &(usize, process::Memory))| {
            proxy.memory().anonymous.saturating_sub(fresh.1.anonymous)
        };
        self.proxies.iter().zip(&self.fresh).map(taken).collect()
    }

    pub(crate) fn descriptors(&self) -> Vec<usize> {
        self.proxies.iter().map(Process::descriptors).collect()
    }

    /// Waits until both proxies hold what they held when they were fresh.
    pub(crate) async fn is_given_back(&self) {
        let begun = Instant::now();
        self.memory_is_given_back(begun + WITHIN).await;
        // The last tunnel between two pods is kept for a while.
        let deadline = begun + WITHIN + self.size.tunnel_kept;
        for (proxy, (fresh, _)) in self.proxies.iter().zip(&self.fresh) {
            while proxy.descriptors() > *fresh {
                let late = Instant::now() > deadline;
                assert!(!late, "{}: {} descriptors, fresh {fresh}", proxy.name(), proxy.descriptors());
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            println!("{}: {fresh} descriptors, as fresh, after {:.1?}", proxy.name(), begun.elapsed());
        }
        // And it did not look so because the end had not begun yet.
        self.memory_is_given_back(deadline).await;
    }

    async fn memory_is_given_back(&self, deadline: Instant) {
        let begun = Instant::now();
        for (proxy, (_, fresh)) in self.proxies.iter().zip(&self.fresh) {
            let is_more = |now: process::Memory| {
                now.resident as f64 > fresh.resident as f64 * MOST || now.anonymous > fresh.anonymous + self.size.left
            };
            while is_more(proxy.memory()) {
                let late = Instant::now() > deadline;
                assert!(!late, "{}: {:?} after {:.1?}, fresh {fresh:?}", proxy.name(), proxy.memory(), begun.elapsed());
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            println!("{}: {:?} after {:.1?}, fresh {fresh:?}", proxy.name(), proxy.memory(), begun.elapsed());
        }
    }
}

/// A connection that the program has answered, and now does what it was ordered to.
pub(crate) async fn open(from: &Pod, to: SocketAddr, order: u8) -> std::io::Result<TcpStream> {
    let mut stream = from.host().connect(to).await?;
    stream.write_all(&[order; MESSAGE]).await?;
    stream.read_exact(&mut [0; MESSAGE]).await?;
    Ok(stream)
}

/// A connection, a request, its answer, and the end.
async fn short(from: &Pod, to: SocketAddr) -> std::io::Result<()> {
    let mut stream = open(from, to, order::CLOSE).await?;
    match stream.read(&mut [0]).await? {
        0 => Ok(()),
        _ => panic!("more came back than was sent"),
    }
}

/// `count` short connections in a row, on a few lanes.
pub(crate) async fn many_short(field: &Field, count: usize) {
    let lane = async |number: usize| {
        for _ in (number..count).step_by(LANES) {
            soon("an answer", short(&field.client, field.target())).await.unwrap();
        }
    };
    tokio::join!(lane(0), lane(1), lane(2), lane(3));
}

#[tokio::test]
async fn short_connections_leave_nothing() {
    if !may_run("short_connections_leave_nothing") {
        return;
    }
    let _alone = ALONE.lock().await;
    let field = Field::new().await;
    let count = field.size.short;
    many_short(&field, count / 10).await;
    let warm = field.taken();
    let begun = Instant::now();
    many_short(&field, count).await;
    println!("{count} connections in {:.1?}", begun.elapsed());
    for (proxy, (warm, now)) in field.proxies.iter().zip(warm.iter().zip(field.taken())) {
        let grown = now.saturating_sub(*warm);
        println!(
            "{}: {:.1} bytes more for each of {count}: {:?}",
            proxy.name(),
            grown as f64 / count as f64,
            proxy.memory()
        );
        // What comes and goes anyway, and nothing for each.
        assert!(grown < GROWN, "{}: {grown} bytes more after {count} connections", proxy.name());
    }
    field.is_given_back().await;
}

/// Memory that may come and go while connections do, bytes: records' buffers, and pages that an
/// allocator opens before older ones are empty.
const GROWN: usize = 2 << 20;

/// How often the threads of both proxies together may wake within [`Size::held`], beside [`Size::idle`] idle connections:
/// a tunnel looks after its peer every ten seconds, and a proxy has a few timers of its own. If each connection had one,
/// they would wake more often than there are connections.
const WAKES: u64 = 100;

#[tokio::test]
async fn idle_connections_cost_no_time_and_leave_nothing() {
    if !may_run("idle_connections_cost_no_time_and_leave_nothing") {
        return;
    }
    let _alone = ALONE.lock().await;
    idle_connections(Field::new().await).await;
}

#[tokio::test]
#[ignore = "measured: .ci/run measured runs it on a quiet machine"]
async fn idle_connections_slow_nobody_down() {
    if !may_run("idle_connections_slow_nobody_down") {
        return;
    }
    let _alone = ALONE.lock().await;
    idle_connections(Field::measured().await).await;
}

async fn idle_connections(field: Field) {
    let neighbour = field.neighbour();
    let base = neighbour.base(&field.size).await;
    drop(neighbour);
    let mut held = Vec::with_capacity(field.size.idle);
    while held.len() < field.size.idle {
        let next = async || soon("an answer", open(&field.client, field.target(), order::ECHO)).await.unwrap();
        held.extend(<[TcpStream; LANES]>::from(tokio::join!(next(), next(), next(), next())));
    }
    for (proxy, taken) in field.proxies.iter().zip(field.taken()) {
        println!("{}: {} bytes for each of {}", proxy.name(), taken / held.len(), held.len());
    }
    let used = |field: &Field| field.proxies.iter().map(Process::processor_time).sum::<Duration>();
    let wakes = |field: &Field| field.proxies.iter().map(Process::wakes).sum::<u64>();
    // The burst's end: acknowledgements, the log.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = (used(&field), wakes(&field));
    tokio::time::sleep(field.size.held).await;
    let (used, wakes) = (used(&field) - before.0, wakes(&field) - before.1);
    println!("{used:?} of processor time and {wakes} wakes in {:?}", field.size.held);
    if field.size.measured {
        // A hundred tunnels look after one another every ten seconds.
        assert!(used.as_secs_f64() <= field.size.held.as_secs_f64() / 100.0 + 0.1, "{used:?} for idle connections");
    } else {
        assert!(wakes <= WAKES, "{wakes} wakes for idle connections");
    }
    let neighbour = field.neighbour();
    neighbour.is_undisturbed(base, "idle connections", &field.size).await;
    drop(neighbour);
    // They are alive.
    for stream in held.iter_mut().step_by(97) {
        stream.write_all(&[1; MESSAGE]).await.unwrap();
        soon("an answer", stream.read_exact(&mut [0; MESSAGE])).await.unwrap();
    }
    drop(held);
    field.is_given_back().await;
}
