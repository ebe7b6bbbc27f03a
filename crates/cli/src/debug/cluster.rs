//! What there is of an installation in a cluster.

use leno_install::check;
use leno_kubernetes::{Client, LogQuery};
use leno_model::ports;
use serde_json::{Value, json};

use super::archive::Archive;
use super::redact::{REMOVED, is_secret, without_values};
use super::stage::pages;
use crate::args::CollectArgs;
use crate::logs::cluster::{origins_of, whole};
use crate::status;
use crate::target::{ClusterNodes, Part, Source as _, chosen};

/// Objects of the installation's namespace: no Secrets, and of ConfigMaps only Leno's own.
const OF_NAMESPACE: [(&str, &str); 13] = [
    ("pods", "api/v1"),
    ("services", "api/v1"),
    ("serviceaccounts", "api/v1"),
    ("events", "api/v1"),
    ("deployments", "apis/apps/v1"),
    ("daemonsets", "apis/apps/v1"),
    ("replicasets", "apis/apps/v1"),
    ("controllerrevisions", "apis/apps/v1"),
    ("poddisruptionbudgets", "apis/policy/v1"),
    ("networkpolicies", "apis/networking.k8s.io/v1"),
    ("leases", "apis/coordination.k8s.io/v1"),
    ("roles", "apis/rbac.authorization.k8s.io/v1"),
    ("rolebindings", "apis/rbac.authorization.k8s.io/v1"),
];

/// Objects of the whole cluster that the mesh is made from. Users' pods are not among them: the proxies tell what of these
/// matters.
const OF_CLUSTER: [(&str, &str); 16] = [
    ("nodes", "/api/v1/nodes"),
    ("namespaces", "/api/v1/namespaces"),
    ("authorizationpolicies", "/apis/security.istio.io/v1/authorizationpolicies"),
    ("peerauthentications", "/apis/security.istio.io/v1/peerauthentications"),
    ("requestauthentications", "/apis/security.istio.io/v1/requestauthentications"),
    ("gatewayclasses", "/apis/gateway.networking.k8s.io/v1/gatewayclasses"),
    ("gateways", "/apis/gateway.networking.k8s.io/v1/gateways"),
    ("httproutes", "/apis/gateway.networking.k8s.io/v1/httproutes"),
    ("grpcroutes", "/apis/gateway.networking.k8s.io/v1/grpcroutes"),
    ("referencegrants", "/apis/gateway.networking.k8s.io/v1/referencegrants"),
    ("destinationrules", "/apis/networking.istio.io/v1/destinationrules"),
    ("virtualservices", "/apis/networking.istio.io/v1/virtualservices"),
    (
        "waypoint-deployments",
        "/apis/apps/v1/deployments?labelSelector=gateway.istio.io/managed%3Dleno.mesh-waypoint-controller",
    ),
    ("waypoint-pods", "/api/v1/pods?labelSelector=gateway.istio.io/managed%3Dleno.mesh-waypoint-controller"),
    ("clusterroles", "/apis/rbac.authorization.k8s.io/v1/clusterroles?labelSelector=app.kubernetes.io/part-of%3Dleno"),
    (
        "clusterrolebindings",
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings?labelSelector=app.kubernetes.io/part-of%3Dleno",
    ),
];

/// Of ConfigMaps, these: the root certificate, and the choices of `leno install`.
const CONFIG_MAPS: [&str; 2] = ["leno-ca-root", "leno-install"];

/// Key of those choices, which are YAML, in the latter.
const VALUES: &str = "values.yaml";

/// Metrics port of the agent.
const AGENT_METRICS: u16 = 15014;

/// Adds what a cluster knows to the archive.
pub(super) async fn collect(archive: &mut Archive, nodes: &ClusterNodes, args: &CollectArgs) -> anyhow::Result<()> {
    let (client, namespace) = (nodes.client(), nodes.namespace());
    archive.json("check.json", &json!({"checks": check::after(client, namespace).await}))?;
    match status::gather(nodes).await {
        Ok(status) => archive.json("status.json", &status)?,
        Err(error) => archive.failed("status.json", &error),
    }
    objects(archive, client, namespace).await?;
    match chosen(nodes, &args.node).await {
        Ok(chosen) => {
            for node in chosen {
                pages(archive, nodes, &node).await?;
            }
        }
        Err(error) => archive.failed("nodes", &error),
    }
    match nodes.waypoints().await {
        Ok(waypoints) if args.node.is_empty() => {
            for waypoint in waypoints {
                pages(archive, nodes, &waypoint).await?;
            }
        }
        Ok(_) => {}
        Err(error) => archive.failed("waypoints", &error),
    }
    let parts = match nodes.parts().await {
        Ok(parts) => parts,
        Err(error) => {
            archive.failed("logs", &error);
            return Ok(());
        }
    };
    let wanted = |part: &&Part| args.node.is_empty() || part.role == "leno-control" || args.node.contains(&part.node);
    for part in parts.iter().filter(wanted) {
        part_of(archive, nodes, part, args).await?;
    }
    Ok(())
}

