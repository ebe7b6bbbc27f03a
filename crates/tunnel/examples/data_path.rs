//! Carries bytes from a program through two proxies to another, all on one thread, to count what that takes:
//!
//! ```sh
//! cargo build --profile dist -p leno-tunnel --example data_path
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null target/dist/examples/data_path bulk 64
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null target/dist/examples/data_path small 20000
//! ```
//!
//! The difference of two runs with different numbers is what the bytes or exchanges cost: instructions don't depend on what
//! else the machine does.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::print_stderr, reason = "a measuring tool")]

use std::sync::Arc;

use http::HeaderMap;
use leno_tunnel::{ConnectRequest, Counters, Pool, RelayOptions, Settings, relay, server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Bytes that a program writes at once in the `bulk` mode.
const BULK: usize = 256 << 10;

/// Bytes of a request and of its answer in the `small` mode.
const SMALL: usize = 100;

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let (near, accepted) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    let pair = (near.unwrap(), accepted.unwrap().0);
    for stream in [&pair.0, &pair.1] {
        stream.set_nodelay(true).unwrap();
    }
    pair
}

/// Passes a program's connection on through a tunnel, and returns the program at its other end.
async fn through_a_tunnel(caller: TcpStream) -> TcpStream {
    let (near, far) = pair().await;
    let (to_program, program) = pair().await;
    tokio::spawn(async move {
        let mut to_program = Some(to_program);
        server::serve(far, &Settings::default(), std::future::pending(), |request| {
            let (tcp, tunnel) = (to_program.take().unwrap(), request.accept(HeaderMap::new()).unwrap());
            tokio::spawn(relays(tcp, tunnel));
        })
        .await
    });
    let pool = Pool::<(), ()>::new(Settings::default());
    let request = ConnectRequest { authority: "10.0.0.1:80".to_owned(), headers: HeaderMap::new() };
    let mut near = Some(near);
    let (tunnel, _) = pool.open(&(), || std::future::ready(near.take().ok_or(())), request).await.unwrap();
    tokio::spawn(async move {
        relays(caller, tunnel).await;
        drop(pool);
    });
    program
}

async fn relays(tcp: TcpStream, tunnel: leno_tunnel::TunnelStream) {
    let counters = Arc::<Counters>::default();
    relay::tcp_to_tunnel(tcp, tunnel, &counters, &RelayOptions::default(), std::future::pending()).await.unwrap();
}

async fn bulk(mut caller: TcpStream, mut program: TcpStream, mebibytes: usize) {
    let sending = async {
        let block = vec![7; BULK];
        for _ in 0..(mebibytes << 20) / BULK {
            caller.write_all(&block).await.unwrap();
        }
        caller.shutdown().await.unwrap();
    };
    let receiving = async {
        let (mut room, mut received) = (vec![0; BULK], 0);
        while let Ok(length @ 1..) = program.read(&mut room).await {
            received += length;
        }
        assert_eq!(received, mebibytes << 20);
    };
    tokio::join!(sending, receiving);
}

async fn small(mut caller: TcpStream, mut program: TcpStream, exchanges: usize) {
    let (asked, mut room) = ([7; SMALL], [0; SMALL]);
    for _ in 0..exchanges {
        caller.write_all(&asked).await.unwrap();
        program.read_exact(&mut room).await.unwrap();
        program.write_all(&room).await.unwrap();
        caller.read_exact(&mut room).await.unwrap();
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (what, number) = (arguments.next(), arguments.next().and_then(|number| number.parse().ok()));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .on_thread_park(leno_tunnel::thread_sleeps)
        .build()
        .unwrap();
    runtime.block_on(async {
        let (caller, captured) = pair().await;
        let program = through_a_tunnel(captured).await;
        match (what.as_deref(), number) {
            (Some("bulk"), Some(mebibytes)) => bulk(caller, program, mebibytes).await,
            (Some("small"), Some(exchanges)) => small(caller, program, exchanges).await,
            _ => eprintln!("data_path bulk MEBIBYTES | small EXCHANGES"),
        }
    });
}
