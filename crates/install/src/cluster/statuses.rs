//! What the control plane wrote into the status of objects that stay. Nobody keeps it true once the mesh is removed, so a
//! Gateway says again that no controller has looked at it, and what was said of routes and policies goes.

use leno_kubernetes::now::seconds;
use leno_kubernetes::{CONDITION, Client, Patch};
use leno_objects::{ISTIO_WAYPOINT_CLASS, Kind, WAYPOINT_CLASS, WAYPOINT_CONTROLLER};
use serde_json::{Value, json};

use super::ClusterError;
use super::removal::{Kept, Removal};
use super::requests::list;

/// How often a status is changed anew, where somebody else changes the object, too.
const ATTEMPTS: usize = 5;

/// The kinds whose objects have a condition of ours among others.
const POLICIES: [Kind; 3] = [Kind::AuthorizationPolicy, Kind::PeerAuthentication, Kind::RequestAuthentication];
/// The kinds whose status has an entry for each controller.
const ROUTES: [Kind; 4] = [Kind::HTTPRoute, Kind::GRPCRoute, Kind::TLSRoute, Kind::TCPRoute];

/// Takes back what was said, once nobody is left who would say it anew.
pub(super) async fn take_back(client: &Client, removal: &mut Removal) -> Result<(), ClusterError> {
    let classes = all(client, Kind::GatewayClass).await?;
    for gateway in all(client, Kind::Gateway).await? {
        if is_ours(&gateway, &classes) {
            change(client, Kind::Gateway, gateway, of_gateway, removal).await;
        }
    }
    // One that the control plane made is gone right after this.
    for class in classes.into_iter().filter(|class| class["spec"]["controllerName"] == WAYPOINT_CONTROLLER) {
        change(client, Kind::GatewayClass, class, of_class, removal).await;
    }
    for kind in ROUTES {
        for route in all(client, kind).await? {
            change(client, kind, route, of_route, removal).await;
        }
    }
    for kind in POLICIES {
        for policy in all(client, kind).await? {
            change(client, kind, policy, of_policy, removal).await;
        }
    }
    Ok(())
}

async fn all(client: &Client, kind: Kind) -> Result<Vec<Value>, ClusterError> {
    list(client, &format!("/apis/{}/{}", kind.api_version(), kind.plural())).await
}

/// Whether a Gateway was a waypoint of Leno: by its class, or by the two names that need none.
fn is_ours(gateway: &Value, classes: &[Value]) -> bool {
    let name = &gateway["spec"]["gatewayClassName"];
    match classes.iter().find(|class| class["metadata"]["name"] == *name) {
        Some(class) => class["spec"]["controllerName"] == WAYPOINT_CONTROLLER,
        None => *name == WAYPOINT_CLASS || *name == ISTIO_WAYPOINT_CLASS,
    }
}

/// Changes the status of an object that stays, and says so where that can't be done: it keeps nothing else from going.
async fn change(
    client: &Client,
    kind: Kind,
    mut object: Value,
    status: fn(&Value) -> Option<Value>,
    removal: &mut Removal,
) {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    let (namespace, name) = (text("namespace"), text("name"));
    let place = if namespace.is_empty() { String::new() } else { format!("namespaces/{namespace}/") };
    let path = format!("/apis/{}/{place}{}/{name}", kind.api_version(), kind.plural());
    for attempt in 1.. {
        let Some(status) = status(&object["status"]) else { return };
        // With the version that was read: lists are replaced as a whole, and others write into them, too.
        let patch = json!({"metadata": {"resourceVersion": object["metadata"]["resourceVersion"]}, "status": status});
        let error = match client.patch(&format!("{path}/status"), Patch::Merge, &patch).await {
            Ok(()) => return,
            Err(error) if error.is_not_found() => return,
            Err(error) => error,
        };
        let again = if error.is_conflict() && attempt < ATTEMPTS { client.find(&path).await.ok() } else { None };
        match again {
            Some(Some(read)) => object = read,
            Some(None) => return,
            None => {
                let why = format!("it could not be changed: {error}; nobody keeps it up to date any more");
                removal.kept.push(Kept { what: format!("status of {kind} {namespace}/{name}"), why });
                return;
            }
        }
    }
}

/// As the Gateway API has it for one that no controller has looked at.
fn of_gateway(status: &Value) -> Option<Value> {
    let conditions = unknown(status, &["Accepted", "Programmed", "ResolvedRefs"])?;
    Some(json!({"conditions": conditions, "addresses": [], "listeners": []}))
}

fn of_class(status: &Value) -> Option<Value> {
    Some(json!({"conditions": unknown(status, &["Accepted"])?}))
}

/// The conditions, those of `kinds` with nothing that is known; `None` if nothing is known of them now.
fn unknown(status: &Value, kinds: &[&str]) -> Option<Value> {
    let before = status["conditions"].as_array()?;
    let is_said =
        |condition: &Value| kinds.iter().any(|kind| condition["type"] == *kind && condition["status"] != "Unknown");
    if !before.iter().any(is_said) {
        return None;
    }
    let after = before.iter().map(|condition| {
        if !is_said(condition) {
            return condition.clone();
        }
        json!({
            "type": condition["type"], "status": "Unknown", "reason": "Pending",
            "message": "Leno was uninstalled, and no controller has taken this over",
            "observedGeneration": condition["observedGeneration"], "lastTransitionTime": seconds(),
        })
    });
    Some(after.collect())
}

fn of_route(status: &Value) -> Option<Value> {
    let others = without(&status["parents"], |parent| parent["controllerName"] == WAYPOINT_CONTROLLER)?;
    Some(json!({"parents": others}))
}

fn of_policy(status: &Value) -> Option<Value> {
    Some(json!({"conditions": without(&status["conditions"], |condition| condition["type"] == CONDITION)?}))
}

/// A list without what is ours; `None` if nothing is.
fn without(list: &Value, ours: fn(&Value) -> bool) -> Option<Vec<Value>> {
    let list = list.as_array()?;
    let others: Vec<_> = list.iter().filter(|entry| !ours(entry)).cloned().collect();
    (others.len() < list.len()).then_some(others)
}