/// Adds metrics and logs of one pod.
async fn part_of(archive: &mut Archive, nodes: &ClusterNodes, part: &Part, args: &CollectArgs) -> anyhow::Result<()> {
    let metrics = match part.role.as_str() {
        "leno-control" => Some(ports::METRICS),
        "leno-agent" => Some(AGENT_METRICS),
        _ => None,
    };
    let directory = part.label();
    if let Some(port) = metrics {
        let page = nodes.client().page(nodes.namespace(), &part.pod, port, "/metrics").await;
        archive.read(&format!("{directory}/metrics.txt"), page.map(|page| page.body).map_err(Into::into))?;
    }
    for origin in origins_of(nodes, part) {
        let since_seconds = Some(args.since.as_secs());
        let query = LogQuery { since_seconds, ..LogQuery::default() };
        let name = |end: &str| format!("logs/{}/{}{end}.log", part.pod, origin.container);
        let log = whole(nodes, &origin, &query).await;
        archive.read(&name(""), log)?;
        if origin.restarts > 0 {
            // The end of the run before says why it ended.
            let log = whole(nodes, &origin, &LogQuery { previous: true, ..LogQuery::default() }).await;
            archive.read(&name(".previous"), log)?;
        }
    }
    Ok(())
}

async fn objects(archive: &mut Archive, client: &Client, namespace: &str) -> anyhow::Result<()> {
    let version = client.get::<Value>("/version").await;
    object(archive, "objects/version", version)?;
    for (name, group) in OF_NAMESPACE {
        let list = client.get::<Value>(&format!("/{group}/namespaces/{namespace}/{name}")).await;
        object(archive, &format!("objects/{namespace}/{name}"), list)?;
    }
    for name in CONFIG_MAPS {
        // Helm and `kubectl apply` leave no record.
        let found = client.find::<Value>(&format!("/api/v1/namespaces/{namespace}/configmaps/{name}")).await;
        if let Some(found) = found.transpose() {
            object(archive, &format!("objects/{namespace}/configmap-{name}"), found)?;
        }
    }
    for (name, path) in OF_CLUSTER {
        // Not every cluster has every kind.
        if let Some(list) = client.find::<Value>(path).await.transpose() {
            object(archive, &format!("objects/{name}"), list)?;
        }
    }
    Ok(())
}

fn object(archive: &mut Archive, name: &str, read: Result<Value, leno_kubernetes::Error>) -> anyhow::Result<()> {
    let text = read.map_err(anyhow::Error::from).and_then(|mut object| {
        strip(&mut object);
        Ok(serde_json::to_string_pretty(&object)?)
    });
    archive.read(&format!("{name}.json"), text)
}

/// Removes what is long and says nothing, and the values of variables and of headers that may be secrets.
fn strip(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(strip),
        Value::Object(fields) => {
            fields.remove("managedFields");
            // It repeats the object, with all that was removed.
            fields.remove("kubectl.kubernetes.io/last-applied-configuration");
            if fields.get("name").and_then(Value::as_str).is_some_and(is_secret) && fields.contains_key("value") {
                fields.insert("value".to_owned(), REMOVED.into());
            }
            // How Istio's objects write headers. What a Kubernetes route sets has a name and a value, as variables have.
            for change in ["set", "add"] {
                for (name, value) in fields.get_mut(change).and_then(Value::as_object_mut).into_iter().flatten() {
                    if is_secret(name) {
                        *value = REMOVED.into();
                    }
                }
            }
            if let Some(Value::String(values)) = fields.get_mut(VALUES) {
                *values = without_values(values);
            }
            fields.values_mut().for_each(strip);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_that_may_be_secrets_lose_their_values() {
        let mut object = json!({"spec": {"env": [{"name": "AUTH_TOKEN", "value": "x"}, {"name": "A", "value": "y"}]},
            "metadata": {"managedFields": [1], "name": "a"}});
        strip(&mut object);
        let expected = json!({"spec": {"env": [{"name": "AUTH_TOKEN", "value": "[removed]"}, {"name": "A", "value": "y"}]},
            "metadata": {"name": "a"}});
        assert_eq!(object, expected);
        let mut headers = json!({"request": {"set": {"authorization": "Bearer x", "x-team": "a"}},
            "requestHeaderModifier": {"set": [{"name": "Cookie", "value": "x"}]}});
        strip(&mut headers);
        let expected = json!({"request": {"set": {"authorization": "[removed]", "x-team": "a"}},
            "requestHeaderModifier": {"set": [{"name": "Cookie", "value": "[removed]"}]}});
        assert_eq!(headers, expected);
        let mut values = json!({"data": {"values.yaml": "control:\n  env:\n    X_PASSWORD: hush\n    LEVEL: info\n"}});
        strip(&mut values);
        let expected =
            json!({"data": {"values.yaml": "control:\n  env:\n    X_PASSWORD: [removed]\n    LEVEL: info\n"}});
        assert_eq!(values, expected);
    }
}
