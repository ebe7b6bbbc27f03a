use std::collections::BTreeMap;

use leno_model::Name;
use leno_proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Status};
use proptest::prelude::*;
use prost::Message;

use super::*;
use crate::Resource;
use crate::resource::reach_of;

/// The messages as on the wire, not encoded.
pub(super) trait Wire {
    fn ask(&mut self, request: DeltaDiscoveryRequest, now: Instant) -> Result<(), ProtocolError>;
    fn say(&mut self, snapshot: &Resources, now: Instant) -> Option<DeltaDiscoveryResponse>;
}

impl Wire for Subscription {
    fn ask(&mut self, request: DeltaDiscoveryRequest, now: Instant) -> Result<(), ProtocolError> {
        self.request(&Request::decode(request.encode_to_vec().into()).unwrap(), now)
    }

    fn say(&mut self, snapshot: &Resources, now: Instant) -> Option<DeltaDiscoveryResponse> {
        self.next(snapshot, now).map(decoded)
    }
}

fn decoded(mut answer: Answer) -> DeltaDiscoveryResponse {
    let mut bytes = Vec::new();
    while let Some(piece) = answer.next_piece() {
        assert!(!piece.is_empty());
        bytes.extend_from_slice(&piece);
    }
    let (head, message) = bytes.split_at(5);
    assert_eq!(head[0], 0, "not compressed");
    assert_eq!(u32::from_be_bytes(head[1..].try_into().unwrap()) as usize, message.len());
    assert_eq!(answer.length(), message.len());
    DeltaDiscoveryResponse::decode(message).unwrap()
}

const A: &str = ADDRESS_TYPE;
const P: &str = AUTHORIZATION_TYPE;

fn snapshot(addresses: &[(&str, &str)], policies: &[(&str, &str)]) -> Resources {
    let mut resources = Resources::default();
    for (name, body) in addresses {
        resources.upsert(A, *name, Resource::new(body.to_string()));
    }
    for (name, body) in policies {
        resources.upsert(P, *name, Resource::new(body.to_string()));
    }
    resources
}

fn open(type_url: &str) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest { type_url: type_url.to_owned(), ..Default::default() }
}

fn ask(type_url: &str, subscribe: &[&str], unsubscribe: &[&str]) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        resource_names_subscribe: subscribe.iter().map(ToString::to_string).collect(),
        resource_names_unsubscribe: unsubscribe.iter().map(ToString::to_string).collect(),
        ..open(type_url)
    }
}

fn ack(response: &DeltaDiscoveryResponse) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest { response_nonce: response.nonce.clone(), ..open(&response.type_url) }
}

fn nack(response: &DeltaDiscoveryResponse, why: &str) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        error_detail: Some(Status { message: why.to_owned(), ..Status::default() }),
        ..ack(response)
    }
}

fn names(response: &DeltaDiscoveryResponse) -> Vec<&str> {
    response.resources.iter().map(|resource| &*resource.name).collect()
}

/// A subscription to both types whose initial responses were accepted.
fn settled(resources: &Resources, now: Instant) -> Subscription {
    let mut subscription = Subscription::new();
    subscription.ask(open(A), now).unwrap();
    subscription.ask(open(P), now).unwrap();
    while let Some(response) = subscription.say(resources, now) {
        subscription.ask(ack(&response), now).unwrap();
    }
    assert!(subscription.in_sync());
    subscription
}

#[test]
fn the_first_request_is_always_answered() {
    let (now, empty) = (Instant::now(), Resources::default());
    let mut subscription = Subscription::new();
    subscription.ask(open(A), now).unwrap();
    assert!(subscription.say(&empty, now).is_none(), "it may ask for policies yet");
    subscription.ask(open(P), now).unwrap();
    let first = subscription.say(&empty, now).unwrap();
    assert_eq!((&*first.type_url, first.resources.len()), (P, 0));
    let second = subscription.say(&empty, now).unwrap();
    assert_eq!((&*second.type_url, second.resources.len()), (A, 0), "no policies, nothing to wait for");
    assert_ne!(first.nonce, second.nonce);
    assert!(subscription.say(&empty, now).is_none());
    assert!(!subscription.in_sync());
    subscription.ask(ack(&first), now).unwrap();
    subscription.ask(ack(&second), now).unwrap();
    assert!(subscription.in_sync());
    assert_eq!(subscription.wake_at(now), None);
}

