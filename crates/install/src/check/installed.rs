//! Whether an installation works.

use std::collections::BTreeSet;

use leno_kubernetes::Client;
use leno_objects::{DATAPLANE_MODE, REDIRECTION_ANNOTATION, REDIRECTION_ENABLED};
use serde_json::{Value, json};

use super::{Finding, Outcome, is_allowed};
use crate::Values;
use crate::cluster::{ClusterError, Installer, Record, Rollout, installer, is_ending, rollouts};

const CATEGORY: &str = "installation";
const PODS: &str = "pods";

pub(super) async fn all(client: &Client, namespace: &str) -> Vec<Finding> {
    let there = Finding::ok(CATEGORY, format!("Leno is installed in {namespace}"));
    let by = match installer(client).await {
        Ok(Some((found, by))) if found == namespace => by,
        Ok(Some((found, _))) => {
            let found = format!("it is installed in {found}");
            return vec![there.but(Outcome::Failed, found, "name that namespace with -n")];
        }
        Ok(None) => return vec![there.but(Outcome::Failed, "it is not", "run `leno install --wait`")],
        Err(error) => {
            return vec![there.but(Outcome::Unknown, error.to_string(), "run the check as somebody who may look")];
        }
    };
    if is_ending(client, namespace).await.unwrap_or_default() {
        let found = "its removal has begun and not come to its end";
        return vec![there.but(Outcome::Failed, found, "run `leno uninstall` once more, and then install it")];
    }
    let rollouts = rollouts(client, namespace).await;
    let of_version = versions(rollouts.as_deref().unwrap_or_default(), by);
    let mut findings = vec![there, of_version, roles(client, namespace).await];
    match parts(client, namespace).await {
        Ok(parts) => {
            findings.extend(running(&rollouts, namespace, &parts));
            findings.push(on_every_node(client, namespace, &parts).await);
        }
        Err(error) => {
            let check = Finding::ok(CATEGORY, "all parts run");
            findings.push(check.but(Outcome::Unknown, error.to_string(), "run the check as somebody who may look"));
        }
    }
    findings.push(captured(client).await);
    findings.push(labelled(client).await);
    findings
}

/// That this program and what runs are of one version.
fn versions(rollouts: &[Rollout], by: Installer) -> Finding {
    let own = env!("CARGO_PKG_VERSION");
    let check = Finding::ok(CATEGORY, format!("it has this program's version, {own}"));
    let others = rollouts.iter().filter(|rollout| rollout.version != own);
    let others: Vec<_> = others.map(|rollout| format!("{} has {}", rollout.name, rollout.version)).collect();
    let hint = match by {
        Installer::Leno => "run `leno upgrade --wait`",
        Installer::Helm => "run `helm upgrade`",
        Installer::Other => "apply the output of `leno install -o yaml`",
    };
    check.unless(&others, Outcome::Warning, hint)
}

/// Rights without which a role can't do its work: service account, verb, group, resource.
const RIGHTS: [(&str, &str, &str, &str); 6] = [
    ("leno-control", "watch", "", "pods"),
    ("leno-control", "watch", "discovery.k8s.io", "endpointslices"),
    ("leno-control", "watch", "security.istio.io", "authorizationpolicies"),
    ("leno-control", "create", "authentication.k8s.io", "tokenreviews"),
    ("leno-agent", "watch", "", "pods"),
    ("leno-agent", "patch", "", "pods/status"),
];

pub(super) async fn roles(client: &Client, namespace: &str) -> Finding {
    let check = Finding::ok(CATEGORY, "its roles have their rights");
    let mut refused = Vec::new();
    for (account, verb, group, resource) in RIGHTS {
        let (resource, part) = resource.split_once('/').unwrap_or((resource, ""));
        let spec = json!({
            "user": format!("system:serviceaccount:{namespace}:{account}"),
            "resourceAttributes": {"verb": verb, "group": group, "resource": resource, "subresource": part},
        });
        match is_allowed(client, "SubjectAccessReview", &spec).await {
            Ok(true) => {}
            Ok(false) => refused.push(format!("{account} may not {verb} {resource}")),
            Err(error) => return check.unknown(&error),
        }
    }
    let hint = "something has changed or removed a ClusterRole or its binding; `leno upgrade` restores them";
    check.unless(&refused, Outcome::Failed, hint)
}

