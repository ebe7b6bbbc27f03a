//! What a connection costs whose reader has stopped while its sender has not. The test is alone in its process, because it
//! counts the process's allocations.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::disallowed_methods, reason = "all of this file is a test")]

#[path = "../../testkit/src/counting.rs"]
mod counting;

use std::time::Duration;

use leno_tunnel::{Counters, RelayOptions, relay};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const CONNECTIONS: usize = 40;

/// Bytes of a plaintext connection that has carried bulk before: its task, and no buffer. It took 72 KiB when the relay kept
/// what the reader did not take.
const MOST: usize = 8 << 10;

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (near, accepted) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    (near.unwrap(), accepted.unwrap().0)
}

/// Writes until nothing more goes for a while; returns how many bytes went.
async fn write_until_stuck(stream: &mut TcpStream) -> usize {
    let block = vec![7; 64 << 10];
    let mut sent = 0;
    // The test waits until nothing happens.
    while let Ok(written) = tokio::time::timeout(Duration::from_millis(300), stream.write(&block)).await {
        sent += written.unwrap();
    }
    sent
}

#[test]
fn a_reader_that_has_stopped_costs_no_buffer() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut held = Vec::new();
        let mut before = 0;
        for number in 0..=CONNECTIONS {
            let ((mut sender, local), (remote, mut reader)) = tokio::join!(pair(), pair());
            // A small buffer, so that the kernel is soon full.
            socket2::SockRef::from(&remote).set_send_buffer_size(64 << 10).unwrap();
            socket2::SockRef::from(&reader).set_recv_buffer_size(64 << 10).unwrap();
            tokio::spawn(async move {
                let (meter, options) = (Counters::default(), RelayOptions::default());
                let _ = relay::tcp_to_tcp(local, remote, &meter, &options, std::future::pending()).await;
            });
            // Buffers have grown.
            let mut block = vec![7; 1 << 20];
            let mut got = vec![0; block.len()];
            let (sent, received) = tokio::join!(sender.write_all(&block), reader.read_exact(&mut got));
            sent.unwrap();
            received.unwrap();
            (block, got) = Default::default();
            drop((block, got));
            held.push((sender, reader));
            if number == 0 {
                // What is needed only once: buffers that the thread keeps.
                write_until_stuck(&mut held[0].0).await;
                before = counting::live();
            }
        }
        let mut stuck = Vec::new();
        for (sender, reader) in held {
            stuck.push(tokio::spawn(async move {
                let mut sender = sender;
                write_until_stuck(&mut sender).await;
                (sender, reader)
            }));
        }
        let mut held = Vec::new();
        for one in stuck {
            held.push(one.await.unwrap());
        }
        let each = counting::live().saturating_sub(before) / CONNECTIONS;
        println!("{each} bytes for each of {CONNECTIONS} readers that have stopped");
        assert!(each <= MOST, "{each} bytes for each");
        // Nothing is lost: the waiting bytes are there when the readers read on.
        for (mut sender, mut reader) in held {
            drop(tokio::spawn(async move { sender.shutdown().await.map(|()| sender) }));
            let mut rest = Vec::new();
            tokio::time::timeout(Duration::from_secs(60), reader.read_to_end(&mut rest)).await.unwrap().unwrap();
            assert!(!rest.is_empty() && rest.iter().all(|byte| *byte == 7));
        }
    });
}
