//! The objects of an API server and its log of changes.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use http::{Method, StatusCode};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::paths::{self, Path};

type Name = (String, String);

#[derive(Debug)]
pub(super) struct State {
    version: u64,
    objects: BTreeMap<String, BTreeMap<Name, Value>>,
    log: Vec<Logged>,
    /// Changes up to this version are forgotten.
    compacted: u64,
    /// The objects as they were in that version.
    base: BTreeMap<String, BTreeMap<Name, Value>>,
    unknown: BTreeSet<String>,
    pub(super) page: usize,
    /// Changes when all watches have to end.
    pub(super) epoch: u64,
    pub(super) forbidden: Vec<String>,
    pub(super) refusals: VecDeque<(StatusCode, Option<u64>)>,
    pub(super) tokens: HashMap<String, Value>,
    pub(super) requests: Vec<String>,
    /// Answers that are no objects, by path.
    pub(super) texts: HashMap<String, String>,
    /// Where ports of pods are, by `NAMESPACE/POD:PORT`.
    pub(super) ports: HashMap<String, SocketAddr>,
    /// What is served there, by path.
    pub(super) pages: HashMap<String, Pages>,
}

pub(super) type Pages = Arc<Mutex<HashMap<String, (StatusCode, String)>>>;

#[derive(Debug)]
struct Logged {
    version: u64,
    /// `None` for all.
    collection: Option<String>,
    kind: &'static str,
    object: Value,
}

/// A refusal of the API server.
pub(super) fn refusal(status: StatusCode, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": status.as_u16()})
}

impl State {
    pub(super) fn new() -> Self {
        Self {
            version: 1,
            objects: BTreeMap::new(),
            log: Vec::new(),
            compacted: 0,
            base: BTreeMap::new(),
            unknown: BTreeSet::new(),
            page: usize::MAX,
            epoch: 0,
            forbidden: Vec::new(),
            refusals: VecDeque::new(),
            tokens: HashMap::new(),
            requests: Vec::new(),
            texts: HashMap::new(),
            ports: HashMap::new(),
            pages: HashMap::new(),
        }
    }

    pub(super) fn put(&mut self, object: &Value) -> u64 {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let plural = plural(&text(&object["kind"]));
        let collection = paths::collection(&text(&object["apiVersion"]), &plural);
        let name = (text(&object["metadata"]["namespace"]), text(&object["metadata"]["name"]));
        self.store(&collection, name, object.clone());
        self.version
    }

