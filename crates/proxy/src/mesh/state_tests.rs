use std::time::Duration;

use futures_util::future::BoxFuture;
use leno_proto::security;
use leno_tls::{IssueError, Issuer, Options};

use super::*;

/// Signs nothing: these tests are about the mesh.
struct NoIssuer;

impl Issuer for NoIssuer {
    fn issue(&self, _: &Identity, _: String, _: Duration) -> BoxFuture<'_, Result<Vec<String>, IssueError>> {
        Box::pin(std::future::pending())
    }
}

fn feed() -> (Arc<MeshState>, Feed) {
    let state = Arc::new(MeshState::default());
    let certificates = Arc::new(CertificateManager::new(Arc::new(NoIssuer), Options::default()));
    (state.clone(), Feed::new(state, certificates, Some("node-1".to_owned())))
}

fn upsert(name: &str, body: impl Message) -> Update {
    Update::Upsert { name: name.into(), body: body.encode_to_vec().into() }
}

fn policy(scope: security::Scope, valid: bool) -> security::Authorization {
    let principal = security::StringMatch { match_type: None };
    let matches = security::Match { principals: vec![principal], ..Default::default() };
    let clause = security::Clause { matches: vec![matches] };
    security::Authorization {
        name: "p".to_owned(),
        namespace: "ns".to_owned(),
        scope: scope.into(),
        action: security::Action::Deny.into(),
        rules: if valid { vec![] } else { vec![security::Rule { clauses: vec![clause] }] },
        ..Default::default()
    }
}

#[tokio::test]
async fn a_policy_that_cannot_be_understood_closes_what_it_would_have_guarded() {
    let (state, mut feed) = feed();
    for scope in [security::Scope::Namespace, security::Scope::Global] {
        let rejected = feed.apply(AUTHORIZATION_TYPE, vec![upsert("ns/p", policy(scope, false))]);
        assert_eq!(rejected.len(), 1);
        let mesh = state.load();
        let workload = Workload::new("w", "ns", "w");
        let connection = leno_policy::Connection {
            source: None,
            source_ip: std::net::Ipv4Addr::LOCALHOST.into(),
            destination: std::net::SocketAddr::from((std::net::Ipv4Addr::LOCALHOST, 1)),
        };
        assert!(!leno_policy::authorize(&mesh, &workload, &connection).is_allowed(), "{scope:?}");
        feed.apply(AUTHORIZATION_TYPE, vec![Update::Remove { name: "ns/p".into() }]);
        assert!(leno_policy::authorize(&state.load(), &workload, &connection).is_allowed(), "{scope:?}");
    }
}

#[tokio::test]
async fn nothing_is_complete_before_policies_have_been_told_too() {
    let (state, mut feed) = feed();
    feed.apply(ADDRESS_TYPE, vec![]);
    feed.synced(ADDRESS_TYPE);
    assert!(!state.is_complete());
    feed.apply(AUTHORIZATION_TYPE, vec![]);
    feed.synced(AUTHORIZATION_TYPE);
    assert!(state.is_complete());
}

fn admits(state: &MeshState, namespace: &str) -> bool {
    let workload = Workload::new("w", namespace, "w");
    let at = std::net::Ipv4Addr::LOCALHOST;
    let connection = leno_policy::Connection {
        source: None,
        source_ip: at.into(),
        destination: std::net::SocketAddr::from((at, 1)),
    };
    leno_policy::authorize(&state.load(), &workload, &connection).is_allowed()
}

#[tokio::test]
async fn a_bad_change_of_a_good_policy_closes_until_a_good_one_comes() {
    let (state, mut feed) = feed();
    assert!(feed.apply(AUTHORIZATION_TYPE, vec![upsert("ns/p", policy(security::Scope::Namespace, true))]).is_empty());
    assert!(admits(&state, "ns"));
    let bad = upsert("ns/p", policy(security::Scope::Namespace, false));
    assert_eq!(feed.apply(AUTHORIZATION_TYPE, vec![bad]).len(), 1);
    assert!(!admits(&state, "ns") && admits(&state, "other"));
    assert!(feed.apply(AUTHORIZATION_TYPE, vec![upsert("ns/p", policy(security::Scope::Namespace, true))]).is_empty());
    assert!(admits(&state, "ns"));
}

