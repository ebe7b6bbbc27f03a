//! Settings of the node agent. The environment variables are those of Istio's node agent, where it has one.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use leno_capture::pod_rules::{PROBE_SOURCE_V4, PROBE_SOURCE_V6};

/// Settings of the node agent.
#[derive(Debug, Clone, clap::Args)]
pub struct Config {
    /// Name of the node this agent runs on; it looks after this node's pods and no others.
    #[arg(long, env = "NODE_NAME")]
    pub node: String,

    /// The node's directory of CNI configurations, as mounted here.
    #[arg(long, env = "MOUNTED_CNI_NET_DIR", value_name = "DIR", default_value = "/host/etc/cni/net.d")]
    pub cni_net_dir: PathBuf,

    /// The node's directory of CNI plugins, as mounted here.
    #[arg(long, env = "LENO_CNI_BIN_DIR", value_name = "DIR", default_value = "/host/opt/cni/bin")]
    pub cni_bin_dir: PathBuf,

    /// Socket for the CNI plugin; the path must be the same on the node.
    #[arg(long, env = "LENO_CNI_SOCKET", value_name = "PATH", default_value = crate::events::DEFAULT_SOCKET)]
    pub cni_socket: PathBuf,

    /// Directory of what the plugin must know while no agent runs; the path must be the same on the node.
    #[arg(long, env = "LENO_AGENT_STATE_DIR", value_name = "DIR", default_value = "/var/lib/leno")]
    pub state_dir: PathBuf,

    /// Socket on which the node proxy is handed pods.
    #[arg(long, env = "INPOD_UDS", value_name = "PATH", default_value = leno_capture::zds::DEFAULT_SOCKET)]
    pub zds_socket: PathBuf,

    /// Whether the node proxy answers the pods' DNS.
    #[arg(long, env = "AMBIENT_DNS_CAPTURE", value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pub dns_capture: bool,

    /// Whether IPv6 is captured. Without it, IPv6 traffic of pods bypasses the mesh.
    #[arg(long, env = "AMBIENT_IPV6", value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pub ipv6: bool,

    /// User the kubelet runs as on the node; its health checks reach captured pods.
    #[arg(long, env = "LENO_KUBELET_UID", value_name = "UID", default_value_t = 0)]
    pub kubelet_uid: u32,

    /// Address that health checks over IPv4 are made to come from.
    #[arg(long, env = "HOST_PROBE_SNAT_IP", value_name = "ADDRESS", default_value_t = PROBE_SOURCE_V4)]
    pub probe_source_v4: Ipv4Addr,

    /// Address that health checks over IPv6 are made to come from.
    #[arg(long, env = "HOST_PROBE_SNAT_IPV6", value_name = "ADDRESS", default_value_t = PROBE_SOURCE_V6)]
    pub probe_source_v6: Ipv6Addr,

    /// Namespace in which the agent runs; its pods may start while no agent does.
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAME", default_value = "leno-system")]
    pub namespace: String,

    /// DaemonSet that runs the agent. When it is deleted, the agent removes from the node what it put there.
    #[arg(long, env = "LENO_AGENT_DAEMONSET", value_name = "NAME", default_value = "leno-agent")]
    pub daemonset: String,

    /// DaemonSet of the node proxies, in the same namespace; none if they are somebody else's. While it stays, the directories
    /// that a proxy has mounted stay, too.
    #[arg(long, env = "LENO_NODE_DAEMONSET", value_name = "NAME")]
    pub node_daemonset: Option<String>,

    /// Port for readiness and metrics, on all of the node's addresses.
    #[arg(long, env = "LENO_AGENT_PORT", default_value_t = 15014)]
    pub port: u16,

    /// The node's processes; with hostPID, that is this container's own view.
    #[arg(long, env = "LENO_HOST_PROC", value_name = "DIR", default_value = "/proc", hide = true)]
    pub proc_dir: PathBuf,

    /// Kubeconfig file; without one, the pod's service account is used.
    #[arg(long, value_name = "PATH")]
    pub kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig.
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,

    /// Log lines as `plain` text or `json`.
    #[arg(long, env = "LOG_FORMAT", default_value = "plain")]
    pub log_format: String,

    /// Remove from the node what agents put there, and end: plugin, files, rules on the node and in all pods.
    #[arg(long)]
    pub remove: bool,
}
