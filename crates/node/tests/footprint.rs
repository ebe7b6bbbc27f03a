//! What an idle connection costs, and that its memory is given back. The test is alone in its process, because it measures
//! the process.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "test code")]

mod support;

use leno_testkit::own_memory::anonymous as memory;
use std::time::{Duration, Instant};

use leno_testkit::network::may_run;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use support::{Mesh, soon};

const CONNECTIONS: usize = 2000;
/// Bytes for each, of the two proxies in this process and both programs: measured 8654. ztunnel takes 6 KiB per proxy.
const MOST: usize = 2 * (5 << 10);

/// How much of a burst's memory may be left in both proxies together. An allocator gives back whole pages, and some of them
/// still hold something. Measured: 2.3 to 3 MiB of 17 MiB; 6 MiB if the allocator is not asked.
const MOST_LEFT: usize = 4 << 20;
/// Three quiet seconds, ten until the second check, and time for a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

// What the program has.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Gives the kernel back what the calling thread has freed.
#[allow(unsafe_code, reason = "the only way to ask the allocator for anything")]
fn trim() {
    unsafe extern "C" {
        fn mi_collect(force: bool);
    }
    // SAFETY: `void mi_collect(bool)` may be called at any time by any thread.
    unsafe { mi_collect(true) }
}

/// Open descriptors of this process.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[tokio::test]
async fn an_idle_connection_is_cheap_and_given_back() {
    if !may_run("an_idle_connection_is_cheap_and_given_back") {
        return;
    }
    // Tunnels end in time for the second check, not only for the third.
    let mut mesh = Mesh::with(|config| config.proxy.pool_idle_timeout = Duration::from_secs(5)).await;
    (mesh.trim, mesh.discard_logs) = (trim, true);
    let client = mesh.pod("client", "node-1").await;
    let server = mesh.pod("server", "node-2").await;
    mesh.synced().await;
    let listener = server.listen();
    let mut held = Vec::with_capacity(2 * (CONNECTIONS + 1));
    let (mut before, mut open) = (0, 0);
    for index in 0..=CONNECTIONS {
        let mut near = soon("connect", client.host().connect(server.app(server.v4))).await.unwrap();
        let (mut far, _) = soon("accept", listener.accept()).await.unwrap();
        // It has been used, and so has had a buffer.
        near.write_all(b"hello").await.unwrap();
        soon("bytes", far.read_exact(&mut [0; 5])).await.unwrap();
        far.write_all(b"world").await.unwrap();
        soon("bytes", near.read_exact(&mut [0; 5])).await.unwrap();
        held.extend([near, far]);
        if index == 0 {
            // What the first connection loads serves all of them.
            trim();
            (before, open) = (memory(), descriptors());
        }
    }
    let full = memory();
    let each = full.saturating_sub(before) / CONNECTIONS;
    println!("{each} bytes for each of {CONNECTIONS} idle connections");
    assert!(each <= MOST, "{each} bytes for each idle connection");
    // The connections are alive.
    for pair in held.chunks_exact_mut(2).step_by(97) {
        pair[0].write_all(b"again").await.unwrap();
        soon("bytes", pair[1].read_exact(&mut [0; 5])).await.unwrap();
    }
    // The connections end.
    drop(held);
    let deadline = Instant::now() + PATIENCE;
    let left = || (memory().saturating_sub(before), descriptors());
    while left().0 > MOST_LEFT || left().1 > open {
        assert!(
            Instant::now() < deadline,
            "{:?} bytes and descriptors left of {}, {open} before",
            left(),
            full - before
        );
        // This thread plays the programs, and is no part of what is measured.
        trim();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    println!("{:?} bytes and descriptors left", left());
}
