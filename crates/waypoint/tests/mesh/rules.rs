//! What DestinationRules say of a service's endpoints.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use leno_model::http::{
    Abort, Backend, BackendTarget, Balancing, Ejection, EndpointPolicy, EndpointRules, Fault, HashOf, Parent, Policy,
    PolicyAction, PolicyRule, PolicyTarget, RequestDefaults, Retry, RetryBudget, Route, RouteKind, RouteName, Rule,
};
use leno_model::{AppProtocol, PolicyName, Service};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::balance::{Asker, endpoint};
use crate::support::{Mesh, server, soon};

/// Publishes rules for all ports of a service.
async fn rules(mesh: &Mesh, service: &Service, rules: EndpointRules) {
    mesh.control.publish_endpoint_policy(&EndpointPolicy {
        id: PolicyName { namespace: "default".into(), name: "rule".into() },
        services: vec![service.id.clone()],
        rules,
        ports: Vec::new(),
    });
    mesh.control.synced(1).await;
}

fn ejection() -> Ejection {
    Ejection {
        consecutive_5xx: Some(3),
        consecutive_gateway: None,
        consecutive_local: None,
        split_local: false,
        interval: Duration::from_secs(10),
        base: Duration::from_secs(600),
        max_percent: 50,
        min_health_percent: 0,
    }
}

fn deny_all(service: &Service) -> Policy {
    Policy {
        targets: vec![PolicyTarget::Service(service.id.clone())],
        rules: vec![PolicyRule::default()],
        ..Policy::new(PolicyName { namespace: "default".into(), name: "nobody".into() }, PolicyAction::Deny)
    }
}

/// The value of a counter.
async fn counter(mesh: &Mesh, name: &str) -> u64 {
    let metrics = mesh.metrics().await;
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
}

/// An endpoint that answers when it is told to, with the connections that it has and has had.
pub(crate) struct Held {
    pub(crate) address: SocketAddr,
    pub(crate) answer: tokio::sync::watch::Sender<bool>,
    open: Arc<AtomicUsize>,
    ever: Arc<AtomicUsize>,
    pub(crate) asked: Arc<AtomicUsize>,
}

pub(crate) async fn held() -> Held {
    let (answer, told) = tokio::sync::watch::channel(false);
    let [open, ever, asked] = [(); 3].map(|()| Arc::<AtomicUsize>::default());
    let (of_open, of_ever, of_asked) = (open.clone(), ever.clone(), asked.clone());
    let address = server(move |mut stream| {
        let (open, ever, asked, mut told) = (of_open.clone(), of_ever.clone(), of_asked.clone(), told.clone());
        async move {
            open.fetch_add(1, Relaxed);
            ever.fetch_add(1, Relaxed);
            let mut read = [0; 4096];
            while stream.read(&mut read).await.is_ok_and(|length| length > 0) {
                asked.fetch_add(1, Relaxed);
                let _ = told.wait_for(|answer| *answer).await;
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
            }
            open.fetch_sub(1, Relaxed);
        }
    })
    .await;
    Held { address, answer, open, ever, asked }
}