pub(super) fn running(rollouts: &Result<Vec<Rollout>, ClusterError>, namespace: &str, parts: &[&str]) -> Vec<Finding> {
    let rollouts = match rollouts {
        Ok(rollouts) => rollouts,
        Err(error) => {
            let check = Finding::ok(CATEGORY, "all parts run");
            return vec![check.but(Outcome::Unknown, error.to_string(), "run the check as somebody who may look")];
        }
    };
    let findings = parts.iter().map(|&name| {
        let check = Finding::ok(CATEGORY, format!("{name} runs"));
        match rollouts.iter().find(|rollout| rollout.name == name) {
            None => check.but(Outcome::Failed, "it is missing", "`leno upgrade` restores it"),
            // Nobody would scale it to nothing and leave it so.
            Some(rollout) if name == "leno-control" && rollout.wanted == 0 => {
                let hint = format!(
                    "`kubectl scale deployment leno-control -n {namespace} --replicas=1`; meanwhile proxies go on with what they know, \
                     no change arrives, no certificate is issued, and pods that start are refused"
                );
                check.but(Outcome::Failed, "it is scaled to 0", hint)
            }
            Some(rollout) if rollout.done => check,
            Some(rollout) => {
                let because = rollout.because.as_deref().unwrap_or("nothing is said about the others");
                let found = format!("{} of {} are ready: {because}", rollout.ready, rollout.wanted);
                check.but(Outcome::Failed, found, hint(because, namespace, name))
            }
        }
    });
    findings.collect()
}

/// The parts that this installation should have.
async fn parts(client: &Client, namespace: &str) -> Result<Vec<&'static str>, ClusterError> {
    let mut parts = vec!["leno-control", "leno-agent", "leno-node"];
    // Helm and `kubectl apply` leave no record.
    if let Some(record) = Record::read(client, namespace).await? {
        let mut values = Values::of(record.profile)?;
        values.file(&record.values, "the record of the installation")?;
        let values = values.checked()?;
        parts.retain(|name| name.strip_prefix("leno-").is_none_or(|part| values[part]["enabled"] != false));
    }
    Ok(parts)
}

pub(super) fn hint(because: &str, namespace: &str, name: &str) -> String {
    if because.contains("ErrImage") || because.contains("ImagePull") || because.contains("InvalidImageName") {
        return "load the image into every node, or name a registry that has it with --set image.repository=…"
            .to_owned();
    }
    if because.contains("leno-ca-root") {
        return "the control plane publishes it once it runs: look at leno-control first".to_owned();
    }
    format!("`kubectl logs -n {namespace} -l app.kubernetes.io/name={name}` and `kubectl describe pod` show more")
}

/// A node with pods but without an agent and a proxy has pods that can't be in the mesh.
async fn on_every_node(client: &Client, namespace: &str, parts: &[&str]) -> Finding {
    let check = Finding::ok(CATEGORY, "every Linux node has an agent and a proxy");
    let daemon_sets: Vec<_> = parts.iter().copied().filter(|part| *part != "leno-control").collect();
    let nodes = match client.get::<Value>("/api/v1/nodes?labelSelector=kubernetes.io/os%3Dlinux").await {
        Ok(list) => list,
        Err(error) => return check.unknown(&error),
    };
    let path = format!("/api/v1/namespaces/{namespace}/pods?labelSelector=app.kubernetes.io/part-of%3Dleno");
    let pods = match client.get::<Value>(&path).await {
        Ok(list) => list,
        Err(error) => return check.unknown(&error),
    };
    check.unless(
        &uncovered(&nodes, &pods, &daemon_sets),
        Outcome::Failed,
        "let both DaemonSets run there: agent.tolerations, agent.nodeSelector, and those of node",
    )
}

