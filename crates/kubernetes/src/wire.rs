//! Reads what an API server sends about objects: pages of lists, and events of watches.
//!
//! An object is read straight from the bytes into what is kept of it. One that can't be read does not spoil the others.

use leno_objects::{
    AuthorizationPolicy, Kind, Mode, Object, ObjectKey, ObjectMeta, PeerAuthentication, RequestAuthentication, decode,
};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::reduce::reduce;

/// One page of a list.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) objects: Vec<Object>,
    /// The version of the whole list, from which to watch.
    pub(crate) version: String,
    /// Where the next page begins; `None` after the last one.
    pub(crate) continue_at: Option<String>,
}

/// One event of a watch.
#[derive(Debug, PartialEq)]
pub(crate) enum Event {
    /// An object was added or changed.
    Upsert(Box<Object>),
    /// An object was deleted, or changed into one that can't be read.
    Remove(ObjectKey),
    /// Nothing happened up to this version.
    Bookmark,
    /// The watch can't go on.
    Failed {
        /// HTTP status; 410 if the version that was asked for is too old.
        code: u16,
        message: String,
    },
}

#[derive(Deserialize)]
struct RawList<'a> {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ListMeta {
    resource_version: String,
    r#continue: Option<String>,
}

#[derive(Deserialize)]
struct RawEvent<'a> {
    r#type: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// The part of an object that even a broken one has.
#[derive(Deserialize)]
struct Head {
    metadata: HeadMeta,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct HeadMeta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    code: Option<u16>,
    message: Option<String>,
}

/// Reads one page of a list of objects of `kind`.
pub(crate) fn page(kind: Kind, bytes: &[u8]) -> Result<Page, String> {
    let list: RawList<'_> = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if list.metadata.resource_version.is_empty() {
        return Err("it is not a list: metadata.resourceVersion is missing".to_owned());
    }
    let mut objects = Vec::new();
    for raw in list.items.into_iter().flatten() {
        let head = head(raw)?;
        objects.extend(object(kind, raw, head));
    }
    let continue_at = list.metadata.r#continue.filter(|token| !token.is_empty());
    Ok(Page { objects, version: list.metadata.resource_version, continue_at })
}

/// Reads one event, and the version that it brings the watch to.
pub(crate) fn event(kind: Kind, line: &[u8]) -> Result<(Event, Option<String>), String> {
    let raw: RawEvent<'_> = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    if raw.r#type == "ERROR" {
        let status: Status = serde_json::from_str(raw.object.get()).unwrap_or_default();
        let event =
            Event::Failed { code: status.code.unwrap_or_default(), message: status.message.unwrap_or_default() };
        return Ok((event, None));
    }
    let mut head = head(raw.object)?;
    let version = head.resource_version.take();
    let event = match raw.r#type {
        "BOOKMARK" => Event::Bookmark,
        "ADDED" | "MODIFIED" => {
            let key = key(kind, &head);
            match object(kind, raw.object, head) {
                Some(object) => Event::Upsert(Box::new(object)),
                // What it was before is no longer true.
                None => Event::Remove(key),
            }
        }
        "DELETED" => Event::Remove(key(kind, &head)),
        other => return Err(format!("unknown event {other}")),
    };
    Ok((event, version))
}

fn head(raw: &RawValue) -> Result<HeadMeta, String> {
    serde_json::from_str::<Head>(raw.get()).map(|head| head.metadata).map_err(|error| error.to_string())
}

fn key(kind: Kind, head: &HeadMeta) -> ObjectKey {
    let namespace = if kind.is_namespaced() { head.namespace.as_deref().unwrap_or_default() } else { "" };
    ObjectKey::new(kind, namespace, head.name.as_deref().unwrap_or_default())
}

/// The object, made smaller. `None` if it can't be read and leaving it out opens nothing.
fn object(kind: Kind, raw: &RawValue, head: HeadMeta) -> Option<Object> {
    match decode(kind, Mode::Lenient, &mut serde_json::Deserializer::from_str(raw.get())) {
        Ok(decoded) => {
            let mut object = decoded.object;
            for warning in &decoded.warnings {
                tracing::debug!("{}: {warning}", object.key());
            }
            reduce(&mut object);
            Some(object)
        }
        Err(error) => {
            let key = key(kind, &head);
            let closed = closed(kind, head, format!("it can't be read: {error}"));
            let effect = if closed.is_some() { "it counts as the strictest of its kind" } else { "it is left out" };
            tracing::warn!("{key} can't be read, so {effect}: {error}");
            closed
        }
    }
}

