//! Changes while connections are open.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use leno_model::{Action, Authorization, Clause, Match, PolicyName, Rule, Scope, StringMatch, Workload};
use leno_testkit::network::{Host, may_run};
use leno_tls::Clock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::support::{Mesh, NEVER, Node, Pod, echo, eventually, exchange, pair, read_error, refused, soon, tunnels_of};

fn deny_all(name: &str, scope: Scope) -> Authorization {
    Authorization {
        id: PolicyName { namespace: "default".into(), name: name.into() },
        scope,
        action: Action::Deny,
        rules: vec![Rule::default()],
        dry_run: false,
        not_understood: None,
    }
}

#[tokio::test]
async fn a_new_policy_cuts_live_connections() {
    if !may_run("a_new_policy_cuts_live_connections") {
        return;
    }
    let mut mesh = Mesh::new().await;
    let client = mesh.pod("client", "node-1").await;
    let mut server = mesh.pod("server", "node-2").await;
    mesh.synced().await;

    let (mut near, mut far) = pair(&client, &server).await;
    let policy = deny_all("freeze", Scope::Namespace);
    mesh.control.publish_policy(&policy);
    assert_eq!(read_error(&mut near).await, ErrorKind::ConnectionReset);
    assert_eq!(read_error(&mut far).await, ErrorKind::ConnectionReset);
    mesh.node("node-2").log.line(&["closed after a policy change: denied by policy default/freeze"]).await;
    mesh.control.remove_policy(&policy.id);
    mesh.synced().await;

    // A policy that is there already begins to apply: only the workload changes.
    let policy = deny_all("selected", Scope::WorkloadSelector);
    mesh.control.publish_policy(&policy);
    mesh.synced().await;
    let (mut near, mut far) = pair(&client, &server).await;
    server.workload.authorization_policies = vec![policy.id.clone()];
    mesh.control.publish_workload(&server.workload);
    assert_eq!(read_error(&mut near).await, ErrorKind::ConnectionReset);
    assert_eq!(read_error(&mut far).await, ErrorKind::ConnectionReset);
    mesh.node("node-2").log.line(&["closed after a policy change: denied by policy default/selected"]).await;

    // Dry-run decides nothing.
    server.workload.authorization_policies.clear();
    mesh.control.publish_workload(&server.workload);
    // While it is there it might be about to apply by scope.
    mesh.control.remove_policy(&policy.id);
    mesh.synced().await;
    let (mut near, mut far) = pair(&client, &server).await;
    mesh.control.publish_policy(&Authorization { dry_run: true, ..deny_all("rehearsal", Scope::Namespace) });
    mesh.synced().await;
    near.write_all(b"z").await.unwrap();
    soon("a byte", far.read_exact(&mut [0])).await.unwrap();
    // It is told in the line of each connection, and nowhere else: a busy pod has many.
    let (near, far) = pair(&client, &server).await;
    drop((near, far));
    let note = "dry_run=\"dry-run policy default/rehearsal would deny this connection\"";
    mesh.node("node-2").log.line(&["connection complete", "direction=\"inbound\"", note]).await;
}

/// Lets in the account `client` and nobody else.
fn allow_client(name: &str) -> Authorization {
    let client = StringMatch::Exact("cluster.local/ns/default/sa/client".into());
    let client = Match { principals: vec![client], ..Match::default() };
    Authorization {
        action: Action::Allow,
        rules: vec![Rule { clauses: vec![Clause { matches: vec![client] }] }],
        ..deny_all(name, Scope::WorkloadSelector)
    }
}

/// Sends a byte each way.
async fn lives(near: &mut TcpStream, far: &mut TcpStream) {
    near.write_all(b"z").await.unwrap();
    soon("a byte", far.read_exact(&mut [0])).await.unwrap();
    far.write_all(b"z").await.unwrap();
    soon("a byte", near.read_exact(&mut [0])).await.unwrap();
}