/// The nodes without a pod of one of these DaemonSets.
pub(super) fn uncovered(nodes: &Value, pods: &Value, daemon_sets: &[&str]) -> Vec<String> {
    let on = |role: &str| -> BTreeSet<&str> {
        let pods = pods["items"].as_array().into_iter().flatten();
        let of_role = pods.filter(|pod| pod["metadata"]["labels"]["app.kubernetes.io/name"] == role);
        of_role.filter_map(|pod| pod["spec"]["nodeName"].as_str()).collect()
    };
    let mut missing = Vec::new();
    for role in daemon_sets {
        let covered = on(role);
        let nodes = nodes["items"].as_array().into_iter().flatten();
        let names = nodes.filter_map(|node| node["metadata"]["name"].as_str());
        missing.extend(names.filter(|name| !covered.contains(name)).map(|name| format!("{name} has no {role}")));
    }
    missing
}

/// A pod that should be in the mesh and is not: it joined while its agent was down, or the agent can't capture it.
async fn captured(client: &Client) -> Finding {
    let check = Finding::ok(PODS, "every pod that is enrolled is in the mesh");
    let enrolled = format!("/api/v1/namespaces?labelSelector={DATAPLANE_MODE}%3Dambient");
    let namespaces = client.get::<Value>(&enrolled).await;
    let pods = match client.get::<Value>("/api/v1/pods?fieldSelector=status.phase%3DRunning").await {
        Ok(list) => list,
        Err(error) => return check.unknown(&error),
    };
    match namespaces {
        Ok(namespaces) => {
            let left = left_out(&namespaces, &pods);
            let hint = "`kubectl describe pod` shows why in its events; look at leno-agent on its node first";
            check.unless(&left, Outcome::Failed, hint)
        }
        Err(error) => check.unknown(&error),
    }
}

/// A label with a value that means nothing takes its pods out of the mesh, in the clear.
async fn labelled(client: &Client) -> Finding {
    let check = Finding::ok(PODS, format!("every label {DATAPLANE_MODE} has a value that means something"));
    let mut found = Vec::new();
    for (kind, plural) in [("Namespace", "namespaces"), ("Pod", "pods")] {
        let selector = DATAPLANE_MODE.replace('/', "%2F");
        match client.get::<Value>(&format!("/api/v1/{plural}?labelSelector={selector}")).await {
            Ok(list) => found.extend(without_meaning(kind, &list)),
            Err(error) => return check.unknown(&error),
        }
    }
    let hint = "write ambient, which puts the pods into the mesh, or none, which keeps them out of it as they are now";
    check.unless(&found, Outcome::Failed, hint)
}

pub(super) fn without_meaning(kind: &str, list: &Value) -> Vec<String> {
    let objects = list["items"].as_array().into_iter().flatten();
    let found = objects.filter_map(|object| {
        let (metadata, mode) = (&object["metadata"], object["metadata"]["labels"][DATAPLANE_MODE].as_str()?);
        let name = metadata["name"].as_str()?;
        let name = metadata["namespace"].as_str().map_or_else(|| name.to_owned(), |of| format!("{of}/{name}"));
        (!["ambient", "none"].contains(&mode)).then(|| format!("{kind} {name} has {mode:?}"))
    });
    found.collect()
}

pub(super) fn left_out(namespaces: &Value, pods: &Value) -> Vec<String> {
    let enrolled: BTreeSet<_> = namespaces["items"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|object| object["metadata"]["name"].as_str())
        .collect();
    let pods = pods["items"].as_array().into_iter().flatten();
    let left = pods.filter_map(|pod| {
        let metadata = &pod["metadata"];
        let (namespace, name) = (metadata["namespace"].as_str()?, metadata["name"].as_str()?);
        let wanted = match metadata["labels"][DATAPLANE_MODE].as_str() {
            Some(mode) => mode == "ambient",
            None => enrolled.contains(namespace),
        };
        let possible = pod["spec"]["hostNetwork"] != true && metadata["deletionTimestamp"].is_null();
        let captured = metadata["annotations"][REDIRECTION_ANNOTATION] == REDIRECTION_ENABLED;
        (wanted && possible && !captured).then(|| format!("{namespace}/{name}"))
    });
    left.collect()
}
