//! The flags of `leno control`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use leno_model::{DEFAULT_TRUST_DOMAIN, ports, settings};

/// Where a control plane has the mesh's own configuration.
pub(crate) const MESH_CONFIG: &str = "LENO_MESH_CONFIG";

/// Settings of a control plane that runs by itself.
#[derive(Debug, Clone, Args)]
#[non_exhaustive]
pub struct ControlArgs {
    /// Manifest, or directory of *.yaml; may be given again
    #[arg(short, long = "file", value_name = "PATH", required_unless_present = "kubernetes")]
    pub files: Vec<PathBuf>,

    /// Serve a Kubernetes cluster: objects come from its API server, which also says whose token it is.
    /// The CA is in the Secret leno-ca, or in cacerts if there is one
    #[arg(long, conflicts_with_all = ["files", "ca_dir", "tokens"])]
    pub kubernetes: bool,

    /// With --kubernetes, how to reach the cluster. By default a pod uses its service account; elsewhere
    /// it is $KUBECONFIG or ~/.kube/config
    #[arg(long, value_name = "PATH", requires = "kubernetes")]
    pub kubeconfig: Option<PathBuf>,

    /// With --kubernetes, the context in the kubeconfig
    #[arg(long, value_name = "NAME", requires = "kubernetes")]
    pub context: Option<String>,

    /// With --kubernetes, the namespace of the control plane's own Secrets, ConfigMap and Lease. By
    /// default that of its pod, else leno-system
    #[arg(long, value_name = "NAME", env = settings::POD_NAMESPACE)]
    pub namespace: Option<String>,

    /// With --kubernetes, this replica's own name
    #[arg(long, value_name = "NAME", env = settings::POD_NAME)]
    pub pod_name: Option<String>,

    /// With --kubernetes, the objects of which waypoints are made, as a YAML list. Without it, nobody makes
    /// waypoints out of Gateways
    #[arg(long, value_name = "PATH", env = "LENO_WAYPOINT_TEMPLATE", requires = "kubernetes")]
    pub waypoint_template: Option<PathBuf>,

    /// With --kubernetes, the mesh's own configuration: the entry of its ConfigMap leno-mesh-config as a file, with
    /// extensionProviders as Istio's MeshConfig has them. It is followed
    #[arg(long, value_name = "PATH", env = MESH_CONFIG, requires = "kubernetes")]
    pub mesh_config: Option<PathBuf>,

    /// Address for discovery and certificates
    #[arg(long, default_value = "[::]:15012")]
    pub listen: SocketAddr,

    /// Port of the metrics, on every address; 0 for any free one
    #[arg(long, value_name = "PORT", env = settings::STATS_PORT, default_value_t = ports::METRICS)]
    pub metrics_port: u16,

    /// Port of readiness, on every address; 0 for any free one
    #[arg(long, value_name = "PORT", env = settings::READINESS_PORT, default_value_t = ports::READINESS)]
    pub readiness_port: u16,

    /// Directory of the CA's keys and certificates; made if missing
    #[arg(long, value_name = "DIR", required_unless_present = "kubernetes")]
    pub ca_dir: Option<PathBuf>,

    /// Trust domain of every identity issued
    #[arg(long, env = "TRUST_DOMAIN", default_value = DEFAULT_TRUST_DOMAIN)]
    pub trust_domain: String,

    /// DNS suffix of the cluster's services
    #[arg(long, env = settings::CLUSTER_DOMAIN, default_value = settings::DEFAULT_CLUSTER_DOMAIN)]
    pub cluster_domain: String,

    /// This cluster's id, which proxies must present
    #[arg(long, env = settings::CLUSTER_ID, default_value = settings::DEFAULT_CLUSTER_ID)]
    pub cluster_id: String,

    /// Name or address for the control plane's own certificate; may be given again. By default
    /// localhost, and with --kubernetes the names of its Service leno-control
    #[arg(long = "server-name", value_name = "NAME")]
    pub server_names: Vec<String>,

    /// Longest life of a certificate; whoever asks for more gets this
    #[arg(long, value_name = "TIME", env = "LENO_MAX_CERTIFICATE_TTL", default_value = "24h", value_parser = duration)]
    pub max_certificate_ttl: Duration,

