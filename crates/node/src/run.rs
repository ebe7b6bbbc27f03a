//! The node proxy as a whole: its parts, how they start, and how they end.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use leno_capture::zds;
use leno_proto::TrustBundle;
use leno_proxy::mesh::{Feed, MeshState};
use leno_proxy::threads::{Workers, give_back};
use leno_telemetry::access_log::{self, AccessLog, DEFAULT_CAPACITY};
use leno_telemetry::logging::{self, LogHandle};
use leno_telemetry::metrics::XdsTermination;
use leno_telemetry::{Metrics, Readiness};
use leno_tls::{CertificateManager, LearntRoots, Options, RootSource};
use leno_tunnel::{RelayOptions, Settings, WindowBudget};
use leno_xds::ca_client::CaClient;
use leno_xds::client::{Client, NodeInfo, Observer, Termination};
use leno_xds::{ChannelConfig, TokenSource};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use crate::admin::Endpoints;
use crate::pod::{self, Context};
use crate::pods::{self, Pods};
use crate::shares::Shares;
use crate::{Config, Error, admin, dns};

/// Connection label sets kept at most. A node meets a few hundred peers; past this something
/// makes up names, and memory and scrapes must not follow.
const METRIC_SERIES: usize = 10_000;

/// How long the last log lines may take to be written.
const FLUSH: Duration = Duration::from_secs(2);

/// What the proxy takes from the program it runs in rather than from its settings.
pub struct Host {
    /// The process log, whose level the admin endpoint can change; without it, it can't.
    pub log: Option<LogHandle>,
    /// Where access log lines go.
    pub access_log: Box<dyn Write + Send>,
    /// Where DNS questions about anything but the mesh go.
    pub resolvers: Vec<SocketAddr>,
    /// Has the allocator give back what the calling thread has freed. Called on each worker once
    /// a burst of connections has gone, never while there is much to do.
    pub trim: fn(),
}

impl Host {
    /// A process that does nothing else: standard output, and the resolvers of `/etc/resolv.conf`.
    pub fn process(log: &LogHandle, trim: fn()) -> Self {
        let resolv_conf = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
        Self {
            log: Some(log.clone()),
            access_log: Box::new(std::io::stdout()),
            resolvers: dns::resolvers(&resolv_conf),
            trim,
        }
    }
}

/// Runs the proxy until it is told to stop by SIGTERM, SIGINT or `/quitquitquit`, and then until
/// its connections have ended or the drain deadline has passed. `trim` is what [`Host`] says.
///
/// # Errors
/// If it can't start: a setting without meaning, a port of its own that is taken, no threads.
pub fn run(config: Config, log: &LogHandle, trim: fn()) -> Result<(), Error> {
    raise_descriptor_limit();
    // One thread for everything that is not a connection; it keeps the timers of those, too, so it
    // ends last.
    let control = control_runtime()?;
    let workers = Workers::start(config.proxy.worker_threads, trim, control.handle())?;
    control.block_on(async {
        let ending = Ending::default();
        stop_on_signals(&ending.drain)?;
        let node = launch(config, &workers, Host::process(log, trim), &ending).await?;
        node.serve(&ending).await;
        Ok(())
    })
}

/// Takes all the descriptors the kernel grants: a service manager's usual soft limit of 1024
/// holds the listeners of a handful of pods.
fn raise_descriptor_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(soft, hard)| if soft < hard { setrlimit(Resource::RLIMIT_NOFILE, hard, hard) } else { Ok(()) });
    if let Err(error) = raised {
        tracing::warn!(%error, "the limit on open files can't be raised (ulimit -n); many pods or connections may exceed it");
    }
}

pub(crate) fn control_runtime() -> Result<tokio::runtime::Runtime, Error> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Runtime)
}

/// How a running proxy is told to end.
#[derive(Clone, Default)]
pub(crate) struct Ending {
    /// Take no new connections; end with the last live one.
    pub(crate) drain: CancellationToken,
    /// End live ones too.
    pub(crate) cut: CancellationToken,
}

/// A proxy whose parts are all started.
pub(crate) struct Node {
    pub(crate) endpoints: Endpoints,
    context: Arc<Context>,
    pods: Arc<Pods>,
    agent: AbortHandle,
    /// Ends the own endpoints.
    stop: CancellationToken,
}

/// Tunnels that each worker spreads its connections to one peer over: a proxy has twice as many
/// threads for those that come in as for those that go out, and a tunnel is served by one of them.
const TUNNELS_PER_PEER: usize = 2;

