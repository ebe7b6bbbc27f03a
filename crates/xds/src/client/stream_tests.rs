use std::collections::BTreeMap;

use leno_proto::discovery::{DeltaDiscoveryResponse, Resource};
use prost_types::Any;

use super::*;

const TYPE: &str = leno_proto::ADDRESS_TYPE;

/// Holds bodies by name, and refuses those that begin with "bad".
#[derive(Default)]
struct Store {
    held: BTreeMap<String, Vec<u8>>,
    order: Vec<String>,
}

impl Handler for Store {
    fn apply(&mut self, _: &str, updates: Vec<Update>) -> Vec<Rejection> {
        let mut rejections = Vec::new();
        for update in updates {
            match update {
                Update::Upsert { name, body } if body.starts_with(b"bad") => {
                    rejections.push(Rejection { name, reason: "it is bad".to_owned() });
                }
                Update::Upsert { name, body } => {
                    self.order.push(format!("+{name}"));
                    self.held.insert(name.to_string(), body.into());
                }
                Update::Unreadable { name, reason } => rejections.push(Rejection { name, reason }),
                Update::Remove { name } => {
                    self.order.push(format!("-{name}"));
                    self.held.remove(&*name);
                }
            }
        }
        rejections
    }
}

fn resource(name: &str, version: &str, body: &str) -> Resource {
    Resource {
        name: name.to_owned(),
        version: version.to_owned(),
        resource: Some(Any { type_url: TYPE.to_owned(), value: body.into() }),
        ..Default::default()
    }
}

fn response(nonce: &str, resources: Vec<Resource>, removed: &[&str]) -> Response {
    let response = DeltaDiscoveryResponse {
        resources,
        type_url: TYPE.to_owned(),
        nonce: nonce.to_owned(),
        removed_resources: removed.iter().map(ToString::to_string).collect(),
        ..Default::default()
    };
    Response::decode(&*response.encode_to_vec()).unwrap()
}

fn versions(subscribed: &mut Subscribed) -> Vec<(String, String)> {
    subscribed.first_request(Node::default()).initial_resource_versions.into_iter().collect()
}

#[test]
fn held_versions_are_told_on_reconnect() {
    let (mut subscribed, mut store) = (Subscribed::new(TYPE), Store::default());
    let first = subscribed.first_request(Node { id: "me".to_owned(), ..Node::default() });
    assert_eq!(first.node.unwrap().id, "me");
    assert!(first.resource_names_subscribe.is_empty(), "empty means everything");
    let (ack, outcome) =
        subscribed.answer(response("1", vec![resource("a", "v1", "x"), resource("b", "v1", "y")], &[]), &mut store);
    assert_eq!((&*ack.response_nonce, ack.error_detail, ack.node), ("1", None, None));
    assert!(outcome.first);
    let (_, outcome) = subscribed.answer(response("2", vec![resource("a", "v2", "x")], &["b", "unknown"]), &mut store);
    assert!(!outcome.first);
    assert_eq!(versions(&mut subscribed), [("a".to_owned(), "v2".to_owned())]);
    assert_eq!(store.order, ["+a", "+b", "-b", "-unknown", "+a"], "removals come first");
}

#[test]
fn good_resources_count_and_bad_ones_are_named() {
    let (mut subscribed, mut store) = (Subscribed::new(TYPE), Store::default());
    subscribed.answer(response("1", vec![resource("old", "v1", "good")], &[]), &mut store);
    let mut strange = resource("strange", "v1", "x");
    strange.resource.as_mut().unwrap().type_url = "type.googleapis.com/other".to_owned();
    let bodyless = Resource { name: "bodyless".to_owned(), ..Resource::default() };
    let resources = vec![
        resource("good", "v1", "x"),
        resource("old", "v2", "bad"),
        resource("new", "v1", "bad"),
        strange,
        bodyless,
        resource("", "v1", "x"),
    ];
    let (nack, outcome) = subscribed.answer(response("2", resources, &[]), &mut store);
    assert_eq!(outcome.rejected, 5);
    assert_eq!(nack.response_nonce, "2");
    let message = nack.error_detail.unwrap().message;
    for part in ["old: it is bad", "new: it is bad", "strange: a body of type", "bodyless: ", "; "] {
        assert!(message.contains(part), "{message}");
    }
    assert!(!message.contains("good:"), "{message}");
    // What was refused may have a stand-in: told without a version, it is sent again or removed,
    // also where the server goes back to the very version that was once good.
    let held = [("bodyless", ""), ("good", "v1"), ("new", ""), ("old", ""), ("strange", "")];
    assert_eq!(versions(&mut subscribed), held.map(|(n, v)| (n.to_owned(), v.to_owned())));
    assert_eq!(store.held["old"], b"good");
}

#[test]
fn a_version_is_told_as_it_came() {
    for text in ["0123456789abcdef", "16181339887498948482", "0000000000000007", "1234567890123456", "7", "0"] {
        assert!(matches!(Version::of(text.to_owned()), Version::Hexadecimal(_) | Version::Decimal(_)), "{text}");
    }
    for text in [
        "",
        "0123456789abcdef",
        "0123456789ABCDEF",
        "16181339887498948482",
        "99999999999999999999",
        "007",
        "+7",
        "v1",
        "0123456789abcdef-2",
        "1234567890123456",
        "0",
    ] {
        assert_eq!(Version::of(text.to_owned()).to_string(), text);
    }
}

