//! Connections as the programs at both ends see them.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};

use leno_testkit::network::may_run;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{APP, Mesh, Pod, echo, exchange, pair, read_error, refused, reset, soon};

async fn talk(mesh: &Mesh, client: &Pod, server: &Pod) {
    mesh.synced().await;
    for (to, from) in [(server.v4, client.v4), (server.v6, client.v6)] {
        let listener = server.host().listen(to, APP);
        let mut stream = soon("connect", client.host().connect(server.app(to))).await.unwrap();
        stream.write_all(b"hello").await.unwrap();
        let (mut accepted, peer) = soon("accept", listener.accept()).await.unwrap();
        assert_eq!(peer.ip(), from, "the program must see its caller");
        let mut word = [0; 5];
        soon("a word", accepted.read_exact(&mut word)).await.unwrap();
        assert_eq!(&word, b"hello");
        // Half-close: the caller has sent everything, the answer still comes.
        stream.shutdown().await.unwrap();
        assert_eq!(soon("the end", accepted.read(&mut word)).await.unwrap(), 0);
        accepted.write_all(b"world").await.unwrap();
        drop(accepted);
        let mut answer = Vec::new();
        soon("the answer", stream.read_to_end(&mut answer)).await.unwrap();
        assert_eq!(answer, b"world");
    }
}

#[tokio::test]
async fn bytes_go_both_ways_with_the_callers_address() {
    if !may_run("bytes_go_both_ways_with_the_callers_address") {
        return;
    }
    let mut mesh = Mesh::new().await;
    let client = mesh.pod("client", "node-1").await;
    let near = mesh.pod("near", "node-1").await;
    let far = mesh.pod("far", "node-2").await;
    talk(&mesh, &client, &far).await;
    talk(&mesh, &client, &near).await;
    for (node, direction, server) in
        [("node-1", "outbound", "far"), ("node-2", "inbound", "far"), ("node-1", "inbound", "near")]
    {
        let log = mesh.node(node).log.clone();
        let identity = |name| format!("identity=\"spiffe://cluster.local/ns/default/sa/{name}\"");
        let (source, destination) = (format!("src.{}", identity("client")), format!("dst.{}", identity(server)));
        let line = log.line(&["connection complete", &format!("direction=\"{direction}\""), &destination]).await;
        assert!(line.contains(&source), "{line}");
        assert!(line.contains("bytes_sent=5 ") && line.contains("bytes_recv=5 "), "{line}");
    }
    let metrics = mesh.node("node-2").metrics().await;
    let opened = metrics.lines().find(|line| {
        line.starts_with("istio_tcp_connections_opened_total{")
            && line.contains("connection_security_policy=\"mutual_tls\"")
            && line.contains("source_principal=\"spiffe://cluster.local/ns/default/sa/client\"")
    });
    assert!(opened.is_some_and(|line| line.ends_with(" 2")), "{metrics}");
}

#[tokio::test]
async fn a_burst_goes_over_all_workers_and_tunnels() {
    if !may_run("a_burst_goes_over_all_workers_and_tunnels") {
        return;
    }
    const CONNECTIONS: usize = 100;
    let mut mesh = Mesh::with(|config| config.proxy.worker_threads = 3).await;
    let client = mesh.pod("client", "node-1").await;
    let server = mesh.pod("server", "node-2").await;
    mesh.synced().await;
    echo(server.listen());
    let (client, server) = (&client, &server);
    for round in 0..3 {
        let all = (0..CONNECTIONS).map(|index| async move {
            let message = format!("{index} in round {round}").repeat(1 + index * 20);
            let stream = client.host().connect(server.app(server.v4)).await?;
            exchange(stream, message.as_bytes()).await
        });
        let done = soon("all answers", futures_util::future::join_all(all)).await;
        assert!(done.iter().all(Result::is_ok), "{done:?}");
    }
}

#[tokio::test]
async fn a_server_may_speak_first() {
    if !may_run("a_server_may_speak_first") {
        return;
    }
    let mut mesh = Mesh::new().await;
    let client = mesh.pod("client", "node-1").await;
    let server = mesh.pod("server", "node-2").await;
    mesh.synced().await;
    let listener = server.listen();
    let mut stream = soon("connect", client.host().connect(server.app(server.v4))).await.unwrap();
    let (mut accepted, _) = soon("accept", listener.accept()).await.unwrap();
    accepted.write_all(b"220 ready\r\n").await.unwrap();
    let mut greeting = [0; 11];
    soon("the greeting", stream.read_exact(&mut greeting)).await.unwrap();
    assert_eq!(&greeting, b"220 ready\r\n");
}

