//! Programs that begin to listen late: whoever was refused before is not refused for that any more.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use leno_testkit::network::may_run;

use crate::support::{APP, Mesh, Pod, echo, exchange, refused, soon};

/// What an answer may take, on a machine that does much else.
const AT_ONCE: Duration = Duration::from_secs(2);

/// Where the program of a pod is to be reached by others in the mesh, of the family of `like`.
fn ways(server: &Pod, vips: [IpAddr; 2], like: IpAddr) -> [SocketAddr; 2] {
    let vip = vips.into_iter().find(|vip| vip.is_ipv4() == like.is_ipv4()).unwrap();
    [server.app(like), SocketAddr::new(vip, 80)]
}

#[tokio::test]
async fn a_program_that_begins_to_listen_late_is_reached_at_once_over_both_families() {
    if !may_run("a_program_that_begins_to_listen_late_is_reached_at_once_over_both_families") {
        return;
    }
    let mut mesh = Mesh::new().await;
    let client = mesh.pod("client", "node-1").await;
    for (name, number) in [("first", 1), ("second", 2), ("third", 3)] {
        let vips = [format!("10.96.0.{number}"), format!("fd96::{number}")].map(|vip| vip.parse::<IpAddr>().unwrap());
        // Captured, announced and asked for in the same moment, as a pod is whose first container is slow.
        let mut server = mesh.pod(name, "node-2").await;
        mesh.service(name, &vips, &mut [&mut server]).await;
        let (v4, v6) = (server.v4, server.v6);
        for like in [v6, v4] {
            for _ in 0..3 {
                for to in ways(&server, vips, like) {
                    refused(client.host(), to).await;
                }
                refused(mesh.network.outside(), server.app(like)).await;
            }
            echo(server.host().listen(like, APP));
            let within = ways(&server, vips, like).map(|to| (client.host(), to));
            let without = [(mesh.network.outside(), server.app(like))];
            for (host, to) in within.into_iter().chain(without) {
                let begun = Instant::now();
                let answered = soon("an answer", async { exchange(host.connect(to).await?, b"hello").await }).await;
                assert!(answered.is_ok(), "{name} at {to}, the first time after it listens: {answered:?}");
                assert!(begun.elapsed() < AT_ONCE, "{name} at {to}: {:?}", begun.elapsed());
            }
        }
    }
}
