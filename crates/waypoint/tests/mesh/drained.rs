//! A waypoint that drains goes on serving those who have not learnt of it.

use std::net::SocketAddr;
use std::time::Duration;

use leno_model::{AppProtocol, HBONE_PORT, TunnelProtocol};
use leno_testkit::certs::Leaf;
use leno_testkit::endpoint;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::http1::mirror;
use crate::support::{Mesh, VIP, raw, soon};

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_come_meanwhile_bring_their_requests() {
    let mesh = Mesh::with(|config| {
        config.proxy.takeover_timeout = Duration::from_secs(20);
        config.proxy.drain_deadline = Duration::from_secs(60);
    })
    .await;
    mesh.service(AppProtocol::Http11, &[mirror().await]).await;
    let (client, authority) = (mesh.client(), format!("{VIP}:80"));
    let mut silent = client.open(&authority).await.unwrap();
    mesh.drain();
    // One that says nothing is let go, which also shows that the end has begun.
    let said = soon("the end of a silent connection", silent.read(&mut [0; 1])).await;
    assert!(!matches!(said, Ok(1..)), "{said:?}");

    let mut late = client.open(&authority).await.unwrap();
    // Nobody's first bytes come with the very request for the connection.
    tokio::task::yield_now().await;
    late.write_all(b"GET /late HTTP/1.1\r\nhost: web\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    soon("an answer and the end", late.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("GET /late"), "{answer}");
    assert!(answer.contains("connection: close"), "{answer}");
}

/// Reads one answer of the mirror, whose body says what it was asked.
async fn answer(stream: &mut (impl tokio::io::AsyncRead + Unpin), ends_with: &str) -> String {
    let (mut all, mut piece) = (String::new(), [0; 1024]);
    while !all.contains(ends_with) {
        let read = soon("an answer", stream.read(&mut piece)).await.unwrap();
        assert!(read > 0, "it ended after {all:?}");
        all.push_str(std::str::from_utf8(&piece[..read]).unwrap());
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_in_use_is_told_before_it_ends() {
    let mesh = Mesh::with(|config| {
        config.proxy.takeover_timeout = Duration::from_secs(20);
        config.proxy.drain_deadline = Duration::from_secs(60);
    })
    .await;
    mesh.service(AppProtocol::Http11, &[mirror().await]).await;
    let (client, authority) = (mesh.client(), format!("{VIP}:80"));
    let (mut used, mut unused) = (client.open(&authority).await.unwrap(), client.open(&authority).await.unwrap());
    for (stream, path) in [(&mut used, "/used"), (&mut unused, "/unused")] {
        stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: web\r\n\r\n").as_bytes()).await.unwrap();
        let first = answer(stream, path).await;
        assert!(first.starts_with("HTTP/1.1 200 OK\r\n") && !first.contains("connection: close"), "{first}");
    }
    let mut silent = client.open(&authority).await.unwrap();
    mesh.drain();
    let said = soon("the end of a silent connection", silent.read(&mut [0; 1])).await;
    assert!(!matches!(said, Ok(1..)), "{said:?}");

    used.write_all(b"GET /last HTTP/1.1\r\nhost: web\r\n\r\n").await.unwrap();
    let mut last = String::new();
    soon("an answer and the end", used.read_to_string(&mut last)).await.unwrap();
    assert!(last.starts_with("HTTP/1.1 200 OK\r\n") && last.contains("GET /last"), "{last}");
    assert!(last.contains("connection: close"), "{last}");
    // Nobody asks for anything on this one.
    let mut rest = String::new();
    soon("the end of the unused connection", unused.read_to_string(&mut rest)).await.unwrap();
    assert!(!rest.contains("HTTP/1.1"), "{rest}");
}

#[tokio::test(flavor = "multi_thread")]
async fn endpoints_are_told_of_the_end() {
    let config = |config: &mut leno_waypoint::Config| config.proxy.drain_deadline = Duration::from_secs(60);
    let ways = [(AppProtocol::Http11, true), (AppProtocol::Http2, true), (AppProtocol::Http11, false)];
    for (index, (protocol, drained)) in ways.into_iter().enumerate() {
        let mesh = Mesh::with(config).await;
        let certificate = mesh.control.lax_authority.issue(&Leaf::uri("spiffe://cluster.local/ns/default/sa/web"));
        let program = match protocol {
            AppProtocol::Http2 => crate::http2::echo().await,
            _ => mirror().await,
        };
        // An address of its own, because the port is always the same.
        let pod = SocketAddr::from(([127, 0, 7, 1 + index as u8], program.port()));
        let mut ends = endpoint::serve((pod.ip(), HBONE_PORT).into(), &certificate, program).await;
        let service = mesh.service(protocol, &[]).await;
        mesh.endpoint(&service, 0, pod, TunnelProtocol::Hbone);
        mesh.control.synced(1).await;
        let get = b"GET / HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\r\n";
        let answer = raw(mesh.bridged().await, get).await;
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        // The tunnel lies idle now. It is ended in good order, also where nothing waits for connections to end.
        if drained {
            mesh.drain();
        } else {
            drop(mesh);
        }
        let end = soon("the end of the tunnel", ends.recv()).await.unwrap();
        assert!(end.is_ok(), "{protocol:?}, drained: {drained}: {end:?}");
    }
}