#[tokio::test]
async fn a_policy_that_may_apply_anywhere_closes_everything() {
    let (state, mut feed) = feed();
    let future = security::Authorization { scope: 99, ..policy(security::Scope::Namespace, true) };
    let garbage = Update::Upsert { name: "ns/p".into(), body: Bytes::from_static(b"\xff\xff") };
    let missing = Update::Unreadable { name: "ns/p".into(), reason: "why".to_owned() };
    for update in [upsert("ns/p", future), garbage, missing] {
        assert_eq!(feed.apply(AUTHORIZATION_TYPE, vec![update]).len(), 1);
        assert!(!admits(&state, "ns") && !admits(&state, "other"));
        feed.apply(AUTHORIZATION_TYPE, vec![Update::Remove { name: "ns/p".into() }]);
        assert!(admits(&state, "ns"));
    }
}

const POD: &str = "c//Pod/ns/server";

fn pod(change: impl FnOnce(&mut wire::Workload)) -> wire::Address {
    let mut server = Workload::new(POD, "ns", "server");
    server.addresses = vec!["10.0.0.9".parse().expect("address")];
    let mut server = leno_proto::workload_to_proto(&server);
    change(&mut server);
    wire::Address { r#type: Some(wire::address::Type::Workload(server)) }
}

fn web(change: impl FnOnce(&mut wire::Service)) -> wire::Address {
    let mut web = Service::new("ns", "web", "web.example.com");
    web.addresses = vec![NetworkAddress { network: "".into(), address: "10.96.0.1".parse().expect("address") }];
    let mut web = leno_proto::service_to_proto(&web);
    change(&mut web);
    wire::Address { r#type: Some(wire::address::Type::Service(web)) }
}

/// What becomes of a connection to this address: carried in some way, or refused with a reason.
fn to(state: &MeshState, address: &str) -> Result<&'static str, String> {
    let client = Workload::new("c//Pod/ns/client", "ns", "client");
    let destination = std::net::SocketAddr::new(address.parse().expect("address"), 80);
    let plan = leno_policy::route(&state.load(), &client, destination, &mut || 0).map_err(|e| e.to_string())?;
    Ok(match plan.attempts()[0] {
        leno_policy::Route::Hbone { .. } => "HBONE",
        leno_policy::Route::Plain { .. } => "plain",
        leno_policy::Route::Passthrough { .. } => "passthrough",
    })
}

fn resolves(state: &MeshState, name: &str) -> leno_policy::dns::DnsAnswer {
    let family = leno_policy::dns::Family::V4;
    leno_policy::dns::resolve(
        &state.load(),
        leno_policy::dns::Client { namespace: "ns", network: &"".into() },
        "cluster.local",
        name,
        family,
        &mut || 0,
    )
}

#[tokio::test]
async fn an_address_that_cannot_be_understood_is_nobodys_to_talk_to() {
    let garbage = |name: &str| Update::Upsert { name: name.into(), body: Bytes::from_static(b"\xff\xff") };
    let missing = |name: &str| Update::Unreadable { name: name.into(), reason: "why".to_owned() };
    // Whether there was a good one before, and what comes; without one, what can't be read at
    // all can't be closed.
    let future = || upsert(POD, pod(|w| w.tunnel_protocol = 99));
    let other = || upsert(POD, pod(|w| w.uid = "another".to_owned()));
    for (good_before, bad) in [
        (false, future()),
        (true, future()),
        (false, other()),
        (true, other()),
        (true, garbage(POD)),
        (true, missing(POD)),
    ] {
        let (state, mut feed) = feed();
        if good_before {
            assert!(feed.apply(ADDRESS_TYPE, vec![upsert(POD, pod(|_| {}))]).is_empty());
            assert_eq!(to(&state, "10.0.0.9").as_deref(), Ok("plain"));
        }
        let told = format!("{bad:?}");
        assert_eq!(feed.apply(ADDRESS_TYPE, vec![bad]).len(), 1);
        let reason = to(&state, "10.0.0.9").expect_err(&told);
        assert!(reason.contains("describes workload ns/server in a way this proxy does not understand"), "{reason}");
        // Until a good version or a removal comes.
        assert!(feed.apply(ADDRESS_TYPE, vec![upsert(POD, pod(|w| w.tunnel_protocol = 1))]).is_empty());
        assert_eq!(to(&state, "10.0.0.9").as_deref(), Ok("HBONE"));
        feed.apply(ADDRESS_TYPE, vec![upsert(POD, pod(|w| w.tunnel_protocol = 99))]);
        assert!(feed.apply(ADDRESS_TYPE, vec![Update::Remove { name: POD.into() }]).is_empty());
        assert_eq!(to(&state, "10.0.0.9").as_deref(), Ok("passthrough"));
    }
}

#[tokio::test]
async fn a_service_that_cannot_be_understood_is_closed_by_address_and_by_name() {
    use leno_policy::dns::DnsAnswer;
    const NAME: &str = "ns/web.example.com";
    let garbage = || Update::Upsert { name: NAME.into(), body: Bytes::from_static(b"\xff\xff") };
    let future = || upsert(NAME, web(|s| s.ip_families = 99));
    let other = || upsert(NAME, web(|s| s.hostname = "another".to_owned()));
    for (good_before, bad) in [(false, future()), (true, future()), (false, other()), (true, garbage())] {
        let (state, mut feed) = feed();
        if good_before {
            assert!(feed.apply(ADDRESS_TYPE, vec![upsert(NAME, web(|_| {}))]).is_empty());
        }
        assert_eq!(feed.apply(ADDRESS_TYPE, vec![bad]).len(), 1);
        let reason = to(&state, "10.96.0.1").expect_err("closed");
        assert!(reason.contains("describes service ns/web.example.com in a way"), "{reason}");
        assert!(matches!(resolves(&state, "web.example.com"), DnsAnswer::Records { .. }));
        feed.apply(ADDRESS_TYPE, vec![Update::Remove { name: NAME.into() }]);
        assert_eq!(to(&state, "10.96.0.1").as_deref(), Ok("passthrough"));
        assert_eq!(resolves(&state, "web.example.com"), DnsAnswer::NotMine);
    }
    // Its name is all that is known; nobody else is asked about it.
    let (state, mut feed) = feed();
    assert_eq!(feed.apply(ADDRESS_TYPE, vec![garbage()]).len(), 1);
    assert_eq!(resolves(&state, "web.example.com"), DnsAnswer::NoData);
}

#[tokio::test]
async fn a_name_that_turns_into_the_other_kind_leaves_nothing_open() {
    let (state, mut feed) = feed();
    assert!(feed.apply(ADDRESS_TYPE, vec![upsert(POD, pod(|_| {}))]).is_empty());
    assert_eq!(feed.apply(ADDRESS_TYPE, vec![upsert(POD, web(|_| {}))]).len(), 1);
    assert!(to(&state, "10.0.0.9").is_err() && to(&state, "10.96.0.1").is_err());
    assert!(feed.apply(ADDRESS_TYPE, vec![upsert(POD, pod(|_| {}))]).is_empty());
    assert_eq!(to(&state, "10.0.0.9").as_deref(), Ok("plain"), "and nothing closed once it is good again");
    assert_eq!(to(&state, "10.96.0.1").as_deref(), Ok("passthrough"));
    assert_eq!(feed.apply(ADDRESS_TYPE, vec![upsert(POD, web(|_| {}))]).len(), 1);
    feed.apply(ADDRESS_TYPE, vec![Update::Remove { name: POD.into() }]);
    assert_eq!(to(&state, "10.0.0.9").as_deref(), Ok("passthrough"));
    assert_eq!(to(&state, "10.96.0.1").as_deref(), Ok("passthrough"));
}

#[tokio::test]
async fn what_is_told_again_stays_where_it_is() {
    const WEB: &str = "ns/web.example.com";
    let (state, mut feed) = feed();
    let all = || vec![upsert(POD, pod(|_| {})), upsert(WEB, web(|_| {}))];
    feed.apply(ADDRESS_TYPE, all());
    let before = state.load();
    feed.apply(ADDRESS_TYPE, all());
    let after = state.load();
    assert!(Arc::ptr_eq(before.workload(POD).expect("a pod"), after.workload(POD).expect("a pod")));
    let web = |mesh: &Mesh| mesh.service(&service_name(WEB)).cloned().expect("a service");
    assert!(Arc::ptr_eq(&web(&before), &web(&after)));
}

#[tokio::test]
async fn one_bad_resource_does_not_hold_up_the_others_and_policy_changes_are_told_apart() {
    let (state, mut feed) = feed();
    let mut changes = state.subscribe();
    let workload = leno_proto::workload_to_address(&Workload::new("u", "ns", "w"));
    let rejected = feed.apply(
        ADDRESS_TYPE,
        vec![
            upsert("u", workload.clone()),
            upsert("another name", workload),
            Update::Upsert { name: "x".into(), body: Bytes::from_static(b"\xff\xff") },
        ],
    );
    assert_eq!(rejected.iter().map(|r| &*r.name).collect::<Vec<_>>(), ["another name", "x"]);
    let open = state.load().workloads().filter(|w| w.not_understood.is_none()).count();
    assert_eq!((open, state.load().workloads().count()), (1, 2));
    assert_eq!(changes.borrow_and_update().policies, 0);
    feed.apply(AUTHORIZATION_TYPE, vec![upsert("ns/p", policy(security::Scope::Namespace, true))]);
    assert_ne!(changes.borrow_and_update().policies, 0);
    feed.apply(ADDRESS_TYPE, vec![Update::Remove { name: "u".into() }]);
    assert_eq!(state.load().workloads().filter(|w| w.not_understood.is_none()).count(), 0);
}

#[tokio::test]
async fn certificates_are_kept_up_for_whom_they_are_needed() {
    let state = Arc::new(MeshState::default());
    let certificates = Arc::new(CertificateManager::new(Arc::new(NoIssuer), Options::default()));
    let mut feed = Feed::new(state, certificates.clone(), Some("node-1".to_owned()));
    let kept = || certificates.statuses().iter().map(|s| s.identity.service_account().to_string()).collect::<Vec<_>>();
    let local = |name: &str, account: &str, tunnel| {
        let workload = Workload {
            node: "node-1".into(),
            service_account: account.into(),
            tunnel_protocol: tunnel,
            ..Workload::new(format!("c//Pod/ns/{name}"), "ns", name)
        };
        upsert(&workload.uid, leno_proto::workload_to_address(&workload))
    };
    let remove = |name: &str| Update::Remove { name: format!("c//Pod/ns/{name}").into() };
    use leno_model::TunnelProtocol::{Hbone, None};
    feed.apply(ADDRESS_TYPE, vec![local("a", "sa", Hbone), local("b", "sa", Hbone), local("c", "out", None)]);
    assert_eq!(kept(), ["sa"]);
    // A pod is handed over whose workload is not in the mesh, and asks for what is its own.
    certificates.warm(&Identity::new("cluster.local", "ns", "out").expect("an identity"));
    feed.apply(ADDRESS_TYPE, vec![remove("a"), remove("c")]);
    assert_eq!(kept(), ["sa"]);
    // What can't be understood for a while will need it again.
    feed.apply(ADDRESS_TYPE, vec![Update::Unreadable { name: "c//Pod/ns/b".into(), reason: "why".to_owned() }]);
    assert_eq!(kept(), ["sa"]);
    feed.apply(ADDRESS_TYPE, vec![local("b", "sa", None)]);
    assert!(kept().is_empty(), "it left the mesh");
    feed.apply(ADDRESS_TYPE, vec![local("b", "sa", Hbone), local("b", "other", Hbone)]);
    assert_eq!(kept(), ["other"]);
    feed.apply(ADDRESS_TYPE, vec![remove("b")]);
    assert!(kept().is_empty());
}

#[tokio::test]
async fn a_change_concerns_whom_it_touches() {
    let (state, mut feed) = feed();
    let generation = || state.subscribe().borrow().generation;
    let workload = |name: &str, node: &str| {
        let uid = format!("c//Pod/ns/{name}");
        let workload = Workload { node: node.into(), ..Workload::new(uid.clone(), "ns", name) };
        upsert(&uid, leno_proto::workload_to_address(&workload))
    };
    feed.apply(ADDRESS_TYPE, vec![workload("a", "node-2"), workload("b", "node-2")]);
    let [a, b] = ["a", "b"].map(|name| state.load().workload(&format!("c//Pod/ns/{name}")).cloned().expect("told"));
    let of_another = Workload::new("c//Pod/other/d", "other", "d");
    let before = generation();
    feed.apply(ADDRESS_TYPE, vec![workload("a", "node-3"), workload("b", "node-2")]);
    let changed = state.changed_since(before);
    assert!(changed.concerns_access_to(&a) && changed.concerns(&a.uid));
    assert!(!changed.concerns_access_to(&b) && !changed.concerns(&b.uid), "it was told again as it is");
    let concerned = |feed: &mut Feed, updates: Vec<Update>| {
        let before = generation();
        feed.apply(AUTHORIZATION_TYPE, updates);
        let changed = state.changed_since(before);
        [changed.concerns_access_to(&b), changed.concerns_access_to(&of_another)]
    };
    let told = |scope| vec![upsert("ns/p", policy(scope, true))];
    assert_eq!(concerned(&mut feed, told(security::Scope::Namespace)), [true, false]);
    assert_eq!(concerned(&mut feed, told(security::Scope::Namespace)), [false, false], "it was told again as it is");
    assert_eq!(concerned(&mut feed, vec![upsert("ns/p", policy(security::Scope::Global, false))]), [true, true]);
    assert_eq!(concerned(&mut feed, told(security::Scope::WorkloadSelector)), [true, true], "it was for all");
    assert_eq!(concerned(&mut feed, told(security::Scope::Namespace)), [true, true], "until now it still was");
    assert_eq!(concerned(&mut feed, vec![Update::Remove { name: "ns/p".into() }]), [true, false]);
    let before = generation();
    feed.apply(ADDRESS_TYPE, vec![Update::Remove { name: b.uid.clone() }]);
    assert!(state.changed_since(before).concerns(&b.uid) && !state.changed_since(before).concerns(&a.uid));
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_is_narrowed_uncovers_nobody_until_workloads_had_time_to_name_it() {
    let (state, mut feed) = feed();
    tokio::spawn(state.clone().end_in_time());
    let deny_all = |scope: security::Scope| {
        let clause = security::Clause { matches: vec![] };
        upsert(
            "ns/p",
            security::Authorization { rules: vec![security::Rule { clauses: vec![clause] }], ..policy(scope, true) },
        )
    };
    assert!(feed.apply(AUTHORIZATION_TYPE, vec![deny_all(security::Scope::Namespace)]).is_empty());
    assert!(!admits(&state, "ns"));
    let told = tokio::time::Instant::now();
    assert!(feed.apply(AUTHORIZATION_TYPE, vec![deny_all(security::Scope::WorkloadSelector)]).is_empty());
    assert!(!admits(&state, "ns"), "one that is to name it may not have been told yet");
    let mut changes = state.subscribe();
    let generation = changes.borrow_and_update().generation;
    changes.changed().await.expect("the state lives");
    assert!(told.elapsed() >= Duration::from_secs(30) && admits(&state, "ns"));
    assert!(
        state.changed_since(generation).concerns_access_to(&Workload::new("w", "ns", "w")),
        "live ones are asked again"
    );
}
