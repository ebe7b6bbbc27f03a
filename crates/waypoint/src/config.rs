//! Settings of a waypoint: those of every proxy, and how it treats requests.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use leno_model::HBONE_PORT;
use leno_model::settings::FORWARD_CLIENT_CERT;
use leno_proxy::config::{PLACE, at_least_one, duration};
use leno_telemetry::spans::{Collector, Protocol};

/// Settings of a waypoint.
#[derive(Debug, Clone, clap::Args)]
pub struct Config {
    /// The settings of every proxy.
    #[command(flatten)]
    pub proxy: leno_proxy::Config,
    /// How requests are treated.
    #[command(flatten)]
    pub waypoint: WaypointConfig,
}

/// A listener in the clear, and what all its connections are for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClearListener {
    /// Where it listens.
    pub address: SocketAddr,
    /// What its connections ask for, as a tunnel's would: a service's or a pod's address and port.
    pub authority: String,
}

impl FromStr for ClearListener {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('=').and_then(|(address, to)| Some((address.parse().ok()?, to.to_owned())));
        let (address, authority) = parts.ok_or_else(|| format!("{text:?} is not ADDRESS:PORT=ADDRESS:PORT"))?;
        Ok(Self { address, authority })
    }
}

/// How a waypoint treats connections and requests.
#[derive(Debug, Clone, clap::Args)]
pub struct WaypointConfig {
    /// Service account of the pod this waypoint runs as: its identity.
    #[arg(long, env = "SERVICE_ACCOUNT", help_heading = PLACE, default_value = "default")]
    pub service_account: String,

    /// Where peers' tunnels are accepted.
    #[arg(long, env = "LENO_WAYPOINT_ADDRESS", help_heading = PLACE, default_value_t = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), HBONE_PORT))]
    pub listen: SocketAddr,

    /// How long the first bytes of a connection are waited for whose protocol nobody has declared (`appProtocol` or the
    /// port's name). After that the endpoint is connected to, and whoever speaks first decides.
    #[arg(long, env = "LENO_DETECTION_TIMEOUT", default_value = "100ms", value_parser = duration)]
    pub detection_timeout: Duration,

    /// Tell programs who calls, in the header `x-forwarded-client-cert`. The one that a client sends is always removed.
    #[arg(long, env = FORWARD_CLIENT_CERT, default_value_t = false, action = clap::ArgAction::Set)]
    pub forward_client_cert: bool,

    /// Bytes that the head of a request or of a response may have; more is refused with 431.
    #[arg(long, env = "LENO_MAX_HEAD", default_value_t = 60 << 10, value_parser = head)]
    pub max_head: usize,

    /// Bytes of memory that this process may have for what it carries. At seven eighths of it, clients that have read nothing
    /// of their responses for a second are cut off, and idle ones are asked to connect anew; beyond it, new requests get 503.
    /// Three quarters of the container's limit by default, or 1 GiB if it has none; 0 for no limit.
    #[arg(long, env = "LENO_MAX_MEMORY", default_value_t = crate::memory_pressure::usual())]
    pub max_memory: u64,

    /// How long the head of a request may take from its first byte to its last.
    #[arg(long, env = "LENO_HEAD_TIMEOUT", default_value = "10s", value_parser = duration)]
    pub head_timeout: Duration,

    /// How long a request's body may take that an external authoriser is to see before the request is passed on.
    #[arg(long, env = "LENO_HELD_BODY_TIMEOUT", default_value = "30s", value_parser = duration)]
    pub held_body_timeout: Duration,

    /// How long an HTTP connection to an endpoint is kept without a request.
    #[arg(long, env = "LENO_UPSTREAM_IDLE_TIMEOUT", default_value = "60s", value_parser = duration)]
    pub upstream_idle_timeout: Duration,

    /// How long a client's HTTP connection is kept without a request.
    #[arg(long, env = "LENO_CLIENT_IDLE_TIMEOUT", default_value = "1h", value_parser = duration)]
    pub client_idle_timeout: Duration,