    /// Shortest life of a certificate; whoever asks for less gets this. Below 15m, clocks may be less
    /// than five minutes apart
    #[arg(long, value_name = "TIME", env = "LENO_MIN_CERTIFICATE_TTL", default_value = "15m", value_parser = duration)]
    pub min_certificate_ttl: Duration,

    /// Service account of node proxies, which get certificates for the pods of their node; may be given
    /// again. By default leno-system/leno-node and istio-system/ztunnel. In the environment with commas
    #[arg(long = "node-account", value_name = "NAMESPACE/ACCOUNT", env = "CA_TRUSTED_NODE_ACCOUNTS", value_delimiter = ',', value_parser = account)]
    pub node_accounts: Vec<String>,

    /// Proxies' connections at a time; a proxy has two
    #[arg(long, value_name = "CONNECTIONS", env = "LENO_MAX_CONNECTIONS", default_value_t = 16_384, value_parser = at_least_one)]
    pub max_connections: usize,

    /// Connections at a time that have shown no good token yet. When there are so many, the one
    /// that has waited longest gives way to who comes
    #[arg(long, value_name = "CONNECTIONS", env = "LENO_MAX_UNPROVEN_CLIENTS", alias = "max-unproven", default_value_t = 4096, value_parser = at_least_one)]
    pub max_unproven_clients: usize,

    /// So many of these one address (of IPv6: one /64) may have while others want places. An address
    /// that no other competes with may have all, so any number of proxies can be behind it
    #[arg(long, value_name = "CONNECTIONS", env = "LENO_MAX_UNPROVEN_PER_ADDRESS", default_value_t = 256, value_parser = at_least_one)]
    pub max_unproven_per_address: usize,

    /// Time a connection has for its TLS handshake and its first request with a good token: 10s, 1m
    #[arg(long, value_name = "TIME", env = "LENO_FIRST_REQUEST_TIMEOUT", default_value = "10s", value_parser = duration)]
    pub first_request_timeout: Duration,

    /// File of the tokens that proxies may present: lines of TOKEN NAMESPACE/SERVICE_ACCOUNT [NODE]
    #[arg(long, value_name = "PATH", required_unless_present = "kubernetes")]
    pub tokens: Option<PathBuf>,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| "write a number from 1 on".to_owned())
}

/// `namespace/account`. Nothing else would ever be the account of a token.
fn account(text: &str) -> Result<String, String> {
    let part = |part: &str| !part.is_empty() && !part.contains(['/', '*']) && !part.contains(char::is_whitespace);
    match text.trim().split_once('/') {
        Some((namespace, account)) if part(namespace) && part(account) => Ok(text.trim().to_owned()),
        _ => Err("write NAMESPACE/ACCOUNT, for example istio-system/ztunnel".to_owned()),
    }
}

/// `10s`, `5m`, `24h`, or a bare number of seconds; not nothing.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let bad = || format!("{text:?} is not a time; write for example 10s, 5m or 24h");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let seconds = match unit {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err(bad()),
    };
    let number: u64 = number.parse().map_err(|_| bad())?;
    number.checked_mul(seconds).filter(|seconds| *seconds > 0).map(Duration::from_secs).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_has_a_namespace() {
        assert_eq!(account(" a/b"), Ok("a/b".to_owned()));
        for bad in ["", "ztunnel", "a/", "/b", "a/b/c", "*/b", "a/b c"] {
            assert!(account(bad).is_err_and(|hint| hint.contains("NAMESPACE/ACCOUNT")), "{bad}");
        }
    }

    #[test]
    fn numbers_and_times_have_bounds_and_say_so() {
        assert_eq!(at_least_one("1"), Ok(1));
        assert!(at_least_one("0").is_err_and(|hint| hint.contains("from 1")));
        assert_eq!((duration("7"), duration("5m")), (Ok(Duration::from_secs(7)), Ok(Duration::from_secs(300))));
        for bad in ["", "0", "0h", "5d", "-1s", "9999999999999999999h"] {
            assert!(duration(bad).is_err_and(|hint| hint.contains("24h")), "{bad}");
        }
    }
}
