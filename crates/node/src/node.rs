//! The node proxy: its additions to the parts of every proxy.

use std::net::SocketAddr;
use std::sync::Arc;

use leno_capture::zds;
use leno_proxy::{Carrier, Core, Host, Proxy, Volume};
use leno_telemetry::access_log::Record;
use leno_telemetry::logging::LogHandle;
use leno_tunnel::RelayOptions;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::task::AbortHandle;

use crate::config::{Config, PodConfig};
use crate::context::Context;
use crate::dns;
use crate::lanes::lanes;
use crate::pods::dump::PodStates;
use crate::pods::{self, Pods};
use crate::shares::Shares;

/// Runs a node proxy in a process that does nothing else; see [`leno_proxy::run`]. `trim` is [`Host::trim`].
///
/// # Errors
/// If it can't start.
pub fn run(config: Config, log: &LogHandle, trim: fn()) -> Result<(), leno_proxy::Error> {
    let resolv_conf = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let resolvers = dns::resolvers(&resolv_conf);
    leno_proxy::run(config.proxy, Host::process(log, trim), |core| Node::new(core, config.pods, resolvers))
}

/// Starts a node proxy inside another program. DNS questions about names outside the mesh go to `resolvers`.
///
/// # Errors
/// If it can't start.
pub fn start(config: Config, host: Host, resolvers: Vec<SocketAddr>) -> Result<Proxy, leno_proxy::Error> {
    Proxy::start(config.proxy, host, |core| Node::new(core, config.pods, resolvers))
}

/// Carries the traffic of a node's pods.
struct Node {
    context: Arc<Context>,
    pods: Arc<Pods>,
    agent: Arc<zds::Client>,
    listening: Mutex<Option<AbortHandle>>,
}

impl Node {
    fn new(core: Arc<Core>, config: PodConfig, resolvers: Vec<SocketAddr>) -> Self {
        let lanes = lanes(&core.workers, &core.tunnel);
        let agent = Arc::new(zds::Client::new(config.inpod_uds.clone()));
        let context = Arc::new(Context {
            core,
            config,
            relay: RelayOptions::default(),
            resolvers,
            shares: Shares::of_this_process(),
        });
        Self { pods: Pods::new(context.clone(), lanes), context, agent, listening: Mutex::new(None) }
    }
}

impl Carrier for Node {
    const COMPONENT: &'static str = "ztunnel";
    const SERVES_NODE: bool = true;

    type Carried = PodStates;

    fn begin(&self) {
        tokio::spawn(self.pods.clone().reevaluate());
        // At once, not after discovery's first answer. Until then, connections of pods wait and then fail closed, but a
        // pod can be handed over and started.
        tokio::spawn(pods::watch_agent(self.agent.status(), self.context.clone()));
        let (agent, pods) = (self.agent.clone(), self.pods.clone());
        let listening = tokio::spawn(async move { agent.run(&*pods).await });
        *self.listening.lock() = Some(listening.abort_handle());
    }

    /// Closes the agent's connection, which tells the agent that this proxy makes way.
    fn make_way(&self) {
        if let Some(listening) = self.listening.lock().take() {
            listening.abort();
        }
    }

    async fn wind_down(&self) {
        self.pods.wind_down().await;
    }

    async fn cut(&self) {
        self.pods.cut().await;
    }

    fn carried(&self) -> PodStates {
        PodStates { running: self.pods.running(), pending: self.agent.status().borrow().pending.clone() }
    }

    fn volume(&self) -> Volume {
        Volume {
            workloads: self.pods.running().len(),
            pending: self.agent.status().borrow().pending.len(),
            connections: self.pods.open().iter().filter(|traffic| traffic.strong_count() > 0).count(),
        }
    }

    fn untold(&self) -> Vec<String> {
        let running = self.pods.running();
        let mut untold: Vec<_> =
            running.into_iter().filter(|(_, pod)| pod.is_untold()).map(|(_, pod)| pod.name()).collect();
        untold.sort();
        untold
    }

    fn open(&self) -> Box<dyn Iterator<Item = Record>> {
        Box::new(self.pods.open().into_iter().filter_map(|traffic| Some(traffic.upgrade()?.record())))
    }

    fn settings(&self) -> Map<String, Value> {
        let config = &self.context.config;
        let settings = [
            ("inpodUds", json!(config.inpod_uds)),
            ("maxSocketsPerPod", json!(config.max_sockets_per_pod)),
            ("maxTunnelsPerPeer", json!(config.max_tunnels_per_peer)),
            ("dnsProxy", json!(config.dns)),
        ];
        settings.map(|(name, value)| (name.to_owned(), value)).into_iter().collect()
    }
}
