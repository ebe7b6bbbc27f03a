//! The waypoint: its additions to the parts of every proxy.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use leno_capture::{NamespaceId, NetworkNamespace};
use leno_proxy::peers::{Silent, Unproven};
use leno_proxy::tunnels::{self, Server};
use leno_proxy::{Carried, Carrier, Core, Host, Proxy, Volume};
use leno_telemetry::access_log::Record;
use leno_telemetry::logging::LogHandle;
use leno_telemetry::spans::Spans;
use leno_tunnel::RelayOptions;
use parking_lot::Mutex;
use serde::ser::SerializeMap;
use serde_json::{Map, Value, json};
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::balance::{Balancers, Totals};
use crate::body::client;
use crate::config::{Config, WaypointConfig};
use crate::downstream::plaintext;
use crate::memory_pressure::Pressure;
use crate::phases::jwks_fetch::run_errands;
use crate::state::ext_authz_slots::Authorizers;
use crate::state::jwks::{Errand, KeyStore};
use crate::state::own_workload::Own;
use crate::state::policies::Guards;
use crate::state::rate_limits::Rates;
use crate::state::route_tables::Tables;
use crate::state::shared::Gate;
use crate::state::tunnel_limit::Tunnels;
use crate::state::worker::lanes;
use crate::upstream;

/// Connections that wait to be accepted; the kernel's limit is often lower.
const BACKLOG: i32 = 1024;

/// Copies of requests (mirrors) that may be on their way at once. A service that is slow to take them loses the others.
const COPIES: usize = 1024;

/// Time for closing and resetting connections, when there is nothing more to wait for.
const FAREWELL: Duration = Duration::from_secs(1);

/// Runs a waypoint in a process that does nothing else; see [`leno_proxy::run`]. `trim` is [`Host::trim`].
///
/// # Errors
/// If it can't start.
pub fn run(config: Config, log: &LogHandle, trim: fn()) -> Result<(), leno_proxy::Error> {
    let listener = listen(config.waypoint.listen)?;
    leno_proxy::run(config.proxy.clone(), Host::process(log, trim), |core| Waypoint::new(core, &config, listener))
}

/// Starts a waypoint inside another program. Also returns the address where it accepts tunnels.
///
/// # Errors
/// If it can't start.
pub fn start(config: Config, host: Host) -> Result<(Proxy, SocketAddr), leno_proxy::Error> {
    let listener = listen(config.waypoint.listen)?;
    let fail = |source| leno_proxy::Error::Listen { purpose: PURPOSE, address: config.waypoint.listen, source };
    let address = listener.local_addr().map_err(fail)?;
    let proxy = Proxy::start(config.proxy.clone(), host, move |core| Waypoint::new(core, &config, listener))?;
    Ok((proxy, address))
}

const PURPOSE: &str = "peers' tunnels";

/// A listener that needs no privileges.
fn listen(address: SocketAddr) -> Result<std::net::TcpListener, leno_proxy::Error> {
    let open = || -> io::Result<std::net::TcpListener> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        socket.set_reuse_address(true)?;
        if address.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        // What is accepted here inherits both.
        socket.set_tcp_nodelay(true)?;
        let probes = TcpKeepalive::new().with_time(Duration::from_secs(60)).with_interval(Duration::from_secs(10));
        socket.set_tcp_keepalive(&probes.with_retries(6))?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Ok(socket.into())
    };
    match open() {
        // A machine without IPv6.
        Err(error) if address.ip().is_unspecified() && error.raw_os_error() == Some(97) => {
            listen(SocketAddr::from(([0, 0, 0, 0], address.port())))
        }
        opened => opened.map_err(|source| leno_proxy::Error::Listen { purpose: PURPOSE, address, source }),
    }
}

/// Carries the requests of services that name this waypoint.
struct Waypoint {
    gate: Arc<Gate>,
    listener: Mutex<Option<std::net::TcpListener>>,
    to_read: Mutex<Option<mpsc::Receiver<Errand>>>,
}

/// Addresses outside of the mesh that wait to be read.
const ERRANDS: usize = 64;

impl Waypoint {
    fn new(core: Arc<Core>, config: &Config, listener: std::net::TcpListener) -> Self {
        let lanes = lanes(&core.workers, &core.tunnel);
        // Nobody else's tunnels are opened here, so which one it is matters to nobody.
        let nowhere = NamespaceId { device: 0, inode: 0 };
        let here = NetworkNamespace::current().map_or(nowhere, |here| here.id());
        let WaypointConfig { max_tunnels_per_peer, .. } = config.waypoint;
        let (errands, to_read) = mpsc::channel(ERRANDS);
        let gate = Arc::new(Gate {
            own: Own::new(core.state.clone(), config),
            tables: Tables::default(),
            rates: Rates::new(),
            guards: Guards::default(),
            balancers: Balancers::new(Totals {
                ejections: core.metrics.endpoint_ejections().clone(),
                overflows: core.metrics.connection_pool_overflows().clone(),
                retries_refused: core.metrics.retries_refused().clone(),
            }),
            keys: KeyStore::default(),
            authorizers: Authorizers::default(),
            errands,
            unproven: Unproven::new(core.config.max_unproven_peers, &core.unproven),
            config: config.waypoint.clone(),
            lanes,
            spans: config.waypoint.collector.is_some().then(|| Spans::new(core.metrics.spans_dropped().clone())),
            pressure: Pressure::new(config.waypoint.max_memory),
            copies: Arc::new(Semaphore::new(COPIES)),
            bodies: client::room(config.waypoint.max_memory),
            relay: RelayOptions::default(),
            silent: Silent::default(),
            here,
            carried: TaskTracker::new(),
            tunnels: Tunnels::new(max_tunnels_per_peer),
            closing: CancellationToken::new(),
            draining: CancellationToken::new(),
            stopped: CancellationToken::new(),
            core,
        });
        Self { gate, listener: Mutex::new(Some(listener)), to_read: Mutex::new(Some(to_read)) }
    }
}

