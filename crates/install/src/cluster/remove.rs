//! Takes an installation away, in an order in which nothing is left behind on the nodes.

use std::collections::BTreeSet;
use std::time::Duration;

use leno_kubernetes::{Client, Patch};
use leno_objects::{DATAPLANE_MODE, Kind, UNINSTALLED_ANNOTATION, WAYPOINT_CLASS, WAYPOINT_CONTROLLER};
use serde_json::{Value, json};

use super::error::doing;
use super::removal::{Kept, Removal};
use super::requests::{
    AS_MANAGER, MANAGED_BY, MANAGER, OURS, WAYPOINTS, delete, delete_alone, delete_ours, exists, list,
};
use super::resource::{RESOURCES, Resource};
use super::{ClusterError, Installer, installer, record, statuses};

/// How often it is looked whether something is gone.
const INTERVAL: Duration = Duration::from_millis(250);

/// What the control plane keeps, by paths below its namespace.
const OF_CONTROL: [(&str, &str); 3] = [
    ("Secret leno-ca", "/api/v1/namespaces/{}/secrets/leno-ca"),
    ("ConfigMap leno-ca-root", "/api/v1/namespaces/{}/configmaps/leno-ca-root"),
    ("Lease leno-control", "/apis/coordination.k8s.io/v1/namespaces/{}/leases/leno-control"),
];

/// Removes the installation in a namespace. `purge` also removes definitions that have users' objects, and those with them.
/// `says` is told what is waited for.
///
/// # Errors
///
/// If there is none, or it is Helm's, or the API server refuses. The same call goes on from there.
pub async fn remove(
    client: &Client,
    namespace: &str,
    purge: bool,
    says: &mut (dyn FnMut(String) + Send),
) -> Result<Removal, ClusterError> {
    match installer(client).await? {
        Some((there, _)) if there != namespace => {
            return Err(ClusterError::NotHere { namespace: namespace.to_owned(), there });
        }
        Some((_, Installer::Helm)) => return Err(ClusterError::Helms { namespace: namespace.to_owned() }),
        Some(_) => {}
        // An installation may have been ended before the binding was made, and a removal after it was gone.
        None if !is_anything_left(client, namespace).await? => {
            return Err(ClusterError::NotInstalled { namespace: namespace.to_owned() });
        }
        None => {}
    }
    // The record goes last: by it, a call that is ended early is known to have begun.
    let (mut removal, kept) = (Removal::default(), BTreeSet::from([record::path(namespace)]));
    announce(client, namespace).await?;
    // First the agents: each takes its pods out of the mesh and its configuration from the node, and wants the proxy, the
    // API server and its rights there for that. A control plane that still ran would make its Secret anew.
    for (kind, name) in [("DaemonSet", "leno-agent"), ("DaemonSet", "leno-node"), ("Deployment", "leno-control")] {
        if remove_workload(client, kind, [namespace, name], says).await? {
            removal.removed.push(format!("{kind} {name}"));
        }
    }
    statuses::take_back(client, &mut removal).await?;
    remove_class(client, &mut removal).await?;
    for resource in &RESOURCES {
        match resource.kind {
            "Namespace" => {}
            "CustomResourceDefinition" => remove_definitions(client, purge, &mut removal).await?,
            // That the installation is there is known by these, so they go last.
            "ClusterRoleBinding" | "ClusterRole" => {}
            _ => removal.removed.extend(delete_ours(client, resource, namespace, &kept).await?),
        }
    }
    // Nobody keeps them running any more, and their Gateways are users' objects that stay.
    for resource in
        ["Deployment", "Service", "ServiceAccount", "PodDisruptionBudget", "NetworkPolicy"].map(Resource::of)
    {
        let Some(resource) = resource else { continue };
        for part in list(client, &format!("{}?{WAYPOINTS}", resource.all(None))).await? {
            let text = |field: &str| part["metadata"][field].as_str().unwrap_or_default().to_owned();
            let what = format!("{} {}/{} of a waypoint", resource.kind, text("namespace"), text("name"));
            delete(client, &resource.path(&part), &what).await?;
            removal.removed.push(what);
        }
    }
    for (name, path) in OF_CONTROL {
        let path = path.replace("{}", namespace);
        if exists(client, &path).await? {
            delete(client, &path, name).await?;
            removal.removed.push(name.to_owned());
        }
    }
    for resource in RESOURCES.iter().filter(|resource| resource.kind.starts_with("ClusterRole")) {
        removal.removed.extend(delete_ours(client, resource, namespace, &kept).await?);
    }
    delete(client, &record::path(namespace), "the record of the installation").await?;
    remove_namespace(client, namespace, &mut removal, says).await?;
    tell_enrolled(client, &mut removal).await?;
    Ok(removal)
}

