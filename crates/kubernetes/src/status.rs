//! Tells the authors of objects what a control plane found: as a condition in a policy's status, and as an Event about
//! any object.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leno_control::Controller;
use leno_control::status::{Condition, ParentStatus, Status, StatusSink};
use leno_objects::{Kind, Object, ObjectKey, ParentReference, WAYPOINT_CONTROLLER};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::backoff::Backoff;
use crate::now::{seconds, timestamp};
use crate::resource::Resource;
use crate::{Client, Error, Patch};

/// The type of this control plane's condition in a policy's status.
pub const CONDITION: &str = "LenoAccepted";
/// The reason of this control plane's Events.
pub(crate) const REASON: &str = "LenoFinding";
const COMPONENT: &str = "leno-control";
/// Longest message of an Event, bytes; the API server refuses longer ones.
const MAX_MESSAGE: usize = 1024;
/// The time between two objects that are written about. A slip in a Deployment is found in all of its pods.
const PACE: Duration = Duration::from_millis(100);
/// The shortest time between two looks at all objects.
const LINT: Duration = Duration::from_secs(5);
/// Looking at all objects may take this part of the time.
const SHARE: u32 = 50;

/// Collects findings and writes them to the API server.
#[derive(Debug, Default)]
pub struct StatusWriter {
    findings: Mutex<Findings>,
    changed: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Findings {
    all: BTreeMap<ObjectKey, Status>,
    /// What is not written yet.
    unwritten: BTreeSet<ObjectKey>,
}

impl StatusSink for StatusWriter {
    fn status(&self, object: &ObjectKey, status: &Status) {
        for finding in status.findings() {
            tracing::warn!("{object}: {finding}");
        }
        {
            let mut findings = self.findings.lock();
            findings.unwritten.insert(object.clone());
            if status.is_empty() {
                findings.all.remove(object);
            } else {
                findings.all.insert(object.clone(), status.clone());
            }
        }
        self.changed.send_modify(|()| ());
    }
}

impl StatusWriter {
    /// Looks at all objects of `controller` from time to time, and writes what is found, while `leads` says that this
    /// replica does. Never returns.
    pub async fn run(&self, client: &Client, controller: &Controller, leads: watch::Receiver<bool>) {
        controller.ready().await;
        tokio::join!(lint(controller, leads.clone()), self.write(client, controller, leads));
    }

