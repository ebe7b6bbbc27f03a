//! The link to the control plane: its address, our credentials, and its metrics.

use leno_telemetry::metrics::XdsTermination;
use leno_telemetry::{Metrics, Readiness};
use leno_tls::{LearntRoots, RootSource};
use leno_xds::client::{NodeInfo, Observer, Termination};
use leno_xds::{ChannelConfig, TokenSource};
use tokio::sync::watch;

use crate::config::{Config, setting};
use crate::error::Error;

/// A service of the control plane.
#[derive(Clone, Copy)]
pub(crate) enum Service {
    Discovery,
    Certificates,
}

/// The channel to one of its services.
pub(crate) fn channel(config: &Config, service: Service, learnt: &LearntRoots) -> Result<ChannelConfig, Error> {
    let (name, address, root, alt_hostname) = match service {
        Service::Discovery => ("XDS_ADDRESS", &config.xds_address, &config.xds_root_ca, &config.alt_xds_hostname),
        Service::Certificates => (
            "CA_ADDRESS",
            config.ca_address.as_ref().unwrap_or(&config.xds_address),
            config.ca_root_ca.as_ref().unwrap_or(&config.xds_root_ca),
            &config.alt_ca_hostname,
        ),
    };
    let with_scheme = if address.contains("://") { address.clone() } else { format!("https://{address}") };
    let Ok(root) = root.parse::<RootSource>();
    Ok(ChannelConfig {
        address: setting(name, &with_scheme)?,
        root: RootSource::Beside(Box::new(root), learnt.clone()),
        alt_hostname: alt_hostname.clone(),
        token: token(&config.auth_token),
        cluster_id: config.cluster_id.clone(),
        headers: headers(match service {
            Service::Discovery => "XDS_HEADER_",
            Service::Certificates => "CA_HEADER_",
        }),
    })
}

/// The token's source: a file if there is one or the text looks like a path, else the text itself.
fn token(setting: &str) -> Option<TokenSource> {
    match setting {
        "" => None,
        path if path.contains('/') && !path.contains(char::is_whitespace) => Some(TokenSource::File(path.into())),
        literal => Some(TokenSource::Literal(literal.to_owned())),
    }
}

fn headers(prefix: &str) -> Vec<(String, String)> {
    std::env::vars().filter_map(|(key, value)| Some((key.strip_prefix(prefix)?.to_owned(), value))).collect()
}

/// The description of this proxy for the control plane.
pub(crate) fn node_info(config: &Config) -> NodeInfo {
    let metadata = std::env::vars()
        .filter_map(|(key, value)| Some((key.strip_prefix("ISTIO_META_")?.to_owned(), value)))
        .collect();
    NodeInfo {
        instance_ip: config.instance_ip.to_string(),
        pod_name: config.pod_name.clone(),
        pod_namespace: config.pod_namespace.clone(),
        node_name: config.node.clone(),
        cluster_id: config.cluster_id.clone(),
        cluster_domain: config.cluster_domain.clone(),
        metadata,
    }
}

/// Makes the proxy ready when discovery has sent everything once.
pub(crate) async fn discovery_readiness(mut status: watch::Receiver<leno_xds::client::Status>, readiness: Readiness) {
    let mut task = readiness.task("state manager");
    loop {
        let now = status.borrow_and_update().clone();
        if now.is_synced() {
            // Ready stays set: known configuration stays in use even while the control plane is away.
            task.ready();
            return;
        }
        task.not_ready(format!("no answer from discovery yet ({:?})", now.connection));
        if status.changed().await.is_err() {
            return;
        }
    }
}

/// Metrics of discovery.
pub(crate) struct DiscoveryMetrics {
    pub(crate) metrics: Metrics,
    /// Bytes of configuration received so far, plus [`BEGINNING`] for each new stream, whose first request lists
    /// everything that is held.
    pub(crate) heard: watch::Sender<u64>,
}

/// The number of bytes that a new stream counts as.
const BEGINNING: u64 = 1 << 20;

impl Observer for DiscoveryMetrics {
    fn message(&self, type_url: &str, bytes: usize, _resources: usize) {
        self.metrics.xds_message(type_url, bytes as u64);
        self.heard.send_modify(|heard| *heard = heard.wrapping_add(bytes as u64));
    }

    fn terminated(&self, reason: Termination) {
        self.heard.send_modify(|heard| *heard = heard.wrapping_add(BEGINNING));
        self.metrics.xds_terminated(match reason {
            Termination::ConnectionError => XdsTermination::ConnectionError,
            Termination::GrpcError => XdsTermination::Error,
            Termination::Reconnect => XdsTermination::Reconnect,
            Termination::Complete => XdsTermination::Complete,
        });
    }
}
