//! `leno explain`: of a stage, its supervisor is asked. Of a cluster, the objects are read from the API server and mean what they
//! mean to a control plane; the same functions explain.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context as _;
use leno_control::explained::explained;
use leno_control::status::{Findings, Status};
use leno_control::translate::{MESH_CONFIG_ENTRY, Options};
use leno_control::{Controller, Feed};
use leno_kubernetes::{mesh_config, read_objects};
use leno_local::client::Client;
use leno_model::PolicyName;
use leno_objects::{Kind, Object, ObjectKey, ObjectMeta, PolicyAction};
use serde_json::{Value, json};

use crate::args::{ExplainArgs, Format};
use crate::control_args::MESH_CONFIG;
use crate::output::{self, Paint};
use crate::stage::ask;
use crate::target::{ClusterNodes, Target};
use crate::verdicts;

/// An explanation, from wherever it comes.
struct Answer {
    text: String,
    explanations: Value,
    passed_over: Value,
}

/// `leno explain`.
pub(crate) fn run(args: &ExplainArgs) -> anyhow::Result<()> {
    let (target, answer) = ask(async {
        let target = Target::installed(&args.installed).await?;
        let answer = match &target {
            Target::Stage(name) => {
                let mut stage = Client::connect(name).await?;
                let explained =
                    stage.explain(&args.source.to_string(), &args.destination, args.asked().as_ref()).await?;
                let passed_over = serde_json::to_value(&explained.passed_over)?;
                Answer { text: explained.text, explanations: explained.json, passed_over }
            }
            Target::Cluster(nodes) => of_cluster(nodes, args).await?,
        };
        Ok((target, answer))
    })?;
    match args.output.output {
        Format::Json => output::json(&json!({
            "of": target.json(), "explanations": answer.explanations, "passed_over": answer.passed_over,
        })),
        Format::Text => {
            target.announce();
            output::line(&verdicts::painted(answer.text.trim_end(), Paint::stdout()))
        }
    }
}

async fn of_cluster(nodes: &ClusterNodes, args: &ExplainArgs) -> anyhow::Result<Answer> {
    let found = Arc::new(Findings::default());
    let (options, config) = meaning(nodes).await;
    let controller = Controller::telling(options, found.clone());
    if let Ok(config) = &config {
        Feed::announce(controller.clone(), &[Kind::ConfigMap]).list(Kind::ConfigMap, config.clone());
    }
    let read = read_objects(nodes.client(), &controller).await;
    read.context("reading the objects that the control plane reads; `explain` needs the right to list them")?;
    controller.lint();
    let mesh = controller.mesh().borrow().clone();
    let found = found.all();
    let explained = explained(&mesh, &found, &args.source.to_string(), &args.destination, args.asked().as_ref())?;
    let text = explained.text();
    if let Some(why) = config.err().or_else(|| unreadable(&found, nodes)) {
        let asking = controller.store();
        let asking = asking.authorization_policies().filter(|it| it.spec.action == PolicyAction::Custom);
        // With its authoriser known, another answer might be right.
        let name = |ObjectMeta { namespace, name, .. }: &ObjectMeta| PolicyName {
            namespace: namespace.clone(),
            name: name.clone(),
        };
        let mut asking = asking.map(|it| name(&it.metadata));
        if let Some(policy) = asking.find(|policy| explained.names_policy(policy)) {
            anyhow::bail!("policy {policy} has an authoriser asked, and which ones there are is not known here: {why}");
        }
    }
    Ok(Answer {
        text: text + &explained.not_in_force(),
        explanations: serde_json::to_value(&explained.explanations)?,
        passed_over: json!([]),
    })
}

/// The mesh's own configuration, or why it is not known.
async fn config(nodes: &ClusterNodes) -> Result<Option<Object>, String> {
    let namespace = nodes.namespace();
    let path = format!("/api/v1/namespaces/{namespace}/configmaps/{}", mesh_config::key(namespace).name);
    let read = nodes.client().get::<Value>(&path).await.map_err(|error| error.to_string())?;
    let entry = read["data"][MESH_CONFIG_ENTRY].as_str().ok_or_else(|| format!("it has no entry {MESH_CONFIG_ENTRY}"));
    Ok(mesh_config::object(namespace, entry))
}

