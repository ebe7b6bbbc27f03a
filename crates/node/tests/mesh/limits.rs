//! Limits on what one pod or one peer may take.

use std::io::ErrorKind;
use std::net::SocketAddr;

use leno_testkit::network::{Host, may_run};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{APP, Mesh, echo, exchange, pair, refused, soon};

/// How many sockets a pod may have in these tests, and how many of them one peer may cause.
const MOST: usize = 8;
const MOST_OF_ONE: usize = 6;

/// A pod that opens connections without end, or gets them, is refused more, with the reason. Its open ones go on, and other
/// pods are not affected.
#[tokio::test]
async fn a_pod_gets_no_more_sockets_than_it_may_have() {
    if !may_run("a_pod_gets_no_more_sockets_than_it_may_have") {
        return;
    }
    let mut mesh = Mesh::with(|config| config.pods.max_sockets_per_pod = MOST).await;
    let client = mesh.pod("client", "node-1").await;
    let server = mesh.pod("server", "node-2").await;
    let second = mesh.pod("second", "node-2").await;
    let other = mesh.pod("other", "node-1").await;
    mesh.synced().await;
    echo(server.listen());
    echo(second.listen());
    let there = server.app(server.v4);
    let mut held = Vec::new();
    // The server's tunnel is one of its sockets too, so the last goes elsewhere.
    for to in [there; MOST_OF_ONE - 1].into_iter().chain([second.app(second.v4)]) {
        held.push(held_open(client.host(), to).await);
    }
    assert_eq!(refused(client.host(), there).await.kind(), ErrorKind::ConnectionReset);
    let reason = "the pod's own program has 6 of the sockets of pod default/client, and these run short";
    mesh.node("node-1").log.line(&[reason, "LENO_MAX_SOCKETS_PER_POD", "direction=\"outbound\""]).await;
    let metrics = mesh.node("node-1").metrics().await;
    assert!(metrics.contains("response_flags=\"RESOURCE_LIMIT\""), "{metrics}");
    // Another peer of the pod that most go to has room there for a tunnel and a connection; then nobody has.
    held.push(held_open(other.host(), there).await);
    let outside = mesh.network.outside();
    assert_eq!(refused(outside, there).await.kind(), ErrorKind::ConnectionReset);
    mesh.node("node-2").log.line(&["pod default/server has 8 sockets", "direction=\"inbound\""]).await;
    for stream in &mut held {
        soon("an answer", tell(stream)).await;
    }
    // Another pod is not concerned, and what was taken is given back.
    let (_near, _far) = pair(&client_of(&mut mesh).await, &other).await;
    held.clear();
    let again = async {
        while exchange(client.host().connect(there).await.unwrap(), b"hello").await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    soon("room again", again).await;
}

/// A peer that opens connections to a pod without end is refused before the pod's other peers are.
#[tokio::test]
async fn a_peer_that_takes_a_pods_share_leaves_room_for_its_other_peers() {
    if !may_run("a_peer_that_takes_a_pods_share_leaves_room_for_its_other_peers") {
        return;
    }
    let mut mesh = Mesh::with(|config| config.pods.max_sockets_per_pod = MOST).await;
    let client = mesh.pod("client", "node-1").await;
    let server = mesh.pod("server", "node-2").await;
    mesh.synced().await;
    echo(server.listen());
    let there = server.app(server.v4);
    let mut held = Vec::new();
    // In the clear, each has two.
    for _ in 0..MOST_OF_ONE / 2 {
        held.push(held_open(mesh.network.outside(), there).await);
    }
    assert_eq!(refused(mesh.network.outside(), there).await.kind(), ErrorKind::ConnectionReset);
    let reason = "has 6 of the sockets of pod default/server, and these run short";
    mesh.node("node-2").log.line(&[reason, "LENO_MAX_SOCKETS_PER_POD", "direction=\"inbound\""]).await;
    let metrics = mesh.node("node-2").metrics().await;
    assert!(metrics.contains("response_flags=\"RESOURCE_LIMIT\""), "{metrics}");
    held.push(held_open(client.host(), there).await);
    for stream in &mut held {
        soon("an answer", tell(stream)).await;
    }
}

/// A connection that has been answered.
async fn held_open(from: Host<'_>, to: SocketAddr) -> TcpStream {
    let mut stream = soon("connect", from.connect(to)).await.unwrap();
    soon("an answer", tell(&mut stream)).await;
    stream
}

async fn client_of(mesh: &mut Mesh) -> crate::support::Pod {
    let pod = mesh.pod("third", "node-1").await;
    mesh.synced().await;
    pod
}

async fn tell(stream: &mut TcpStream) {
    stream.write_all(b"x").await.unwrap();
    stream.read_exact(&mut [0]).await.unwrap();
}

/// Each stream on a tunnel of its own, so that the second is one too many.
#[tokio::test]
async fn a_peer_gets_no_more_tunnels_than_it_may_have() {
    if !may_run("a_peer_gets_no_more_tunnels_than_it_may_have") {
        return;
    }
    let mut mesh = Mesh::with(|config| {
        config.proxy.pool_max_streams = 1;
        config.pods.max_tunnels_per_peer = 1;
    })
    .await;
    let client = mesh.pod("client", "node-1").await;
    let other = mesh.pod("other", "node-1").await;
    let server = mesh.pod("server", "node-2").await;
    mesh.synced().await;
    let listener = server.host().listen(server.v4, APP);
    echo(listener);
    let there = server.app(server.v4);
    let mut held = soon("connect", client.host().connect(there)).await.unwrap();
    soon("an answer", tell(&mut held)).await;
    assert_eq!(refused(client.host(), there).await.kind(), ErrorKind::ConnectionReset);
    let reason = "has 1 tunnels to this pod already, as many as one peer may have (LENO_MAX_TUNNELS_PER_PEER)";
    mesh.node("node-2").log.line(&[reason, "dst.workload=\"server\""]).await;
    let metrics = mesh.node("node-2").metrics().await;
    assert!(metrics.contains("response_flags=\"RESOURCE_LIMIT\""), "{metrics}");
    soon("an answer", tell(&mut held)).await;
    // A peer of its own.
    let stream = soon("connect", other.host().connect(there)).await.unwrap();
    soon("an answer", exchange(stream, b"hello")).await.unwrap();
}
