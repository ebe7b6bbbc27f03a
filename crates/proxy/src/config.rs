//! Settings that every proxy has: one declaration for flag, environment variable, default and help.
//!
//! The environment variables are ztunnel's, so that whatever starts a ztunnel can start this.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leno_model::{ports, settings};
use leno_tls::Clock;

use crate::error::Error;

/// Help heading of the settings that define a proxy's place: its control plane, its identity, and its own addresses.
/// All other settings are tuning.
pub const PLACE: &str = "Its place";

/// Names of the environment variables of `C`'s tuning settings. Programs that start proxies pass these on to them.
pub fn tuning<C: clap::Args>() -> Vec<String> {
    let settings = C::augment_args(clap::Command::new("proxy"));
    let tuning = settings.get_arguments().filter(|setting| setting.get_help_heading() != Some(PLACE));
    tuning.filter_map(|setting| Some(setting.get_env()?.to_string_lossy().into_owned())).collect()
}

/// Settings that every proxy has. Durations are given as `10s`, `5m`, `24h`.
#[derive(Debug, Clone, clap::Args)]
#[group(skip)]
pub struct Config {
    /// Name of the node this proxy runs on; a node's proxy carries its pods.
    #[arg(long, env = "NODE_NAME", help_heading = PLACE)]
    pub node: String,

    /// Control plane for discovery (delta ADS over TLS).
    #[arg(long, env = "XDS_ADDRESS", help_heading = PLACE, default_value = "https://istiod.istio-system.svc:15012")]
    pub xds_address: String,

    /// Control plane for certificates; the discovery address unless given.
    #[arg(long, env = "CA_ADDRESS", help_heading = PLACE)]
    pub ca_address: Option<String>,

    /// Roots that the control plane's certificate must chain to: a path, inline PEM, or SYSTEM.
    #[arg(long, env = "XDS_ROOT_CA", help_heading = PLACE, default_value = "./var/run/secrets/istio/root-cert.pem")]
    pub xds_root_ca: String,

    /// Roots for the certificate service; those of discovery unless given.
    #[arg(long, env = "CA_ROOT_CA", help_heading = PLACE)]
    pub ca_root_ca: Option<String>,

    /// Name the discovery server's certificate must carry instead of the address's host.
    #[arg(long, env = "ALT_XDS_HOSTNAME", help_heading = PLACE)]
    pub alt_xds_hostname: Option<String>,

    /// Name the certificate server's certificate must carry instead of the address's host.
    #[arg(long, env = "ALT_CA_HOSTNAME", help_heading = PLACE)]
    pub alt_ca_hostname: Option<String>,

    /// Bearer token for the control plane: a path, read anew for each request, or the token; empty for none.
    #[arg(long, env = "AUTH_TOKEN", help_heading = PLACE, default_value = "./var/run/secrets/tokens/istio-token", hide_env_values = true)]
    pub auth_token: String,

    /// This cluster's id.
    #[arg(long, env = settings::CLUSTER_ID, help_heading = PLACE, default_value = settings::DEFAULT_CLUSTER_ID)]
    pub cluster_id: String,

    /// DNS suffix of the cluster's services.
    #[arg(long, env = settings::CLUSTER_DOMAIN, help_heading = PLACE, default_value = settings::DEFAULT_CLUSTER_DOMAIN)]
    pub cluster_domain: String,

    /// Network id of this node; empty for the default network.
    #[arg(long, env = "NETWORK", help_heading = PLACE, default_value = "")]
    pub network: String,

    /// Name of the pod this proxy runs as.
    #[arg(long, env = settings::POD_NAME, help_heading = PLACE, default_value = "")]
    pub pod_name: String,

    /// Namespace of the pod this proxy runs as.
    #[arg(long, env = settings::POD_NAMESPACE, help_heading = PLACE, default_value = "")]
    pub pod_namespace: String,

    /// Address of the pod this proxy runs as.
    #[arg(long, env = "INSTANCE_IP", help_heading = PLACE, default_value = "1.1.1.1")]
    pub instance_ip: IpAddr,

    /// Data-path threads: a number; 0 for one per core. All take connections in, every second one also those that go out,
    /// and all carry bulk.
    #[arg(long, env = "ZTUNNEL_WORKER_THREADS", default_value_t = 0, value_parser = threads)]
    pub worker_threads: usize,

    /// Lifetime asked for in certificate requests.
    #[arg(long, env = "SECRET_TTL", default_value = "24h", value_parser = duration)]
    pub secret_ttl: Duration,

    /// How long a connection waits for discovery to tell of its own pod, or of a policy that the pod is under.
    #[arg(long, env = "LENO_WORKLOAD_TIMEOUT", default_value = "5s", value_parser = duration)]
    pub workload_timeout: Duration,

