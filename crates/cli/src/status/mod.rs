//! `leno status`: what runs, and how each proxy is, on a stage or in a cluster.

mod cluster;
mod proxies;
mod stage;
mod waypoints;

use std::collections::BTreeMap;

use leno_install::cluster::Rollout;
use serde::Serialize;
use serde_json::Value;

use self::proxies::Proxy;
use self::waypoints::Waypoints;
use crate::args::{Format, StatusArgs};
use crate::output;
use crate::target::Target;

pub(crate) use self::cluster::gather;

/// What runs, and how it is on each node.
#[derive(Debug, Serialize)]
pub(crate) struct Status {
    /// The stage or cluster.
    of: Value,
    /// Of a cluster, what is installed.
    #[serde(skip_serializing_if = "Option::is_none")]
    components: Option<Vec<Rollout>>,
    nodes: BTreeMap<String, Node>,
    /// Of a stage, what is wrong with the machine around it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    troubles: Vec<String>,
    /// Of a stage, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    waypoints: Option<Waypoints>,
}

/// One node.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(crate) struct Node {
    /// Pods that are in the mesh.
    in_mesh: usize,
    /// Pods that can be in the mesh and are not.
    outside: usize,
    /// Pods that are to be in the mesh and are not yet.
    pending: usize,
    /// Proxies that have been replaced and end once their last connections do, or at the drain deadline.
    draining: usize,
    /// The one that serves.
    proxy: Proxy,
}

/// Prints it; with --wait, once everything runs.
pub(crate) async fn run(args: StatusArgs) -> anyhow::Result<()> {
    let target = Target::installed(&args.installed).await?;
    let wait = args.wait.wait.then_some(args.wait.timeout);
    let status = match &target {
        Target::Stage(name) => stage::gather(name, wait).await?,
        Target::Cluster(nodes) => cluster::gather_when(nodes, wait).await?,
    };
    match args.output.output {
        Format::Json => output::json(&status),
        Format::Text => output::line(&text(&target.name(), &status)),
    }
}

fn text(of: &str, status: &Status) -> String {
    let mut parts = vec![of.to_owned()];
    if let Some(components) = &status.components {
        let row = |component: &Rollout| {
            vec![
                component.name.clone(),
                format!("{}/{}", component.ready, component.wanted),
                component.version.clone(),
                component.because.clone().unwrap_or_default(),
            ]
        };
        let rows: Vec<_> = components.iter().map(row).collect();
        parts.push(output::table(&["COMPONENT", "READY", "VERSION", ""], &rows));
    }
    let rows: Vec<_> = status.nodes.iter().map(|(name, node)| row(name, node)).collect();
    let heading =
        ["NODE", "PODS", "PENDING", "OUTSIDE", "IN SYNC", "VERSION", "CERTIFICATES END", "CONNECTIONS", "DRAINING"];
    parts.push(output::table(&heading, &rows));
    let why = |(name, node): (&String, &Node)| node.proxy.problem.as_ref().map(|why| format!("{name}: {why}"));
    let problems: Vec<_> = status.nodes.iter().filter_map(why).collect();
    if !problems.is_empty() {
        parts.push(problems.join("\n"));
    }
    parts.extend(status.troubles.iter().cloned());
    parts.extend(status.waypoints.as_ref().and_then(Waypoints::text));
    parts.join("\n\n")
}

fn row(name: &str, node: &Node) -> Vec<String> {
    let proxy = &node.proxy;
    let or_unknown = |text: Option<String>| text.unwrap_or_else(|| "?".to_owned());
    let in_sync = proxy.in_sync.map(|yes| if yes { "yes" } else { "no" }.to_owned());
    let draining = match (node.draining, proxy.draining_connections) {
        (0, _) => "-".to_owned(),
        (proxies, None) => proxies.to_string(),
        (proxies, Some(connections)) => format!("{proxies}, with {connections} connections"),
    };
    let mut cells = vec![name.to_owned()];
    cells.extend([node.in_mesh, node.pending, node.outside].map(|count| count.to_string()));
    cells.push(or_unknown(in_sync));
    cells.push(or_unknown(proxy.version.clone()));
    cells.push(or_unknown(proxy.certificates.as_ref().map(ToString::to_string)));
    cells.push(or_unknown(proxy.connections.map(|count| count.to_string())));
    cells.push(draining);
    cells
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
