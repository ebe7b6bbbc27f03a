//! `status`: what runs, and how to use it.

use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde::Serialize;
use serde_json::Value;

use super::build::TOOLBOX;
use super::cgroups::Cgroups;
use super::layout::Layout;
use super::plan::{Families, Plan};
use super::telling::print;
use super::{control_plane, node};

/// What there is, for people and scripts.
#[derive(Debug, Serialize)]
pub(crate) struct Status {
    /// All nodes are ready and every program runs.
    pub(crate) ready: bool,
    pub(crate) kubeconfig: String,
    /// Holds kubectl and ctr.
    pub(crate) bin: String,
    logs: String,
    toolbox_image: &'static str,
    families: Families,
    /// Programs of the cluster that ended.
    ended: Vec<String>,
    nodes: Vec<NodeStatus>,
}

#[derive(Debug, Serialize)]
struct NodeStatus {
    name: String,
    ready: bool,
    /// Of its first process, for `nsenter`.
    pid: Option<i32>,
    addresses: Vec<String>,
}

/// `None` if there is no cluster.
pub(crate) fn find(layout: &Layout) -> Result<Option<Status>> {
    let Some(state) = layout.state().filter(|state| state.complete) else { return Ok(None) };
    let cgroups = Cgroups::find()?;
    let ended = ended(layout, &cgroups, &state.plan);
    let answer = if ended.iter().any(|name| name == "kube-apiserver") {
        Value::Null
    } else {
        listed(control_plane::kubectl(layout))?
    };
    let nodes: Vec<_> = state
        .plan
        .nodes()
        .map(|node| {
            let name = node.name();
            let addresses = state.plan.node_addresses(node).split(',').map(str::to_owned).collect();
            let pid = node::pid(layout, node).ok().map(nix::unistd::Pid::as_raw);
            NodeStatus { ready: is_ready(&answer, &name), name, pid, addresses }
        })
        .collect();
    Ok(Some(Status {
        ready: ended.is_empty() && nodes.iter().all(|node| node.ready),
        kubeconfig: layout.kubeconfig().display().to_string(),
        bin: layout.bin().display().to_string(),
        logs: layout.logs().display().to_string(),
        toolbox_image: TOOLBOX,
        families: state.plan.families,
        ended,
        nodes,
    }))
}

/// Programs and nodes that should run and don't.
pub(crate) fn ended(layout: &Layout, cgroups: &Cgroups, plan: &Plan) -> Vec<String> {
    let programs = control_plane::PROGRAMS.iter().filter(|name| cgroups.processes(name).is_empty());
    let nodes = plan.nodes().filter(|node| !node::runs(layout, cgroups, *node));
    programs.map(|name| (*name).to_owned()).chain(nodes.map(|node| node.name())).collect()
}

fn listed(mut kubectl: Command) -> Result<Value> {
    kubectl.args(["get", "nodes", "--output=json", "--request-timeout=10s"]);
    let output = kubectl.output().context("starting kubectl")?;
    if !output.status.success() {
        bail!("the API server does not list nodes: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    serde_json::from_slice(&output.stdout).context("reading the list of nodes")
}

fn is_ready(list: &Value, name: &str) -> bool {
    let nodes = list["items"].as_array().into_iter().flatten();
    let conditions = nodes
        .filter(|node| node["metadata"]["name"] == name)
        .flat_map(|node| node["status"]["conditions"].as_array().into_iter().flatten());
    conditions.into_iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

impl Status {
    pub(crate) fn print(&self) -> Result<()> {
        let mut text = String::from("NODE  READY  PID      ADDRESSES\n");
        for node in &self.nodes {
            let ready = if node.ready { "yes" } else { "no" };
            let pid = node.pid.map(|pid| pid.to_string()).unwrap_or_default();
            text.push_str(&format!("{:<4}  {ready:<5}  {pid:<7}  {}\n", node.name, node.addresses.join(" ")));
        }
        if !self.ended.is_empty() {
            text.push_str(&format!("ended: {}; `cargo xtask cluster up` starts anew\n", self.ended.join(", ")));
        }
        text.push_str(&format!(
            "kubeconfig  {}\nprograms    {}\nlogs        {}\ntoolbox     {}\n",
            self.kubeconfig, self.bin, self.logs, self.toolbox_image
        ));
        print(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_ready_when_the_api_server_says_so() {
        let list = serde_json::json!({"items": [
            {"metadata": {"name": "n1"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}},
            {"metadata": {"name": "n2"}, "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}},
            {"metadata": {"name": "n3"}, "status": {"conditions": [{"type": "DiskPressure", "status": "True"}]}},
        ]});
        assert!(is_ready(&list, "n1"));
        assert!(!is_ready(&list, "n2") && !is_ready(&list, "n3") && !is_ready(&list, "n4"));
        assert!(!is_ready(&Value::Null, "n1"));
    }
}