    /// How long a connection waits for its pod's first certificate.
    #[arg(long, env = "LENO_CERTIFICATE_TIMEOUT", default_value = "10s", value_parser = duration)]
    pub certificate_timeout: Duration,

    /// How long a TCP connect may take, to a peer or to the local program.
    #[arg(long, env = "LENO_CONNECT_TIMEOUT", default_value = "10s", value_parser = duration)]
    pub connect_timeout: Duration,

    /// How old a tunnel between two pods gets before new connections go over a fresh one; earlier where a certificate
    /// that proves it ends earlier, and up to a quarter earlier, so that not all are replaced together. Connections that
    /// are open in it go on.
    #[arg(long, env = "LENO_TUNNEL_MAX_AGE", default_value = "1h", value_parser = a_second_or_more)]
    pub tunnel_max_age: Duration,

    /// How long a TLS handshake may take.
    #[arg(long, env = "LENO_HANDSHAKE_TIMEOUT", default_value = "10s", value_parser = duration)]
    pub handshake_timeout: Duration,

    /// Peers of one pod that may be in the middle of proving who they are. Whoever comes when there are so
    /// many takes the place of the one that has taken longest, if that is a second or more.
    #[arg(long, env = "LENO_MAX_UNPROVEN_PEERS", alias = "max-unproven", default_value_t = 2048, value_parser = at_least_one)]
    pub max_unproven_peers: usize,

    /// As before, of all pods together; fewer where an eighth of the descriptors that the process may open is less. Once
    /// all are taken, the address that has most of them gives way, if it has more than a sixteenth.
    #[arg(long, env = "LENO_MAX_UNPROVEN_PEERS_TOTAL", default_value_t = 4096, value_parser = at_least_one)]
    pub max_unproven_peers_total: usize,

    /// Streams on one HBONE connection before another is opened.
    #[arg(long, env = "POOL_MAX_STREAMS_PER_CONNECTION", default_value_t = 100)]
    pub pool_max_streams: usize,

    /// How long an HBONE connection without streams is kept: half as long if it was full once, and
    /// ten seconds at most beside others to the same peer.
    #[arg(long, env = "POOL_UNUSED_RELEASE_TIMEOUT", default_value = "60s", value_parser = duration)]
    pub pool_idle_timeout: Duration,

    /// Bytes that all HBONE connections together may receive beyond their own windows of 16 MiB,
    /// for programs that don't read, so that their neighbours' bytes still arrive.
    #[arg(long, env = "LENO_WINDOW_BUDGET", default_value_t = 64 << 20, value_parser = bytes)]
    pub window_budget: usize,

    /// Bytes that all HBONE connections together may hold for programs that don't read. The more is held, the
    /// less the next such program may leave waiting, down to 256 bytes. One that has read megabytes may leave up to 4 MiB.
    #[arg(long, env = "LENO_UNREAD_BUDGET", default_value_t = 16 << 20, value_parser = bytes)]
    pub unread_budget: usize,

    /// After SIGTERM, how long live connections may take to end before they are cut.
    #[arg(long, env = "CONNECTION_TERMINATION_DEADLINE", default_value = "25s", value_parser = duration)]
    pub drain_deadline: Duration,

    /// After SIGTERM, how long new connections are still taken while no other proxy listens in a pod: until the next one
    /// does, and for half of the drain deadline at most. 0 turns new ones away at once.
    #[arg(long, env = "LENO_TAKEOVER_TIMEOUT", default_value = "5s", value_parser = duration)]
    pub takeover_timeout: Duration,

    /// Directory in which the last good state of the mesh and the pods' certificates, with their keys, are kept for the
    /// next proxy, which may start while no control plane can be reached. It is made with mode 700. One in memory, below
    /// `/run`, does not outlive the node's boot. Unless this is set, a proxy that starts then carries nothing.
    #[arg(long, env = "LENO_STATE_DIR", help_heading = PLACE)]
    pub state_dir: Option<PathBuf>,

    /// Directory in which a proxy that drains says how many connections it still waits for, for the proxies that follow it
    /// [default: the directory of the saved state].
    #[arg(long, env = "LENO_DRAINING_DIR", help_heading = PLACE)]
    pub draining_dir: Option<PathBuf>,

    /// Whether pods may use IPv6.
    #[arg(long, env = "IPV6_ENABLED", help_heading = PLACE, default_value_t = true, action = clap::ArgAction::Set)]
    pub ipv6: bool,

    /// Log lines as `plain` text or `json`.
    #[arg(long, env = "LOG_FORMAT", default_value = "plain")]
    pub log_format: String,

    /// Port of the admin endpoint, on loopback.
    #[arg(long, env = "ADMIN_PORT", help_heading = PLACE, default_value_t = ports::ADMIN)]
    pub admin_port: u16,

    /// Port of the metrics endpoint.
    #[arg(long, env = settings::STATS_PORT, help_heading = PLACE, default_value_t = ports::METRICS)]
    pub stats_port: u16,