/// The number of held resources is kept up to date, because counting them anew would visit all of them.
#[test]
fn what_is_held_is_counted() {
    let (mut subscribed, mut store) = (Subscribed::new(TYPE), Store::default());
    for (resources, removed, held) in [
        (vec![resource("a", "v1", "x"), resource("b", "v1", "bad")], &[][..], 1),
        (vec![resource("a", "v2", "bad"), resource("b", "v2", "bad")], &[], 0),
        (vec![resource("b", "v3", "x")], &["a", "unknown"], 1),
        (vec![resource("c", "v3", "bad"), resource("c", "v3", "x")], &[], 1),
        (vec![resource("c", "v4", "x")], &["b"], 1),
    ] {
        subscribed.answer(response("1", resources, removed), &mut store);
        assert_eq!(subscribed.held(), held);
    }
}

#[test]
fn a_nack_stays_small() {
    let (mut subscribed, mut store) = (Subscribed::new(TYPE), Store::default());
    let resources = (0..10_000).map(|n| resource(&format!("r{n}"), "v", "bad")).collect();
    let (nack, _) = subscribed.answer(response("1", resources, &[]), &mut store);
    let message = nack.error_detail.unwrap().message;
    assert!(message.len() < 2 * MAX_REASON && message.contains("and 9"), "{}", message.len());
}

/// Istio's names and versions have some 60 bytes together. A request that lists those of 50 000 workloads is within a gRPC
/// server's limit, so nothing is sent again.
#[test]
fn fifty_thousand_workloads_are_all_told() {
    let (mut subscribed, mut store) = (Subscribed::new(TYPE), Store::default());
    let name = |n: usize| format!("Kubernetes//Pod/ns-{}/svc-{}-abcdef1234-{n:05}", n % 50, n % 500);
    let many = (0..50_000).map(|n| resource(&name(n), "16181339887498948482", "x")).collect();
    subscribed.answer(response("1", many, &[]), &mut store);
    let request = subscribed.first_request(Node::default());
    assert_eq!(request.initial_resource_versions.len(), 50_000);
    assert!(request.encoded_len() <= 4 << 20, "{}", request.encoded_len());
    let (_, outcome) = subscribed.answer(response("1", vec![], &[]), &mut store);
    assert_eq!((outcome.removed, store.held.len()), (0, 50_000));
}

#[test]
fn what_is_too_much_to_tell_comes_again_or_is_gone() {
    let (mut subscribed, mut store) = (Subscribed::new(TYPE), Store::default());
    let name = |n: usize| format!("{n:0100}");
    let many = (0..40_000).map(|n| resource(&name(n), "0123456789abcdef", "x")).collect();
    subscribed.answer(response("1", many, &[]), &mut store);
    let request = subscribed.first_request(Node { id: "n".repeat(1000), ..Node::default() });
    let told = request.initial_resource_versions.clone();
    let room = (4 << 20) - request.encoded_len();
    assert!(room < 150, "as many as fit: {room}");
    let untold: Vec<String> = (0..40_000).map(name).filter(|name| !told.contains_key(name)).collect();
    assert!(untold.len() > 1000, "{}", untold.len());
    // One of those is still there, and one of the others has gone.
    let (gone, _) = told.first_key_value().unwrap();
    let still = vec![resource(&untold[0], "v", "x"), resource("new", "v", "x")];
    let (_, outcome) = subscribed.answer(response("1", still, &[gone]), &mut store);
    assert_eq!(outcome.removed, untold.len());
    assert_eq!(store.held.len(), told.len() - 1 + 2);
    assert!(store.held.contains_key(&untold[0]) && !store.held.contains_key(&untold[1]));
    let before = store.held.len();
    subscribed.answer(response("2", vec![resource("b", "v", "x")], &[]), &mut store);
    assert_eq!(store.held.len(), before + 1, "only the first answer says what is gone");
}

#[test]
fn a_resource_that_cannot_be_read_is_closed_by_its_name_and_the_others_count() {
    let (mut subscribed, mut store) = (Subscribed::new(TYPE), Store::default());
    subscribed.answer(response("1", vec![resource("torn", "v1", "good")], &[]), &mut store);
    let mut torn = response("2", vec![resource("torn", "v2", "good"), resource("sound", "v1", "good")], &[]);
    // A field of text that is none, behind the name.
    torn.resources[0] = [&torn.resources[0][..], &[0x0a, 1, 0xff]].concat().into();
    let (nack, outcome) = subscribed.answer(torn, &mut store);
    assert!(nack.error_detail.unwrap().message.starts_with("torn: "));
    assert_eq!((outcome.rejected, subscribed.held()), (1, 1));
    assert!(store.held.contains_key("sound"));
    assert!(versions(&mut subscribed).contains(&("torn".to_owned(), String::new())), "it is to come again");
}

proptest::proptest! {
    /// Any bytes either don't decode or are answered with their own nonce.
    #[test]
    fn arbitrary_bytes(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
        if let Ok(decoded) = Response::decode(&*bytes) {
            let nonce = decoded.nonce.clone();
            let (answer, _) = Subscribed::new(TYPE).answer(decoded, &mut Store::default());
            proptest::prop_assert_eq!(answer.response_nonce, nonce);
        }
    }
}
