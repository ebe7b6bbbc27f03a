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
    (state.clone(), Feed::new(state, certificates, "node-1".to_owned()))
}

fn upsert(name: &str, body: impl Message) -> Update {
    Update::Upsert { name: name.to_owned(), body: body.encode_to_vec().into() }
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
        feed.apply(AUTHORIZATION_TYPE, vec![Update::Remove { name: "ns/p".to_owned() }]);
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

#[tokio::test]
async fn a_bad_change_of_a_good_policy_leaves_the_good_one() {
    let (state, mut feed) = feed();
    assert!(feed.apply(AUTHORIZATION_TYPE, vec![upsert("ns/p", policy(security::Scope::Namespace, true))]).is_empty());
    let before = state.load().policies().next().cloned();
    assert_eq!(
        feed.apply(AUTHORIZATION_TYPE, vec![upsert("ns/p", policy(security::Scope::Namespace, false))]).len(),
        1
    );
    assert_eq!(state.load().policies().next().cloned(), before);
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
            Update::Upsert { name: "x".to_owned(), body: Bytes::from_static(b"\xff\xff") },
        ],
    );
    assert_eq!(rejected.iter().map(|r| &*r.name).collect::<Vec<_>>(), ["another name", "x"]);
    assert_eq!(state.load().workloads().count(), 1);
    assert_eq!(changes.borrow_and_update().policies, 0);
    feed.apply(AUTHORIZATION_TYPE, vec![upsert("ns/p", policy(security::Scope::Namespace, true))]);
    assert_ne!(changes.borrow_and_update().policies, 0);
    feed.apply(ADDRESS_TYPE, vec![Update::Remove { name: "u".to_owned() }]);
    assert_eq!(state.load().workloads().count(), 0);
}