#[tokio::test]
async fn a_policy_that_goes_before_the_workloads_that_name_it_neither_cuts_nor_opens() {
    if !may_run("a_policy_that_goes_before_the_workloads_that_name_it_neither_cuts_nor_opens") {
        return;
    }
    let mut mesh = Mesh::new().await;
    let client = mesh.pod("client", "node-1").await;
    let mut server = mesh.pod("server", "node-2").await;
    let policy = allow_client("going");
    mesh.control.publish_policy(&policy);
    mesh.synced().await;
    server.workload.authorization_policies = vec![policy.id.clone()];
    mesh.control.publish_workload(&server.workload);
    mesh.synced().await;
    let (mut near, mut far) = pair(&client, &server).await;
    echo(server.listen());

    // As Istio's control plane does it: the workload is told of later.
    mesh.control.remove_policy(&policy.id);
    mesh.synced().await;
    lives(&mut near, &mut far).await;
    let stream = soon("connect", client.host().connect(server.app(server.v4))).await.unwrap();
    soon("an answer", exchange(stream, b"hello")).await.unwrap();
    let outside = mesh.network.outside();
    assert_eq!(refused(outside, server.app(server.v4)).await.kind(), ErrorKind::ConnectionReset);
    mesh.node("node-2").log.line(&["no ALLOW policy of default/server matched (checked default/going)"]).await;

    server.workload.authorization_policies.clear();
    mesh.control.publish_workload(&server.workload);
    mesh.synced().await;
    let stream = soon("connect", mesh.network.outside().connect(server.app(server.v4))).await.unwrap();
    soon("an answer", exchange(stream, b"hello")).await.unwrap();
    lives(&mut near, &mut far).await;
}

#[tokio::test]
async fn what_hangs_on_a_policy_that_is_to_come_waits_for_it() {
    if !may_run("what_hangs_on_a_policy_that_is_to_come_waits_for_it") {
        return;
    }
    // What is answered was not answered because time ran out.
    let mut mesh = Mesh::with(|config| config.proxy.workload_timeout = NEVER).await;
    let client = mesh.pod("client", "node-1").await;
    let mut server = mesh.pod("server", "node-2").await;
    let (mut near, mut far) = pair(&client, &server).await;
    echo(server.listen());
    let mut stranger = soon("connect", mesh.network.outside().connect(server.app(server.v4))).await.unwrap();
    stranger.write_all(b"x").await.unwrap();
    soon("a byte", stranger.read_exact(&mut [0])).await.unwrap();

    let policy = allow_client("coming");
    server.workload.authorization_policies = vec![policy.id.clone()];
    mesh.control.publish_workload(&server.workload);
    mesh.synced().await;
    lives(&mut near, &mut far).await;
    let mut waiting = Vec::new();
    for _ in 0..3 {
        let mut stream = soon("connect", client.host().connect(server.app(server.v4))).await.unwrap();
        stream.write_all(b"hello").await.unwrap();
        waiting.push(stream);
    }
    let mut newcomer = soon("connect", mesh.network.outside().connect(server.app(server.v4))).await.unwrap();
    // It is neither allowed nor refused yet.
    for stream in waiting.iter_mut().chain([&mut newcomer]) {
        assert!(tokio::time::timeout(Duration::from_millis(100), stream.read(&mut [0; 8])).await.is_err());
    }
    mesh.control.publish_policy(&policy);
    for mut stream in waiting {
        soon("an answer", stream.read_exact(&mut [0; 5])).await.unwrap();
    }
    lives(&mut near, &mut far).await;
    // The policy lets neither the one that waited nor the one that lived stay.
    assert_eq!(read_error(&mut newcomer).await, ErrorKind::ConnectionReset);
    assert_eq!(read_error(&mut stranger).await, ErrorKind::ConnectionReset);
}

/// How long certificates live where they are renewed while a test lasts. By the machine's clock they would not be.
const TTL: Duration = Duration::from_secs(150);