/// Whether there is any object that an installation has made.
async fn is_anything_left(client: &Client, namespace: &str) -> Result<bool, ClusterError> {
    if exists(client, &record::path(namespace)).await? {
        return Ok(true);
    }
    for resource in RESOURCES.iter().filter(|resource| resource.kind != "Namespace") {
        if !list(client, &format!("{}?{OURS}", resource.all(Some(namespace)))).await?.is_empty() {
            return Ok(true);
        }
    }
    let found = client.find::<Value>(&format!("/api/v1/namespaces/{namespace}")).await;
    let found = found.map_err(doing(format!("reading the namespace {namespace}")))?;
    Ok(found.is_some_and(|object| object["metadata"]["labels"]["app.kubernetes.io/part-of"] == "leno"))
}

/// Tells the agents that the proxies go, too: an agent that is removed alone leaves what a proxy has mounted. And notes in the
/// record that a removal has begun, which ends with the record itself.
pub(super) async fn announce(client: &Client, namespace: &str) -> Result<(), ClusterError> {
    let agents = Resource::of("DaemonSet").map(|resource| resource.one(namespace, "leno-agent"));
    let patch = json!({"metadata": {"annotations": {UNINSTALLED_ANNOTATION: "true"}}});
    for path in std::iter::once(record::path(namespace)).chain(agents) {
        match client.patch(&path, Patch::Merge, &patch).await {
            Err(error) if !error.is_not_found() => return Err(doing("telling that all is removed")(error)),
            _ => {}
        }
    }
    Ok(())
}

/// Removes it, returns when the last of its pods is gone, and says whether it was there.
async fn remove_workload(
    client: &Client,
    kind: &str,
    [namespace, name]: [&str; 2],
    says: &mut (dyn FnMut(String) + Send),
) -> Result<bool, ClusterError> {
    let Some(resource) = Resource::of(kind) else { return Ok(false) };
    let path = resource.one(namespace, name);
    let was_there = exists(client, &path).await?;
    delete(client, &path, name).await?;
    let pods = format!("/api/v1/namespaces/{namespace}/pods?labelSelector=app.kubernetes.io/name%3D{name}");
    let look = async || {
        let left = list(client, &pods).await?;
        let places: Vec<_> = left.iter().filter_map(|pod| pod["spec"]["nodeName"].as_str()).collect();
        // A pod that waits for room has no node.
        let on = if places.is_empty() { String::new() } else { format!(", on {}", places.join(", ")) };
        Ok(match left.len() {
            0 if exists(client, &path).await? => Some(format!("waiting for {kind} {name} to be gone")),
            0 => None,
            1 => Some(format!("waiting for 1 pod of {name} to end{on}")),
            many => Some(format!("waiting for {many} pods of {name} to end{on}")),
        })
    };
    until_gone(look, says).await?;
    Ok(was_there)
}