#[test]
fn services_wait_for_what_is_to_happen_to_their_requests() {
    let now = Instant::now();
    let mut resources = snapshot(&[("s", "1")], &[]);
    let mut subscription = Subscription::new();
    for type_url in [A, P, leno_proto::ROUTE_TYPE, leno_proto::REQUEST_POLICY_TYPE] {
        subscription.ask(open(type_url), now).unwrap();
    }
    let mut order = Vec::new();
    while let Some(response) = subscription.say(&resources, now) {
        order.push(response.type_url.clone());
        subscription.ask(ack(&response), now).unwrap();
    }
    assert_eq!(order, [P, leno_proto::REQUEST_POLICY_TYPE, leno_proto::ROUTE_TYPE, A]);
    // A policy is sent that is not answered yet; then another one comes, and a service with it.
    resources.upsert(leno_proto::REQUEST_POLICY_TYPE, "a", Resource::new("1"));
    let unanswered = subscription.say(&resources, now).unwrap();
    assert_eq!(names(&unanswered), ["a"]);
    resources.upsert(leno_proto::REQUEST_POLICY_TYPE, "b", Resource::new("1"));
    resources.upsert(A, "s", Resource::new("2"));
    assert!(subscription.say(&resources, now).is_none(), "the service waits for policy b");
    let later = subscription.wake_at(now).expect("it does not wait for ever");
    assert!(later <= now + POLICY_GRACE);
    subscription.ask(ack(&unanswered), now).unwrap();
    assert_eq!(names(&subscription.say(&resources, now).unwrap()), ["b"]);
    assert_eq!(names(&subscription.say(&resources, now).unwrap()), ["s"]);
}

#[test]
fn a_client_of_addresses_alone_waits_a_moment() {
    let now = Instant::now();
    let resources = snapshot(&[("w", "1")], &[]);
    let mut subscription = Subscription::new();
    subscription.ask(open(A), now).unwrap();
    assert!(subscription.say(&resources, now).is_none());
    let later = subscription.wake_at(now).unwrap();
    assert_eq!(later, now + FIRST_GRACE);
    let response = subscription.say(&resources, later).unwrap();
    assert_eq!(names(&response), ["w"]);
    subscription.ask(ack(&response), later).unwrap();
    let resources = snapshot(&[("w", "2")], &[]);
    assert!(subscription.say(&resources, later).is_some(), "only the first one waits");
}

#[test]
fn policies_are_acknowledged_before_workloads_go_out() {
    let now = Instant::now();
    let mut subscription = settled(&snapshot(&[("w", "1")], &[]), now);
    let resources = snapshot(&[("w", "names p")], &[("p", "1")]);
    let policies = subscription.say(&resources, now).unwrap();
    assert_eq!(names(&policies), ["p"]);
    assert!(subscription.say(&resources, now).is_none(), "not before the ACK");
    assert_eq!(subscription.wake_at(now), Some(now + POLICY_GRACE));
    subscription.ask(ack(&policies), now).unwrap();
    assert_eq!(names(&subscription.say(&resources, now).unwrap()), ["w"]);
}

#[test]
fn a_proxy_that_never_acknowledges_gets_workloads_after_a_grace() {
    let now = Instant::now();
    let mut subscription = settled(&snapshot(&[("w", "1")], &[]), now);
    let resources = snapshot(&[("w", "names p")], &[("p", "1")]);
    let policies = subscription.say(&resources, now).unwrap();
    let later = now + POLICY_GRACE;
    assert_eq!(names(&subscription.say(&resources, later).unwrap()), ["w"]);
    // More policies while the first are unacknowledged: sent before the workloads all the same.
    let resources = snapshot(&[("w", "names q")], &[("p", "1"), ("q", "1")]);
    let more = subscription.say(&resources, later).unwrap();
    assert_eq!((&*more.type_url, names(&more)), (P, vec!["q"]));
    let _ = policies;
}

#[test]
fn a_refused_policy_holds_back_nothing_and_is_told() {
    let now = Instant::now();
    let mut subscription = settled(&Resources::default(), now);
    let resources = snapshot(&[("w", "names p")], &[("p", "1")]);
    let policies = subscription.say(&resources, now).unwrap();
    subscription.ask(nack(&policies, "p: unknown enum"), now).unwrap();
    let addresses = subscription.say(&resources, now).unwrap();
    assert_eq!(names(&addresses), ["w"]);
    subscription.ask(ack(&addresses), now).unwrap();
    assert!(subscription.say(&resources, now).is_none(), "a refused resource is not sent again until it changes");
    let progress = subscription.progress();
    let policies = progress.iter().find(|progress| &*progress.type_url == P).unwrap();
    assert_eq!((policies.nacked, policies.last_nack.as_deref()), (1, Some("p: unknown enum")));
    let resources = snapshot(&[("w", "names p")], &[("p", "2")]);
    let again = subscription.say(&resources, now).unwrap();
    assert_eq!(names(&again), ["p"]);
    subscription.ask(ack(&again), now).unwrap();
    assert!(subscription.progress().iter().all(|progress| progress.last_nack.is_none()));
}