/// As much time as passes until every certificate is due to be renewed, and none has ended: that is at half of its life,
/// give or take a twentieth.
const RENEWED: Duration = Duration::from_secs(90);

/// A mesh in which certificates live for [`TTL`], and every connection makes a handshake with those of the moment: one stream
/// to a tunnel, which is not kept. Time passes when the test says so: certificates are valid from ten minutes before they are
/// made, and peers still check them by the machine's clock, so theirs may be ahead by no more than that.
struct Rotating {
    mesh: Mesh,
    ahead: watch::Sender<Duration>,
    client: Pod,
    server: Pod,
    /// Connections so far.
    connections: Cell<u32>,
}

impl Rotating {
    async fn new() -> Self {
        let ahead = watch::Sender::new(Duration::ZERO);
        let mut mesh = Mesh::by(Clock::ahead(ahead.subscribe()), |config| {
            config.proxy.secret_ttl = TTL;
            config.proxy.pool_max_streams = 1;
            config.proxy.pool_idle_timeout = Duration::from_millis(1);
        })
        .await;
        mesh.control.limit_certificates(TTL);
        let client = mesh.pod("client", "node-1").await;
        let server = mesh.pod("server", "node-2").await;
        mesh.synced().await;
        echo(server.listen());
        Self { mesh, ahead, client, server, connections: Cell::new(0) }
    }

    /// Traffic from one pod to the other, beside `work`: one connection after the other, and one that outlives all
    /// certificates it began with.
    async fn beside_traffic(&self, work: impl Future<Output = ()>) {
        let to = self.server.app(self.server.v4);
        let mut long = soon("connect", self.client.host().connect(to)).await.unwrap();
        // It stands: begun with what was trusted before a root rotates, its handshake could meet a certificate of the new
        // one.
        is_answered(&mut long).await;

        let traffic = async {
            loop {
                let attempt = async { exchange(self.client.host().connect(to).await?, b"hello").await };
                let number = self.connections.get();
                soon("an answer", attempt).await.unwrap_or_else(|error| panic!("after {number} connections: {error}"));
                self.connections.set(number + 1);
                is_answered(&mut long).await;
            }
        };
        tokio::select! {
            () = traffic => unreachable!("traffic does not end"),
            () = work => {}
        }
        for node in ["node-1", "node-2"] {
            let log = &self.mesh.started(node).log;
            // Time passes in leaps here, and so over the moment at which a tunnel is told to end (GOAWAY). A request that comes by
            // such a tunnel is turned away and goes by another one: its program notices nothing, as the traffic shows.
            let turned_away = log.count(&["error=", "proves nothing any more"]);
            assert_eq!(log.count(&["error="]), turned_away, "{:#?}", log.all());
        }
    }