/// The figures of a moment.
pub(crate) struct Open {
    tunnels: usize,
    connections: usize,
}

impl Carried for Open {
    fn members<M: SerializeMap>(&self, dump: &mut M) -> Result<(), M::Error> {
        dump.serialize_entry("waypointState", &json!({ "tunnels": self.tunnels, "connections": self.connections }))
    }
}

impl Carrier for Waypoint {
    const COMPONENT: &'static str = "waypoint";
    const SERVES_NODE: bool = false;
    const FOLLOWS_ROUTES: bool = true;

    type Carried = Open;

    fn begin(&self) {
        let Some(listener) = self.listener.lock().take() else { return };
        let server = |lane: &crate::state::worker::Lane| Server {
            worker: lane.worker.clone(),
            served: lane.served.clone(),
            is_second_choice: false,
        };
        let servers = self.gate.lanes.iter().map(server).collect::<Vec<_>>();
        if let (Some(spans), Some(collector)) = (&self.gate.spans, &self.gate.config.collector) {
            let own = (&self.gate.config.service_account, &self.gate.core.config.pod_namespace);
            let protocol = self.gate.config.collector_protocol;
            tokio::spawn(spans.clone().send(collector.clone(), protocol, format!("{}.{}", own.0, own.1)));
        }
        let gate = self.gate.clone();
        tokio::spawn(upstream::forget_peers(gate.clone()));
        if let Some(to_read) = self.to_read.lock().take() {
            tokio::spawn(run_errands(to_read));
        }
        let Some(first) = self.gate.lanes.first() else { return };
        for clear in &self.gate.config.clear_listeners {
            let (gate, authority) = (self.gate.clone(), Arc::from(clear.authority.as_str()));
            let opened = listen(clear.address);
            first.worker.spawn(async move {
                match opened.map_err(io::Error::other).and_then(TcpListener::from_std) {
                    Ok(listener) => plaintext::accept(gate, listener, authority).await,
                    Err(error) => tracing::error!(%error, "can't accept connections in the clear"),
                }
            });
            tracing::warn!(
                address = %clear.address,
                authority = clear.authority,
                "connections in the clear are accepted, and taken for this waypoint's own (LENO_WAYPOINT_CLEAR_LISTENERS)"
            );
        }
        first.worker.spawn(async move {
            match TcpListener::from_std(listener) {
                Ok(listener) => tunnels::accept(gate, servers, listener).await,
                Err(error) => tracing::error!(%error, "can't accept tunnels"),
            }
        });
    }

    fn make_way(&self) {}

    /// Goes on accepting for a while, because peers learn of the end from the control plane. Then their tunnels are told
    /// to open nothing more, and what is open gets the deadline.
    #[expect(clippy::disallowed_methods, reason = "the control thread keeps its timers")]
    async fn wind_down(&self) {
        let config = &self.gate.core.config;
        let deadline = Instant::now() + config.drain_deadline;
        self.gate.draining.cancel();
        let alone = config.takeover_timeout.min(config.drain_deadline / 2);
        let idle = async {
            tokio::time::sleep(FAREWELL.min(alone)).await;
            while self.gate.tunnels.count() > 0 {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        let _ = tokio::time::timeout(alone, idle).await;
        self.gate.closing.cancel();
        let ended = async {
            self.gate.carried.close();
            self.gate.carried.wait().await;
            self.gate.tunnels.closed().await;
        };
        if tokio::time::timeout_at(deadline, ended).await.is_err() {
            tracing::warn!(
                connections = self.gate.carried.len(),
                deadline = ?config.drain_deadline,
                "connections outlived the drain deadline and were cut (CONNECTION_TERMINATION_DEADLINE)"
            );
        }
        self.cut().await;
    }

    #[expect(clippy::disallowed_methods, reason = "the control thread keeps its timers")]
    async fn cut(&self) {
        self.gate.closing.cancel();
        self.gate.stopped.cancel();
        self.gate.carried.close();
        let _ = tokio::time::timeout(FAREWELL, self.gate.carried.wait()).await;
        let _ = tokio::time::timeout(FAREWELL, upstream::close(&self.gate)).await;
    }

    fn carried(&self) -> Open {
        Open { tunnels: self.gate.tunnels.count(), connections: self.gate.carried.len() }
    }

    fn volume(&self) -> Volume {
        Volume { workloads: 0, pending: 0, connections: self.gate.carried.len() }
    }

    fn open(&self) -> Box<dyn Iterator<Item = Record>> {
        let open = self.gate.lanes.iter().flat_map(|lane| lane.open.all()).collect::<Vec<_>>();
        Box::new(open.into_iter().filter_map(|one| one.upgrade()).flat_map(|one| one.records()))
    }

    fn settings(&self) -> Map<String, Value> {
        let config = &self.gate.config;
        let settings = [
            ("serviceAccount", json!(config.service_account)),
            ("detectionTimeoutMs", json!(u64::try_from(config.detection_timeout.as_millis()).unwrap_or(u64::MAX))),
            ("forwardClientCert", json!(config.forward_client_cert)),
            ("maxHead", json!(config.max_head)),
            ("maxMemory", json!(config.max_memory)),
        ];
        settings.map(|(name, value)| (name.to_owned(), value)).into_iter().collect()
    }
}
