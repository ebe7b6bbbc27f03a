use std::collections::BTreeMap;
use std::time::Duration;

use http::StatusCode;
use leno_control::Controller;
use leno_control::translate::Options;
use leno_objects::{Kind, Object, ObjectKey, ObjectStore};
use leno_telemetry::Readiness;
use leno_testkit::api_server::ApiServer;
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::{Client, ClusterFeed, KINDS, wire};

/// Nothing here takes this long, unless it never happens.
const LONG: Duration = Duration::from_secs(120);

/// A control plane that follows an API server.
struct Follower {
    controller: Controller,
    readiness: Readiness,
    task: JoinHandle<()>,
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Follower {
    fn of(server: &ApiServer) -> Self {
        let controller = Controller::new(Options::default());
        let readiness = Readiness::default();
        let client = Client::anonymous(&server.url()).expect("a URL");
        let feed = ClusterFeed::announce(client, controller.clone(), &readiness);
        Self { controller, readiness, task: tokio::spawn(feed.run()) }
    }

    async fn until(&self, what: &str, holds: impl Fn(&ObjectStore) -> bool) {
        let mut applied = self.controller.applied();
        let wait = async {
            while !self.controller.with_store(&holds) {
                applied.changed().await.expect("the controller lives");
            }
        };
        let waited = tokio::time::timeout(LONG, wait).await;
        assert!(waited.is_ok(), "{what} never happened; there is {:?}", self.keys());
    }

    async fn ready(&self) {
        let mut applied = self.controller.applied();
        let wait = async {
            while !self.readiness.is_ready() {
                applied.changed().await.expect("the controller lives");
                // It says so after the last change.
                tokio::task::yield_now().await;
            }
        };
        assert!(tokio::time::timeout(LONG, wait).await.is_ok(), "{:?}", self.readiness.pending());
    }

    fn keys(&self) -> Vec<String> {
        self.controller.with_store(|store| store.iter().map(|(key, _)| key.to_string()).collect())
    }
}

fn pod(name: &str, label: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "shop", "labels": {"app": label}},
        "spec": {"containers": [{"name": "c"}]},
    })
}

fn policy(version: &str, name: &str) -> Value {
    json!({
        "apiVersion": version, "kind": "AuthorizationPolicy",
        "metadata": {"name": name, "namespace": "shop"}, "spec": {"action": "DENY", "rules": [{}]},
    })
}

fn has(store: &ObjectStore, kind: Kind, name: &str) -> bool {
    store.get(&ObjectKey::new(kind, "shop", name)).is_some()
}

#[tokio::test]
async fn lists_come_in_pages_and_changes_after_them() {
    let server = ApiServer::start().await;
    server.set_list_page(2);
    for name in ["a", "b", "c", "d", "e"] {
        server.put(&pod(name, "x"));
    }
    server.put(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}));
    let follower = Follower::of(&server);
    follower.ready().await;
    let all = ["Node n", "Pod shop/a", "Pod shop/b", "Pod shop/c", "Pod shop/d", "Pod shop/e"];
    assert_eq!(follower.keys(), all);
    server.put(&pod("f", "x"));
    server.delete("v1", "pods", "shop", "a");
    follower.until("f came and a went", |store| has(store, Kind::Pod, "f") && !has(store, Kind::Pod, "a")).await;
    // A watch goes on where the bookmark was, not where the last pod changed.
    server.put(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other", "namespace": "shop"}}));
    server.bookmark();
    let version = server.put(&pod("g", "x"));
    follower.until("g came", |store| has(store, Kind::Pod, "g")).await;
    server.requests();
    let resumed = async {
        for (plural, from) in [("pods", version), ("nodes", version - 1)] {
            let wanted = format!("{plural}?watch=1&allowWatchBookmarks=true&timeoutSeconds=290&resourceVersion={from}");
            // A watch that ends before it has told of a bookmark tells of it the next time.
            loop {
                server.end_watches();
                if tokio::time::timeout(Duration::from_millis(300), server.requested(&wanted)).await.is_ok() {
                    break;
                }
            }
        }
    };
    tokio::time::timeout(LONG, resumed).await.expect("watches go on from the last event or bookmark");
    let lists: Vec<_> = server.requests().into_iter().filter(|request| request.contains("limit=")).collect();
    assert_eq!(lists, Vec::<String>::new(), "nothing is listed again");
}

#[tokio::test]
async fn what_happened_meanwhile_is_found_by_a_list() {
    let mut server = ApiServer::start().await;
    server.put(&pod("stays", "x"));
    server.put(&pod("goes", "x"));
    let follower = Follower::of(&server);
    follower.ready().await;
    let held = follower.controller.store().get(&ObjectKey::new(Kind::Pod, "shop", "stays")).cloned().expect("there");
    server.stop().await;
    server.delete("v1", "pods", "shop", "goes");
    server.put(&pod("comes", "x"));
    server.compact();
    assert!(has(&follower.controller.store(), Kind::Pod, "goes"), "what was known stays while nobody can be asked");
    server.restart().await;
    follower.until("it caught up", |store| has(store, Kind::Pod, "comes") && !has(store, Kind::Pod, "goes")).await;
    let after = follower.controller.store().get(&ObjectKey::new(Kind::Pod, "shop", "stays")).cloned().expect("there");
    assert!(std::sync::Arc::ptr_eq(&held, &after), "what did not change is not stored a second time");
}

#[tokio::test]
async fn a_server_that_wants_to_be_left_alone_is() {
    let server = ApiServer::start().await;
    server.put(&pod("a", "x"));
    let refusals = (0..KINDS.len()).map(|_| (StatusCode::TOO_MANY_REQUESTS, Some(1)));
    server.refuse_next(refusals);
    let begun = Instant::now();
    let follower = Follower::of(&server);
    follower.ready().await;
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
    assert_eq!(follower.keys(), ["Pod shop/a"]);
}

