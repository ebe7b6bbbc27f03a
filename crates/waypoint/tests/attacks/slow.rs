//! Clients that ask for much and read little.

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use leno_model::AppProtocol;
use leno_tunnel::TunnelStream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{Client, Mesh, VIP, soon};
use crate::{ALONE, LARGE, memory, program, rest};

type Sender = hyper::client::conn::http2::SendRequest<Full<Bytes>>;

/// An HTTP/2 connection whose responses get no more than `window` bytes each.
async fn connect(client: &Client, window: u32) -> Sender {
    let tunnel = client.open(&format!("{VIP}:80")).await.unwrap();
    let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(window);
    let (sender, connection) = builder.handshake(TokioIo::new(tunnel)).await.unwrap();
    tokio::spawn(connection);
    sender
}

async fn ask(sender: &mut Sender, path: &str) -> http::Response<Incoming> {
    let request = Request::get(format!("http://web{path}")).body(Full::default()).unwrap();
    soon("an answer", sender.send_request(request)).await.unwrap()
}

/// What a request holds whose client reads nothing: what waits before the endpoint's window closes, what is sent and not
/// taken, and the attacker's own share, for it is in this process.
const HELD: usize = 1 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_reads_nothing_holds_little_and_stalls_nobody() {
    let _alone = ALONE.lock().await;
    for protocol in [AppProtocol::Http2, AppProtocol::Http11] {
        let mesh = Mesh::new().await;
        mesh.service(protocol, &[program().await]).await;
        let before = memory();
        let client = mesh.client();
        let mut held = Vec::new();
        // In HTTP/2, more than would fit into one connection to the endpoint.
        let mut sender = connect(&client, 1 << 10).await;
        for _ in 0..40 {
            held.push(ask(&mut sender, "/large").await);
        }
        // In HTTP/1.1, each with a connection of its own.
        let mut streams = Vec::new();
        for _ in 0..20 {
            let mut stream: TunnelStream = client.open(&format!("{VIP}:80")).await.unwrap();
            stream.write_all(b"GET /large HTTP/1.1\r\nhost: web\r\n\r\n").await.unwrap();
            let mut head = [0; 12];
            soon("the head", stream.read_exact(&mut head)).await.unwrap();
            assert_eq!(&head, b"HTTP/1.1 200");
            streams.push(stream);
        }
        // Another client is served whole meanwhile, over the same connections to the endpoint.
        let mut other = connect(&mesh.client(), 1 << 20).await;
        for _ in 0..3 {
            let body = soon("a whole body", ask(&mut other, "/large").await.into_body().collect()).await.unwrap();
            assert_eq!(body.to_bytes().len(), LARGE, "{protocol:?}");
        }
        let grown = memory().saturating_sub(before);
        println!("{protocol:?}: {} MiB for {} that read nothing", grown >> 20, held.len() + streams.len());
        assert!(grown < (held.len() + streams.len()) * HELD + (32 << 20), "{protocol:?}: {grown} bytes");
        // Whoever reads on gets more.
        let mut late = held.pop().unwrap().into_body();
        let mut read = 0;
        while read < 64 << 10 {
            let frame = soon("a late reader's bytes", late.frame()).await.unwrap().unwrap();
            read += frame.data_ref().map_or(0, Bytes::len);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_memory_is_short_those_who_read_nothing_are_let_go() {
    let _alone = ALONE.lock().await;
    // No more than there is: a single request is too much.
    let mesh = Mesh::with(|config| config.waypoint.max_memory = 1).await;
    mesh.service(AppProtocol::Http2, &[program().await]).await;
    let mut sender = connect(&mesh.client(), 1 << 20).await;
    let refused = soon("a refusal", async {
        loop {
            let response = ask(&mut sender, "/").await;
            if response.status() == 503 {
                return response;
            }
        }
    });
    let text = refused.await.into_body().collect().await.unwrap().to_bytes();
    assert!(text.starts_with(b"the waypoint has as much memory as it may (LENO_MAX_MEMORY)"), "{text:?}");
    mesh.log.line(&["response_code=503", "response_flags=\"OM\""]).await;
    drop((sender, mesh));

    // Room for this test and a little more, which clients use up that read nothing.
    let mesh = Mesh::with(|config| config.waypoint.max_memory = (memory() + (48 << 20)) as u64).await;
    mesh.service(AppProtocol::Http2, &[program().await]).await;
    let client = mesh.client();
    let (mut senders, mut held) = (Vec::new(), Vec::new());
    let full = async {
        // Whoever is let go comes back.
        loop {
            let mut sender = connect(&client, 1 << 10).await;
            for _ in 0..50 {
                let request = Request::get("http://web/large").body(Full::default()).unwrap();
                match sender.send_request(request).await {
                    Ok(response) if response.status() == 200 => held.push(response),
                    _ => break,
                }
            }
            senders.push(sender);
            if mesh.log.count(&["reads nothing of its responses"]) > 0 {
                return;
            }
        }
    };
    soon("memory to be short", full).await;
    // Others are answered at once, one way or the other.
    let mut other = connect(&mesh.client(), 1 << 20).await;
    let status = ask(&mut other, "/").await.status().as_u16();
    assert!([200, 503].contains(&status), "{status}");
}

/// Bytes of a body that come one at a time.
const TRICKLED: usize = 40;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_trickles_stalls_nobody() {
    let _alone = ALONE.lock().await;
    let mesh = Mesh::new().await;
    mesh.service(AppProtocol::Http11, &[program().await]).await;
    let client = mesh.client();
    let mut slow = Vec::new();
    for _ in 0..50 {
        let mut stream = client.open(&format!("{VIP}:80")).await.unwrap();
        let head = format!("POST / HTTP/1.1\r\nhost: web\r\nconnection: close\r\ncontent-length: {TRICKLED}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        slow.push(stream);
    }
    // Others on connections of their own, in both versions.
    let mut other = connect(&mesh.client(), 1 << 20).await;
    let mut first = client.open(&format!("{VIP}:80")).await.unwrap();
    for _ in 0..TRICKLED {
        for stream in &mut slow {
            stream.write_all(b"x").await.unwrap();
        }
        assert_eq!(ask(&mut other, "/").await.status(), 200);
        first.write_all(b"GET / HTTP/1.1\r\nhost: web\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        let whole = async {
            while !answer.ends_with(b"\r\n\r\nok") {
                assert!(first.read_buf(&mut answer).await.unwrap() > 0, "{}", String::from_utf8_lossy(&answer));
            }
        };
        soon("an answer beside them", whole).await;
    }
    // What trickled was passed on, every byte.
    for mut stream in slow {
        let answer = soon("the answer to what trickled", rest(&mut stream)).await;
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    }
}
