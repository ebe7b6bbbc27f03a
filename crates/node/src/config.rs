//! Settings of the node proxy: those of every proxy, and how it serves pods.

use std::path::PathBuf;

use leno_proxy::config::{PLACE, at_least_one};

/// Settings of the node proxy.
#[derive(Debug, Clone, clap::Args)]
pub struct Config {
    /// The settings of every proxy.
    #[command(flatten)]
    pub proxy: leno_proxy::Config,
    /// How pods are served.
    #[command(flatten)]
    pub pods: PodConfig,
}

/// How pods are served.
#[derive(Debug, Clone, clap::Args)]
pub struct PodConfig {
    /// Socket on which the node agent hands pods over.
    #[arg(long, env = "INPOD_UDS", help_heading = PLACE, default_value = "/var/run/ztunnel/ztunnel.sock")]
    pub inpod_uds: PathBuf,

    /// Sockets that the connections of one pod may have: one for each that goes by a tunnel, two for each in the
    /// clear, one for each tunnel of a peer; 0 for no limit of its own. Once connections have three quarters of the descriptors that the
    /// process may open, pods that have more than their share of these get no more. Of what a pod may have, the last
    /// quarter is for those of its peers, or its own programs, that have less than their share. All addresses of an IPv6
    /// network (/64) share what one host gets. Half of that quarter is for the pod's programs and for tunnels.
    #[arg(long, env = "LENO_MAX_SOCKETS_PER_POD", default_value_t = 0)]
    pub max_sockets_per_pod: usize,

    /// Tunnels that one peer, by its address, may have to one pod, and a quarter of what the addresses of one IPv6 network
    /// (/64) may have together. Each carries a hundred connections.
    #[arg(long, env = "LENO_MAX_TUNNELS_PER_PEER", default_value_t = 1024, value_parser = at_least_one)]
    pub max_tunnels_per_peer: usize,

    /// Give the local program the caller's own address as source: auto, true or false.
    #[arg(long, env = "ENABLE_ORIG_SRC", default_value = "auto")]
    pub original_source: OriginalSource,

    /// TCP congestion control of tunnels and towards programs: `auto` uses cubic instead of BBR where a
    /// round trip takes less than a millisecond; `system` leaves it to the pod's namespace.
    #[arg(long, env = "LENO_CONGESTION_CONTROL", default_value = "auto")]
    pub congestion_control: CongestionControl,

    /// Whether the pods' DNS is answered here.
    #[arg(long, env = "ISTIO_META_DNS_CAPTURE", help_heading = PLACE, default_value_t = true, action = clap::ArgAction::Set)]
    pub dns: bool,

    /// Tell the caller in the response headers which workload it reached.
    #[arg(long, env = "ENABLE_RESPONSE_BAGGAGE", default_value_t = true, action = clap::ArgAction::Set)]
    pub response_baggage: bool,
}

/// Whether the local program sees the caller's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum OriginalSource {
    /// If the kernel allows it in the pod's namespace.
    Auto,
    /// Always. A pod where it is not allowed is not served.
    True,
    /// Never. The program sees the pod's own address.
    False,
}

/// How the congestion control of tunnels and of connections to programs is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum CongestionControl {
    /// The pod's namespace chooses, except that packets on a short path are not paced.
    Auto,
    /// The pod's namespace chooses.
    System,
}