/// Looks until there is nothing that `look` waits for, and passes on what that is. An API server that is away for a moment is
/// waited for, too.
async fn until_gone(
    mut look: impl AsyncFnMut() -> Result<Option<String>, ClusterError>,
    says: &mut (dyn FnMut(String) + Send),
) -> Result<(), ClusterError> {
    let mut told = String::new();
    loop {
        let waiting = match look().await {
            Ok(None) => return Ok(()),
            Ok(Some(waiting)) => waiting,
            Err(error) if error.is_retryable() => format!("waiting: {error}"),
            Err(error) => return Err(error),
        };
        if told != waiting {
            says(waiting.clone());
            told = waiting;
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// The class that the control plane made would keep its definition.
async fn remove_class(client: &Client, removal: &mut Removal) -> Result<(), ClusterError> {
    let path = format!("/apis/{}/gatewayclasses/{WAYPOINT_CLASS}", Kind::GatewayClass.api_version());
    let found = client.find::<Value>(&path).await.map_err(doing("looking for the class of waypoints"))?;
    let labels = |object: &Value| object["metadata"]["labels"]["app.kubernetes.io/part-of"] == "leno";
    if found.is_some_and(|object| labels(&object) && object["spec"]["controllerName"] == WAYPOINT_CONTROLLER) {
        // Its definition is looked at next, and stays while there is an object of it.
        delete_alone(client, &path, "the class of waypoints").await?;
        removal.removed.push(format!("GatewayClass {WAYPOINT_CLASS}"));
    }
    Ok(())
}

/// A definition takes all its objects with it, and those are users'.
async fn remove_definitions(client: &Client, purge: bool, removal: &mut Removal) -> Result<(), ClusterError> {
    let Some(resource) = Resource::of("CustomResourceDefinition") else { return Ok(()) };
    for definition in list(client, &format!("{}?{OURS}", resource.all(None))).await? {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let [name, group, plural] =
            [&definition["metadata"]["name"], &definition["spec"]["group"], &definition["spec"]["names"]["plural"]]
                .map(text);
        let objects = list(client, &format!("/apis/{group}/v1/{plural}?limit=500")).await?.len();
        if objects > 0 && !purge {
            let why = format!("{objects} objects of that kind exist; --purge removes it and them");
            removal.kept.push(Kept { what: format!("CustomResourceDefinition {name}"), why });
            continue;
        }
        delete(client, &resource.path(&definition), &name).await?;
        removal.removed.push(format!("CustomResourceDefinition {name}"));
    }
    Ok(())
}

/// The namespace goes if the installation made it and nothing of somebody else's is in it.
async fn remove_namespace(
    client: &Client,
    namespace: &str,
    removal: &mut Removal,
    says: &mut (dyn FnMut(String) + Send),
) -> Result<(), ClusterError> {
    let path = format!("/api/v1/namespaces/{namespace}");
    let found = client.find::<Value>(&path).await.map_err(doing(format!("reading the namespace {namespace}")))?;
    let Some(object) = found else { return Ok(()) };
    let what = format!("Namespace {namespace}");
    if object["metadata"]["labels"][MANAGED_BY] != MANAGER {
        release(client, &path, namespace).await?;
        let why = "`leno install` did not make it".to_owned();
        removal.kept.push(Kept { what, why });
        return Ok(());
    }
    let mut others = Vec::new();
    for (kind, plural) in [("Secret", "secrets"), ("ConfigMap", "configmaps"), ("Pod", "pods")] {
        for object in list(client, &format!("/api/v1/namespaces/{namespace}/{plural}")).await? {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let ours = object["metadata"]["labels"]["app.kubernetes.io/part-of"] == "leno";
            // Every namespace has the first; Istio puts the others into each.
            if !ours && !["kube-root-ca.crt", "istio-ca-root-cert", "istio-ca-crl"].contains(&name) {
                others.push(format!("{kind} {name}"));
            }
        }
    }
    if !others.is_empty() {
        let why = format!("it has {}, which `leno install` did not make", others.join(", "));
        removal.kept.push(Kept { what, why });
        return Ok(());
    }
    delete(client, &path, &what).await?;
    let look = async || {
        let found = client.find::<Value>(&path).await.map_err(doing("looking for what is left"))?;
        Ok(found.map(|object| format!("waiting for the namespace {namespace} to end{}", what_keeps(&object))))
    };
    until_gone(look, says).await?;
    removal.removed.push(what);
    Ok(())
}

/// The label by which namespaces are enrolled is their users', and another mesh may go by it.
async fn tell_enrolled(client: &Client, removal: &mut Removal) -> Result<(), ClusterError> {
    let Some(resource) = Resource::of("Namespace") else { return Ok(()) };
    let path = format!("{}?labelSelector={}%3Dambient", resource.all(None), DATAPLANE_MODE.replace('/', "%2F"));
    let enrolled = list(client, &path).await?;
    let names: Vec<_> = enrolled.iter().filter_map(|object| object["metadata"]["name"].as_str()).collect();
    if !names.is_empty() {
        let those = if names.len() == 1 { "namespace" } else { "namespaces" };
        let what = format!("label {DATAPLANE_MODE}=ambient of {those} {}", names.join(", "));
        let why = format!(
            "a mesh that is installed later takes their pods in; \
             `kubectl label namespace {} {DATAPLANE_MODE}-` removes it",
            names.join(" ")
        );
        removal.kept.push(Kept { what, why });
    }
    Ok(())
}

/// Takes back the labels that an installation has set on a namespace that was there before.
async fn release(client: &Client, path: &str, namespace: &str) -> Result<(), ClusterError> {
    let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
    let taking = doing(format!("taking the labels of the installation from the namespace {namespace}"));
    client.patch(&format!("{path}?{AS_MANAGER}"), Patch::Apply, &object).await.map_err(taking)
}

/// What the API server says of a namespace that does not end: whose finalizers wait, or which kind it can't list.
fn what_keeps(namespace: &Value) -> String {
    let conditions = namespace["status"]["conditions"].as_array().into_iter().flatten();
    let said = conditions.filter(|condition| condition["status"] == "True").filter_map(|it| it["message"].as_str());
    said.map(|message| format!("; {message}")).collect()
}