#[test]
fn policies_are_removed_last() {
    let now = Instant::now();
    let mut subscription = settled(&snapshot(&[("w", "names p")], &[("p", "1")]), now);
    let resources = snapshot(&[("w", "names none")], &[]);
    let addresses = subscription.say(&resources, now).unwrap();
    assert_eq!((&*addresses.type_url, names(&addresses)), (A, vec!["w"]));
    assert!(subscription.say(&resources, now).is_none(), "not before the ACK");
    assert_eq!(subscription.wake_at(now), Some(now + POLICY_GRACE));
    subscription.ask(ack(&addresses), now).unwrap();
    let policies = subscription.say(&resources, now).unwrap();
    assert_eq!((&*policies.type_url, &*policies.removed_resources), (P, &["p".to_owned()][..]));
}

/// A workload, and a policy that applies to it by scope (reach 1) or because it names the policy (reach 0).
fn reaching(workload: &str, policy: &str, reach: u8) -> Resources {
    let mut resources = snapshot(&[("w", workload)], &[]);
    resources.upsert(P, "p", Resource::new(policy.to_owned()).with_reach(reach));
    resources
}

#[test]
fn a_policy_that_is_narrowed_follows_the_workloads_that_name_it() {
    let now = Instant::now();
    let mut subscription = settled(&reaching("1", "wide", 1), now);
    let resources = reaching("names p", "narrow", 0);
    let addresses = subscription.say(&resources, now).unwrap();
    assert_eq!((&*addresses.type_url, names(&addresses)), (A, vec!["w"]));
    assert!(subscription.say(&resources, now).is_none(), "not before the ACK");
    assert!(!subscription.in_sync());
    let mut slow = now + POLICY_GRACE;
    assert_eq!(subscription.wake_at(now), Some(slow));
    subscription.ask(ack(&addresses), now).unwrap();
    let policies = subscription.say(&resources, now).unwrap();
    assert_eq!((&*policies.type_url, names(&policies)), (P, vec!["p"]));

    // The proxy refused it and still uses the wide version, so the next update is ordered the same way.
    subscription.ask(nack(&policies, "p: unknown enum"), now).unwrap();
    let resources = reaching("names p too", "narrow again", 0);
    let addresses = subscription.say(&resources, now).unwrap();
    assert_eq!(&*addresses.type_url, A);
    let policies = subscription.say(&resources, slow).unwrap();
    assert_eq!(&*policies.type_url, P, "an ACK that never comes is not waited for for ever");
    subscription.ask(ack(&addresses), slow).unwrap();
    subscription.ask(ack(&policies), slow).unwrap();

    // The proxy now has the narrow version. From now on new content is sent first, and so is a higher reach.
    for (resources, workload) in [(reaching("names p", "narrow", 0), "names p"), (reaching("1", "wide", 1), "1")] {
        slow += POLICY_GRACE;
        let policies = subscription.say(&resources, slow).unwrap();
        assert_eq!((&*policies.type_url, names(&policies)), (P, vec!["p"]), "{workload}");
        subscription.ask(ack(&policies), slow).unwrap();
        let addresses = subscription.say(&resources, slow).unwrap();
        assert_eq!(&*addresses.type_url, A);
        subscription.ask(ack(&addresses), slow).unwrap();
    }
    assert!(subscription.in_sync());
}

#[test]
fn who_lacks_a_narrow_policy_gets_it_first() {
    let now = Instant::now();
    let mut subscription = settled(&snapshot(&[("w", "1")], &[]), now);
    let policies = subscription.say(&reaching("names p", "narrow", 0), now).unwrap();
    assert_eq!((&*policies.type_url, names(&policies)), (P, vec!["p"]));
}