/// Why the mesh's configuration can't be read, if it can't. What the control plane read before it stays in force there, and is
/// not known here.
fn unreadable(found: &BTreeMap<ObjectKey, Status>, nodes: &ClusterNodes) -> Option<String> {
    let key = mesh_config::key(nodes.namespace());
    let said = found.get(&key)?.findings().find(|it| it.contains("can't be read"))?;
    Some(format!("{key}: {said}"))
}

/// What its control plane was told, and the mesh's own configuration or why it is not known. Where it can't be read what the
/// control plane was told, that is what it is told by default.
async fn meaning(nodes: &ClusterNodes) -> (Options, Result<Option<Object>, String>) {
    let path = format!("/apis/apps/v1/namespaces/{}/deployments/leno-control", nodes.namespace());
    let deployment = nodes.client().get::<Value>(&path).await.unwrap_or_default();
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    let variable = |name: &str| {
        let variables = container["env"].as_array()?;
        let value = variables.iter().find(|variable| variable["name"] == name)?["value"].as_str()?;
        (!value.is_empty()).then(|| value.into())
    };
    let config = match variable(MESH_CONFIG) {
        // An older one.
        None if deployment.is_object() => Ok(None),
        _ => config(nodes).await,
    };
    let default = Options::default();
    let options = Options {
        cluster_id: variable("CLUSTER_ID").unwrap_or(default.cluster_id),
        trust_domain: variable("TRUST_DOMAIN").unwrap_or(default.trust_domain),
        cluster_domain: variable("CLUSTER_DOMAIN").unwrap_or(default.cluster_domain),
        mesh_config: mesh_config::key(nodes.namespace()),
        ..default
    };
    (options, config)
}

#[cfg(test)]
mod tests {
    use leno_kubernetes::Client;
    use leno_testkit::api_server::ApiServer;

    use super::*;
    use crate::args::{InstalledArgs, ObjectName, OutputArgs, RequestArgs};

    fn pod(name: &str, address: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name, "namespace": "shop", "uid": name, "labels": {"app": name},
                "annotations": {"ambient.istio.io/redirection": "enabled"},
            },
            "spec": {"nodeName": "n1", "serviceAccountName": name, "containers": [{"name": "c"}]},
            "status": {
                "phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        })
    }

    fn nodes(server: &ApiServer) -> ClusterNodes {
        ClusterNodes::new(Client::anonymous(&server.url()).unwrap(), "leno-system".to_owned())
    }

    fn args(source: &str, destination: &str) -> ExplainArgs {
        ExplainArgs {
            source: ObjectName { namespace: "shop".to_owned(), name: source.to_owned() },
            destination: destination.to_owned(),
            request: RequestArgs::default(),
            installed: InstalledArgs::default(),
            output: OutputArgs { output: Format::Text },
        }
    }

