//! A whole mesh in one process: programs in network namespaces, real rules, real proxies.

mod support;

use std::io::ErrorKind;
use std::net::IpAddr;

use leno_testkit::network::may_run;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use support::{APP, Mesh, echo, exchange, soon};

#[tokio::test]
async fn bytes_go_both_ways_with_the_callers_address() {
    if !may_run("bytes_go_both_ways_with_the_callers_address") {
        return;
    }
    let mut mesh = Mesh::new().await;
    let client = mesh.pod("client", "node-1").await;
    let server = mesh.pod("server", "node-2").await;
    for (to, from) in [(server.v4, client.v4), (server.v6, client.v6)] {
        let listener = server.host().listen(to, APP);
        let address = server.app(to);
        let mut stream = soon("connect", client.host().connect(address)).await.unwrap();
        stream.write_all(b"hello").await.unwrap();
        let (mut accepted, peer) = soon("accept", listener.accept()).await.unwrap();
        assert_eq!(peer.ip(), from, "the program must see its caller");
        let mut word = [0; 5];
        soon("a word", accepted.read_exact(&mut word)).await.unwrap();
        assert_eq!(&word, b"hello");
        // Half-close: the caller has said all, the answer still comes.
        stream.shutdown().await.unwrap();
        assert_eq!(soon("the end", accepted.read(&mut word)).await.unwrap(), 0);
        accepted.write_all(b"world").await.unwrap();
        drop(accepted);
        let mut answer = Vec::new();
        soon("the answer", stream.read_to_end(&mut answer)).await.unwrap();
        assert_eq!(answer, b"world");
    }
    for (node, direction) in [("node-1", "outbound"), ("node-2", "inbound")] {
        let log = mesh.node(node).log.clone();
        let line = log.line(&["connection complete", direction]).await;
        for part in [
            "src.identity=\"spiffe://cluster.local/ns/default/sa/client\"",
            "dst.identity=\"spiffe://cluster.local/ns/default/sa/server\"",
            "bytes_",
        ] {
            assert!(line.contains(part), "{part} is not in {line}");
        }
    }
}