    /// Port of the readiness endpoint.
    #[arg(long, env = settings::READINESS_PORT, help_heading = PLACE, default_value_t = ports::READINESS)]
    pub readiness_port: u16,

    /// The wall clock by which certificates end; no setting, but tests have their own.
    #[arg(skip)]
    pub clock: Clock,
}

impl Config {
    /// Where proxies that drain say so, if anywhere.
    pub(crate) fn draining_dir(&self) -> Option<&Path> {
        self.draining_dir.as_deref().or(self.state_dir.as_deref())
    }
}

/// Most data-path threads. More than there are cores carry no more traffic, and each takes descriptors and memory.
const THREADS_MAX: usize = 1024;

/// A number of data-path threads; 0 for one per core.
fn threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 0..=THREADS_MAX) => Ok(count),
        _ => Err(format!("write a number of threads from 1 to {THREADS_MAX}, or 0 for one per core")),
    }
}

/// Parses a number of at least 1.
///
/// # Errors
/// A text that says what to write instead.
pub fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| "write a number from 1 on".to_owned())
}

fn bytes(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "write a number of bytes, for example 67108864 for 64 MiB".to_owned())
}

/// A duration of at least a second. With less, nearly every connection would need a handshake.
fn a_second_or_more(text: &str) -> Result<Duration, String> {
    let given = duration(text)?;
    if given >= Duration::from_secs(1) { Ok(given) } else { Err("write a duration of 1s or more".to_owned()) }
}

/// Parses `10s`, `250ms`, `5m`, `24h`, or a bare number of seconds.
///
/// # Errors
/// A text that says what to write instead.
pub fn duration(text: &str) -> Result<Duration, String> {
    let bad = || format!("{text:?} is not a duration; write for example 250ms, 10s, 5m or 24h");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| bad())?;
    let seconds = |n: u64| number.checked_mul(n).map(Duration::from_secs).ok_or_else(bad);
    match unit {
        "ms" => Ok(Duration::from_millis(number)),
        "" | "s" => seconds(1),
        "m" => seconds(60),
        "h" => seconds(3600),
        _ => Err(bad()),
    }
}

/// Parses a setting.
///
/// # Errors
/// If its value is not valid.
pub(crate) fn setting<T: std::str::FromStr<Err: std::fmt::Display>>(
    name: &'static str,
    value: &str,
) -> Result<T, Error> {
    value.parse().map_err(|e: T::Err| Error::Setting { setting: name, value: value.to_owned(), reason: e.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        config: Config,
    }

    #[test]
    fn a_node_name_is_enough() {
        let cli = <Cli as clap::Parser>::try_parse_from(["node", "--node", "a"]).expect("parses");
        assert_eq!(cli.config.secret_ttl, Duration::from_secs(24 * 3600));
        assert!(cli.config.ipv6);
    }

    #[test]
    fn what_tunes_a_proxy_says_nothing_of_its_place() {
        let tuning = tuning::<Config>();
        for name in ["SECRET_TTL", "LENO_CONNECT_TIMEOUT", "POOL_MAX_STREAMS_PER_CONNECTION", "LOG_FORMAT"] {
            assert!(tuning.iter().any(|known| known == name), "{name}");
        }
        for name in ["NODE_NAME", "XDS_ADDRESS", "AUTH_TOKEN", "ADMIN_PORT"] {
            assert!(!tuning.iter().any(|known| known == name), "{name}");
        }
    }

    #[test]
    fn every_setting_has_a_variable_and_a_help() {
        let settings = <Config as clap::Args>::augment_args(clap::Command::new("proxy"));
        for setting in settings.get_arguments() {
            assert!(setting.get_env().is_some() && setting.get_help().is_some(), "{}", setting.get_id());
        }
    }

    #[test]
    fn numbers_have_bounds_and_say_so() {
        assert_eq!((threads("0"), threads("1024")), (Ok(0), Ok(1024)));
        for bad in ["1025", "100000", "-1", "two", "99999999999999999999"] {
            assert!(threads(bad).is_err_and(|hint| hint.contains("from 1 to 1024")), "{bad}");
        }
        assert_eq!(bytes("0"), Ok(0));
        assert_eq!(at_least_one("1"), Ok(1));
        assert!(at_least_one("0").is_err() && at_least_one("many").is_err());
        assert_eq!(a_second_or_more("1h"), Ok(Duration::from_secs(3600)));
        assert!(a_second_or_more("999ms").is_err() && a_second_or_more("0").is_err());
        assert!(bytes("64M").is_err_and(|hint| hint.contains("67108864")));
    }

    #[test]
    fn durations() {
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(duration("7"), Ok(Duration::from_secs(7)));
        for bad in ["", "s", "5 s", "-1s", "5d", "99999999999999999999s", "9999999999999999999h"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
