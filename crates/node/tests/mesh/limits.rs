//! What one pod or one peer may take.

use std::io::ErrorKind;

use leno_testkit::network::may_run;

use crate::support::{APP, Mesh, echo, exchange, pair, refused, soon};

/// A pod that opens connections without end, or is opened them, is refused more, with the reason; its own go on,
/// and so do others.
#[tokio::test]
async fn a_pod_gets_no_more_sockets_than_it_may_have() {
    if !may_run("a_pod_gets_no_more_sockets_than_it_may_have") {
        return;
    }
    const MOST: usize = 8;
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
    for to in [there; MOST - 1].into_iter().chain([second.app(second.v4)]) {
        let mut stream = soon("connect", client.host().connect(to)).await.unwrap();
        soon("an answer", tell(&mut stream)).await;
        held.push(stream);
    }
    assert_eq!(refused(client.host(), there).await.kind(), ErrorKind::ConnectionReset);
    let reason = "pod default/client has 8 sockets in connections already";
    mesh.node("node-1").log.line(&[reason, "LENO_MAX_SOCKETS_PER_POD", "direction=\"outbound\""]).await;
    let metrics = mesh.node("node-1").metrics().await;
    assert!(metrics.contains("response_flags=\"RESOURCE_LIMIT\""), "{metrics}");
    // The pod that most go to has as many, and says so to whoever comes next with a tunnel of its own; two sockets in the clear would not fit.
    assert_eq!(refused(other.host(), there).await.kind(), ErrorKind::ConnectionReset);
    mesh.node("node-2").log.line(&["pod default/server has 8 sockets", "direction=\"inbound\""]).await;
    let outside = mesh.network.outside();
    assert_eq!(refused(outside, there).await.kind(), ErrorKind::ConnectionReset);
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

async fn client_of(mesh: &mut Mesh) -> crate::support::Pod {
    let pod = mesh.pod("third", "node-1").await;
    mesh.synced().await;
    pod
}

async fn tell(stream: &mut tokio::net::TcpStream) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
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
