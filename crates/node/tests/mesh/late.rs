//! Programs that begin to listen late, or on one family only.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use leno_testkit::network::may_run;

use crate::support::{APP, Mesh, Pod, echo, exchange, refused, soon};

/// How long an answer may take on a busy machine.
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
                let [direct, vip] = ways(&server, vips, like);
                refused(client.host(), direct).await;
                // The second time the service leads to where it listens already.
                if like == v6 {
                    refused(client.host(), vip).await;
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

/// A client that prefers the family on which nobody listens would try the other one if its connect were refused; in the
/// mesh it never is.
#[tokio::test]
async fn a_program_that_listens_on_one_family_is_reached_by_both_addresses_of_its_service() {
    if !may_run("a_program_that_listens_on_one_family_is_reached_by_both_addresses_of_its_service") {
        return;
    }
    let mut mesh = Mesh::new().await;
    let client = mesh.pod("client", "node-1").await;
    for (name, of_v4) in [("four", true), ("six", false)] {
        let number = if of_v4 { 4 } else { 6 };
        let vips = [format!("10.96.0.{number}"), format!("fd96::{number}")].map(|vip| vip.parse::<IpAddr>().unwrap());
        let mut server = mesh.pod(name, "node-2").await;
        mesh.service(name, &vips, &mut [&mut server]).await;
        let (own, other) = if of_v4 { (server.v4, server.v6) } else { (server.v6, server.v4) };
        echo(server.host().listen(own, APP));
        for like in [own, other] {
            let [_, vip] = ways(&server, vips, like);
            let stream = soon("connect", client.host().connect(vip)).await.unwrap();
            let answered = soon("an answer", exchange(stream, b"hello")).await;
            assert!(answered.is_ok(), "{name} at {vip}: {answered:?}");
        }
        // A client that connects to the pod's own address means that address.
        refused(client.host(), server.app(other)).await;
    }
}

/// Pods of whatever agent: Leno's own sets it as well, but another one does not.
#[tokio::test]
async fn connections_that_are_being_made_when_a_proxy_ends_go_to_the_next() {
    if !may_run("connections_that_are_being_made_when_a_proxy_ends_go_to_the_next") {
        return;
    }
    let mut mesh = Mesh::new().await;
    let pod = mesh.pod("server", "node-1").await;
    let setting = || std::fs::read_to_string("/proc/sys/net/ipv4/tcp_migrate_req");
    let Ok(set) = pod.network.namespace().run(setting).unwrap() else { return };
    assert_eq!(set.trim(), "1");
}