    async fn write(&self, client: &Client, controller: &Controller, mut leads: watch::Receiver<bool>) {
        let mut changed = self.changed.subscribe();
        let mut backoff = Backoff::new();
        loop {
            if !*leads.borrow_and_update() {
                if leads.wait_for(|leads| *leads).await.is_err() {
                    return std::future::pending().await;
                }
                // Whoever wrote before may not have written all.
                let mut findings = self.findings.lock();
                findings.unwritten = findings.all.keys().cloned().collect();
            }
            changed.mark_unchanged();
            let next = {
                let mut findings = self.findings.lock();
                let next = findings.unwritten.pop_first();
                next.map(|key| (findings.all.get(&key).cloned().unwrap_or_default(), key))
            };
            let Some((status, key)) = next else {
                tokio::select! {
                    _ = changed.changed() => {}
                    _ = leads.changed() => {}
                }
                continue;
            };
            let object = controller.with_store(|store| store.get(&key).cloned());
            let written = match &object {
                Some(object) => tell(client, &key, object, &status).await,
                None => Ok(()),
            };
            match written {
                Ok(()) => drop(backoff.reset()),
                // It was deleted, or its status can't be written; it may also have been changed, which is told again.
                Err(error) if error.is_not_found() => {}
                Err(error) => {
                    if backoff.failures() == 0 {
                        tracing::warn!("findings can't be written to the API server yet: {error}");
                    }
                    self.findings.lock().unwritten.insert(key);
                    sleep(backoff.wait(error.retry_after())).await;
                }
            }
            sleep(PACE).await;
        }
    }
}

/// Looks at all objects a while after something changed.
async fn lint(controller: &Controller, mut leads: watch::Receiver<bool>) {
    let mut applied = controller.applied();
    applied.mark_changed();
    loop {
        if leads.wait_for(|leads| *leads).await.is_err() || applied.changed().await.is_err() {
            return std::future::pending().await;
        }
        sleep(LINT).await;
        applied.mark_unchanged();
        let begun = Instant::now();
        let looked = controller.clone();
        // It takes long where there are many policies and pods.
        if tokio::task::spawn_blocking(move || looked.lint()).await.is_err() {
            return;
        }
        sleep(begun.elapsed() * SHARE).await;
    }
}

/// Writes the findings about one object.
async fn tell(client: &Client, key: &ObjectKey, object: &Object, status: &Status) -> Result<(), Error> {
    let message = status.findings().collect::<Vec<_>>().join("; ");
    let news = match key.kind {
        Kind::AuthorizationPolicy | Kind::PeerAuthentication | Kind::RequestAuthentication => {
            change_status(client, key, |object| condition_patch(object, &message, status.enforced.as_deref())).await?
        }
        Kind::HTTPRoute | Kind::GRPCRoute | Kind::TLSRoute | Kind::TCPRoute => {
            change_status(client, key, |object| parents_patch(object, &status.parents)).await?
        }
        _ => true,
    };
    if news && !message.is_empty() {
        client.create::<Value>(&events(key), &event(key, object, &message)).await?;
    }
    Ok(())
}

/// Changes an object's status as `change` says, if it says anything. Returns whether it did.
async fn change_status(
    client: &Client,
    key: &ObjectKey,
    change: impl Fn(&Value) -> Option<Value>,
) -> Result<bool, Error> {
    let mut last = None;
    for resource in Resource::versions(key.kind) {
        let path = resource.object(key);
        let object: Value = match client.get(&path).await {
            Ok(object) => object,
            Err(error) if error.is_not_found() => {
                last = Some(error);
                continue;
            }
            Err(error) => return Err(error),
        };
        let Some(patch) = change(&object) else { return Ok(false) };
        client.patch(&format!("{path}/status"), Patch::Merge, &patch).await?;
        return Ok(true);
    }
    last.map_or(Ok(false), Err)
}

/// The change of an object that gives it the condition; `None` if there is nothing to change.
fn condition_patch(object: &Value, findings: &str, enforced: Option<&str>) -> Option<Value> {
    let mut conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let (status, reason, message) = match (findings, enforced) {
        ("", None) => ("True", "Accepted", "in force".to_owned()),
        ("", Some(enforced)) => ("True", "Accepted", enforced.to_owned()),
        (findings, None) => ("False", REASON, findings.to_owned()),
        (findings, Some(enforced)) => ("False", REASON, format!("{findings}; {enforced}")),
    };
    let generation = &object["metadata"]["generation"];
    let own = conditions.iter().position(|condition| condition["type"] == CONDITION);
    let before = own.map(|at| conditions[at].clone());
    match &before {
        // It never was otherwise.
        None if status == "True" && enforced.is_none() => return None,
        Some(before)
            if before["status"] == status
                && before["message"] == *message
                && before["observedGeneration"] == *generation =>
        {
            return None;
        }
        _ => {}
    }
    let condition = Condition::new(CONDITION, status == "True", reason, message);
    let condition = written(before.as_ref(), &condition, generation);
    match own {
        Some(at) => conditions[at] = condition,
        None => conditions.push(condition),
    }
    // With the version that was read: a list is replaced as a whole, and others write into it, too.
    Some(json!({
        "metadata": {"resourceVersion": object["metadata"]["resourceVersion"]},
        "status": {"conditions": conditions},
    }))
}

/// A condition as it is written, with the time since when it is so. `before` is the condition of this type as it was.
pub(crate) fn written(before: Option<&Value>, condition: &Condition, generation: &Value) -> Value {
    let status = if condition.holds { "True" } else { "False" };
    let since = before.filter(|before| before["status"] == status).map(|before| before["lastTransitionTime"].clone());
    json!({
        "type": condition.kind, "status": status, "reason": condition.reason, "message": condition.message,
        "observedGeneration": generation, "lastTransitionTime": since.unwrap_or_else(|| seconds().into()),
    })
}

/// The change of a route that gives it what is said of its parents, beside what other controllers say; `None` if there is
/// nothing to change.
fn parents_patch(object: &Value, parents: &[ParentStatus]) -> Option<Value> {
    let before = object["status"]["parents"].as_array().cloned().unwrap_or_default();
    let (own, others): (Vec<Value>, Vec<Value>) =
        before.iter().cloned().partition(|parent| parent["controllerName"] == WAYPOINT_CONTROLLER);
    let generation = &object["metadata"]["generation"];
    let entry = |status: &ParentStatus| {
        let parent = parent_reference(&status.parent);
        let was = own.iter().find(|before| before["parentRef"] == parent);
        let conditions = status.conditions.iter().map(|condition| {
            let was = was.and_then(|was| was["conditions"].as_array()?.iter().find(|it| it["type"] == condition.kind));
            written(was, condition, generation)
        });
        json!({
            "parentRef": parent, "controllerName": WAYPOINT_CONTROLLER, "conditions": conditions.collect::<Vec<_>>(),
        })
    };
    let after: Vec<Value> = others.into_iter().chain(parents.iter().map(entry)).collect();
    let version = &object["metadata"]["resourceVersion"];
    (before != after).then(|| json!({"metadata": {"resourceVersion": version}, "status": {"parents": after}}))
}

/// A parent as the route's author wrote it.
fn parent_reference(parent: &ParentReference) -> Value {
    let mut out = json!({"name": parent.name});
    let fields = [
        ("group", parent.group.clone()),
        ("kind", parent.kind.clone()),
        ("namespace", Some(parent.namespace.clone()).filter(|namespace| !namespace.is_empty())),
        ("sectionName", parent.section_name.clone()),
    ];
    for (field, value) in fields {
        if let Some(value) = value {
            out[field] = value.into();
        }
    }
    if let Some(port) = parent.port {
        out["port"] = port.0.into();
    }
    out
}

fn events(key: &ObjectKey) -> String {
    format!("/api/v1/namespaces/{}/events", namespace(key))
}

/// Events about what has no namespace are kept in this one.
fn namespace(key: &ObjectKey) -> &str {
    if key.namespace.is_empty() { "default" } else { &key.namespace }
}

fn event(key: &ObjectKey, object: &Object, message: &str) -> Value {
    let mut end = message.len().min(MAX_MESSAGE);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    json!({
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"generateName": format!("{}.", key.name), "namespace": namespace(key)},
        "involvedObject": {
            "apiVersion": key.kind.api_version(), "kind": key.kind.as_str(),
            "namespace": &*key.namespace, "name": &*key.name, "uid": object.metadata().uid,
        },
        "type": "Warning", "reason": REASON, "message": message[..end], "count": 1,
        "source": {"component": COMPONENT}, "reportingComponent": COMPONENT, "reportingInstance": COMPONENT,
        "firstTimestamp": seconds(), "lastTimestamp": seconds(), "eventTime": timestamp(), "action": "Review",
    })
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