/// Starts all parts on the current runtime and on `workers`.
pub(crate) async fn launch(config: Config, workers: &Workers, host: Host, ending: &Ending) -> Result<Node, Error> {
    let stop = CancellationToken::new();
    let readiness = Readiness::default();
    let metrics = Metrics::new("ztunnel", env!("CARGO_PKG_VERSION"), METRIC_SERIES);
    let learnt = LearntRoots::default();
    let discovery = channel(&config, Service::Discovery, &learnt)?;
    let issuer = CaClient::new(channel(&config, Service::Certificates, &learnt)?);
    let options = Options {
        ttl: config.proxy.secret_ttl,
        first_use_timeout: config.proxy.certificate_timeout,
        ..Options::default()
    };
    let certificates = Arc::new(CertificateManager::new(Arc::new(issuer), options));
    let tunnel = Settings {
        streams_per_connection: config.proxy.pool_max_streams,
        spread: TUNNELS_PER_PEER,
        idle_timeout: config.proxy.pool_idle_timeout,
        handshake_timeout: config.proxy.handshake_timeout,
        window_budget: WindowBudget::with_unread(config.proxy.window_budget, config.proxy.unread_budget),
        ..Settings::default()
    };
    let format = setting("LOG_FORMAT", &config.proxy.log_format)?;
    let level = access_log_level();
    let dropped = metrics.access_log_dropped().clone();
    let access_log = AccessLog::new(host.access_log, format, level, DEFAULT_CAPACITY, dropped)
        .map_err(|e| Error::Runtime(std::io::Error::other(e)))?;
    let context = Arc::new(Context {
        state: Arc::new(MeshState::default()),
        certificates: certificates.clone(),
        metrics: metrics.clone(),
        access_log,
        tunnel: tunnel.clone(),
        relay: RelayOptions::default(),
        resolvers: host.resolvers,
        trim: host.trim,
        shares: Shares::of_this_process(),
        config,
    });
    let config = &context.config;
    let pods = Pods::new(context.clone(), pod::workers(workers.handles(), &tunnel));
    let agent = Arc::new(zds::Client::new(config.pods.inpod_uds.clone()));
    let endpoints = admin::start(&context, &pods, &agent, &readiness, host.log.as_ref(), &ending.drain, &stop).await?;

    let observer = DiscoveryMetrics { metrics, heard: watch::Sender::default() };
    tokio::spawn(give_back::after_configuration(observer.heard.subscribe(), host.trim));
    let believing = certificates.clone();
    let trust = move |body: Bytes| {
        let roots = TrustBundle::read(&body).map_err(|error| format!("not a ProxyConfig ({error})"))?;
        if !roots.is_empty() {
            believing.trust(&roots).map_err(|error| error.to_string())?;
            learnt.set(roots);
        }
        Ok(())
    };
    let client = Client::new(discovery, node_info(config)).observed_by(Arc::new(observer)).trusting(trust);
    let status = client.status();
    tokio::spawn(client.run(Feed::new(context.state.clone(), certificates, config.proxy.node.clone())));
    tokio::spawn(discovery_readiness(status, readiness.clone()));
    tokio::spawn(pods.clone().reevaluate());
    // At once, not after the first answer of discovery: until then pods wait, and their
    // connections fail closed; but a pod can be handed over, and started.
    tokio::spawn(pods::watch_agent(agent.status(), readiness, context.clone()));
    let agent = tokio::spawn({
        let pods = pods.clone();
        async move { agent.run(&*pods).await }
    })
    .abort_handle();
    tracing::info!(node = %config.proxy.node, workers = workers.handles().len(), "node proxy started");
    Ok(Node { endpoints, context, pods, agent, stop })
}

impl Node {
    /// Returns once the proxy was told to end and has ended.
    pub(crate) async fn serve(self, ending: &Ending) {
        let cut = ending.cut.cancelled();
        tokio::select! {
            () = ending.drain.cancelled() => {}
            () = ending.cut.cancelled() => {}
        }
        // First its own ports, for the next proxy wants them, then the agent's connection: that tells the agent that this one
        // makes way.
        self.stop.cancel();
        // Their tasks are on this thread, and let go of the ports at their next turn.
        tokio::task::yield_now().await;
        self.agent.abort();
        tracing::info!(deadline = ?self.context.config.proxy.drain_deadline, "draining");
        tokio::select! {
            () = self.pods.wind_down() => {}
            () = cut => self.pods.cut().await,
        }
        self.context.access_log.flush(FLUSH);
        tracing::info!("node proxy stopped");
    }
}

