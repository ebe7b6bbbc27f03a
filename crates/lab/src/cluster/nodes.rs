//! The two nodes of a run.

use leno_kubernetes::Client;
use serde_json::Value;

use crate::Error;
use crate::cluster_info::Node;

/// Label by which pods are sent to a node.
pub(super) const HOSTNAME: &str = "kubernetes.io/hostname";

/// Where pods go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Nodes {
    /// Of the loads, and of the server on the same node.
    pub(super) near: Node,
    /// Of the server across nodes.
    pub(super) far: Node,
}

impl Nodes {
    /// The first two by name that take any pod.
    pub(super) async fn choose(client: &Client) -> Result<Self, Error> {
        let list: Value =
            client.get("/api/v1/nodes").await.map_err(Error::cluster("cannot list the cluster's nodes"))?;
        Self::among(list["items"].as_array().map_or(&[][..], Vec::as_slice))
    }

    fn among(list: &[Value]) -> Result<Self, Error> {
        let (mut fit, mut unfit) = (Vec::new(), Vec::new());
        for node in list {
            let name = node["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            if let Some(why) = objection(node) {
                unfit.push(format!("{name} {why}"));
                continue;
            }
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            fit.push(Node {
                hostname: text(&node["metadata"]["labels"][HOSTNAME]),
                cores: text(&node["status"]["capacity"]["cpu"]),
                memory: in_gib(&text(&node["status"]["capacity"]["memory"])),
                kernel: text(&node["status"]["nodeInfo"]["kernelVersion"]),
                name,
            });
        }
        fit.sort_by(|one, other| one.name.cmp(&other.name));
        let mut fit = fit.into_iter();
        match (fit.next(), fit.next()) {
            (Some(near), Some(far)) => Ok(Self { near, far }),
            (one, _) => {
                let one = one.map_or_else(|| "none".to_owned(), |node| format!("only {}", node.name));
                let others = if unfit.is_empty() { String::new() } else { format!(" ({})", unfit.join("; ")) };
                Err(Error::Unfit(format!(
                    "the lab needs two nodes that take any pod, and there is {one}{others}; add a node, or make one ready, \
                     schedulable and free of taints"
                )))
            }
        }
    }
}

/// Memory as people say it: kubelets give KiB. Other units are left as they are.
fn in_gib(memory: &str) -> String {
    let kib = memory.strip_suffix("Ki").and_then(|number| number.parse::<f64>().ok());
    kib.map_or_else(|| memory.to_owned(), |kib| format!("{:.0} GiB", kib / f64::from(1 << 20)))
}

/// Why a node does not take the lab's pods.
fn objection(node: &Value) -> Option<String> {
    let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
    let ready = conditions.into_iter().find(|condition| condition["type"] == "Ready");
    if ready.is_none_or(|ready| ready["status"] != "True") {
        return Some("is not ready".to_owned());
    }
    if node["spec"]["unschedulable"] == true {
        return Some("is cordoned".to_owned());
    }
    let mut taints = node["spec"]["taints"].as_array().into_iter().flatten();
    let taint = taints.find(|taint| taint["effect"] != "PreferNoSchedule")?;
    Some(format!("has the taint {}", taint["key"].as_str().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(name: &str, spec: Value, ready: &str) -> Value {
        json!({
            "metadata": {"name": name, "labels": {HOSTNAME: format!("{name}.example")}},
            "spec": spec,
            "status": {"conditions": [{"type": "Ready", "status": ready}], "capacity": {"cpu": "4", "memory": "8Gi"}},
        })
    }

    #[test]
    fn the_first_two_that_take_pods() {
        let list = [
            node("c", json!({}), "True"),
            node("a", json!({"taints": [{"key": "dedicated", "effect": "NoSchedule"}]}), "True"),
            node("b", json!({"taints": [{"key": "x", "effect": "PreferNoSchedule"}]}), "True"),
            node("d", json!({}), "True"),
        ];
        let nodes = Nodes::among(&list).unwrap();
        assert_eq!([in_gib("24684084Ki"), in_gib("8Gi")], ["24 GiB", "8Gi"]);
        assert_eq!((nodes.near.name.as_str(), nodes.far.hostname.as_str()), ("b", "c.example"));
    }

    #[test]
    fn with_one_node_every_others_reason_is_told() {
        let list = [
            node("a", json!({"taints": [{"key": "dedicated", "effect": "NoExecute"}]}), "True"),
            node("b", json!({"unschedulable": true}), "True"),
            node("c", json!({}), "Unknown"),
            node("d", json!({}), "True"),
        ];
        let error = Nodes::among(&list).unwrap_err().to_string();
        assert!(error.contains("only d (a has the taint dedicated; b is cordoned; c is not ready)"), "{error}");
        assert!(Nodes::among(&[]).unwrap_err().to_string().contains("there is none;"));
    }
}
