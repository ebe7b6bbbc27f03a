//! The parts of an installation in a cluster, and ways to their own ports. They are reached by port-forwarding through the API
//! server, because a proxy's admin port is on its pod's loopback.

use anyhow::{Context as _, bail};
use leno_kubernetes::{Client, Error, PodStream};
use leno_local::client::{CONTROL_PLANE, NodePort};
use leno_model::ports;
use serde_json::Value;

use super::Source;

/// Selects the pods of waypoints.
const OF_WAYPOINTS: &str = "gateway.istio.io/managed%3Dleno.mesh-waypoint-controller";

/// An installation.
#[derive(Debug, Clone)]
pub(crate) struct ClusterNodes {
    client: Client,
    namespace: String,
}

/// A pod of an installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    /// `leno-control`, `leno-agent` or `leno-node`.
    pub(crate) role: String,
    /// Its name.
    pub(crate) pod: String,
    /// Its node; empty before it has one.
    pub(crate) node: String,
    /// Its containers, each with how often it was started again.
    pub(crate) containers: Vec<(String, u64)>,
    /// Worst first: not running, ending, not ready, ready; then by age.
    rank: (u8, String),
}

impl Part {
    /// What a person calls it: `control/POD`, `agent/NODE`, `node/NODE`.
    pub(crate) fn label(&self) -> String {
        let role = self.role.strip_prefix("leno-").unwrap_or(&self.role);
        let of = if role == "control" || self.node.is_empty() { &self.pod } else { &self.node };
        format!("{role}/{of}")
    }

    fn of(pod: &Value) -> Option<Self> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let metadata = &pod["metadata"];
        let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        let ready = conditions.filter(|one| one["type"] == "Ready").any(|one| one["status"] == "True");
        let order = match pod["status"]["phase"].as_str() {
            Some("Running") if !metadata["deletionTimestamp"].is_null() => 1,
            Some("Running") if !ready => 2,
            Some("Running") => 3,
            _ => 0,
        };
        let statuses = pod["status"]["containerStatuses"].as_array().map(Vec::as_slice).unwrap_or_default();
        let restarts = |name: &Value| {
            let status = statuses.iter().find(|status| status["name"] == *name);
            status.and_then(|status| status["restartCount"].as_u64()).unwrap_or_default()
        };
        let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
        Some(Self {
            role: text(&metadata["labels"]["app.kubernetes.io/name"]),
            pod: metadata["name"].as_str()?.to_owned(),
            node: text(&pod["spec"]["nodeName"]),
            containers: containers.map(|container| (text(&container["name"]), restarts(&container["name"]))).collect(),
            rank: (order, text(&metadata["creationTimestamp"])),
        })
    }

    /// Whether it runs and is not on its way out.
    pub(crate) fn serves(&self) -> bool {
        self.rank.0 > 1
    }

    /// Whether it runs, be it on its way out.
    fn runs(&self) -> bool {
        self.rank.0 > 0
    }
}

impl ClusterNodes {
    pub(crate) fn new(client: Client, namespace: String) -> Self {
        Self { client, namespace }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// The installation's namespace.
    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Its pods, by role and node.
    pub(crate) async fn parts(&self) -> anyhow::Result<Vec<Part>> {
        self.select("app.kubernetes.io/part-of%3Dleno").await
    }

    async fn of_role(&self, role: &str) -> anyhow::Result<Vec<Part>> {
        self.select(&format!("app.kubernetes.io/name%3D{role}")).await
    }

    async fn select(&self, selector: &str) -> anyhow::Result<Vec<Part>> {
        let namespace = &self.namespace;
        let path = format!("/api/v1/namespaces/{namespace}/pods?labelSelector={selector}");
        let list = self.client.get::<Value>(&path).await;
        let list = list.with_context(|| format!("listing the pods of {namespace}"))?;
        let mut parts: Vec<_> = list["items"].as_array().into_iter().flatten().filter_map(Part::of).collect();
        parts.sort_by(|a, b| (&a.role, &a.node, &a.pod).cmp(&(&b.role, &b.node, &b.pod)));
        Ok(parts)
    }

    /// The pod that is to be asked about a node, or for the control plane.
    async fn serving(&self, node: &str, port: NodePort) -> anyhow::Result<Part> {
        let parts = match (node, port) {
            (CONTROL_PLANE, NodePort::Metrics) => self.of_role("leno-control").await?,
            _ => self.of_role("leno-node").await?.into_iter().filter(|part| part.node == node).collect(),
        };
        match best(parts) {
            Some(part) => Ok(part),
            None if node == CONTROL_PLANE => bail!("no control plane runs in namespace {}", self.namespace),
            None => bail!("no node proxy runs on {node}; `leno status` shows what does"),
        }
    }

    /// Namespace and name of the pod that is to be asked: a waypoint is named so.
    async fn pod(&self, node: &str, port: NodePort) -> anyhow::Result<(String, String)> {
        match node.split_once('/') {
            Some((namespace, pod)) => Ok((namespace.to_owned(), pod.to_owned())),
            None => Ok((self.namespace.clone(), self.serving(node, port).await?.pod)),
        }
    }
}

fn number(port: NodePort) -> u16 {
    match port {
        NodePort::Admin => ports::ADMIN,
        NodePort::Metrics => ports::METRICS,
    }
}

/// The one to ask: during an upgrade there are two on a node.
pub(crate) fn best(parts: Vec<Part>) -> Option<Part> {
    parts.into_iter().filter(Part::runs).max_by(|a, b| a.rank.cmp(&b.rank))
}

impl Source for ClusterNodes {
    type Stream = PodStream;