pub(crate) async fn until(what: &str, holds: impl Fn() -> bool) {
    soon(what, async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_requests_are_refused() {
    let mesh = Mesh::new().await;
    let held = held().await;
    let web = mesh.service(AppProtocol::Http11, &[held.address]).await;
    rules(&mesh, &web, EndpointRules { max_requests: Some(1), ..EndpointRules::default() }).await;
    let (mut one, mut other) = (Asker::new(&mesh).await, Asker::new(&mesh).await);
    let first = tokio::spawn(async move { one.ask("").await });
    until("the first request", || held.asked.load(Relaxed) == 1).await;
    let refused = other.ask("").await;
    assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("x-envoy-overloaded: true"), "{refused}");
    mesh.log.line(&["response_code=503", "response_flags=\"UO\"", "1 open requests"]).await;
    held.answer.send_replace(true);
    assert!(first.await.unwrap().starts_with("HTTP/1.1 200 "));
    assert!(other.ask("").await.starts_with("HTTP/1.1 200 "), "there is room again");
    assert_eq!(counter(&mesh, "leno_connection_pool_overflows_total").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_wait_for_a_connection_and_few_may() {
    let mesh = Mesh::new().await;
    let held = held().await;
    let web = mesh.service(AppProtocol::Http11, &[held.address]).await;
    let limits = EndpointRules { max_connections: Some(1), max_pending: Some(1), ..EndpointRules::default() };
    rules(&mesh, &web, limits).await;
    let mut askers = Vec::new();
    for _ in 0..3 {
        askers.push(Asker::new(&mesh).await);
    }
    let ask = |mut asker: Asker| tokio::spawn(async move { (asker.ask("").await, asker) });
    let first = ask(askers.pop().unwrap());
    until("the first request", || held.asked.load(Relaxed) == 1).await;
    // One of them waits, the other finds no place to wait in.
    let (mut second, mut third) = (ask(askers.pop().unwrap()), ask(askers.pop().unwrap()));
    let (refused, waits) = tokio::select! {
        refused = &mut second => (refused.unwrap().0, third),
        refused = &mut third => (refused.unwrap().0, second),
    };
    assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
    mesh.log.line(&["response_flags=\"UO\"", "1 requests that wait for a connection"]).await;
    held.answer.send_replace(true);
    for answered in [first, waits] {
        assert!(soon("an answer", answered).await.unwrap().0.starts_with("HTTP/1.1 200 "));
    }
    assert_eq!((held.ever.load(Relaxed), held.open.load(Relaxed)), (1, 1), "one connection for all");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_to_another_endpoint_makes_room() {
    let mesh = Mesh::new().await;
    let (one, other) = (held().await, held().await);
    for held in [&one, &other] {
        held.answer.send_replace(true);
    }
    let web = mesh.service(AppProtocol::Http11, &[one.address, other.address]).await;
    let balancing = Some(Balancing::RoundRobin);
    rules(&mesh, &web, EndpointRules { balancing, max_connections: Some(1), ..EndpointRules::default() }).await;
    let mut asker = Asker::new(&mesh).await;
    for _ in 0..6 {
        assert!(asker.ask("").await.starts_with("HTTP/1.1 200 "));
    }
    assert_eq!((one.asked.load(Relaxed), other.asked.load(Relaxed)), (3, 3));
    until("one connection", || one.open.load(Relaxed) + other.open.load(Relaxed) == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_carries_so_many_requests() {
    let mesh = Mesh::new().await;
    let held = held().await;
    held.answer.send_replace(true);
    let web = mesh.service(AppProtocol::Http11, &[held.address]).await;
    rules(&mesh, &web, EndpointRules { max_requests_per_connection: Some(2), ..EndpointRules::default() }).await;
    let mut asker = Asker::new(&mesh).await;
    for _ in 0..6 {
        asker.ask("").await;
    }
    assert_eq!((held.asked.load(Relaxed), held.ever.load(Relaxed)), (6, 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_fails_is_left_out_and_comes_back() {
    let mesh = Mesh::new().await;
    let (good, of_good) = endpoint(Duration::ZERO, "200 OK").await;
    let (bad, of_bad) = endpoint(Duration::ZERO, "500 Broken").await;
    let web = mesh.service(AppProtocol::Http11, &[good, bad]).await;
    let ejection = Some(Ejection { base: Duration::from_millis(300), ..ejection() });
    rules(&mesh, &web, EndpointRules { balancing: Some(Balancing::RoundRobin), ejection, ..EndpointRules::default() })
        .await;
    let mut asker = Asker::new(&mesh).await;
    for _ in 0..6 {
        asker.ask("").await;
    }
    assert_eq!((of_good.load(Relaxed), of_bad.load(Relaxed)), (3, 3));
    assert_eq!(counter(&mesh, "leno_endpoint_ejections_total").await, 1);
    // Until it is back: its time is over, or this machine was slow.
    soon("its return", async {
        while of_bad.load(Relaxed) == 3 {
            asker.ask("").await;
        }
    })
    .await;
    assert!(of_good.load(Relaxed) > 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn never_more_endpoints_are_left_out_than_may_be() {
    let mesh = Mesh::new().await;
    let (one, of_one) = endpoint(Duration::ZERO, "500 Broken").await;
    let (other, of_other) = endpoint(Duration::ZERO, "503 Busy").await;
    let web = mesh.service(AppProtocol::Http11, &[one, other]).await;
    let balancing = Some(Balancing::RoundRobin);
    rules(&mesh, &web, EndpointRules { balancing, ejection: Some(ejection()), ..EndpointRules::default() }).await;
    let mut asker = Asker::new(&mesh).await;
    for _ in 0..20 {
        asker.ask("").await;
    }
    assert_eq!(counter(&mesh, "leno_endpoint_ejections_total").await, 1);
    let counts = [of_one.load(Relaxed), of_other.load(Relaxed)];
    assert!(counts.contains(&3) && counts[0] + counts[1] == 20, "{counts:?}");
    // If all may be, the last two are both left out, and then neither is.
    let ejection = Ejection { max_percent: 100, ..ejection() };
    rules(
        &mesh,
        &web,
        EndpointRules { balancing: Some(Balancing::RoundRobin), ejection: Some(ejection), ..EndpointRules::default() },
    )
    .await;
    for _ in 0..20 {
        assert!(asker.ask("").await.starts_with("HTTP/1.1 50"));
    }
    assert_eq!(counter(&mesh, "leno_endpoint_ejections_total").await, 2);
    assert!(of_one.load(Relaxed) > 4 && of_other.load(Relaxed) > 4, "all are asked again");
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_values_go_to_the_same_endpoint() {
    let mesh = Mesh::new().await;
    let mut counts = Vec::new();
    let mut addresses = Vec::new();
    for _ in 0..3 {
        let (address, asked) = endpoint(Duration::ZERO, "200 OK").await;
        addresses.push(address);
        counts.push(asked);
    }
    let web = mesh.service(AppProtocol::Http11, &addresses).await;
    let balancing = Some(Balancing::Hash(HashOf::Header("x-user".into())));
    rules(&mesh, &web, EndpointRules { balancing, ..EndpointRules::default() }).await;
    let mut asker = Asker::new(&mesh).await;
    let mut used = [0; 3];
    for user in 0..20 {
        let before: Vec<_> = counts.iter().map(|count| count.load(Relaxed)).collect();
        for _ in 0..3 {
            asker.ask(&format!("x-user: {user}\r\n")).await;
        }
        let more: Vec<_> = counts.iter().zip(before).map(|(count, before)| count.load(Relaxed) - before).collect();
        let place = more.iter().position(|more| *more == 3);
        used[place.unwrap_or_else(|| panic!("{more:?}"))] += 1;
    }
    assert!(used.iter().all(|used| *used > 0), "{used:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_is_sent_again_than_the_budget_has() {
    let mesh = Mesh::new().await;
    let (busy, asked) = endpoint(Duration::ZERO, "503 Busy").await;
    let web = mesh.service(AppProtocol::Http11, &[busy]).await;
    let target = BackendTarget::Service { service: web.id.clone(), port: 80 };
    let retry = Retry { codes: vec![503], attempts: Some(2), backoff: Some(Duration::from_millis(1)) };
    mesh.control.publish_route(&Route {
        id: RouteName { kind: RouteKind::Http, namespace: "default".into(), name: "route".into() },
        created: 1,
        parents: vec![Parent { service: web.id.clone(), port: None, consumer: None }],
        hostnames: Vec::new(),
        rules: vec![Rule {
            backends: vec![Backend { weight: 1, target, filters: Vec::new() }],
            retry: Some(retry),
            ..Rule::default()
        }],
        not_understood: None,
    });
    mesh.control.synced(1).await;
    let mut asker = Asker::new(&mesh).await;
    assert!(asker.ask("").await.starts_with("HTTP/1.1 503 "));
    assert_eq!(asked.load(Relaxed), 3, "some are always allowed");
    let retry_budget = Some(RetryBudget { per_million: 200_000, at_least: 0 });
    rules(&mesh, &web, EndpointRules { retry_budget, ..EndpointRules::default() }).await;
    assert!(asker.ask("").await.starts_with("HTTP/1.1 503 "));
    assert_eq!(asked.load(Relaxed), 4, "a fifth of one request is none");
    assert_eq!(counter(&mesh, "leno_retries_refused_total").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_without_a_route_fail_late_or_are_sent_again_as_is_said() {
    let mesh = Mesh::new().await;
    let (busy, asked) = endpoint(Duration::ZERO, "503 Busy").await;
    let web = mesh.service(AppProtocol::Http11, &[busy]).await;
    let mut defaults = RequestDefaults {
        id: PolicyName { namespace: "default".into(), name: "web".into() },
        services: vec![web.id.clone()],
        timeout: None,
        attempt_timeout: None,
        retry: None,
        fault: Some(Fault { delay: None, abort: Some((1_000_000, Abort::Status(418))) }),
    };
    let publish = async |defaults: &RequestDefaults| {
        mesh.control.publish_request_defaults(defaults);
        mesh.control.synced(1).await;
    };
    publish(&defaults).await;
    let mut asker = Asker::new(&mesh).await;
    assert!(asker.ask("").await.starts_with("HTTP/1.1 418 "));
    assert_eq!(asked.load(Relaxed), 0);
    mesh.log.line(&["response_code=418", "response_flags=\"FI\""]).await;
    // A gRPC client gets a gRPC status.
    defaults.fault = Some(Fault { delay: None, abort: Some((1_000_000, Abort::Grpc(8))) });
    publish(&defaults).await;
    let answer = asker.ask("content-type: application/grpc\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("grpc-status: 8"), "{answer}");
    // It waits, and is sent again.
    let wait = Duration::from_millis(100);
    defaults.fault = Some(Fault { delay: Some((1_000_000, wait)), abort: None });
    defaults.retry = Some(Retry { codes: vec![503], attempts: Some(2), backoff: Some(Duration::from_millis(1)) });
    publish(&defaults).await;
    let began = std::time::Instant::now();
    assert!(asker.ask("").await.starts_with("HTTP/1.1 503 "));
    assert!(began.elapsed() >= wait && asked.load(Relaxed) == 3, "{:?}", began.elapsed());
    // A limit holds.
    let (slow, _) = endpoint(Duration::from_secs(30), "200 OK").await;
    mesh.control.remove_workload("Kubernetes//Pod/default/web-0");
    mesh.endpoint(&web, 1, slow, leno_model::TunnelProtocol::None);
    (defaults.fault, defaults.timeout) = (None, Some(Duration::from_millis(50)));
    publish(&defaults).await;
    assert!(asker.ask("").await.starts_with("HTTP/1.1 504 "));
}

/// A service all of whose requests wait on purpose.
async fn delayed(mesh: &Mesh, wait: Duration) -> (Service, Arc<AtomicUsize>) {
    let (fast, asked) = endpoint(Duration::ZERO, "200 OK").await;
    let web = mesh.service(AppProtocol::Http11, &[fast]).await;
    mesh.control.publish_request_defaults(&RequestDefaults {
        id: PolicyName { namespace: "default".into(), name: "web".into() },
        services: vec![web.id.clone()],
        timeout: None,
        attempt_timeout: None,
        retry: None,
        fault: Some(Fault { delay: Some((1_000_000, wait)), abort: None }),
    });
    mesh.control.synced(1).await;
    (web, asked)
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_refused_waits_for_no_fault() {
    let mesh = Mesh::new().await;
    let (web, asked) = delayed(&mesh, Duration::from_secs(600)).await;
    mesh.control.publish_request_policy(&deny_all(&web));
    mesh.control.synced(1).await;
    let answer = Asker::new(&mesh).await.ask("").await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    assert_eq!(asked.load(Relaxed), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_a_fault_is_judged_afterwards() {
    // The policy has to come while a request waits. Where it comes later, this shows nothing, and needs a longer wait.
    for wait in [1, 3, 9].map(Duration::from_secs) {
        let mesh = Mesh::new().await;
        let (web, asked) = delayed(&mesh, wait).await;
        let mut asker = Asker::new(&mesh).await;
        let waiting = tokio::spawn(async move { asker.ask("").await });
        let begun = async {
            while !mesh.connections().await.contains("\"GET\"") {
                tokio::task::yield_now().await;
            }
        };
        soon("the request", begun).await;
        mesh.control.publish_request_policy(&deny_all(&web));
        mesh.control.synced(1).await;
        if waiting.is_finished() {
            continue;
        }
        let late = waiting.await.unwrap();
        assert!(late.starts_with("HTTP/1.1 403 "), "{late}");
        assert_eq!(asked.load(Relaxed), 0);
        return;
    }
    panic!("no policy comes within nine seconds");
}