#[test]
fn workloads_that_never_stop_changing_hold_up_removals_only_so_long() {
    let now = Instant::now();
    let mut subscription = settled(&reaching("0", "wide", 1), now);
    let (mut at, mut waiting) = (now, None);
    for n in 1.. {
        let resources = reaching(&format!("{n} p"), "narrow", 0);
        // The ACK of one change always comes together with the next change.
        if let Some(addresses) = waiting.take() {
            subscription.ask(ack(&addresses), at).unwrap();
        }
        let addresses = subscription.say(&resources, at).unwrap();
        assert_eq!(&*addresses.type_url, A);
        waiting = Some(addresses);
        if let Some(policies) = subscription.say(&resources, at) {
            assert_eq!(&*policies.type_url, P);
            break;
        }
        at += Duration::from_secs(1);
        assert!(at <= now + ACK_GRACE);
    }
}

#[test]
fn a_reconnect_sends_only_what_changed() {
    let now = Instant::now();
    let resources = snapshot(&[("same", "1"), ("changed", "2"), ("new", "1")], &[]);
    let version = |body: &str| Resource::new(body.to_owned()).version().to_string();
    let mut subscription = Subscription::new();
    let initial_resource_versions =
        [("same", version("1")), ("changed", version("1")), ("gone", version("1"))].map(|(n, v)| (n.to_owned(), v));
    subscription
        .ask(DeltaDiscoveryRequest { initial_resource_versions: initial_resource_versions.into(), ..open(A) }, now)
        .unwrap();
    subscription.ask(open(P), now).unwrap();
    assert_eq!(subscription.say(&resources, now).unwrap().type_url, P);
    let response = subscription.say(&resources, now).unwrap();
    assert_eq!(names(&response), ["changed", "new"]);
    assert_eq!(response.removed_resources, ["gone"]);
}

/// A proxy tells a control plane that has never seen it what it holds. It is sent exactly the ten thousand changes that it
/// missed, in whatever order it lists its resources.
#[test]
fn ten_thousand_changes_missed() {
    let now = Instant::now();
    let name = |n: usize| format!("cluster//Pod/ns/{:05x}", n.wrapping_mul(0x9e37) & 0xfffff);
    let mut before = Resources::default();
    for n in 0..20_000 {
        before.upsert(A, name(n), Resource::new(n.to_string()));
    }
    let mut after = Resources::default();
    for n in 0..22_000 {
        let body = if n % 4 == 1 { "changed".to_owned() } else { n.to_string() };
        // A quarter has other content, a quarter is gone, and 2 000 are new.
        if n % 4 != 2 || n >= 20_000 {
            after.upsert(A, name(n), Resource::new(body));
        }
    }
    let held = before.of(A).unwrap().iter().map(|(name, resource)| (name.to_string(), resource.version().to_owned()));
    let request = DeltaDiscoveryRequest { initial_resource_versions: held.collect(), ..open(A) };
    let mut subscription = Subscription::new();
    subscription.ask(open(P), now).unwrap();
    subscription.ask(request, now).unwrap();
    assert_eq!(subscription.say(&after, now).unwrap().type_url, P);
    let response = subscription.say(&after, now).unwrap();
    let all = || (0..20_000).map(|n| (n, name(n)));
    let mut changed: Vec<String> = all().filter(|(n, _)| n % 4 == 1).map(|(_, name)| name).collect();
    changed.extend((20_000..22_000).map(name));
    let mut gone: Vec<String> = all().filter(|(n, _)| n % 4 == 2).map(|(_, name)| name).collect();
    changed.sort_unstable();
    gone.sort_unstable();
    assert_eq!(names(&response), changed);
    assert_eq!(response.removed_resources, gone);
    subscription.ask(ack(&response), now).unwrap();
    assert!(subscription.say(&after, now).is_none());
}

/// Of a proxy in sync, only a reference to its snapshot is remembered.
#[test]
fn who_is_in_sync_is_remembered_by_a_snapshot() {
    let now = Instant::now();
    let mut resources = snapshot(&[], &[("p", "1")]);
    for n in 0..1000 {
        resources.upsert(A, format!("w{n}"), Resource::new("1"));
    }
    let mut subscription = settled(&resources, now);
    let remembers_nothing_else = |subscription: &Subscription, resources: &Resources| {
        for state in &subscription.types {
            let (base, but) = state.sent().parts();
            assert!(Arc::ptr_eq(base, resources.of(&state.type_url).unwrap()) && but.is_empty());
        }
    };
    remembers_nothing_else(&subscription, &resources);
    for n in 0..20 {
        resources.upsert(A, format!("w{n}"), Resource::new("2"));
        resources.remove(A, &format!("w{}", n + 100));
        resources.upsert(P, "p", Resource::new(n.to_string()));
        while let Some(response) = subscription.say(&resources, now) {
            subscription.ask(ack(&response), now).unwrap();
        }
        remembers_nothing_else(&subscription, &resources);
    }
    // The same if something changed back before it was sent.
    resources.upsert(A, "w30", Resource::new("2"));
    resources.upsert(A, "w30", Resource::new("1"));
    assert!(subscription.say(&resources, now).is_none());
    remembers_nothing_else(&subscription, &resources);
    // The same if the proxy comes back with most of it.
    let held = resources.of(A).unwrap().iter().map(|(name, r)| (name.to_string(), r.version().to_owned())).skip(3);
    let request = DeltaDiscoveryRequest { initial_resource_versions: held.collect(), ..open(A) };
    let mut subscription = Subscription::new();
    subscription.ask(open(P), now).unwrap();
    subscription.ask(request, now).unwrap();
    while let Some(response) = subscription.say(&resources, now) {
        subscription.ask(ack(&response), now).unwrap();
    }
    remembers_nothing_else(&subscription, &resources);
}

