//! Programs that begin to listen late, or on one family only.

use std::net::{IpAddr, SocketAddr, TcpListener as StdListener};
use std::os::fd::AsFd;
use std::path::Path;

use leno_capture::sockets::{self, ListenOptions};
use leno_model::ports;
use leno_testkit::network::may_run;
use leno_testkit::skips;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::support::{APP, Mesh, Pod, echo, eventually, exchange, refused, soon, tcp_counter};

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
                // A packet that nobody answers is sent again a second later. No clock is needed to see that.
                let namespaces = [client.namespace(), server.namespace(), mesh.network.outside().namespace];
                let again = || namespaces.iter().map(|at| tcp_counter(at, "TCPSynRetrans")).sum::<u64>();
                let before = again();
                let answered = soon("an answer", async { exchange(host.connect(to).await?, b"hello").await }).await;
                assert!(answered.is_ok(), "{name} at {to}, the first time after it listens: {answered:?}");
                assert_eq!(again(), before, "{name} at {to}: somebody asked in vain");
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

/// What waits at a listener of a proxy that ends goes to that of the next one, and is not reset. Pods of whatever agent:
/// Leno's own has them prepared as well, but another one does not.
#[tokio::test]
async fn connections_that_are_being_made_when_a_proxy_ends_go_to_the_next() {
    const NAME: &str = "connections_that_are_being_made_when_a_proxy_ends_go_to_the_next";
    /// The kernel spreads them over both listeners by their ports.
    const CALLERS: usize = 32;
    if !may_run(NAME) {
        return;
    }
    if !Path::new("/proc/sys/net/ipv4/tcp_migrate_req").exists() {
        return skips::skip(NAME, "this kernel hands on nothing that waits at a listener");
    }
    let mut mesh = Mesh::new().await;
    let server = mesh.pod("server", "node-1").await;
    echo(server.listen());
    // As a proxy has it that accepts nothing any more.
    let options = ListenOptions::default();
    let ending = sockets::listen_wildcard(server.namespace(), ports::INBOUND, &options).unwrap().socket;

    let outside = mesh.network.outside();
    let mut callers = Vec::new();
    for _ in 0..CALLERS {
        callers.push(soon("connect", outside.connect(server.app(server.v4))).await.unwrap());
    }
    eventually("one to wait at the listener that ends", || waits_at(&ending)).await;

    drop(ending);
    for caller in callers {
        soon("an answer", exchange(caller, b"hello")).await.expect("the next proxy carries it");
    }
}

/// Whether a connection waits to be accepted.
fn waits_at(listener: &StdListener) -> bool {
    let mut listeners = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    poll(&mut listeners, PollTimeout::ZERO).unwrap() > 0
}
