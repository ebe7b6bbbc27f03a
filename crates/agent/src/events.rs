//! What the CNI plugin and the node agent say to each other: Istio's events, as JSON over HTTP on a unix socket.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// Where the plugin finds the agent.
pub const DEFAULT_SOCKET: &str = "/var/run/leno/cni.sock";

/// A pod has got its network.
pub(crate) const ADD: &str = "/cmdadd";
/// A pod loses its network.
pub(crate) const DEL: &str = "/cmddel";
/// Is the pod's traffic as it should be?
pub(crate) const CHECK: &str = "/cmdcheck";

/// A pod, by what the container runtime knows of it. Fields that Istio's plugin does not send may be missing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct PodEvent {
    /// Path of its network namespace, as the node sees it; may be empty when it is deleted.
    pub(crate) netns: String,
    /// Name.
    pub(crate) pod_name: String,
    /// Namespace.
    pub(crate) pod_namespace: String,
    /// Kubernetes' unique id.
    #[serde(rename = "PodUID")]
    pub(crate) pod_uid: String,
    /// The container runtime's id of the pod's sandbox.
    #[serde(rename = "ContainerID")]
    pub(crate) container_id: String,
    /// Addresses.
    #[serde(rename = "IPs")]
    pub(crate) ips: Vec<IpConfig>,
}

/// An address of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct IpConfig {
    /// The address, with its mask where Istio's plugin sends it.
    pub(crate) address: Address,
}

/// An address, as Go's `net.IPNet` is written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Address {
    /// The address.
    #[serde(rename = "IP")]
    pub(crate) ip: IpAddr,
}