/// All first answers consist of the same pages: there is no copy of the mesh per proxy.
#[test]
fn first_answers_share_their_bytes() {
    let now = Instant::now();
    let mut resources = Resources::default();
    for n in 0..2000 {
        resources.upsert(A, format!("w{n}"), Resource::new("x".repeat(200)));
    }
    let [one, other] = [(); 2].map(|()| {
        let mut subscription = Subscription::new();
        subscription.ask(open(P), now).unwrap();
        subscription.ask(open(A), now).unwrap();
        subscription.say(&resources, now).unwrap();
        let mut answer = subscription.next(&resources, now).unwrap();
        let pieces: Vec<_> =
            std::iter::from_fn(|| answer.next_piece()).map(|piece| (piece.as_ptr(), piece.len())).collect();
        pieces[1..pieces.len() - 1].to_vec()
    });
    assert!(one.len() > 10 && one.iter().map(|(_, length)| length).sum::<usize>() > 400_000);
    assert_eq!(one, other);
}

#[test]
fn a_slow_proxy_is_sent_the_latest_only() {
    let now = Instant::now();
    let mut subscription = settled(&Resources::default(), now);
    let first = subscription.say(&snapshot(&[("w", "1")], &[]), now).unwrap();
    for body in ["2", "3", "4"] {
        assert!(subscription.say(&snapshot(&[("w", body), ("x", body)], &[]), now).is_none());
    }
    let latest = snapshot(&[("w", "5"), ("y", "5")], &[]);
    assert!(subscription.say(&latest, now).is_none());
    subscription.ask(ack(&first), now).unwrap();
    let response = subscription.say(&latest, now).unwrap();
    assert_eq!(names(&response), ["w", "y"]);
    assert!(response.removed_resources.is_empty(), "it never heard of x");
    // A proxy that never answers holds up the next response only for a while.
    let newer = snapshot(&[("w", "6"), ("y", "5")], &[]);
    assert!(subscription.say(&newer, now).is_none());
    assert_eq!(names(&subscription.say(&newer, now + ACK_GRACE).unwrap()), ["w"]);
}

#[test]
fn an_unchanged_snapshot_sends_nothing() {
    let now = Instant::now();
    let resources = snapshot(&[("w", "1")], &[("p", "1")]);
    let mut subscription = settled(&resources, now);
    assert!(subscription.say(&resources.clone(), now).is_none());
    // The same content, built again: other pointers, the same versions.
    assert!(subscription.say(&snapshot(&[("w", "1")], &[("p", "1")]), now).is_none());
    assert!(subscription.in_sync());
}

#[test]
fn stale_and_made_up_nonces_acknowledge_nothing() {
    let now = Instant::now();
    let mut subscription = settled(&Resources::default(), now);
    let response = subscription.say(&snapshot(&[("w", "1")], &[]), now).unwrap();
    for nonce in ["", "0", "1", "99999", "\0", "nonce"] {
        subscription.ask(DeltaDiscoveryRequest { response_nonce: nonce.to_owned(), ..open(A) }, now).unwrap();
        assert!(!subscription.in_sync(), "{nonce:?}");
    }
    subscription.ask(ack(&response), now).unwrap();
    assert!(subscription.in_sync());
    subscription.ask(ack(&response), now).unwrap();
    assert_eq!(subscription.progress().iter().map(|progress| progress.acked).sum::<u64>(), 3, "counted once");
}