/// What stands for a policy that can't be read: without it, what it forbids would be allowed.
fn closed(kind: Kind, head: HeadMeta, reason: String) -> Option<Object> {
    let metadata = ObjectMeta {
        name: head.name.unwrap_or_default().into(),
        namespace: head.namespace.unwrap_or_default().into(),
        uid: head.uid.unwrap_or_default(),
        ..ObjectMeta::default()
    };
    let not_understood = vec![reason];
    match kind {
        Kind::AuthorizationPolicy => {
            Some(AuthorizationPolicy { metadata, not_understood, ..AuthorizationPolicy::default() }.into())
        }
        Kind::PeerAuthentication => {
            Some(PeerAuthentication { metadata, not_understood, ..PeerAuthentication::default() }.into())
        }
        Kind::RequestAuthentication => {
            Some(RequestAuthentication { metadata, not_understood, ..RequestAuthentication::default() }.into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(name: &str) -> serde_json::Value {
        json!({"metadata": {"name": name, "namespace": "shop", "resourceVersion": "12"}, "spec": {"containers": []}})
    }

    #[test]
    fn a_page_has_its_objects_and_where_the_next_one_begins() {
        let list = |meta: serde_json::Value, items: serde_json::Value| {
            page(Kind::Pod, json!({"kind": "PodList", "metadata": meta, "items": items}).to_string().as_bytes())
        };
        let first = list(json!({"resourceVersion": "9", "continue": "t"}), json!([pod("a"), pod("b")])).expect("sound");
        assert_eq!((first.version.as_str(), first.continue_at.as_deref()), ("9", Some("t")));
        let names: Vec<_> = first.objects.iter().map(|object| object.key().to_string()).collect();
        assert_eq!(names, ["Pod shop/a", "Pod shop/b"]);
        let last = list(json!({"resourceVersion": "9", "continue": ""}), json!(null)).expect("sound");
        assert!(last.continue_at.is_none() && last.objects.is_empty());
        assert!(list(json!({}), json!([])).is_err_and(|error| error.contains("not a list")));
        assert!(page(Kind::Pod, b"<html>").is_err());
    }

    #[test]
    fn events() {
        let read = |kind: &str, object: serde_json::Value| {
            event(Kind::Pod, json!({"type": kind, "object": object}).to_string().as_bytes()).expect("sound")
        };
        let (added, version) = read("ADDED", pod("a"));
        assert!(matches!(added, Event::Upsert(object) if &*object.metadata().name == "a"));
        assert_eq!(version.as_deref(), Some("12"));
        let gone = ObjectKey::new(Kind::Pod, "shop", "a");
        assert_eq!(read("DELETED", pod("a")), (Event::Remove(gone.clone()), Some("12".into())));
        let bookmark = json!({"kind": "Pod", "metadata": {"resourceVersion": "30", "creationTimestamp": null}, "spec": {"containers": null}});
        assert_eq!(read("BOOKMARK", bookmark), (Event::Bookmark, Some("30".into())));
        let status = json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"});
        assert_eq!(read("ERROR", status), (Event::Failed { code: 410, message: "too old".into() }, None));
        // What it was before must not stay.
        let broken = json!({"metadata": {"name": "a", "namespace": "shop"}, "spec": 3});
        assert_eq!(read("MODIFIED", broken).0, Event::Remove(gone));
        assert!(event(Kind::Pod, b"{\"type\":\"PERHAPS\",\"object\":{\"metadata\":{}}}").is_err());
        assert!(event(Kind::Pod, b"{\"type\":\"ADDED\"").is_err());
    }

    #[test]
    fn a_policy_that_cannot_be_read_stays_and_closes() {
        let broken = json!({"metadata": {"name": "p", "namespace": "shop"}, "spec": {"rules": "all"}});
        let list = json!({"metadata": {"resourceVersion": "1"}, "items": [broken]}).to_string();
        for kind in [Kind::AuthorizationPolicy, Kind::PeerAuthentication] {
            let objects = page(kind, list.as_bytes()).expect("sound").objects;
            let missing = match &objects[..] {
                [Object::AuthorizationPolicy(policy)] => &policy.not_understood,
                [Object::PeerAuthentication(peer)] => &peer.not_understood,
                other => panic!("{other:?}"),
            };
            assert!(!missing.is_empty(), "{kind}");
        }
    }
}