    /// HTTP/2 requests that one connection of a client may have open.
    #[arg(long, env = "LENO_MAX_CONCURRENT_REQUESTS", default_value_t = 100, value_parser = requests)]
    pub max_concurrent_requests: u32,

    /// OpenTelemetry collector that takes spans of requests, as http://HOST:PORT. Without one, no spans are told; a trace that
    /// a client has begun is passed on all the same, and one is begun where there is none.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT")]
    pub collector: Option<Collector>,

    /// How the collector is spoken to: http/protobuf, http/json (port 4318 by default) or grpc (4317).
    #[arg(long, env = "OTEL_EXPORTER_OTLP_PROTOCOL", default_value_t)]
    pub collector_protocol: Protocol,

    /// Of a hundred requests that belong to no trace, those whose trace is told. Of a trace that a client has begun, the
    /// client says.
    #[arg(long, env = "LENO_TRACE_SAMPLING", default_value_t = 1.0, value_parser = per_cent)]
    pub trace_sampling: f64,

    /// For tests and measurements: listeners that take HTTP in the clear, each as ADDRESS:PORT=SERVICE-ADDRESS:PORT,
    /// separated by commas. Whoever reaches one is taken for this waypoint itself.
    #[arg(long, env = "LENO_WAYPOINT_CLEAR_LISTENERS", value_delimiter = ',')]
    pub clear_listeners: Vec<ClearListener>,

    /// Tunnels that one peer, by its address, may have. Each carries a hundred connections.
    #[arg(long, env = "LENO_MAX_TUNNELS_PER_PEER", default_value_t = 1024, value_parser = at_least_one)]
    pub max_tunnels_per_peer: usize,
}

/// The HTTP library reads heads into a buffer that is no smaller than this.
const HEAD_MIN: usize = 8 << 10;

fn head(text: &str) -> Result<usize, String> {
    let fits = |bytes: &usize| (HEAD_MIN..=16 << 20).contains(bytes);
    text.parse().ok().filter(fits).ok_or_else(|| "write a number of bytes from 8192 to 16777216".to_owned())
}

fn per_cent(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|share| (0.0..=100.0).contains(share))
        .ok_or_else(|| "write a number from 0 to 100".to_owned())
}

fn requests(text: &str) -> Result<u32, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| "write a number from 1 on".to_owned())
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
    fn a_node_name_is_enough_and_bounds_hold() {
        let parse = |more: &[&str]| {
            let all = ["waypoint", "--node", "a"].iter().chain(more);
            <Cli as clap::Parser>::try_parse_from(all).map(|cli| cli.config.waypoint)
        };
        let config = parse(&[]).expect("defaults");
        assert_eq!((config.listen.port(), config.max_head, config.forward_client_cert), (15008, 61440, false));
        assert_eq!(parse(&["--max-head", "8192"]).expect("the least").max_head, 8192);
        assert!(parse(&["--max-head", "8191"]).is_err() && parse(&["--max-concurrent-requests", "0"]).is_err());
    }

    #[test]
    fn every_setting_has_a_variable_and_a_help() {
        let settings = <WaypointConfig as clap::Args>::augment_args(clap::Command::new("waypoint"));
        for setting in settings.get_arguments() {
            assert!(setting.get_env().is_some() && setting.get_help().is_some(), "{}", setting.get_id());
        }
    }

    #[test]
    fn listeners_in_the_clear_name_what_they_are_for() {
        let listener: ClearListener = "127.0.0.1:9080=10.96.0.7:8080".parse().unwrap();
        assert_eq!((listener.address.port(), listener.authority.as_str()), (9080, "10.96.0.7:8080"));
        for wrong in ["127.0.0.1:9080", "127.0.0.1=10.96.0.7:8080", ""] {
            assert!(wrong.parse::<ClearListener>().unwrap_err().contains("is not"), "{wrong}");
        }
    }
}
