//! Tests of what a proxy sees in a stream.

use leno_proto::discovery::Resource;
use leno_proto::workload::{Address, Workload, WorkloadStatus, address::Type};
use prost::Message as _;

use super::*;

fn resource(name: &str, revision: &str) -> Vec<u8> {
    let workload = Workload { name: name.to_owned(), canonical_revision: revision.to_owned(), ..Workload::default() };
    let address = Address { r#type: Some(Type::Workload(workload)) };
    let any = prost_types::Any { type_url: "t".to_owned(), value: address.encode_to_vec() };
    Resource { name: name.to_owned(), version: "7".to_owned(), resource: Some(any), ..Resource::default() }
        .encode_to_vec()
}

fn held(names: &Arc<Names>, watched: &Arc<Watched>, witness: bool) -> Held {
    Held::new(names.clone(), watched.clone(), 2, witness)
}

#[test]
fn a_change_is_seen_when_all_its_pods_are() {
    let names = Arc::new(Names::new(vec!["b".to_owned(), "a".to_owned()]));
    let watched = Arc::new(Watched::default());
    let mut proxy = held(&names, &watched, false);
    proxy.resource(&resource("a", "change-1"));
    assert!(!proxy.is_synced());
    proxy.resource(&resource("b", "change-2"));
    assert!(proxy.is_synced());
    watched.begin(3);
    watched.sent(3, 2);
    watched.sent(4, 1);
    proxy.resource(&resource("a", "change-3"));
    proxy.resource(&resource("a", "change-3"));
    assert_eq!(watched.seen(), 0, "the same pod twice is one");
    proxy.resource(&resource("b", "change-2"));
    proxy.resource(&resource("c", "change-4"));
    assert_eq!((watched.seen(), proxy.changes_seen()), (1, 1), "an earlier change is not counted");
    proxy.resource(&resource("b", "change-3"));
    assert_eq!((watched.seen(), proxy.changes_seen(), watched.latency().finish().count), (2, 2, 2));
}

/// What comes before its last event does not count: a pod that does not take connections yet.
#[test]
fn a_pod_that_comes_is_seen_when_it_is_ready_and_one_that_goes_when_it_is_gone() {
    let names = Arc::new(Names::new(vec!["a".to_owned(), "b".to_owned()]));
    let watched = Arc::new(Watched::default());
    let mut proxy = held(&names, &watched, false);
    proxy.resource(&resource("a", "change-0"));
    proxy.resource(&resource("b", "change-0"));
    watched.begin(1);
    let mut unready = Workload { canonical_revision: "change-1".to_owned(), ..Workload::default() };
    unready.set_status(WorkloadStatus::Unhealthy);
    let address = Address { r#type: Some(Type::Workload(unready)) };
    let any = prost_types::Any { type_url: "t".to_owned(), value: address.encode_to_vec() };
    proxy.resource(&Resource { name: "c".to_owned(), resource: Some(any), ..Resource::default() }.encode_to_vec());
    watched.sent(1, 1);
    assert_eq!(watched.seen(), 0);
    proxy.resource(&resource("c", "change-1"));
    assert_eq!(watched.seen(), 1);

    watched.going(2, ["a".to_owned(), "b".to_owned()]);
    watched.sent(2, 2);
    proxy.removed(b"a");
    proxy.removed(b"a");
    assert_eq!(watched.seen(), 1, "the same pod twice is one");
    proxy.removed(b"b");
    assert_eq!((watched.seen(), proxy.changes_seen(), watched.latency().finish().count), (2, 2, 2));
}

#[test]
fn proxies_that_hold_the_same_are_told_from_those_that_do_not() {
    let names = Arc::new(Names::new(vec!["a".to_owned(), "b".to_owned()]));
    let watched = Arc::new(Watched::default());
    let (mut witness, mut other) = (held(&names, &watched, true), held(&names, &watched, false));
    for proxy in [&mut witness, &mut other] {
        proxy.resource(&resource("b", "x"));
        proxy.resource(&resource("later", "x"));
    }
    assert_eq!((witness.differences(&other), witness.count()), (0, 2));
    let kept: Vec<_> = witness.kept().map(|kept| (kept.name.as_str(), kept.version.as_str())).collect();
    assert_eq!(kept.len(), 2);
    assert!(kept.contains(&("later", "7")));
    witness.resource(&resource("b", "y"));
    assert_eq!(witness.differences(&other), 1, "another content under the same version");
    other.resource(&resource("b", "y"));
    witness.removed(b"later");
    assert_eq!((witness.differences(&other), other.differences(&witness)), (1, 1));
    other.removed(b"later");
    other.removed(b"never there");
    assert_eq!((witness.differences(&other), other.count(), witness.kept().count()), (0, 1, 1));
}