fn stop_on_signals(drain: &CancellationToken) -> Result<(), Error> {
    for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
        let mut signals = signal(kind).map_err(Error::Signals)?;
        let drain = drain.clone();
        tokio::spawn(async move {
            signals.recv().await;
            drain.cancel();
            // Whoever asks twice does not want to wait.
            signals.recv().await;
            std::process::exit(130);
        });
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum Service {
    Discovery,
    Certificates,
}

fn channel(config: &Config, service: Service, learnt: &LearntRoots) -> Result<ChannelConfig, Error> {
    let (name, address, root, alt_hostname) = match service {
        Service::Discovery => {
            ("XDS_ADDRESS", &config.proxy.xds_address, &config.proxy.xds_root_ca, &config.proxy.alt_xds_hostname)
        }
        Service::Certificates => (
            "CA_ADDRESS",
            config.proxy.ca_address.as_ref().unwrap_or(&config.proxy.xds_address),
            config.proxy.ca_root_ca.as_ref().unwrap_or(&config.proxy.xds_root_ca),
            &config.proxy.alt_ca_hostname,
        ),
    };
    let with_scheme = if address.contains("://") { address.clone() } else { format!("https://{address}") };
    let Ok(root) = root.parse::<RootSource>();
    Ok(ChannelConfig {
        address: setting(name, &with_scheme)?,
        root: RootSource::Beside(Box::new(root), learnt.clone()),
        alt_hostname: alt_hostname.clone(),
        token: token(&config.proxy.auth_token),
        cluster_id: config.proxy.cluster_id.clone(),
        headers: headers(match service {
            Service::Discovery => "XDS_HEADER_",
            Service::Certificates => "CA_HEADER_",
        }),
    })
}

/// A path if something is there or it looks like one, else the token itself.
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

fn setting<T: std::str::FromStr<Err: std::fmt::Display>>(name: &'static str, value: &str) -> Result<T, Error> {
    value.parse().map_err(|e: T::Err| Error::Setting { setting: name, value: value.to_owned(), reason: e.to_string() })
}

fn node_info(config: &Config) -> NodeInfo {
    let metadata = std::env::vars()
        .filter_map(|(key, value)| Some((key.strip_prefix("ISTIO_META_")?.to_owned(), value)))
        .collect();
    NodeInfo {
        instance_ip: config.proxy.instance_ip.to_string(),
        pod_name: config.proxy.pod_name.clone(),
        pod_namespace: config.proxy.pod_namespace.clone(),
        node_name: config.proxy.node.clone(),
        cluster_id: config.proxy.cluster_id.clone(),
        cluster_domain: config.proxy.cluster_domain.clone(),
        metadata,
    }
}

/// The access log follows the process log's `access` target, as ztunnel's does: `RUST_LOG` may
/// hold `access=error`.
fn access_log_level() -> access_log::Level {
    let filter = std::env::var("RUST_LOG").unwrap_or_default();
    filter.split(',').find_map(|part| part.trim().strip_prefix("access=")?.parse().ok()).unwrap_or_default()
}

async fn discovery_readiness(mut status: watch::Receiver<leno_xds::client::Status>, readiness: Readiness) {
    let mut task = readiness.task("state manager");
    loop {
        let now = status.borrow_and_update().clone();
        if now.is_synced() {
            // What was once known is served on even while the control plane is away.
            task.ready();
            return;
        }
        task.not_ready(format!("no answer from discovery yet ({:?})", now.connection));
        if status.changed().await.is_err() {
            return;
        }
    }
}

struct DiscoveryMetrics {
    metrics: Metrics,
    /// Bytes of configuration so far, and something for each new beginning: its first request says all
    /// that is held.
    heard: watch::Sender<u64>,
}

/// What a new beginning counts as.
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

/// Sets up the log as the settings say. To be called once, before [`run`].
///
/// # Errors
/// If the format or the filter in `RUST_LOG` has no meaning.
pub fn init_log(config: &Config) -> Result<LogHandle, Error> {
    let format: logging::Format = setting("LOG_FORMAT", &config.proxy.log_format)?;
    logging::init(format, logging::Target::Stdout, "info").map_err(|e| Error::Setting {
        setting: "RUST_LOG",
        value: std::env::var("RUST_LOG").unwrap_or_default(),
        reason: e.to_string(),
    })
}
