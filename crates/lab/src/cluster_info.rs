//! What a report says of the cluster that the loads ran on.

use serde::{Deserialize, Serialize};

/// A cluster in a report.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterInfo {
    /// Address of its API server.
    pub server: String,
    /// Version of Kubernetes, such as v1.37.1.
    pub version: String,
    /// The node of the loads and of the near server, and the node of the far server.
    pub nodes: [Node; 2],
    /// The image of the lab's pods.
    pub image: String,
}

/// A node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Value of its label `kubernetes.io/hostname`.
    pub hostname: String,
    /// Processor cores, as the kubelet says.
    pub cores: String,
    /// Memory, such as 24 GiB.
    pub memory: String,
    /// Kernel release.
    pub kernel: String,
}

impl ClusterInfo {
    /// In words, for the head of a report.
    #[must_use]
    pub fn in_words(&self) -> String {
        let node =
            |node: &Node| format!("{} ({} cores, {}, Linux {})", node.name, node.cores, node.memory, node.kernel);
        format!(
            "Kubernetes {} at {}; loads on {}, far server on {}",
            self.version,
            self.server,
            node(&self.nodes[0]),
            node(&self.nodes[1])
        )
    }
}
