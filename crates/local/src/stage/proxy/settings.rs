//! The settings of a node's proxy, as the environment of its process.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use leno_capture::NetworkNamespace;
use leno_model::settings;

use crate::stage::journal::Journal;

/// The settings of a proxy. They are passed in ztunnel's environment variables, so that any ambient node proxy can be
/// started.
#[derive(Debug, Clone)]
pub(crate) struct ProxySettings {
    pub program: PathBuf,
    pub node: String,
    pub namespace: NetworkNamespace,
    pub node_ip: std::net::IpAddr,
    /// `host:port` of discovery and certificates.
    pub control: SocketAddr,
    pub root_cert: PathBuf,
    pub token: PathBuf,
    pub zds_socket: PathBuf,
    pub resolv_conf: PathBuf,
    pub log: PathBuf,
    pub trust_domain: String,
    pub cluster_domain: String,
    pub ipv6: bool,
    /// Variables of the supervisor that are handed on as they are.
    pub inherited: Vec<(String, String)>,
    pub journal: Journal,
}

impl ProxySettings {
    /// The arguments. Other programs have none; Leno's own get what the environment says as well, so that the system's `ps`
    /// shows which node's proxy it is.
    pub(super) fn arguments(&self) -> Vec<OsString> {
        let own = std::env::current_exe().is_ok_and(|own| own == self.program);
        if own { ["node", "--node", &self.node].map(OsString::from).into() } else { Vec::new() }
    }

    /// The environment.
    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        let path = |path: &Path| path.display().to_string();
        let control = format!("https://{}", self.control);
        let mut all: Vec<(String, String)> = [
            ("LENO_ROLE", "node".to_owned()),
            ("PROXY_MODE", "shared".to_owned()),
            ("NODE_NAME", self.node.clone()),
            (settings::POD_NAME, format!("ztunnel-{}", self.node)),
            (settings::POD_NAMESPACE, "istio-system".to_owned()),
            ("SERVICE_ACCOUNT", "ztunnel".to_owned()),
            ("INSTANCE_IP", self.node_ip.to_string()),
            (settings::CLUSTER_ID, settings::DEFAULT_CLUSTER_ID.to_owned()),
            ("ISTIO_META_CLUSTER_ID", settings::DEFAULT_CLUSTER_ID.to_owned()),
            ("ISTIO_META_DNS_CAPTURE", "true".to_owned()),
            ("XDS_ADDRESS", control.clone()),
            ("CA_ADDRESS", control),
            ("XDS_ROOT_CA", path(&self.root_cert)),
            ("CA_ROOT_CA", path(&self.root_cert)),
            ("AUTH_TOKEN", path(&self.token)),
            ("INPOD_UDS", path(&self.zds_socket)),
            ("TRUST_DOMAIN", self.trust_domain.clone()),
            (settings::CLUSTER_DOMAIN, self.cluster_domain.clone()),
            ("IPV6_ENABLED", self.ipv6.to_string()),
            // Only the supervisor and its proxies look into a node's directory.
            ("LENO_DRAINING_DIR", self.log.parent().map(path).unwrap_or_default()),
            ("TERMINATION_GRACE_PERIOD_SECONDS", "30".to_owned()),
            ("RUST_LOG", "info".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        for (name, value) in &self.inherited {
            match all.iter_mut().find(|(known, _)| known == name) {
                // The operator's log level wins; settings that tie the proxy to this stage don't give way.
                Some(known) if name == "RUST_LOG" => known.1.clone_from(value),
                Some(_) => {}
                None => all.push((name.clone(), value.clone())),
            }
        }
        all
    }
}

/// Variables of the supervisor that a proxy inherits: what tunes Leno's, what tunes a ztunnel and Leno's does not have, and
/// what every process needs.
pub(crate) fn inherited(variables: impl Iterator<Item = (String, String)>) -> Vec<(String, String)> {
    const PROCESS: [&str; 5] = ["PATH", "HOME", "RUST_LOG", "RUST_BACKTRACE", "TZ"];
    const ZTUNNEL: [&str; 5] = [
        "LOCALHOST_APP_TUNNEL",
        "TLS12_ENABLED",
        "COMPLIANCE_POLICY",
        "AUTHZ_POLICY_INFO_LOGGING",
        "TERMINATION_GRACE_PERIOD_SECONDS",
    ];
    const ZTUNNEL_PREFIXES: [&str; 3] = ["POOL_", "HTTP2_", "KEEPALIVE_"];
    let ours = leno_proxy::config::tuning::<leno_node::Config>();
    let is_inherited = |name: &str| {
        PROCESS.contains(&name)
            || ZTUNNEL.contains(&name)
            || ZTUNNEL_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
            || ours.iter().any(|known| known == name)
    };
    variables.filter(|(name, _)| is_inherited(name)).collect()
}
