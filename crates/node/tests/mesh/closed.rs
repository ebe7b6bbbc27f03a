//! If something is missing, nothing passes, and the log says what is missing.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use leno_capture::links::{self, Route};
use leno_model::{Action, Authorization, Clause, Match, PolicyName, Rule, Scope, StringMatch};
use leno_node::OriginalSource;
use leno_testkit::network::may_run;

use crate::support::{APP, Mesh, echo, exchange, pair, read_error, refused, soon};

#[tokio::test]
async fn a_service_without_endpoints_refuses() {
    if !may_run("a_service_without_endpoints_refuses") {
        return;
    }
    let mut mesh = Mesh::new().await;
    let client = mesh.pod("client", "node-1").await;
    let vip: IpAddr = "10.96.0.9".parse().unwrap();
    mesh.service("empty", &[vip], &mut []).await;
    for (port, reason) in [
        (80, "no healthy endpoint for service default/empty.default.svc.cluster.local port 80"),
        (81, "service default/empty.default.svc.cluster.local has no port 81"),
    ] {
        let error = refused(client.host(), SocketAddr::new(vip, port)).await;
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        mesh.node("node-1").log.line(&[reason, "src.workload=\"client\"", "dst.service="]).await;
    }
}

#[tokio::test]
async fn a_policy_that_never_came_denies() {
    if !may_run("a_policy_that_never_came_denies") {
        return;
    }
    let mut mesh = Mesh::with(|config| config.proxy.workload_timeout = Duration::from_millis(300)).await;
    let client = mesh.pod("client", "node-1").await;
    let mut server = mesh.pod("server", "node-2").await;
    echo(server.listen());
    let name = PolicyName { namespace: "default".into(), name: "late".into() };
    server.workload.authorization_policies = vec![name.clone()];
    mesh.control.publish_workload(&server.workload);
    mesh.synced().await;

    let error = refused(client.host(), server.app(server.v4)).await;
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let reason = "policy default/late applies to default/server but has not arrived from the control plane";
    mesh.node("node-2").log.line(&[reason, "src.workload=\"client\""]).await;
    mesh.node("node-1").log.line(&["denied by its authorization policies (401)"]).await;
    // Nor does plaintext.
    let outside = mesh.network.outside();
    assert_eq!(refused(outside, server.app(server.v4)).await.kind(), ErrorKind::ConnectionReset);
    mesh.node("node-2").log.line(&[reason, "src.addr=10.77.0.1:"]).await;
    let metrics = mesh.node("node-2").metrics().await;
    assert!(metrics.contains("response_flags=\"DENY\""), "{metrics}");

    // When the policy has come, it decides.
    let rule =
        Match { principals: vec![StringMatch::Exact("cluster.local/ns/default/sa/client".into())], ..Match::default() };
    mesh.control.publish_policy(&Authorization {
        id: name,
        scope: Scope::WorkloadSelector,
        action: Action::Allow,
        rules: vec![Rule { clauses: vec![Clause { matches: vec![rule] }] }],
        dry_run: false,
        not_understood: None,
    });
    mesh.synced().await;
    let stream = soon("connect", client.host().connect(server.app(server.v4))).await.unwrap();
    soon("an answer", exchange(stream, b"hello")).await.unwrap();
    let outside = mesh.network.outside();
    assert_eq!(refused(outside, server.app(server.v4)).await.kind(), ErrorKind::ConnectionReset);
    mesh.node("node-2").log.line(&["no ALLOW policy of default/server matched (checked default/late)"]).await;
}

/// Everything that arrives at a pod's link is redirected to its proxy, whatever its destination.
#[tokio::test]
async fn what_is_meant_for_others_is_not_passed_on() {
    if !may_run("what_is_meant_for_others_is_not_passed_on") {
        return;
    }
    // From the caller's own address the answers of a neighbour would not find back to the proxy.
    let mut mesh = Mesh::with(|config| config.pods.original_source = OriginalSource::False).await;
    let pod = mesh.pod("pod", "node-1").await;
    let other = mesh.uncaptured_pod("other", "node-1");
    let outside = mesh.network.outside();
    // The pod's own, of which the control plane has not heard.
    let second: IpAddr = "192.0.2.7".parse().unwrap();
    links::add_address(pod.network.namespace(), "lo", second, 32).unwrap();
    for (address, via) in [(other.v4, pod.v4), (other.v6, pod.v6), (second, pod.v4)] {
        links::add_route(outside.namespace, &Route::host(address).via(via)).unwrap();
    }
    for address in [other.v4, other.v6] {
        echo(other.host().listen(address, APP));
        let there = other.app(address);
        assert_eq!(refused(outside, there).await.kind(), ErrorKind::ConnectionReset);
        let reason = format!("{there} is not an address that others may reach this pod at");
        mesh.started("node-1").log.line(&[&reason, "direction=\"inbound\""]).await;
    }
    let metrics = mesh.started("node-1").metrics().await;
    assert!(metrics.contains("response_flags=\"CONNECT\""), "{metrics}");

    for own in [pod.v4, second] {
        echo(pod.host().listen(own, APP));
        let stream = soon("connect", outside.connect(SocketAddr::new(own, APP))).await.unwrap();
        soon("an answer", exchange(stream, b"hello")).await.unwrap();
    }
}

