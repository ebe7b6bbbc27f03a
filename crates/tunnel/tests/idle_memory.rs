//! What an idle connection costs. The test is a process of its own, because the resident set is measured.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::disallowed_methods, reason = "all of this file is a test")]

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use leno_tunnel::{ConnectRequest, Counters, Pool, RelayOptions, Settings, relay, server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const CONNECTIONS: usize = 150;

/// Bytes of both proxies together, for a connection whose buffers had grown. Measured: 14035.
const MOST: usize = 2 * (8 << 10);

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse::<usize>().unwrap() << 10
}

async fn relayed(io: TcpStream, stream: leno_tunnel::TunnelStream) {
    let _ =
        relay::tcp_to_tunnel(io, stream, &Arc::<Counters>::default(), &RelayOptions::default(), std::future::pending())
            .await;
}

/// Sends half a megabyte there and back, so that buffers have grown.
async fn use_heavily(client: &mut TcpStream, server: &mut TcpStream) {
    let block = vec![7; 512 << 10];
    let mut got = vec![0; block.len()];
    for _ in 0..2 {
        let (sent, received) = tokio::join!(client.write_all(&block), server.read_exact(&mut got));
        sent.unwrap();
        received.unwrap();
        std::mem::swap(client, server);
    }
}

#[test]
fn an_idle_connection_costs_at_most_8_kib_in_each_proxy() {
    // Both proxies' relays, tasks, streams and their share of the tunnel.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let apps = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let hbone = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (app_address, hbone_address) = (apps.local_addr().unwrap(), hbone.local_addr().unwrap());
        tokio::spawn(async move {
            loop {
                let (io, _) = hbone.accept().await.unwrap();
                tokio::spawn(async move {
                    let settings = Settings::default();
                    server::serve(io, &settings, std::future::pending(), |inbound| {
                        tokio::spawn(async move {
                            let io = TcpStream::connect(app_address).await.unwrap();
                            relayed(io, inbound.accept(HeaderMap::new()).unwrap()).await;
                        });
                    })
                    .await
                });
            }
        });
        let capture = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let pool: Pool<(), std::io::ErrorKind> = Pool::new(Settings::default());
        let mut held = Vec::new();
        let connect = async || {
            let dial = || async move { TcpStream::connect(hbone_address).await.map_err(|error| error.kind()) };
            let request = ConnectRequest { authority: app_address.to_string(), headers: HeaderMap::new() };
            let (client, accepted) = tokio::join!(TcpStream::connect(capture.local_addr().unwrap()), capture.accept());
            let (opened, server) = tokio::join!(pool.open(&(), dial, request), apps.accept());
            tokio::spawn(relayed(accepted.unwrap().0, opened.unwrap().0));
            (client.unwrap(), server.unwrap().0)
        };
        // What is needed only once: buffers that the thread keeps, the first tunnel.
        let mut first = connect().await;
        use_heavily(&mut first.0, &mut first.1).await;
        held.push(first);
        tokio::time::sleep(Duration::from_millis(50)).await;
        let before = resident_bytes();
        for _ in 0..CONNECTIONS {
            let (mut client, mut server) = connect().await;
            use_heavily(&mut client, &mut server).await;
            held.push((client, server));
        }
        let each = resident_bytes().saturating_sub(before) / CONNECTIONS;
        assert!(each <= MOST, "{each} bytes for both proxies");
        println!("{each} bytes per idle connection in both proxies together");
    });
}