    fn mesh_config(text: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "leno-mesh-config", "namespace": "leno-system"}, "data": {"mesh": text},
        })
    }

    /// Of a request to a service whose waypoint has an authoriser asked.
    #[tokio::test]
    async fn nothing_is_said_of_authorisers_that_are_not_known() {
        let server = ApiServer::start().await;
        server.put(&json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": "shop", "labels": {"istio.io/dataplane-mode": "ambient"}},
        }));
        server.put(&pod("web", "10.0.0.1"));
        server.put(&pod("db", "10.0.0.2"));
        let mut gate = pod("gate", "10.0.0.3");
        gate["metadata"]["labels"]["gateway.networking.k8s.io/gateway-name"] = "gate".into();
        gate["metadata"]["annotations"] = json!({});
        server.put(&gate);
        let service = |name: &str, labels: Value, selector: Value, address: &str, port: u16| {
            json!({
                "apiVersion": "v1", "kind": "Service",
                "metadata": {"name": name, "namespace": "shop", "labels": labels},
                "spec": {"clusterIP": address, "clusterIPs": [address], "selector": selector, "ports": [{"name": "http", "port": port}]},
            })
        };
        let to_gate = json!({"gateway.networking.k8s.io/gateway-name": "gate"});
        server.put(&service("gate", json!({}), to_gate, "10.1.0.1", 15008));
        let mut authoriser = service("opa", json!({}), json!({"app": "opa"}), "10.1.0.3", 1);
        authoriser["metadata"]["namespace"] = "auth".into();
        server.put(&authoriser);
        let at_gate = json!({"istio.io/use-waypoint": "gate"});
        server.put(&service("db", at_gate, json!({"app": "db"}), "10.1.0.2", 80));
        server.put(&json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"name": "gate", "namespace": "shop"},
            "spec": {"gatewayClassName": "leno-waypoint", "listeners": [{"name": "mesh", "port": 15008, "protocol": "HBONE"}]},
        }));
        server.put(&json!({
            "apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
            "metadata": {"name": "ask", "namespace": "shop"},
            "spec": {
                "targetRefs": [{"group": "", "kind": "Service", "name": "db"}],
                "action": "CUSTOM", "provider": {"name": "opa"}, "rules": [{}],
            },
        }));
        let control = |variables: Value| {
            json!({
                "apiVersion": "apps/v1", "kind": "Deployment",
                "metadata": {"name": "leno-control", "namespace": "leno-system"},
                "spec": {"template": {"spec": {"containers": [{"env": variables}]}}},
            })
        };
        server.put(&control(json!([{"name": MESH_CONFIG, "value": "/x"}])));
        let nodes = nodes(&server);
        let mut asked = args("web", "shop/db:80");
        asked.request.path = Some("/".to_owned());
        let refusal = || async { format!("{:#}", of_cluster(&nodes, &asked).await.map(|it| it.text).unwrap_err()) };
        let said = refusal().await;
        assert!(said.contains("policy shop/ask") && said.contains("not known here"), "{said}");
        server.put(&mesh_config("extensionProviders: ["));
        let said = refusal().await;
        assert!(said.contains("policy shop/ask") && said.contains("can't be read"), "{said}");
        let text =
            "extensionProviders: [{name: opa, envoyExtAuthzGrpc: {service: opa.auth.svc.cluster.local, port: 1}}]";
        server.put(&mesh_config(text));
        let said = of_cluster(&nodes, &asked).await.unwrap().text;
        assert!(said.contains("asks the authoriser \"opa\" (opa.auth.svc.cluster.local:1)"), "{said}");
        // Another connection is not its business, and an older control plane asks nobody.
        server.forbid("/api/v1/namespaces/leno-system/configmaps/leno-mesh-config");
        assert!(refusal().await.contains("not known here"));
        of_cluster(&nodes, &args("db", "shop/web:80")).await.unwrap();
        server.put(&control(json!([])));
        let said = of_cluster(&nodes, &asked).await.unwrap().text;
        assert!(said.contains("denied"), "{said}");
    }

    #[tokio::test]
    async fn a_clusters_objects_are_explained_as_a_stages() {
        let server = ApiServer::start().await;
        server.put(&json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": "shop", "labels": {"istio.io/dataplane-mode": "ambient"}},
        }));
        server.put(&pod("web", "10.0.0.1"));
        server.put(&pod("db", "10.0.0.2"));
        server.put(&json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "leno-control", "namespace": "leno-system"},
            "spec": {"template": {"spec": {"containers": [{"env": [{"name": "TRUST_DOMAIN", "value": "example.org"}]}]}}},
        }));
        server.put(&json!({
            "apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
            "metadata": {"name": "nobody", "namespace": "shop"},
            "spec": {"selector": {"matchLabels": {"app": "db"}}},
        }));
        let nodes = nodes(&server);
        let denied = of_cluster(&nodes, &args("web", "shop/db:80")).await.unwrap();
        let first = denied.text.lines().next().unwrap();
        assert!(
            first.contains("spiffe://example.org/ns/shop/sa/web") && first.ends_with(": denied"),
            "{}",
            denied.text
        );
        assert!(denied.text.contains("checked shop/nobody"), "{}", denied.text);
        assert_eq!(denied.explanations[0]["outcome"], "denied");
        let allowed = of_cluster(&nodes, &args("db", "shop/web:80")).await.unwrap();
        assert!(allowed.text.lines().next().unwrap().ends_with(": allowed"), "{}", allowed.text);

        server.forbid("/api/v1/pods");
        let refusal = format!("{:#}", of_cluster(&nodes, &args("db", "shop/web:80")).await.map(drop).unwrap_err());
        assert!(refusal.contains("needs the right to list them"), "{refusal}");
    }
}