#[tokio::test]
async fn without_a_control_plane_nothing_passes() {
    if !may_run("without_a_control_plane_nothing_passes") {
        return;
    }
    const WAIT: Duration = Duration::from_millis(300);
    // Nobody listens there.
    let nowhere = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut mesh = Mesh::with(move |config| {
        config.proxy.xds_address = format!("https://{nowhere}");
        config.proxy.workload_timeout = WAIT;
    })
    .await;
    let pod = mesh.unpublished_pod("pod", "node-1").await;
    let outside = mesh.network.outside();
    echo(outside.listen(outside.v4, APP));
    echo(pod.listen());
    for (from, to) in [(pod.host(), SocketAddr::new(outside.v4, APP)), (outside, pod.app(pod.v4))] {
        let begun = Instant::now();
        assert_eq!(refused(from, to).await.kind(), ErrorKind::ConnectionReset);
        let took = begun.elapsed();
        assert!(took >= WAIT, "{took:?}");
    }
    let log = mesh.node("node-1").log.clone();
    let reason = "pod default/pod is not known to the control plane after 300ms";
    log.line(&[reason, "direction=\"outbound\""]).await;
    log.line(&[reason, "direction=\"inbound\""]).await;
    let ready = mesh.node("node-1").proxy().endpoints().readiness;
    let page = mesh.node("node-1").get(ready, "/healthz/ready").await;
    assert!(page.starts_with("HTTP/1.1 500") && page.contains("state manager"), "{page}");
}

#[tokio::test]
async fn a_refused_certificate_refuses_connections() {
    if !may_run("a_refused_certificate_refuses_connections") {
        return;
    }
    let mut mesh = Mesh::with(|config| config.proxy.certificate_timeout = Duration::from_millis(300)).await;
    mesh.control.refuse_certificates("no pod of this identity runs on node-1");
    let client = mesh.pod("client", "node-1").await;
    let server = mesh.pod("server", "node-1").await;
    mesh.synced().await;
    echo(server.listen());
    let error = refused(client.host(), server.app(server.v4)).await;
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let reason = "no certificate for spiffe://cluster.local/ns/default/sa/client";
    let line = mesh.node("node-1").log.line(&[reason]).await;
    assert!(line.contains("no pod of this identity runs on node-1"), "{line}");
    let outside = mesh.network.outside();
    let tcp = soon("connect", outside.connect(SocketAddr::new(server.v4, 15008))).await.unwrap();
    let peer = mesh.certificate(&leno_testkit::certs::Leaf::uri("spiffe://cluster.local/ns/default/sa/x"));
    assert!(soon("TLS", leno_testkit::hbone::tls(tcp, Some(&peer))).await.is_err());
    mesh.node("node-1").log.line(&["no certificate for spiffe://cluster.local/ns/default/sa/server"]).await;
}

#[tokio::test]
async fn a_dead_proxy_lets_nothing_pass_and_a_new_one_takes_over() {
    if !may_run("a_dead_proxy_lets_nothing_pass_and_a_new_one_takes_over") {
        return;
    }
    let mut mesh = Mesh::new().await;
    let client = mesh.pod("client", "node-1").await;
    let server = mesh.pod("server", "node-1").await;
    mesh.synced().await;
    echo(server.listen());
    let attempt = async || exchange(client.host().connect(server.app(server.v4)).await?, b"hello").await;
    soon("an answer", attempt()).await.unwrap();

    drop(mesh.take_proxy("node-1"));
    assert_eq!(soon("a refusal", attempt()).await.unwrap_err().kind(), ErrorKind::ConnectionRefused);
    let outside = mesh.network.outside();
    assert_eq!(refused(outside, server.app(server.v4)).await.kind(), ErrorKind::ConnectionRefused);

    mesh.restart_proxy("node-1").await;
    soon("an answer", attempt()).await.unwrap();
}

#[tokio::test]
async fn a_workload_from_the_future_is_cut_off_both_ways() {
    if !may_run("a_workload_from_the_future_is_cut_off_both_ways") {
        return;
    }
    let mut mesh = Mesh::new().await;
    let client = mesh.pod("client", "node-1").await;
    let server = mesh.pod("server", "node-2").await;
    mesh.synced().await;
    let (mut near, mut far) = pair(&client, &server).await;

    let mut newer = leno_proto::workload_to_proto(&server.workload);
    newer.tunnel_protocol = 99;
    let newer = leno_proto::workload::Address { r#type: Some(leno_proto::workload::address::Type::Workload(newer)) };
    mesh.control.publish_address(&server.workload.uid, &newer);
    // Which policies govern what is live is not known any more.
    assert_eq!(read_error(&mut near).await, ErrorKind::ConnectionReset);
    assert_eq!(read_error(&mut far).await, ErrorKind::ConnectionReset);
    mesh.synced().await;
    echo(server.listen());
    let outside = mesh.network.outside();
    echo(outside.listen(outside.v4, APP));
    for (from, to) in [
        (client.host(), server.app(server.v4)),
        (outside, server.app(server.v4)),
        (server.host(), SocketAddr::new(outside.v4, APP)),
    ] {
        assert_eq!(refused(from, to).await.kind(), ErrorKind::ConnectionReset);
    }
    let reason = "the control plane describes workload default/server in a way this proxy does not understand \
                  (tunnel_protocol has the unknown value 99";
    mesh.node("node-1").log.line(&[reason, "src.workload=\"client\""]).await;
    mesh.node("node-2").log.line(&[reason, "direction=\"inbound\"", "src.addr=10.77.0.1:"]).await;
    mesh.node("node-2").log.line(&[reason, "direction=\"outbound\""]).await;

    mesh.control.publish_workload(&server.workload);
    mesh.synced().await;
    let stream = soon("connect", client.host().connect(server.app(server.v4))).await.unwrap();
    soon("an answer", exchange(stream, b"hello")).await.unwrap();
}