#[test]
fn names_on_demand() {
    let now = Instant::now();
    let mut resources = snapshot(&[("w", "1"), ("x", "1")], &[]);
    resources.upsert(A, "uid", Resource::new("1").with_aliases(vec!["net/10.0.0.1".to_owned()]));
    let mut subscription = Subscription::new();
    subscription.ask(open(P), now).unwrap();
    let policies = subscription.say(&resources, now).unwrap();
    subscription.ask(ack(&policies), now).unwrap();

    subscription.ask(ask(A, &["*"], &["*"]), now).unwrap();
    let nothing = subscription.say(&resources, now).unwrap();
    assert!(nothing.resources.is_empty() && nothing.removed_resources.is_empty());
    subscription.ask(ack(&nothing), now).unwrap();

    subscription.ask(ask(A, &["w", "missing", "net/10.0.0.1"], &[]), now).unwrap();
    let response = subscription.say(&resources, now).unwrap();
    assert_eq!(names(&response), ["uid", "w"]);
    assert_eq!(response.removed_resources, ["missing"], "whoever asks hears that there is none");
    subscription.ask(ack(&response), now).unwrap();
    assert!(subscription.say(&resources, now).is_none());

    resources.upsert(A, "missing", Resource::new("1"));
    resources.upsert(A, "x", Resource::new("2"));
    resources.remove(A, "w");
    let response = subscription.say(&resources, now).unwrap();
    assert_eq!((names(&response), &*response.removed_resources), (vec!["missing"], &["w".to_owned()][..]));
    subscription.ask(ack(&response), now).unwrap();

    // A name that is requested again is sent again, changed or not.
    subscription.ask(ask(A, &["missing"], &[]), now).unwrap();
    let response = subscription.say(&resources, now).unwrap();
    assert_eq!(names(&response), ["missing"]);
    subscription.ask(ack(&response), now).unwrap();
    subscription.ask(ask(A, &[], &["missing"]), now).unwrap();
    resources.upsert(A, "missing", Resource::new("2"));
    assert!(subscription.say(&resources, now).is_none());
    // Now the proxy subscribes to everything.
    subscription.ask(ask(A, &["*"], &[]), now).unwrap();
    let response = subscription.say(&resources, now).unwrap();
    assert_eq!(names(&response), ["missing", "x"]);
}

#[test]
fn an_unknown_type_is_answered_empty() {
    let now = Instant::now();
    let mut subscription = Subscription::new();
    subscription.ask(open("type.googleapis.com/unheard.of"), now).unwrap();
    let response = subscription.say(&snapshot(&[("w", "1")], &[]), now).unwrap();
    assert!(response.resources.is_empty());
}

#[test]
fn limits() {
    let now = Instant::now();
    let mut subscription = Subscription::new();
    assert_eq!(subscription.ask(open(""), now), Err(ProtocolError::NoType));
    for n in 0..MAX_TYPES {
        subscription.ask(open(&format!("type/{n}")), now).unwrap();
    }
    assert_eq!(subscription.ask(open("type/more"), now), Err(ProtocolError::TooManyTypes));
    let names: Vec<String> = (0..=MAX_NAMES).map(|n| n.to_string()).collect();
    let request = DeltaDiscoveryRequest { resource_names_subscribe: names, ..open("type/0") };
    assert_eq!(subscription.ask(request, now), Err(ProtocolError::TooManyNames));
}

/// What can happen to a proxy and its control plane.
#[derive(Debug, Clone)]
enum Event {
    /// A policy gets this content, or is removed.
    Policy(u8, Option<u8>),
    /// A workload gets this content and names those of these policies that exist, or is removed.
    Workload(u8, Option<(u8, Vec<u8>)>),
    /// The changes are published.
    Publish,
    /// The server sends what it may send now.
    Send,
    /// The proxy reads one response and answers.
    Receive { accept: bool },
    /// The stream breaks and the proxy connects again.
    Reconnect,
    /// A time shorter than the grace passes.
    Tick,
}

fn event() -> impl Strategy<Value = Event> {
    let policies = prop::collection::vec(0..4u8, 0..3);
    prop_oneof![
        2 => (0..4u8, prop::option::of(0..3u8)).prop_map(|(n, content)| Event::Policy(n, content)),
        3 => (0..5u8, prop::option::of((0..3u8, policies))).prop_map(|(n, content)| Event::Workload(n, content)),
        3 => Just(Event::Publish),
        3 => Just(Event::Send),
        4 => prop::bool::weighted(0.9).prop_map(|accept| Event::Receive { accept }),
        1 => Just(Event::Reconnect),
        1 => Just(Event::Tick),
    ]
}