#[tokio::test]
async fn a_reset_is_a_reset_at_the_other_end() {
    if !may_run("a_reset_is_a_reset_at_the_other_end") {
        return;
    }
    let mut mesh = Mesh::new().await;
    let client = mesh.pod("client", "node-1").await;
    let server = mesh.pod("server", "node-2").await;
    mesh.synced().await;

    let (near, mut far) = pair(&client, &server).await;
    reset(near);
    assert_eq!(read_error(&mut far).await, ErrorKind::ConnectionReset, "the caller's reset");

    let (mut near, far) = pair(&client, &server).await;
    reset(far);
    assert_eq!(read_error(&mut near).await, ErrorKind::ConnectionReset, "the server's reset");

    // A program that closes with bytes unread resets as well, by TCP's own rule (RFC 1122
    // §4.2.2.13).
    let (mut near, far) = pair(&client, &server).await;
    near.write_all(b"nobody reads this").await.unwrap();
    soon("the bytes", far.peek(&mut [0])).await.unwrap();
    drop(far);
    assert_eq!(read_error(&mut near).await, ErrorKind::ConnectionReset, "bytes were lost");

    // The same after one half has ended: a cut-off answer must not look complete.
    let (mut near, mut far) = pair(&client, &server).await;
    near.shutdown().await.unwrap();
    assert_eq!(soon("the end", far.read(&mut [0])).await.unwrap(), 0);
    far.write_all(b"half an answ").await.unwrap();
    soon("half an answer", near.read_exact(&mut [0; 12])).await.unwrap();
    reset(far);
    assert_eq!(read_error(&mut near).await, ErrorKind::ConnectionReset, "the answer was cut off");

    // An orderly end stays one.
    let (mut near, far) = pair(&client, &server).await;
    drop(far);
    assert_eq!(soon("the end", near.read(&mut [0])).await.unwrap(), 0);
}

#[tokio::test]
async fn a_slow_reader_slows_its_writer() {
    if !may_run("a_slow_reader_slows_its_writer") {
        return;
    }
    let mut mesh = Mesh::new().await;
    let client = mesh.pod("client", "node-1").await;
    let server = mesh.pod("server", "node-2").await;
    mesh.synced().await;
    let (near, mut far) = pair(&client, &server).await;
    let (_, mut near_write) = near.into_split();
    const TOTAL: usize = 32 << 20;
    let chunk = vec![7; 64 << 10];
    let mut sent = 0;
    // Writes until every buffer on the way is full.
    while let Ok(n) = tokio::time::timeout(std::time::Duration::from_millis(300), near_write.write(&chunk)).await {
        sent += n.unwrap();
        assert!(sent < TOTAL, "nobody reads, yet the writer is not slowed");
    }
    let rest = tokio::spawn(async move {
        while sent < TOTAL {
            sent += near_write.write(&chunk[..chunk.len().min(TOTAL - sent)]).await.unwrap();
        }
        near_write.shutdown().await.unwrap();
    });
    let mut buffer = vec![0; 1 << 20];
    let mut received = 0;
    loop {
        let n = soon("bytes", far.read(&mut buffer)).await.unwrap();
        if n == 0 {
            break;
        }
        assert!(buffer[..n].iter().all(|b| *b == 7));
        received += n;
    }
    rest.await.unwrap();
    assert_eq!(received, TOTAL);
}

const VIP4: &str = "10.96.0.5";
const VIP6: &str = "fd96::5";

fn vips() -> [IpAddr; 2] {
    [VIP4.parse().unwrap(), VIP6.parse().unwrap()]
}

#[tokio::test]
async fn another_endpoint_is_tried_when_one_refuses() {
    if !may_run("another_endpoint_is_tried_when_one_refuses") {
        return;
    }
    let mut mesh = Mesh::new().await;
    let client = mesh.pod("client", "node-1").await;
    let mut good = mesh.pod("good", "node-2").await;
    let mut deaf = mesh.pod("deaf", "node-2").await;
    // Says that it speaks HBONE, and nothing listens there: its node's proxy is down.
    let mut gone = mesh.uncaptured_pod("gone", "node-3");
    mesh.service("web", &vips(), &mut [&mut good, &mut deaf, &mut gone]).await;
    echo(good.host().listen(good.v4, APP));
    echo(good.host().listen(good.v6, APP));
    for round in 0..20 {
        for vip in vips() {
            let attempt = async { exchange(client.host().connect(SocketAddr::new(vip, 80)).await?, b"hello").await };
            soon("an answer", attempt).await.unwrap_or_else(|error| panic!("round {round}, {vip}: {error}"));
        }
    }
    // The other endpoints were tried.
    let log = mesh.node("node-2").log.clone();
    log.line(&["dst.workload=\"deaf\"", "error="]).await;
    let log = mesh.node("node-1").log.clone();
    assert_eq!(log.count(&["error="]), 0, "{:#?}", log.all());
}

