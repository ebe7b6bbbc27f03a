//! `leno explain`: of a stage, its supervisor is asked. Of a cluster, the objects are read from the API server and mean what they
//! mean to a control plane; the same functions explain.

use std::sync::Arc;

use anyhow::Context as _;
use leno_control::Controller;
use leno_control::explained::explained;
use leno_control::status::Findings;
use leno_control::translate::Options;
use leno_kubernetes::read_objects;
use leno_local::client::Client;
use serde_json::{Value, json};

use crate::args::{ExplainArgs, Format};
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
    let controller = Controller::telling(meaning(nodes).await, found.clone());
    let read = read_objects(nodes.client(), &controller).await;
    read.context("reading the objects that the control plane reads; `explain` needs the right to list them")?;
    controller.lint();
    let mesh = controller.mesh().borrow().clone();
    let explained = explained(&mesh, &found.all(), &args.source.to_string(), &args.destination, args.asked().as_ref())?;
    Ok(Answer {
        text: explained.text() + &explained.not_in_force(),
        explanations: serde_json::to_value(&explained.explanations)?,
        passed_over: json!([]),
    })
}

/// What its control plane was told. Where that can't be read, it is what it is told by default.
async fn meaning(nodes: &ClusterNodes) -> Options {
    let path = format!("/apis/apps/v1/namespaces/{}/deployments/leno-control", nodes.namespace());
    let deployment = nodes.client().get::<Value>(&path).await.unwrap_or_default();
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    let variable = |name: &str| {
        let variables = container["env"].as_array()?;
        let value = variables.iter().find(|variable| variable["name"] == name)?["value"].as_str()?;
        (!value.is_empty()).then(|| value.into())
    };
    let default = Options::default();
    Options {
        cluster_id: variable("CLUSTER_ID").unwrap_or(default.cluster_id),
        trust_domain: variable("TRUST_DOMAIN").unwrap_or(default.trust_domain),
        cluster_domain: variable("CLUSTER_DOMAIN").unwrap_or(default.cluster_domain),
        ..Options::default()
    }
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
        let nodes = ClusterNodes::new(Client::anonymous(&server.url()).unwrap(), "leno-system".to_owned());
        let named = |name: &str| ObjectName { namespace: "shop".to_owned(), name: name.to_owned() };
        let args = |source: &str, destination: &str| ExplainArgs {
            source: named(source),
            destination: destination.to_owned(),
            request: RequestArgs::default(),
            installed: InstalledArgs::default(),
            output: OutputArgs { output: Format::Text },
        };
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