/// A proxy and its control plane, with the wire between them.
struct World {
    now: Instant,
    draft: Resources,
    published: Resources,
    subscription: Subscription,
    wire: std::collections::VecDeque<DeltaDiscoveryResponse>,
    /// What the proxy holds: name to version and body.
    held: BTreeMap<&'static str, BTreeMap<String, (String, String)>>,
    /// Whether the proxy answers in time and accepts everything.
    strict: bool,
}

impl World {
    fn new(strict: bool) -> Self {
        let mut world = Self {
            now: Instant::now(),
            draft: Resources::default(),
            published: Resources::default(),
            subscription: Subscription::new(),
            wire: Default::default(),
            held: [(A, BTreeMap::new()), (P, BTreeMap::new())].into(),
            strict,
        };
        world.connect();
        world
    }

    fn connect(&mut self) {
        self.wire.clear();
        self.subscription = Subscription::new();
        for type_url in [A, P] {
            let initial_resource_versions =
                self.held[type_url].iter().map(|(name, (version, _))| (name.clone(), version.clone())).collect();
            let request = DeltaDiscoveryRequest { initial_resource_versions, ..open(type_url) };
            self.subscription.ask(request, self.now).unwrap();
        }
    }

    fn change(&mut self, event: &Event) {
        match event {
            Event::Policy(n, Some(content)) => {
                self.draft.upsert(P, format!("p{n}"), Resource::new(content.to_string()));
            }
            Event::Policy(n, None) => {
                let name = format!("p{n}");
                self.draft.remove(P, &name);
                // A control plane never publishes a workload that names a policy it doesn't.
                let naming: Vec<Name> = self
                    .draft
                    .of(A)
                    .into_iter()
                    .flat_map(|all| all.iter())
                    .filter(|(_, w)| body_names(w.body()).any(|policy| policy == name))
                    .map(|(n, _)| n.clone())
                    .collect();
                for workload in naming {
                    self.draft.upsert(A, workload, Resource::new("0"));
                }
            }
            Event::Workload(n, Some((content, policies))) => {
                let mut body = content.to_string();
                for policy in policies {
                    let name = format!("p{policy}");
                    if self.draft.of(P).is_some_and(|all| all.contains_key(&name)) {
                        body.push(' ');
                        body.push_str(&name);
                    }
                }
                self.draft.upsert(A, format!("w{n}"), Resource::new(body));
            }
            Event::Workload(n, None) => {
                self.draft.remove(A, &format!("w{n}"));
            }
            _ => {}
        }
    }

    fn send(&mut self) {
        while let Some(response) = self.subscription.say(&self.published, self.now) {
            if self.strict && response.type_url == A {
                for resource in &response.resources {
                    for policy in body_names(&resource.resource.as_ref().unwrap().value) {
                        assert!(self.held[P].contains_key(policy), "sent before {policy} was acknowledged");
                    }
                }
            }
            self.wire.push_back(response);
        }
    }

    fn receive(&mut self, accept: bool) {
        let Some(response) = self.wire.pop_front() else { return };
        let answer = if accept { ack(&response) } else { nack(&response, "no") };
        if accept {
            let held = self.held.get_mut(&*response.type_url).unwrap();
            for name in &response.removed_resources {
                assert!(held.remove(name).is_some(), "{name} was never held");
            }
            for resource in &response.resources {
                let body = String::from_utf8(resource.resource.clone().unwrap().value).unwrap();
                let before = held.insert(resource.name.clone(), (resource.version.clone(), body));
                assert_ne!(before.map(|(version, _)| version).as_ref(), Some(&resource.version), "sent twice");
            }
        }
        self.subscription.ask(answer, self.now).unwrap();
    }

    /// No workload at the proxy names a policy that is not there.
    fn check_order(&self) {
        for (name, (_, body)) in &self.held[A] {
            for policy in body_names(body.as_bytes()) {
                assert!(self.held[P].contains_key(policy), "{name} names {policy}, which the proxy lacks");
            }
        }
    }

    fn settle(&mut self) {
        for _ in 0..20 {
            self.send();
            while !self.wire.is_empty() {
                self.receive(true);
            }
        }
        self.send();
        assert!(self.wire.is_empty());
        assert!(self.subscription.in_sync());
        for type_url in [A, P] {
            let want: BTreeMap<String, String> = self
                .published
                .of(type_url)
                .into_iter()
                .flat_map(|all| all.iter())
                .map(|(name, resource)| (name.to_string(), resource.version().to_string()))
                .collect();
            let have: BTreeMap<String, String> =
                self.held[type_url].iter().map(|(name, (version, _))| (name.clone(), version.clone())).collect();
            assert_eq!(have, want, "{type_url}");
        }
    }
}

