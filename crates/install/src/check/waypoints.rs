//! Whether the waypoints that Gateways ask for are there, and whether labels name one that is.

use std::collections::BTreeSet;

use leno_kubernetes::{Client, Error};
use leno_objects::{Gateway, Kind, Labels, Mode, Object, USE_WAYPOINT, decode, named_waypoint};
use serde_json::Value;

use super::{Finding, Outcome};

const CATEGORY: &str = "waypoints";
const PROGRAMMED: &str = "every waypoint takes connections";
const NAMED: &str = "every label istio.io/use-waypoint names a Gateway";

pub(super) async fn all(client: &Client) -> Vec<Finding> {
    match Seen::read(client).await {
        // Most clusters have none, and then there is nothing to say.
        Ok(seen) if seen.gateways.is_empty() && seen.users.is_empty() => Vec::new(),
        Ok(seen) => vec![programmed(&seen), named(&seen)],
        Err(error) => vec![Finding::ok(CATEGORY, PROGRAMMED).unknown(&error)],
    }
}

/// What the cluster has of Gateways and of labels that name them.
struct Seen {
    gateways: Vec<(Gateway, Value)>,
    /// What it is, its namespace, and the namespace and name of the Gateway that it names.
    users: Vec<(String, (String, String))>,
}

impl Seen {
    async fn read(client: &Client) -> Result<Self, Error> {
        let path = format!("/apis/{}/gateways", Kind::Gateway.api_version());
        let list = client.find::<Value>(&path).await?.unwrap_or_default();
        let gateways = list["items"].as_array().into_iter().flatten().filter_map(|object| {
            let Object::Gateway(gateway) = decode(Kind::Gateway, Mode::Lenient, object).ok()?.object else {
                return None;
            };
            gateway.is_waypoint(None).then(|| (gateway, object["status"]["conditions"].clone()))
        });
        let gateways = gateways.collect();
        let mut users = Vec::new();
        for (kind, plural) in [("Namespace", "namespaces"), ("Service", "services")] {
            let path = format!("/api/v1/{plural}?labelSelector={}", USE_WAYPOINT.replace('/', "%2F"));
            let list = client.get::<Value>(&path).await?;
            users.extend(list["items"].as_array().into_iter().flatten().filter_map(|object| user(kind, object)));
        }
        Ok(Self { gateways, users })
    }
}

fn user(kind: &str, object: &Value) -> Option<(String, (String, String))> {
    let metadata = &object["metadata"];
    let name = metadata["name"].as_str()?;
    let namespace = metadata["namespace"].as_str().unwrap_or(name);
    let labels = metadata["labels"].as_object()?;
    let labels: Labels =
        labels.iter().filter_map(|(key, value)| Some((key.as_str().into(), value.as_str()?.into()))).collect();
    let (of, gateway) = named_waypoint(&labels, namespace)?;
    let what = if kind == "Namespace" { format!("Namespace {name}") } else { format!("{kind} {namespace}/{name}") };
    Some((what, (of.to_string(), gateway.to_string())))
}

fn programmed(seen: &Seen) -> Finding {
    let mut found = Vec::new();
    for (gateway, conditions) in &seen.gateways {
        let name = format!("{}/{}", gateway.metadata.namespace, gateway.metadata.name);
        let condition = conditions.as_array().into_iter().flatten().find(|it| it["type"] == "Programmed");
        match condition {
            Some(condition) if condition["status"] == "True" => {}
            Some(condition) => found.push(format!("{name}: {}", condition["message"].as_str().unwrap_or_default())),
            None => found.push(format!("{name}: no control plane has looked at it")),
        }
    }
    let hint = "what must pass such a waypoint is refused: `leno waypoint status -n NAMESPACE` says more, and `kubectl describe pod` \
                why a pod does not start";
    Finding::ok(CATEGORY, PROGRAMMED).unless(&found, Outcome::Failed, hint)
}

fn named(seen: &Seen) -> Finding {
    let there: BTreeSet<(&str, &str)> =
        seen.gateways.iter().map(|(it, _)| (&*it.metadata.namespace, &*it.metadata.name)).collect();
    let missing = seen.users.iter().filter(|(_, (namespace, name))| !there.contains(&(namespace, name)));
    let found: Vec<_> = missing
        .map(|(what, (namespace, name))| format!("{what} names {namespace}/{name}, and there is no such waypoint"))
        .collect();
    let hint = "connections to it are refused: `leno waypoint apply` makes the waypoint; the label with the value none, or no label, \
                does without";
    Finding::ok(CATEGORY, NAMED).unless(&found, Outcome::Failed, hint)
}

#[cfg(test)]
mod tests {
    use leno_testkit::api_server::ApiServer;
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn a_waypoint_that_is_not_there_is_found() {
        let server = ApiServer::start().await;
        let client = Client::anonymous(&server.url()).expect("a URL");
        assert_eq!(all(&client).await, []);
        let gateway = |status: &Value| {
            json!({
                "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
                "metadata": {"name": "gate", "namespace": "shop"},
                "spec": {
                    "gatewayClassName": "leno-waypoint",
                    "listeners": [{"name": "mesh", "port": 15008, "protocol": "HBONE"}],
                },
                "status": status,
            })
        };
        let namespace = |waypoint: &str| {
            let metadata = json!({"name": "shop", "labels": {"istio.io/use-waypoint": waypoint}});
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        };
        let told = |findings: Vec<Finding>| -> Vec<_> { findings.into_iter().map(|it| it.found).collect() };
        server.put(&gateway(&json!({"conditions": [{"type": "Programmed", "status": "False", "message": "no pod"}]})));
        server.put(&namespace("gate"));
        assert_eq!(told(all(&client).await), [Some("shop/gate: no pod".to_owned()), None]);
        server.put(&gateway(&json!({"conditions": [{"type": "Programmed", "status": "True", "message": "2 of 2"}]})));
        assert_eq!(told(all(&client).await), [None, None]);
        server.put(&namespace("gat"));
        let missing = "Namespace shop names shop/gat, and there is no such waypoint".to_owned();
        assert_eq!(told(all(&client).await), [None, Some(missing)]);
        server.put(&namespace("none"));
        assert_eq!(told(all(&client).await), [None, None]);
    }
}