#[tokio::test]
async fn who_is_not_ready_says_what_is_missing() {
    let server = ApiServer::start().await;
    server.refuse_next((0..KINDS.len()).map(|_| (StatusCode::FORBIDDEN, None)));
    let follower = Follower::of(&server);
    let refused = async {
        while !follower.readiness.pending().iter().all(|(_, reason)| reason.contains("403")) {
            tokio::task::yield_now().await;
        }
    };
    // Each is refused once, then let in.
    let seen = tokio::time::timeout(LONG, refused).await;
    assert!(seen.is_ok(), "{:?}", follower.readiness.pending());
    follower.ready().await;
}

#[tokio::test]
async fn definitions_may_come_and_go() {
    let server = ApiServer::start().await;
    for version in ["security.istio.io/v1", "security.istio.io/v1beta1"] {
        for plural in ["authorizationpolicies", "peerauthentications"] {
            server.set_known(version, plural, false);
        }
    }
    let follower = Follower::of(&server);
    follower.ready().await;
    // An older Istio's.
    server.set_known("security.istio.io/v1beta1", "authorizationpolicies", true);
    server.put(&policy("security.istio.io/v1beta1", "p"));
    follower.until("the policy came", |store| has(store, Kind::AuthorizationPolicy, "p")).await;
    server.set_known("security.istio.io/v1beta1", "authorizationpolicies", false);
    follower.until("the policy went", |store| !has(store, Kind::AuthorizationPolicy, "p")).await;
    server.set_known("security.istio.io/v1", "authorizationpolicies", true);
    server.put(&policy("security.istio.io/v1", "q"));
    follower.until("the other policy came", |store| has(store, Kind::AuthorizationPolicy, "q")).await;
}

/// If an API server says for a moment that it does not know policies, what they forbid stays forbidden.
#[tokio::test]
async fn a_definition_that_is_missing_for_a_moment_opens_nothing() {
    let server = ApiServer::start().await;
    server.set_known("security.istio.io/v1beta1", "authorizationpolicies", false);
    server.put(&policy("security.istio.io/v1", "p"));
    let follower = Follower::of(&server);
    follower.ready().await;
    let not_found = (0..KINDS.len() * 3).map(|_| (StatusCode::NOT_FOUND, None));
    server.refuse_next(not_found);
    server.end_watches();
    server.put(&policy("security.istio.io/v1", "q"));
    let mut applied = follower.controller.applied();
    while !follower.controller.with_store(|store| has(store, Kind::AuthorizationPolicy, "q")) {
        assert!(follower.controller.with_store(|store| has(store, Kind::AuthorizationPolicy, "p")));
        tokio::time::timeout(LONG, applied.changed()).await.expect("it comes back").expect("the controller lives");
    }
    assert!(follower.controller.with_store(|store| has(store, Kind::AuthorizationPolicy, "p")));
}

#[derive(Debug, Clone)]
enum Step {
    Put(u8, u8),
    Delete(u8),
    Compact,
    EndWatches,
    Bookmark,
    Page(u8),
    Refuse(u16),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..6u8, 0..3u8).prop_map(|(name, label)| Step::Put(name, label)),
        4 => (0..6u8).prop_map(Step::Delete),
        1 => Just(Step::Compact),
        1 => Just(Step::EndWatches),
        1 => Just(Step::Bookmark),
        1 => (1..4u8).prop_map(Step::Page),
        1 => prop_oneof![Just(429), Just(500), Just(410), Just(503)].prop_map(Step::Refuse),
    ]
}

fn by_key<'a>(objects: impl IntoIterator<Item = &'a Object>) -> BTreeMap<ObjectKey, Object> {
    objects.into_iter().map(|object| (object.key(), object.clone())).collect()
}

async fn follow(before: &[Step], after: &[Step]) {
    let server = ApiServer::start().await;
    let play = |steps: &[Step]| {
        for step in steps {
            match step {
                Step::Put(name, label) => drop(server.put(&pod(&format!("p{name}"), &label.to_string()))),
                Step::Delete(name) => server.delete("v1", "pods", "shop", &format!("p{name}")),
                Step::Compact => server.compact(),
                Step::EndWatches => server.end_watches(),
                Step::Bookmark => server.bookmark(),
                Step::Page(objects) => server.set_list_page((*objects).into()),
                Step::Refuse(status) => server.refuse_next([(StatusCode::from_u16(*status).expect("one"), None)]),
            }
        }
    };
    play(before);
    let follower = Follower::of(&server);
    for steps in after.chunks(3) {
        play(steps);
        tokio::task::yield_now().await;
    }
    server.put(&pod("last", "x"));
    follower.until("the last pod came", |store| has(store, Kind::Pod, "last")).await;
    // It may have come with the first page of the first list. Nothing is published then.
    follower.ready().await;
    let items = server.all("v1", "pods");
    let list = json!({"metadata": {"resourceVersion": "1"}, "items": items}).to_string();
    let listed = wire::page(Kind::Pod, list.as_bytes()).expect("sound").objects;
    let store = follower.controller.store();
    assert_eq!(by_key(store.of_kind(Kind::Pod).map(|object| &**object)), by_key(&listed));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// In whatever order events, lists, expiries and refusals come, the end is as a list would have it.
    #[test]
    fn any_way_there_ends_in_the_same_state(
        before in prop::collection::vec(step(), 0..12),
        after in prop::collection::vec(step(), 0..24),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(follow(&before, &after));
    }
}
