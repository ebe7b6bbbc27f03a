//! What an idle connection costs. Alone in its process, for it measures the process.

#![allow(clippy::unwrap_used, reason = "test code")]

mod support;

use leno_testkit::network::may_run;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use support::{Mesh, soon};

const CONNECTIONS: usize = 2000;
/// Each proxy's share, and there are two in this process, and both programs on top.
const MOST: usize = 2 * (16 << 10);

/// Anonymous memory of this process, bytes.
fn memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

#[tokio::test]
async fn an_idle_connection_is_cheap() {
    if !may_run("an_idle_connection_is_cheap") {
        return;
    }
    let mut mesh = Mesh::new().await;
    let client = mesh.pod("client", "node-1").await;
    let server = mesh.pod("server", "node-2").await;
    mesh.synced().await;
    let listener = server.listen();
    let mut held = Vec::with_capacity(2 * (CONNECTIONS + 1));
    let mut before = 0;
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
            // What the first one pulls in, all have.
            before = memory();
        }
    }
    let each = memory().saturating_sub(before) / CONNECTIONS;
    println!("{each} bytes for each of {CONNECTIONS} idle connections");
    assert!(each <= MOST, "{each} bytes for each idle connection");
    // They are alive.
    for pair in held.chunks_exact_mut(2).step_by(97) {
        pair[0].write_all(b"again").await.unwrap();
        soon("bytes", pair[1].read_exact(&mut [0; 5])).await.unwrap();
    }
}