    async fn nodes(&self) -> anyhow::Result<Vec<String>> {
        let mut nodes: Vec<_> =
            self.of_role("leno-node").await?.into_iter().filter(Part::runs).map(|part| part.node).collect();
        nodes.dedup();
        if nodes.is_empty() {
            bail!("no node proxy runs in namespace {}; `leno check` says why", self.namespace);
        }
        Ok(nodes)
    }

    async fn waypoints(&self) -> anyhow::Result<Vec<String>> {
        let list = self.client.get::<Value>(&format!("/api/v1/pods?labelSelector={OF_WAYPOINTS}")).await;
        let list = list.context("listing the waypoints' pods in all namespaces")?;
        let pods = list["items"].as_array().into_iter().flatten();
        let running = pods.filter(|pod| Part::of(pod).is_some_and(|part| part.runs()));
        let name = |pod: &Value| {
            let metadata = &pod["metadata"];
            Some(format!("{}/{}", metadata["namespace"].as_str()?, metadata["name"].as_str()?))
        };
        let mut names: Vec<_> = running.filter_map(name).collect();
        names.sort();
        Ok(names)
    }

    /// An API server that is away comes back, and the proxies serve meanwhile.
    async fn gone(&self) -> Option<anyhow::Error> {
        let error = self.nodes().await.err()?;
        let passes = error.chain().any(|cause| cause.downcast_ref::<Error>().is_some_and(Error::is_retryable));
        (!passes).then_some(error)
    }

    async fn dial(&self, node: &str, port: NodePort) -> anyhow::Result<Self::Stream> {
        let (namespace, pod) = self.pod(node, port).await?;
        let connected = self.client.connect(&namespace, &pod, number(port)).await;
        connected.with_context(|| format!("cannot reach port {} of {namespace}/{pod}", number(port)))
    }

    /// The end of a connection takes a second to come through the API server, so this asks in a way that tells where the page
    /// ends.
    async fn page(&self, node: &str, port: NodePort, path: &str) -> anyhow::Result<String> {
        let (namespace, pod) = self.pod(node, port).await?;
        let page = self.client.page(&namespace, &pod, number(port), path).await?;
        if page.status != 200 {
            bail!("{path}: HTTP status {}: {}", page.status, page.body.trim());
        }
        Ok(page.body)
    }
}

#[cfg(test)]
mod tests {
    use leno_testkit::api_server::ApiServer;
    use serde_json::json;

    use super::*;

    fn pod(name: &str, node: &str, created: &str, ready: bool, ending: bool) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name, "namespace": "leno-system", "creationTimestamp": created,
                "deletionTimestamp": ending.then_some("2026-11-25T05:00:00Z"),
                "labels": {"app.kubernetes.io/name": "leno-node", "app.kubernetes.io/part-of": "leno"},
            },
            "spec": {"nodeName": node, "containers": [{"name": "node"}]},
            "status": {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}],
                "containerStatuses": [{"name": "node", "restartCount": 2}],
            },
        })
    }

    #[test]
    fn during_an_upgrade_the_newest_that_is_ready_is_asked() {
        let parts = |pods: &[Value]| pods.iter().filter_map(Part::of).collect::<Vec<_>>();
        let old = pod("old", "n1", "2026-11-25T04:00:00Z", true, false);
        let new = pod("new", "n1", "2026-11-25T04:50:00Z", true, false);
        let starting = pod("starting", "n1", "2026-11-25T04:55:00Z", false, false);
        let ending = pod("ending", "n1", "2026-11-25T04:56:00Z", true, true);
        let chosen = |pods: &[Value]| best(parts(pods)).map(|part| part.pod);
        assert_eq!(chosen(&[new.clone(), old.clone(), starting.clone(), ending]).as_deref(), Some("new"));
        assert_eq!(chosen(&[starting]).as_deref(), Some("starting"));
        let mut failed = old;
        failed["status"]["phase"] = "Failed".into();
        assert_eq!(chosen(&[failed]), None);
        assert_eq!(parts(&[new])[0].label(), "node/n1");
    }

    #[tokio::test]
    async fn nodes_are_those_with_a_proxy() {
        let server = ApiServer::start().await;
        let nodes = ClusterNodes::new(Client::anonymous(&server.url()).unwrap(), "leno-system".to_owned());
        let none = nodes.nodes().await.unwrap_err().to_string();
        assert!(none.contains("`leno check` says why"), "{none}");
        for (name, node) in [("b", "n2"), ("a", "n1"), ("c", "n1")] {
            server.put(&pod(name, node, "2026-11-25T04:00:00Z", true, false));
        }
        assert_eq!(nodes.nodes().await.unwrap(), ["n1", "n2"]);
        assert_eq!(nodes.parts().await.unwrap()[0].containers, [("node".to_owned(), 2)]);
        let refusal = nodes.dial("n3", NodePort::Admin).await.map(drop).unwrap_err().to_string();
        assert!(refusal.contains("no node proxy runs on n3"), "{refusal}");
        server.forbid("/api/v1/namespaces/leno-system/pods/b/portforward");
        let refusal = format!("{:#}", nodes.dial("n2", NodePort::Admin).await.map(drop).unwrap_err());
        assert!(refusal.contains("port 15000 of leno-system/b") && refusal.contains("pods/portforward"), "{refusal}");
    }
}
