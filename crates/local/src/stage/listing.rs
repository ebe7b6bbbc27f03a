//! The data that `leno ps` shows.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::files::passed_over::sentence;
use crate::stage::publish::PublishedListing;

/// The stage as it is now.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    /// Name of the stage.
    pub stage: String,
    /// Process id of the supervisor.
    pub supervisor: u32,
    /// Nodes in order.
    pub nodes: Vec<NodeListing>,
    /// Pods by namespace and name.
    pub pods: Vec<PodListing>,
    /// Why the newest edit of the manifests did not take effect; empty if it did.
    pub refused: String,
    /// What is wrong with the machine around the stage, such as a full disk, and what to do.
    #[serde(default)]
    pub troubles: Vec<String>,
    /// Warnings for the authors of the manifests in force, each with its place.
    pub warnings: Vec<String>,
    /// What is in the manifests and not in force, although one would believe so.
    #[serde(default)]
    pub passed_over: Vec<PassedOverListing>,
    /// The waypoints among the manifests' Gateways.
    #[serde(default)]
    pub waypoints: Vec<WaypointListing>,
    /// What may be reached around its waypoint, such as `Namespace shop`, because its annotation says so.
    #[serde(default)]
    pub bypassed: Vec<String>,
    /// Deployments and StatefulSets, as `NAMESPACE/NAME`.
    pub deployments: Vec<String>,
    /// Ports of Services, as `NAMESPACE/NAME:PORT`.
    pub services: Vec<String>,
    /// Ports of the machine that lead to services.
    pub published: Vec<PublishedListing>,
}

/// Something that is in the manifests and not in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassedOverListing {
    /// File and line.
    pub place: String,
    /// The object, such as `NetworkPolicy shop/deny-all`.
    pub object: String,
    /// Path of the field that is meant; empty for the whole object.
    pub field: String,
    /// What does not happen, as the end of a sentence.
    pub effect: String,
    /// The pods it would concern, each as `NAMESPACE/NAME`.
    pub pods: Vec<String>,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeListing {
    /// Its name.
    pub name: String,
    /// Program of its proxy.
    pub proxy: String,
    /// Whether the proxy is ready.
    pub ready: bool,
    /// Addresses on the link between the nodes.
    pub ips: Vec<IpAddr>,
    /// Network namespace.
    pub netns: String,
    /// Process id of the proxy.
    pub pid: Option<i32>,
    /// How often the proxy was started again.
    pub restarts: u32,
    /// Why the proxy doesn't run.
    pub message: String,
}

/// A Gateway that is a waypoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaypointListing {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Its class.
    pub class: String,
    /// The traffic that passes it, as its label `istio.io/waypoint-for` has it.
    pub traffic: String,
    /// Whether it may be gone around.
    pub bypass: bool,
}

/// A pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodListing {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Node it runs on.
    pub node: String,
    /// Addresses, IPv4 first.
    pub ips: Vec<IpAddr>,
    /// Whether its traffic goes through the mesh.
    pub in_mesh: bool,
    /// Whether it takes connections.
    pub ready: bool,
    /// One word, as `kubectl get pods` shows it.
    pub status: String,
    /// How often its containers were started again.
    pub restarts: u32,
    /// Why it isn't what it should be.
    pub message: String,
    /// Whether it should be in the mesh.
    pub wants_mesh: bool,
    /// Network namespace.
    pub netns: String,
    /// Whether it is a waypoint.
    #[serde(default)]
    pub waypoint: bool,
    /// The Gateway of its namespace that it is a waypoint of; empty for others.
    #[serde(default)]
    pub gateway: String,
    /// Process id of its first process.
    pub pid: Option<i32>,
}

impl fmt::Display for PassedOverListing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&sentence(&self.place, &self.object, &self.field, &self.effect))
    }
}

impl PodListing {
    /// Whether nothing is left to wait for: it serves, or it ended as it should.
    pub fn is_settled(&self) -> bool {
        (self.ready && self.in_mesh == self.wants_mesh) || self.status == "Completed"
    }
}

impl Listing {
    /// Whether every node's proxy and every pod is what it should be.
    pub fn is_ready(&self) -> bool {
        !self.nodes.is_empty()
            && self.nodes.iter().all(|node| node.ready)
            && self.pods.iter().all(PodListing::is_settled)
    }

    /// What is still missing, for an operator who waits, in one line.
    pub fn missing(&self) -> String {
        let all = self.waits();
        let told = all.iter().take(TOLD).map(ToString::to_string).collect::<Vec<_>>().join("; ");
        match all.len().checked_sub(TOLD) {
            Some(more @ 1..) => format!("{told}; and {more} more"),
            _ => told,
        }
    }

    /// Each node and pod that is not what it should be, nodes first.
    pub fn waits(&self) -> Vec<Wait> {
        let nodes = self.nodes.iter().filter(|node| !node.ready).map(|node| {
            let why = if node.message.is_empty() { "not ready yet" } else { &node.message };
            Wait { who: format!("the proxy of {}", node.name), why: format!(": {why}") }
        });
        let pods = self.pods.iter().filter(|pod| !pod.is_settled()).map(|pod| {
            let why = match (pod.message.as_str(), pod.ready, pod.wants_mesh) {
                ("", true, true) => ": not in the mesh yet".to_owned(),
                ("", true, false) => ": not out of the mesh yet".to_owned(),
                ("", false, _) => String::new(),
                (message, ..) => format!(": {message}"),
            };
            Wait { who: format!("pod {}/{}", pod.namespace, pod.name), why: format!(" is {}{why}", pod.status) }
        });
        nodes.chain(pods).collect()
    }
}

/// How much of what is missing is told in one line.
const TOLD: usize = 5;

/// A node or pod that is waited for. Displays as both in one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// Which one.
    pub who: String,
    /// How it is and why, in the words of `leno ps`; follows `who` without a space between.
    pub why: String,
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.who, self.why)
    }
}