    /// Lets time pass until the certificates of both pods are due to be renewed. Returns when they are, and connections have
    /// been made with the new ones.
    async fn renew(&self) {
        let before = self.certificates().await;
        self.ahead.send_modify(|ahead| *ahead += RENEWED);
        let renewed = async {
            while self.certificates().await.iter().zip(&before).any(|(now, before)| now == before) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        soon("new certificates", renewed).await;

        // One may be on its way that began with the old ones.
        let enough = self.connections.get() + 2;
        eventually("new connections", || self.connections.get() >= enough).await;
    }

    /// What both pods have.
    async fn certificates(&self) -> Vec<String> {
        let mut all = Vec::new();
        for node in ["node-1", "node-2"] {
            let dump = self.mesh.started(node).config_dump().await;
            all.extend(dump["certificates"].as_array().unwrap().iter().map(|held| held["certChain"].to_string()));
        }
        assert_eq!(all.len(), 2);
        all
    }
}

/// Sends a message on an open connection to a program that answers.
async fn is_answered(long: &mut TcpStream) {
    long.write_all(b"still").await.unwrap();
    soon("an answer", long.read_exact(&mut [0; 5])).await.unwrap();
}

#[tokio::test]
async fn certificates_rotate_under_traffic() {
    if !may_run("certificates_rotate_under_traffic") {
        return;
    }
    let scene = Rotating::new().await;
    let renewals = async {
        for _ in 0..3 {
            scene.renew().await;
        }
    };
    scene.beside_traffic(renewals).await;
}

/// The port at the far end of a tunnel, by which a line of the access log tells it from others.
fn tunnel_of(line: &str) -> Option<u16> {
    let address = line.contains("direction=\"inbound\"").then(|| line.split_once("src.addr="))??.1;
    let address: SocketAddr = address.split_whitespace().next()?.trim_matches('"').parse().ok()?;
    Some(address.port())
}

/// They are replaced when their certificates have ended nearly, or when they are so old. Here it is the latter, after which
/// nothing ends that a slow machine would be too late for.
#[tokio::test]
async fn tunnels_are_replaced_in_time_and_what_is_open_in_them_goes_on() {
    if !may_run("tunnels_are_replaced_in_time_and_what_is_open_in_them_goes_on") {
        return;
    }
    const OLD: Duration = Duration::from_secs(1);
    const TUNNELS: usize = 4;
    const PERIOD: Duration = Duration::from_millis(20);
    let mut mesh = Mesh::with(|config| config.proxy.tunnel_max_age = OLD).await;
    let client = mesh.pod("client", "node-1").await;
    let server = mesh.pod("server", "node-2").await;
    mesh.synced().await;
    echo(server.listen());
    // A connection that outlives its tunnel's time.
    let mut long = soon("connect", client.host().connect(server.app(server.v4))).await.unwrap();
    is_answered(&mut long).await;

    let log = mesh.node("node-2").log.clone();
    let mut tunnels = BTreeSet::new();
    let replaced = async {
        while tunnels.len() < TUNNELS {
            exchange(client.host().connect(server.app(server.v4)).await.unwrap(), b"hello").await.unwrap();
            tunnels.extend(log.all().iter().filter_map(|line| tunnel_of(line)));
            tokio::time::sleep(PERIOD).await;
        }
    };
    soon("the tunnels to be replaced", replaced).await;
    is_answered(&mut long).await;
    for log in [mesh.node("node-1").log.clone(), log] {
        assert_eq!(log.count(&["error="]), 0, "{:#?}", log.all());
    }
}

#[tokio::test]
async fn a_root_rotates_under_traffic_before_any_certificate_does() {
    if !may_run("a_root_rotates_under_traffic_before_any_certificate_does") {
        return;
    }
    // Every connection makes a handshake. Certificates live for a day: the first two pods keep those of the first root.
    let mut mesh = Mesh::with(|config| {
        config.proxy.pool_max_streams = 1;
        config.proxy.pool_idle_timeout = Duration::from_millis(1);
    })
    .await;
    let client = mesh.pod("client", "node-1").await;
    let server = mesh.pod("server", "node-2").await;
    mesh.synced().await;
    echo(server.listen());
    let mut long = soon("connect", client.host().connect(server.app(server.v4))).await.unwrap();
    let attempt = async |from: &Pod, to: &Pod, what: &str| {
        let attempt = async { exchange(from.host().connect(to.app(to.v4)).await?, b"hello").await };
        soon("an answer", attempt).await.unwrap_or_else(|error| panic!("{what}: {error}"));
    };
    let serials = async |node: &Node, pod: &str| {
        let dump = node.config_dump().await;
        let of_pod =
            dump["certificates"].as_array().unwrap().iter().find(|c| c["identity"].as_str().unwrap().ends_with(pod));
        of_pod.unwrap()["certChain"].to_string()
    };
    attempt(&client, &server, "before all").await;
    let first = serials(mesh.node("node-2"), "server").await;
    for (rotation, name) in ["second", "third", "fourth"].into_iter().enumerate() {
        let rotating = mesh.control.rotate_root(2);
        // None is broken off: a program that did that would be in the log.
        let rotated = Cell::new(false);
        let traffic = async {
            while !rotated.get() {
                attempt(&client, &server, "during a rotation").await;
            }
        };
        tokio::join!(traffic, async {
            rotating.await;
            rotated.set(true);
        });
        // Its certificate is of the new root; the others' are not.
        let newcomer = mesh.pod(name, if rotation == 1 { "node-2" } else { "node-1" }).await;
        mesh.synced().await;
        echo(newcomer.listen());
        for _ in 0..3 {
            attempt(&newcomer, &server, "a client with a certificate of the new root").await;
            attempt(&client, &newcomer, "a server with a certificate of the new root").await;
            attempt(&client, &server, "both with certificates of the old root").await;
        }
        long.write_all(b"still").await.unwrap();
        soon("an answer", long.read_exact(&mut [0; 5])).await.unwrap();
    }
    assert_eq!(serials(mesh.node("node-2"), "server").await, first, "no certificate was renewed for it");
    let logs = [mesh.node("node-1").log.clone(), mesh.node("node-2").log.clone()];
    for log in logs {
        assert_eq!(log.count(&["error="]), 0, "{:#?}", log.all());
    }
}

/// Rotates the root three times, each time until nothing of the old one is left.
#[tokio::test]
async fn old_roots_go_under_traffic() {
    if !may_run("old_roots_go_under_traffic") {
        return;
    }
    let scene = Rotating::new().await;
    let control = &scene.mesh.control;
    let first = control.root_pem();
    let rotations = async {
        for _ in 0..3 {
            control.rotate_root(2).await;
            assert_eq!(control.roots(), 2);
            scene.renew().await;
            assert_eq!(control.roots(), 2, "certificates of the old root have not ended yet");

            // By then they have.
            scene.renew().await;
            assert_eq!(control.roots(), 1);
            control.synced(2).await;
        }
    };
    scene.beside_traffic(rotations).await;
    assert!(!control.root_pem().contains(&first));
}

#[tokio::test]
async fn a_drain_waits_for_live_connections_only() {
    if !may_run("a_drain_waits_for_live_connections_only") {
        return;
    }
    let mut mesh = Mesh::new().await;
    let client = mesh.pod("client", "node-1").await;
    let server = mesh.pod("server", "node-2").await;
    mesh.synced().await;
    let (mut near, mut far) = pair(&client, &server).await;

    for (node, address) in [("node-1", client.app(client.v4)), ("node-2", server.app(server.v4))] {
        mesh.node(node).drain();
        // New ones are refused at once, at both ends.
        let outside = mesh.network.outside();
        let refusal = async {
            loop {
                // The listeners close a moment after the order.
                if refused(outside, address).await.kind() == ErrorKind::ConnectionRefused {
                    return;
                }
            }
        };
        soon("refusals", refusal).await;
    }
    // The live one goes on, in both directions, to its own end.
    for _ in 0..3 {
        near.write_all(b"ping").await.unwrap();
        soon("bytes", far.read_exact(&mut [0; 4])).await.unwrap();
        far.write_all(b"pong").await.unwrap();
        soon("bytes", near.read_exact(&mut [0; 4])).await.unwrap();
    }
    assert!(!mesh.node("node-1").proxy().has_ended() && !mesh.node("node-2").proxy().has_ended());
    near.shutdown().await.unwrap();
    assert_eq!(soon("the end", far.read(&mut [0])).await.unwrap(), 0);
    drop(far);
    assert_eq!(soon("the end", near.read(&mut [0])).await.unwrap(), 0);
    for node in ["node-1", "node-2"] {
        eventually("the proxy to end with its last connection", || mesh.node(node).proxy().has_ended()).await;
        let log = &mesh.node(node).log;
        assert_eq!(log.count(&["error=", "src.workload=\"client\""]), 0, "{:#?}", log.all());
    }
}

/// Writes until nothing more goes, then the end; says how much. What this end writes last is
/// not further than this end's proxy then.
async fn fill(stream: &mut TcpStream) -> usize {
    let chunk = [7; 64 << 10];
    let mut sent = 0;
    while let Ok(written) = tokio::time::timeout(Duration::from_millis(300), stream.write(&chunk)).await {
        sent += written.unwrap();
    }
    stream.shutdown().await.unwrap();
    sent
}

#[tokio::test]
async fn a_drain_loses_no_byte_that_was_on_its_way() {
    if !may_run("a_drain_loses_no_byte_that_was_on_its_way") {
        return;
    }
    let mut mesh = Mesh::new().await;
    let client = mesh.pod("client", "node-1").await;
    let server = mesh.pod("server", "node-2").await;
    mesh.synced().await;
    let (mut near, mut far) = pair(&client, &server).await;
    let (up, down) = (fill(&mut near).await, fill(&mut far).await);
    mesh.node("node-1").drain();
    mesh.node("node-2").drain();
    for (stream, sent) in [(&mut far, up), (&mut near, down)] {
        let mut buffer = vec![0; 256 << 10];
        let mut received = 0;
        loop {
            match soon("bytes", stream.read(&mut buffer)).await {
                Ok(0) => break,
                Ok(n) => received += n,
                Err(error) => panic!("{error} after {received} of {sent} bytes"),
            }
        }
        assert_eq!(received, sent);
    }
    for node in ["node-1", "node-2"] {
        eventually("the proxy to end with its last connection", || mesh.node(node).proxy().has_ended()).await;
    }
}

#[tokio::test]
async fn a_drain_with_nothing_to_wait_for_ends_at_once() {
    if !may_run("a_drain_with_nothing_to_wait_for_ends_at_once") {
        return;
    }
    // Longer than the test's patience: whoever waits for one of these does not end.
    let mut mesh = Mesh::with(|config| {
        config.proxy.drain_deadline = NEVER;
        config.proxy.pool_idle_timeout = NEVER;
    })
    .await;
    let client = mesh.pod("client", "node-1").await;
    let server = mesh.pod("server", "node-1").await;
    mesh.synced().await;
    echo(server.listen());
    let stream = soon("connect", client.host().connect(server.app(server.v4))).await.unwrap();
    soon("an answer", exchange(stream, b"hello")).await.unwrap();
    // A tunnel is still open, but no connection of a program.
    mesh.node("node-1").log.line(&["connection complete", "inbound"]).await;
    mesh.node("node-1").log.line(&["connection complete", "outbound"]).await;
    mesh.node("node-1").drain();
    eventually("the end", || mesh.node("node-1").proxy().has_ended()).await;
}

#[tokio::test]
async fn past_the_deadline_connections_are_cut() {
    if !may_run("past_the_deadline_connections_are_cut") {
        return;
    }
    let mut mesh = Mesh::with(|config| config.proxy.drain_deadline = Duration::from_millis(200)).await;
    let client = mesh.pod("client", "node-1").await;
    let server = mesh.pod("server", "node-2").await;
    mesh.synced().await;
    let (mut near, mut far) = pair(&client, &server).await;
    mesh.node("node-2").drain();
    assert_eq!(read_error(&mut far).await, ErrorKind::ConnectionReset);
    assert_eq!(read_error(&mut near).await, ErrorKind::ConnectionReset);
    eventually("the end", || mesh.node("node-2").proxy().has_ended()).await;
}

#[tokio::test]
async fn a_pod_that_leaves_the_mesh_keeps_its_live_connections() {
    if !may_run("a_pod_that_leaves_the_mesh_keeps_its_live_connections") {
        return;
    }
    let mut mesh = Mesh::new().await;
    let client = mesh.pod("client", "node-1").await;
    let server = mesh.pod("server", "node-2").await;
    mesh.synced().await;
    let (mut near, mut far) = pair(&client, &server).await;
    let agent = mesh.node("node-2").agent.clone();
    soon("the proxy's answer", agent.remove("server")).await;
    // It takes nothing new.
    let error = refused(client.host(), server.app(server.v4)).await;
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    near.write_all(b"ping").await.unwrap();
    soon("bytes", far.read_exact(&mut [0; 4])).await.unwrap();
    drop(far);
    assert_eq!(soon("the end", near.read(&mut [0])).await.unwrap(), 0);
}

/// A program that accepts nothing yet and whose queue is full, by a connection of its own pod: the kernel drops what comes,
/// and the caller's tries again.
async fn listen_with_full_queue(pod: Host<'_>, at: SocketAddr) -> (TcpListener, TcpStream) {
    let listener = pod.listen_with(at.ip(), at.port(), 0);
    let filling = soon("a place in the queue", pod.connect(at)).await.unwrap();
    (listener, filling)
}

/// A pod that leaves the mesh, and a proxy that drains, waits for a connection that is being made as for an open one.
#[tokio::test]
async fn a_connection_on_its_way_is_a_live_one() {
    if !may_run("a_connection_on_its_way_is_a_live_one") {
        return;
    }
    for leaves in [true, false] {
        let mut mesh = Mesh::new().await;
        let client = mesh.pod("client", "node-1").await;
        let server = mesh.uncaptured_pod("server", "node-2");
        mesh.synced().await;
        let to = server.app(server.v4);
        let (listener, _filling) = listen_with_full_queue(server.host(), to).await;
        let waiting = soon("the capture", client.host().connect(to)).await.unwrap();
        if leaves {
            let agent = mesh.node("node-1").agent.clone();
            soon("the proxy's answer", agent.remove("client")).await;
        } else {
            mesh.node("node-1").drain();
        }
        // Past the time for stragglers, whose listeners have closed then.
        let closed = async || match client.host().connect(to).await {
            Err(error) => error.kind() == ErrorKind::ConnectionRefused,
            Ok(_) => false,
        };
        let end = async {
            while !closed().await {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        soon("the listeners' end", end).await;
        echo(listener);
        soon("an answer", exchange(waiting, b"hello")).await.unwrap();
    }
}

#[tokio::test]
async fn an_address_that_passes_to_another_pod_passes_with_nothing() {
    if !may_run("an_address_that_passes_to_another_pod_passes_with_nothing") {
        return;
    }
    let mut mesh = Mesh::new().await;
    let client = mesh.pod("client", "node-1").await;
    let old = mesh.pod("old", "node-2").await;
    mesh.synced().await;
    echo(old.listen());
    let attempt = async || exchange(client.host().connect(old.app(old.v4)).await?, b"hello").await;
    soon("an answer", attempt()).await.unwrap();

    // Another pod has the address, and the caller has not heard.
    let agent = mesh.node("node-2").agent.clone();
    soon("the proxy's answer", agent.remove("old")).await;
    let new = old.successor("new");
    let elsewhere = Workload { addresses: vec!["10.77.9.9".parse().unwrap()], ..new.clone() };
    mesh.control.publish_workload(&elsewhere);
    mesh.enroll_as(&new, &old).await;
    mesh.synced().await;
    assert_eq!(soon("a refusal", attempt()).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    let named =
        "the peer is spiffe://cluster.local/ns/default/sa/new, expected spiffe://cluster.local/ns/default/sa/old";
    mesh.node("node-1").log.line(&[named]).await;

    // Now it has.
    mesh.control.remove_workload(&old.workload.uid);
    mesh.control.publish_workload(&new);
    mesh.synced().await;
    soon("an answer", attempt()).await.unwrap();
    for node in ["node-1", "node-2"] {
        let log = mesh.node(node).log.clone();
        log.line(&[
            "connection complete",
            "dst.identity=\"spiffe://cluster.local/ns/default/sa/new\"",
            "bytes_sent=5 ",
        ])
        .await;
    }
}

#[tokio::test]
async fn who_joins_the_mesh_while_a_connection_is_made_gets_it_encrypted() {
    if !may_run("who_joins_the_mesh_while_a_connection_is_made_gets_it_encrypted") {
        return;
    }
    let mut mesh = Mesh::new().await;
    let client = mesh.pod("client", "node-1").await;
    let server = mesh.uncaptured_pod("server", "node-2");
    mesh.synced().await;
    let to = server.app(server.v4);
    let (listener, _filling) = listen_with_full_queue(server.host(), to).await;
    let waiting = soon("the capture", client.host().connect(to)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;

    // As a control plane does: it tells the others once the pod's proxy has it.
    mesh.enroll(&server).await;
    mesh.control.publish_workload(&server.workload);
    mesh.synced().await;
    echo(listener);
    soon("an answer", exchange(waiting, b"hello")).await.unwrap();
    let log = mesh.node("node-1").log.clone();
    log.line(&["dst.identity=\"spiffe://cluster.local/ns/default/sa/server\"", "bytes_sent=5 "]).await;
}

#[tokio::test]
async fn a_tunnel_ends_with_what_its_peer_was() {
    if !may_run("a_tunnel_ends_with_what_its_peer_was") {
        return;
    }
    let mut mesh = Mesh::new().await;
    let client = mesh.pod("client", "node-1").await;
    let server = mesh.pod("server", "node-2").await;
    mesh.synced().await;
    echo(server.listen());
    let tunnels = || tunnels_of(&client);
    let attempt = async || exchange(client.host().connect(server.app(server.v4)).await?, b"hello").await;

    soon("an answer", attempt()).await.unwrap();
    assert_eq!(tunnels(), 1);
    // Something else changes.
    let other = server.successor("other");
    mesh.control.publish_workload(&Workload { addresses: vec!["10.77.9.9".parse().unwrap()], ..other });
    mesh.synced().await;
    assert_eq!(tunnels(), 1, "it may be used again");

    mesh.control.publish_workload(&Workload { service_account: "another".into(), ..server.workload.clone() });
    eventually("no tunnel after a change of identity", || tunnels() == 0).await;
    mesh.control.publish_workload(&server.workload);
    mesh.synced().await;
    soon("an answer", attempt()).await.unwrap();
    assert_eq!(tunnels(), 1);
    mesh.control.remove_workload(&server.workload.uid);
    eventually("no tunnel after the removal", || tunnels() == 0).await;
}

#[tokio::test]
async fn what_has_just_left_the_mesh_is_not_reached_in_the_clear() {
    if !may_run("what_has_just_left_the_mesh_is_not_reached_in_the_clear") {
        return;
    }
    let mut mesh = Mesh::new().await;
    let client = mesh.pod("client", "node-1").await;
    let mut server = mesh.pod("server", "node-2").await;
    let vip = "10.96.0.9".parse().unwrap();
    let service = mesh.service("echo", &[vip], &mut [&mut server]).await;
    echo(server.listen());
    let to = SocketAddr::new(vip, 80);
    let stream = soon("connect", client.host().connect(to)).await.unwrap();
    soon("an answer", exchange(stream, b"hello")).await.unwrap();

    mesh.control.remove_service(&service);
    server.workload.services.clear();
    mesh.control.publish_workload(&server.workload);
    mesh.synced().await;
    assert_eq!(refused(client.host(), to).await.kind(), ErrorKind::ConnectionReset);
    mesh.node("node-1").log.line(&["10.96.0.9:80 was part of the mesh until a moment ago"]).await;

    // The pod itself: nobody's address, until another pod has it.
    mesh.control.remove_workload(&server.workload.uid);
    mesh.synced().await;
    let to = server.app(server.v4);
    assert_eq!(refused(client.host(), to).await.kind(), ErrorKind::ConnectionReset);
    mesh.node("node-1").log.line(&[&format!("{to} was part of the mesh until a moment ago")]).await;
    mesh.control.publish_workload(&server.workload);
    mesh.synced().await;
    let stream = soon("connect", client.host().connect(to)).await.unwrap();
    soon("an answer", exchange(stream, b"hello")).await.unwrap();
}