    fn store(&mut self, collection: &str, name: Name, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = format!("uid-{}", self.version).into();
        }
        let before = self.objects.entry(collection.to_owned()).or_default().insert(name, object.clone());
        self.note(collection, if before.is_some() { "MODIFIED" } else { "ADDED" }, object.clone());
        object
    }

    pub(super) fn delete(&mut self, collection: &str, namespace: &str, name: &str) -> bool {
        let name = (namespace.to_owned(), name.to_owned());
        let Some(mut object) = self.objects.get_mut(collection).and_then(|all| all.remove(&name)) else { return false };
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.note(collection, "DELETED", object);
        true
    }

    fn note(&mut self, collection: &str, kind: &'static str, object: Value) {
        self.log.push(Logged { version: self.version, collection: Some(collection.to_owned()), kind, object });
    }

    pub(super) fn bookmark(&mut self) {
        self.version += 1;
        let object = json!({"metadata": {"resourceVersion": self.version.to_string(), "creationTimestamp": null}});
        self.log.push(Logged { version: self.version, collection: None, kind: "BOOKMARK", object });
    }

    pub(super) fn compact(&mut self) {
        self.version += 1;
        self.compacted = self.version;
        self.base = self.objects.clone();
        self.log.clear();
    }

    pub(super) fn get(&self, collection: &str, namespace: &str, name: &str) -> Option<&Value> {
        self.objects.get(collection)?.get(&(namespace.to_owned(), name.to_owned()))
    }

    pub(super) fn all(&self, collection: &str) -> Vec<Value> {
        self.objects.get(collection).into_iter().flat_map(|all| all.values()).cloned().collect()
    }

    pub(super) fn is_known(&self, collection: &str) -> bool {
        !self.unknown.contains(collection)
    }

    /// Whether objects of this collection exist by a definition that somebody has put here.
    fn is_defined(&self, collection: &str) -> bool {
        let mut parts = collection.trim_start_matches("/apis/").split('/');
        let (Some(group), Some(_), Some(plural)) = (parts.next(), parts.next(), parts.next()) else { return false };
        let definitions = paths::collection("apiextensions.k8s.io/v1", "customresourcedefinitions");
        self.get(&definitions, "", &format!("{plural}.{group}")).is_some()
    }

    pub(super) fn set_known(&mut self, collection: &str, known: bool) {
        if known {
            self.unknown.remove(collection);
            return;
        }
        let names: Vec<Name> = self.objects.get(collection).into_iter().flat_map(|all| all.keys()).cloned().collect();
        for (namespace, name) in names {
            self.delete(collection, &namespace, &name);
        }
        self.unknown.insert(collection.to_owned());
        self.epoch += 1;
    }

    /// The changes since `version`, and the latest version. `None` if they are forgotten.
    pub(super) fn since(&self, version: u64, path: &Path) -> Option<(u64, Vec<Value>)> {
        if version < self.compacted {
            return None;
        }
        let later = self.log.iter().filter(|entry| entry.version > version);
        let events = later.filter(|entry| match &entry.collection {
            None => true,
            Some(collection) => *collection == path.collection && path.selects(&entry.object),
        });
        let events = events.map(|entry| json!({"type": entry.kind, "object": entry.object})).collect();
        Some((self.version, events))
    }

    /// The answer to anything but a watch.
    pub(super) fn answer(&mut self, method: &Method, path: &Path, body: Value) -> (StatusCode, Value) {
        let no = |status: StatusCode, message: &str| (status, refusal(status, message));
        if path.collection.ends_with("/tokenreviews") {
            return (StatusCode::CREATED, self.review(body));
        }
        if !self.is_known(&path.collection) {
            return no(StatusCode::NOT_FOUND, "the server could not find the requested resource");
        }
        let namespace = path.namespace.clone().unwrap_or_default();
        let Some(name) = path.name.clone() else {
            return match *method {
                Method::GET => self.list(path),
                Method::POST => {
                    let given = body["metadata"]["name"].as_str().map(str::to_owned);
                    let prefix = body["metadata"]["generateName"].as_str().unwrap_or_default();
                    let name = given.unwrap_or_else(|| format!("{prefix}{}", self.version));
                    if self.get(&path.collection, &namespace, &name).is_some() {
                        return no(StatusCode::CONFLICT, "already exists");
                    }
                    let mut body = body;
                    body["metadata"]["name"] = name.clone().into();
                    if path.namespace.is_some() {
                        body["metadata"]["namespace"] = namespace.clone().into();
                    }
                    (StatusCode::CREATED, self.store(&path.collection, (namespace, name), body))
                }
                _ => no(StatusCode::METHOD_NOT_ALLOWED, "not for collections"),
            };
        };
        // Only an apply names its manager, and it makes what is not there.
        if *method == Method::PATCH
            && path.query("fieldManager").is_some()
            && self.get(&path.collection, &namespace, &name).is_none()
        {
            return (StatusCode::CREATED, self.store(&path.collection, (namespace, name), body));
        }
        let Some(mut held) = self.get(&path.collection, &namespace, &name).cloned() else {
            return no(StatusCode::NOT_FOUND, "not found");
        };
        match *method {
            Method::GET => (StatusCode::OK, held),
            // The garbage collector comes to a kind that was defined lately only after a while, and nothing else ends this
            // way of deleting.
            Method::DELETE
                if path.query("propagationPolicy") == Some("Foreground") && self.is_defined(&path.collection) =>
            {
                held["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
                held["metadata"]["finalizers"] = json!(["foregroundDeletion"]);
                (StatusCode::OK, self.store(&path.collection, (namespace, name), held))
            }
            Method::DELETE => {
                self.delete(&path.collection, &namespace, &name);
                (StatusCode::OK, json!({"kind": "Status", "status": "Success"}))
            }
            Method::PUT => {
                let wanted = &body["metadata"]["resourceVersion"];
                if !wanted.is_null() && *wanted != held["metadata"]["resourceVersion"] {
                    return no(StatusCode::CONFLICT, "the object has been modified");
                }
                (StatusCode::OK, self.store(&path.collection, (namespace, name), body))
            }
            Method::PATCH => {
                merge(&mut held, body);
                (StatusCode::OK, self.store(&path.collection, (namespace, name), held))
            }
            _ => no(StatusCode::METHOD_NOT_ALLOWED, "not for objects"),
        }
    }

    fn list(&self, path: &Path) -> (StatusCode, Value) {
        // The token consists of the list's version and the position in it.
        let token = path.query("continue").and_then(|token| {
            let (version, place) = token.split_once('+')?;
            Some((version.parse::<u64>().ok()?, place.parse::<usize>().ok()?))
        });
        let (version, place) = token.unwrap_or((self.version, 0));
        if version < self.compacted {
            return (StatusCode::GONE, refusal(StatusCode::GONE, "the continue token is too old"));
        }
        let limit: usize = path.query("limit").and_then(|text| text.parse().ok()).unwrap_or(usize::MAX);
        let limit = limit.min(self.page);
        let past = self.objects_at(version, &path.collection);
        let all: Vec<&Value> = past.values().filter(|object| path.selects(object)).collect();
        let items: Vec<&Value> = all.iter().skip(place).take(limit).copied().collect();
        let next = place + items.len();
        let mut metadata = json!({"resourceVersion": version.to_string()});
        if next < all.len() {
            metadata["continue"] = format!("{version}+{next}").into();
        }
        (StatusCode::OK, json!({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items}))
    }

    /// The objects at a version: all pages of a list belong to one version, which must not be forgotten yet.
    fn objects_at(&self, version: u64, collection: &str) -> BTreeMap<Name, Value> {
        let mut objects = self.base.get(collection).cloned().unwrap_or_default();
        let earlier = self.log.iter().filter(|entry| entry.version <= version);
        for entry in earlier.filter(|entry| entry.collection.as_deref() == Some(collection)) {
            let text = |name: &str| entry.object["metadata"][name].as_str().unwrap_or_default().to_owned();
            let name = (text("namespace"), text("name"));
            if entry.kind == "DELETED" {
                objects.remove(&name);
            } else {
                objects.insert(name, entry.object.clone());
            }
        }
        objects
    }

    fn review(&self, mut body: Value) -> Value {
        let token = body["spec"]["token"].as_str().unwrap_or_default();
        let unknown = json!({"authenticated": false, "error": "invalid bearer token"});
        body["status"] = self.tokens.get(token).cloned().unwrap_or(unknown);
        body
    }
}

/// A JSON merge patch (RFC 7396).
fn merge(into: &mut Value, patch: Value) {
    match patch {
        Value::Object(fields) => {
            if !into.is_object() {
                *into = json!({});
            }
            for (key, value) in fields {
                if value.is_null() {
                    into.as_object_mut().map(|object| object.remove(&key));
                } else {
                    merge(&mut into[key], value);
                }
            }
        }
        other => *into = other,
    }
}

fn plural(kind: &str) -> String {
    let lower = kind.to_lowercase();
    match lower.strip_suffix('y').filter(|stem| !stem.ends_with(['a', 'e', 'o'])) {
        Some(stem) => format!("{stem}ies"),
        None if lower.ends_with('s') => format!("{lower}es"),
        None => format!("{lower}s"),
    }
}