#[tokio::test]
async fn a_pod_reaches_itself_through_its_service() {
    if !may_run("a_pod_reaches_itself_through_its_service") {
        return;
    }
    let mut mesh = Mesh::new().await;
    let mut pod = mesh.pod("self", "node-1").await;
    mesh.service("self", &vips(), &mut [&mut pod]).await;
    echo(pod.host().listen(pod.v4, APP));
    echo(pod.host().listen(pod.v6, APP));
    for vip in vips() {
        let attempt = async { exchange(pod.host().connect(SocketAddr::new(vip, 80)).await?, b"hello").await };
        soon("an answer", attempt).await.unwrap_or_else(|error| panic!("{vip}: {error}"));
    }
    for own in [pod.v4, pod.v6] {
        let attempt = async { exchange(pod.host().connect(pod.app(own)).await?, b"hello").await };
        soon("an answer", attempt).await.unwrap_or_else(|error| panic!("{own}: {error}"));
    }
}

#[tokio::test]
async fn the_unmeshed_are_served_in_the_clear() {
    if !may_run("the_unmeshed_are_served_in_the_clear") {
        return;
    }
    let mut mesh = Mesh::new().await;
    let pod = mesh.pod("pod", "node-1").await;
    mesh.synced().await;
    let outside = mesh.network.outside();
    for (address, from) in [(pod.v4, outside.v4), (pod.v6, outside.v6)] {
        // In.
        let listener = pod.host().listen(address, APP);
        let stream = soon("connect", outside.connect(pod.app(address))).await.unwrap();
        let (_, peer) = soon("accept", listener.accept()).await.unwrap();
        assert_eq!(peer.ip(), from, "the program must see its caller");
        reset(stream);
        // Out.
        let listener = outside.listen(from, APP);
        let stream = soon("connect", pod.host().connect(SocketAddr::new(from, APP))).await.unwrap();
        let (far, peer) = soon("accept", listener.accept()).await.unwrap();
        assert_eq!(peer.ip(), address, "the other side must see the pod");
        drop(stream);
        drop(far);
    }
    // Ports of the proxy are no way in, neither from outside nor through loopback.
    for port in [15001, 15006] {
        let error = refused(outside, SocketAddr::new(pod.v4, port)).await;
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
    // Nor a way to make the proxy connect to itself, over and over.
    let loopback = SocketAddr::from(([127, 0, 0, 1], 15001));
    for own in [loopback, SocketAddr::new(pod.v4, 15001), SocketAddr::new(pod.v6, 15001)] {
        assert_eq!(refused(pod.host(), own).await.kind(), ErrorKind::ConnectionReset);
    }
    let log = mesh.node("node-1").log.clone();
    log.line(&["15001 is a port of the proxy itself"]).await;
    log.line(&["15006 is a port of the proxy itself"]).await;
    log.line(&["127.0.0.1:15001 is a port of the proxy itself"]).await;
}

#[tokio::test]
async fn many_callers_in_the_clear_do_not_get_into_each_others_way() {
    if !may_run("many_callers_in_the_clear_do_not_get_into_each_others_way") {
        return;
    }
    let mut mesh = Mesh::new().await;
    let pod = mesh.pod("pod", "node-1").await;
    mesh.synced().await;
    echo(pod.listen());
    let outside = mesh.network.outside();
    // The proxy connects to the program in the callers' name. From the ports callers use, one of
    // so many would sooner or later meet a connection of the proxy's, and hang.
    let mut held = Vec::new();
    for index in 0..1000 {
        let mut stream = soon("connect", outside.connect(pod.app(pod.v4))).await.unwrap();
        stream.write_all(b"x").await.unwrap();
        let answer = soon("the echo", stream.read_exact(&mut [0])).await;
        answer.unwrap_or_else(|error| panic!("connection {index}: {error}"));
        held.push(stream);
    }
}

/// A caller in the clear may be another proxy like this one, which connects from the same ports.
#[tokio::test]
async fn two_proxies_in_a_row_never_meet_in_a_port() {
    if !may_run("two_proxies_in_a_row_never_meet_in_a_port") {
        return;
    }
    // Those of proxies.
    let own = 16_384..32_768;
    let mut mesh = Mesh::new().await;
    let server = mesh.pod("server", "node-1").await;
    mesh.synced().await;
    let outside = mesh.network.outside();
    for to in [server.v4, server.v6] {
        let listener = server.host().listen(to, APP);
        for (port, from_own) in [(20_000, false), (50_000, true)] {
            let socket = outside.socket(to);
            socket.bind(SocketAddr::new(outside.address_like(to), port)).unwrap();
            let _caller = soon("connect", socket.connect(server.app(to))).await.unwrap();
            let (_stream, seen) = soon("accept", listener.accept()).await.unwrap();
            assert_eq!(seen.ip(), outside.address_like(to));
            assert_eq!(own.contains(&seen.port()), from_own, "from {port}: {seen}");
        }
    }
}