fn body_names(body: &[u8]) -> impl Iterator<Item = &str> {
    std::str::from_utf8(body).unwrap().split(' ').skip(1)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// A workload that a policy covers in every snapshot is covered at the proxy at every moment, whether the policy
    /// applies by scope or because the workload names it, however often that changes, and across reconnects.
    #[test]
    fn what_is_always_covered_never_lies_open(
        events in prop::collection::vec((0..6u8, 0..3u8, 0..3u8), 1..80),
    ) {
        let mut world = World::new(true);
        let snapshot = |reach: u8, content: u8| {
            let workload = if reach == 0 { format!("{content} p") } else { content.to_string() };
            reaching(&workload, &format!("{content} {reach}"), reach)
        };
        world.published = snapshot(2, 0);
        world.settle();
        for (event, reach, content) in events {
            match event {
                0 => world.published = snapshot(reach, content),
                1 | 2 => world.send(),
                5 if reach == 0 => world.connect(),
                _ => world.receive(true),
            }
            let named = world.held[A]["w"].1.ends_with('p');
            let wide = reach_of(&world.held[P]["p"].0).unwrap() > 0;
            prop_assert!(named || wide);
        }
        world.settle();
    }

    /// Whatever happens, a proxy that accepts what it is sent never holds a workload whose
    /// policies it lacks, is never sent what it has, and ends up with what is published.
    #[test]
    fn order_and_convergence(events in prop::collection::vec(event(), 1..80)) {
        let mut world = World::new(true);
        for event in &events {
            match event {
                Event::Publish => world.published = world.draft.clone(),
                Event::Send => world.send(),
                // Refusals are for the other test: what was refused is not resent.
                Event::Receive { .. } => world.receive(true),
                Event::Reconnect => world.connect(),
                Event::Tick => world.now += Duration::from_millis(1),
                change => world.change(change),
            }
            world.check_order();
        }
        world.published = world.draft.clone();
        world.settle();
        world.check_order();
    }

    /// Refusals and delays never block the stream: after a reconnect everything is there.
    #[test]
    fn refusals_and_delays(events in prop::collection::vec(event(), 1..80)) {
        let mut world = World::new(false);
        for event in &events {
            match event {
                Event::Publish => world.published = world.draft.clone(),
                Event::Send => world.send(),
                Event::Receive { accept: true } => {
                    // A resource that an earlier refusal left out may be removed later.
                    if let Some(response) = world.wire.pop_front() {
                        let held = world.held.get_mut(&*response.type_url).unwrap();
                        for name in &response.removed_resources {
                            held.remove(name);
                        }
                        for resource in &response.resources {
                            held.insert(resource.name.clone(), (resource.version.clone(), "0".to_owned()));
                        }
                        world.subscription.ask(ack(&response), world.now).unwrap();
                    }
                }
                Event::Receive { accept: false } => world.receive(false),
                Event::Reconnect => world.connect(),
                Event::Tick => world.now += Duration::from_secs(3),
                change => world.change(change),
            }
        }
        world.published = world.draft.clone();
        world.connect();
        world.settle();
    }

    /// Arbitrary requests end in an error or an answer, never in a panic, and never is more than one response per type under
    /// way.
    #[test]
    fn arbitrary_requests(requests in prop::collection::vec(
        (prop::sample::select(vec![A, P, "x", ""]), prop::collection::vec("[*a-c]{0,2}", 0..3),
         prop::collection::vec("[*a-c]{0,2}", 0..3), "[0-9]{0,2}", any::<bool>()), 0..40)) {
        let resources = snapshot(&[("a", "1"), ("b", "1")], &[("c", "1")]);
        let mut subscription = Subscription::new();
        let mut now = Instant::now();
        for (type_url, subscribe, unsubscribe, nonce, refuse) in requests {
            let request = DeltaDiscoveryRequest {
                type_url: type_url.to_owned(),
                resource_names_subscribe: subscribe,
                resource_names_unsubscribe: unsubscribe,
                response_nonce: nonce,
                error_detail: refuse.then(Status::default),
                initial_resource_versions: [("a".to_owned(), String::new()), ("z".to_owned(), "1".to_owned())].into(),
                ..Default::default()
            };
            let _ = subscription.ask(request, now);
            let mut sent = 0;
            while subscription.say(&resources, now).is_some() {
                sent += 1;
                prop_assert!(sent <= 4);
            }
            now += Duration::from_millis(100);
        }
    }
}
