//! What the data path asks of the kernel, per message, byte and connection: a regression fails
//! here without a clock. Alone in its process, for its workers are counted by name.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "test code")]

mod support;

use leno_model::Health;
use leno_testkit::network::may_run;
use leno_testkit::syscalls::SyscallCounter;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use support::{Mesh, echo, exchange, pair, soon};

/// Both proxies of a connection across nodes, one thread each.
const THREADS: usize = 2;

/// Each message is received and sent by two proxies, there and back: eight, and each proxy waits
/// for each of its two events. Measured 12.00; one more for each message of one proxy is 2.
const MOST_PER_REQUEST: f64 = 13.0;

/// A worker that keeps a timer of its own starts and stops a kernel timer for each event, four
/// per request.
const MOST_TIMERS_PER_REQUEST: f64 = 0.25;

/// Data is moved in blocks of up to 256 KiB: four reads and four writes per MiB by each proxy if
/// each block were full. Measured 18.9 to 20.0, idle or busy; 43.5 with blocks of 64 KiB, which take a
/// quarter more processor time.
const MOST_PER_MIB: f64 = 25.0;

/// Measured 51.7 to 52.8; ztunnel takes 49 and the waits.
const MOST_PER_CONNECTION: f64 = 58.0;

/// A change of the mesh may wake both workers, each for a wait and a read. Measured 2.2 more for each connection.
const MOST_PER_CHANGE: f64 = (2 * THREADS) as f64;

/// Keeps this thread, and those it starts from here on, on one processor. Where each has its own, a proxy that is
/// ahead of the programs finds little to read each time: 34.6 system calls per MiB were seen while a hypervisor ran the
/// processors in turns, and blocks tell nothing then of how large they may be.
fn on_one_processor() {
    let this = Pid::from_raw(0);
    let allowed = sched_getaffinity(this).unwrap();
    let first = (0..CpuSet::count()).find(|&cpu| allowed.is_set(cpu).unwrap()).unwrap();
    let mut one = CpuSet::new();
    one.set(first).unwrap();
    sched_setaffinity(this, &one).unwrap();
}

#[tokio::test]
async fn the_data_path_asks_little_of_the_kernel() {
    if !may_run("the_data_path_asks_little_of_the_kernel") {
        return;
    }
    on_one_processor();
    let mut mesh = Mesh::new().await;
    let client = mesh.pod("client", "node-1").await;
    let server = mesh.pod("server", "node-2").await;
    mesh.synced().await;
    let (mut near, mut far) = pair(&client, &server).await;
    let mut counter = SyscallCounter::new("worker-").unwrap();
    assert_eq!(counter.threads(), THREADS, "worker threads");
    let mut timers = SyscallCounter::of_limited_waits("worker-").unwrap();

    const REQUESTS: usize = 2000;
    let (before, timers_before) = (counter.count(), timers.count());
    for _ in 0..REQUESTS {
        near.write_all(&[1; 200]).await.unwrap();
        far.read_exact(&mut [0; 200]).await.unwrap();
        far.write_all(&[2; 900]).await.unwrap();
        near.read_exact(&mut [0; 900]).await.unwrap();
    }
    let per_request = (counter.count() - before) as f64 / REQUESTS as f64;
    let timers_per_request = (timers.count() - timers_before) as f64 / REQUESTS as f64;

    const MIB: usize = 256;
    let before = counter.count();
    let sending = async {
        let block = vec![3; 1 << 20];
        for _ in 0..MIB {
            near.write_all(&block).await.unwrap();
        }
    };
    let receiving = async {
        let mut block = vec![0; 1 << 20];
        for _ in 0..MIB {
            far.read_exact(&mut block).await.unwrap();
        }
    };
    soon("the transfer", async { tokio::join!(sending, receiving) }).await;
    let per_mib = (counter.count() - before) as f64 / MIB as f64;

    drop((near, far));
    echo(server.listen());
    const CONNECTIONS: usize = 500;
    let before = counter.count();
    for _ in 0..CONNECTIONS {
        let stream = soon("connect", client.host().connect(server.app(server.v4))).await.unwrap();
        soon("an answer", exchange(stream, b"hello")).await.unwrap();
    }
    let per_connection = (counter.count() - before) as f64 / CONNECTIONS as f64;

    // The same while the mesh changes as often as there are connections: it is not for the workers to take a change in.
    let mut others = Vec::new();
    for number in 0..CONNECTIONS {
        let mut other = server.successor(&format!("other-{number}"));
        other.addresses = vec![[10, 78, (number >> 8) as u8, number as u8].into()];
        others.push(other);
    }
    mesh.control.publish_workloads(&others);
    mesh.synced().await;
    let before = counter.count();
    for other in &mut others {
        other.health = Health::Unhealthy;
        mesh.control.publish_workload(other);
        let stream = soon("connect", client.host().connect(server.app(server.v4))).await.unwrap();
        soon("an answer", exchange(stream, b"hello")).await.unwrap();
    }
    mesh.synced().await;
    let beside_changes = (counter.count() - before) as f64 / CONNECTIONS as f64;

    println!("{timers_per_request:.3} timers per request");
    println!("{beside_changes:.1} per connection, each with a change of the mesh");
    println!("{per_request:.2} per request, {per_mib:.1} per MiB, {per_connection:.1} per connection");
    assert!(per_request <= MOST_PER_REQUEST, "{per_request:.2} system calls per request");
    assert!(timers_per_request <= MOST_TIMERS_PER_REQUEST, "{timers_per_request:.2} timers per request");
    assert!(per_mib <= MOST_PER_MIB, "{per_mib:.1} system calls per MiB");
    assert!(per_connection <= MOST_PER_CONNECTION, "{per_connection:.1} system calls per connection");
    let most = MOST_PER_CONNECTION + MOST_PER_CHANGE;
    assert!(beside_changes <= most, "{beside_changes:.1} system calls per connection, each with a change");
}
