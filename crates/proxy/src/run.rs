//! A proxy as a whole: its parts, how they start, and how they end.

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use leno_proto::TrustBundle;
use leno_telemetry::logging::LogHandle;
use leno_telemetry::{Metrics, Readiness, raise_descriptor_limit};
use leno_tls::{CertificateManager, LearntRoots, Options};
use leno_tunnel::{Settings, WindowBudget};
use leno_xds::ChannelConfig;
use leno_xds::ca_client::CaClient;
use leno_xds::client::{Client, ConnectionState};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::admin::{self, Endpoints};
use crate::carrier::Carrier;
use crate::config::Config;
use crate::control_plane::{DiscoveryMetrics, Service, channel, discovery_readiness, node_info};
use crate::core::Core;
use crate::draining::Told;
use crate::error::Error;
use crate::log::access_log;
use crate::mesh::{Feed, MeshState};
use crate::peers::AllUnproven;
use crate::saved::SavedState;
use crate::threads::{Workers, memory};

/// Most label sets of connection metrics. A node meets a few hundred peers. Beyond this number, somebody makes up
/// names, and memory and scrapes must not grow with them.
const METRIC_SERIES: usize = 10_000;

/// What `istio_build` says. The component keeps Istio's name, by which its dashboards find it; so the tag says whose it is.
const BUILD: &str = concat!("leno-", env!("CARGO_PKG_VERSION"));

/// How long the last log lines may take to be written.
const FLUSH: Duration = Duration::from_secs(2);

/// What the proxy gets from the program it runs in rather than from its settings.
pub struct Host {
    /// The process log. The admin endpoint can change its level; without it, it can't.
    pub log: Option<LogHandle>,
    /// The output of access log lines.
    pub access_log: Box<dyn Write + Send>,
    /// Makes the allocator give back what the calling thread has freed. Called on a worker when a burst of connections
    /// has gone, never while it is busy.
    pub trim: fn(),
}

impl Host {
    /// For a process that is nothing but a proxy. Its access log goes to standard output.
    pub fn process(log: &LogHandle, trim: fn()) -> Self {
        Self { log: Some(log.clone()), access_log: Box::new(std::io::stdout()), trim }
    }
}

/// Runs the proxy until SIGTERM, SIGINT or `/quitquitquit`, and then until all traffic has ended or the drain deadline
/// has passed. `make` creates the carrier.
///
/// # Errors
/// If it can't start: a setting is not valid, one of its ports is in use, or no threads can be created.
pub fn run<C: Carrier>(config: Config, host: Host, make: impl FnOnce(Arc<Core>) -> C) -> Result<(), Error> {
    if let Some(error) = raise_descriptor_limit(0).refused {
        tracing::warn!(%error, "the limit on open files can't be raised (ulimit -n); many pods or connections may exceed it");
    }
    // One thread for everything except connections. It also keeps their timers, so it ends last.
    let control = control_runtime()?;
    let workers = Workers::start(config.worker_threads, host.trim, control.handle())?;
    control.block_on(async {
        let ending = Ending::default();
        stop_on_signals(&ending)?;
        let running = launch(config, &workers, host, &ending, make).await?;
        running.serve(&ending).await;
        Ok(())
    })
}

pub(crate) fn control_runtime() -> Result<tokio::runtime::Runtime, Error> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Runtime)
}

/// The signals that tell a running proxy to end.
#[derive(Clone, Default)]
pub(crate) struct Ending {
    /// Accept no new connections; end with the last live one.
    pub(crate) drain: CancellationToken,
    /// End live connections, too.
    pub(crate) cut: CancellationToken,
}

/// A proxy whose parts are all running.
pub(crate) struct Running<C> {
    pub(crate) endpoints: Endpoints,
    core: Arc<Core>,
    carrier: Arc<C>,
    /// Ends the own endpoints.
    stop: CancellationToken,
}

/// How many tunnels each worker spreads its connections to one peer over. Twice as many threads take incoming
/// connections as outgoing ones, and each tunnel is served by one thread.
const TUNNELS_PER_PEER: usize = 2;

/// Starts all parts, on the current runtime and on `workers`.
pub(crate) async fn launch<C: Carrier>(
    config: Config,
    workers: &Workers,
    host: Host,
    ending: &Ending,
    make: impl FnOnce(Arc<Core>) -> C,
) -> Result<Running<C>, Error> {
    let stop = CancellationToken::new();
    let metrics = Metrics::new(C::COMPONENT, BUILD, METRIC_SERIES);
    let learnt = LearntRoots::default();
    let discovery = channel(&config, Service::Discovery, &learnt)?;
    let issuer = CaClient::new(channel(&config, Service::Certificates, &learnt)?);
    let saved = SavedState::of(&config);
    let options = Options {
        ttl: config.secret_ttl,
        first_use_timeout: config.certificate_timeout,
        clock: config.clock.clone(),
        store: saved.as_ref().map(SavedState::certificates),
        ..Options::default()
    };
    let tunnel = Settings {
        streams_per_connection: config.pool_max_streams,
        spread: TUNNELS_PER_PEER,
        idle_timeout: config.pool_idle_timeout,
        handshake_timeout: config.handshake_timeout,
        window_budget: WindowBudget::with_unread(config.window_budget, config.unread_budget),
        ..Settings::default()
    };
    let core = Arc::new(Core {
        state: Arc::new(if C::FOLLOWS_ROUTES { MeshState::of_requests() } else { MeshState::default() }),
        certificates: Arc::new(CertificateManager::new(Arc::new(issuer), options)),
        access_log: access_log(&config, host.access_log, &metrics)?,
        metrics,
        readiness: Readiness::default(),
        tunnel,
        unproven: AllUnproven::new(config.max_unproven_peers_total),
        workers: workers.all().to_vec(),
        trim: host.trim,
        config,
    });
    let carrier = Arc::new(make(core.clone()));
    let client = discovery_client(&core, discovery, learnt, saved.as_ref());
    let client = if C::FOLLOWS_ROUTES { client.for_waypoint() } else { client };
    let status = client.status();
    let endpoints = admin::start(&core, &carrier, status, host.log.as_ref(), &ending.drain, &stop).await?;
    let node = C::SERVES_NODE.then(|| core.config.node.clone());
    ask_discovery(&core, node, client, saved);
    carrier.begin();
    tracing::info!(node = %core.config.node, workers = core.workers.len(), "proxy started");
    Ok(Running { endpoints, core, carrier, stop })
}

/// A client of discovery that believes the roots which it learns.
fn discovery_client(
    core: &Arc<Core>,
    discovery: ChannelConfig,
    learnt: LearntRoots,
    saved: Option<&SavedState>,
) -> Client {
    let observer = DiscoveryMetrics { metrics: core.metrics.clone(), heard: watch::Sender::default() };
    tokio::spawn(memory::after_configuration(observer.heard.subscribe(), core.trim));
    let believing = core.certificates.clone();
    let trust = move |body: Bytes| {
        let roots = TrustBundle::read(&body).map_err(|error| format!("not a ProxyConfig ({error})"))?;
        if !roots.is_empty() {
            believing.trust(&roots).map_err(|error| error.to_string())?;
            learnt.set(roots);
        }
        Ok(())
    };
    let client = Client::new(discovery, node_info(&core.config)).observed_by(Arc::new(observer)).trusting(trust);
    match saved {
        Some(saved) => client.kept_in(saved.mesh()),
        None => client,
    }
}

/// Keeps the mesh's state and the trusted roots up to date with discovery.
fn ask_discovery(core: &Arc<Core>, node: Option<String>, client: Client, saved: Option<SavedState>) {
    if let Some(saved) = saved {
        tokio::spawn(drop_outdated(saved, client.status(), core.certificates.clone()));
    }
    let status = client.status();
    tokio::spawn(core.state.clone().end_in_time());
    tokio::spawn(core.state.clone().follow(client.status()));
    let feed = Feed::new(core.state.clone(), core.certificates.clone(), node);
    tokio::spawn(client.run(feed));
    tokio::spawn(discovery_readiness(status, core.readiness.clone()));
}

/// Once the control plane has said which workloads there are, drops the saved certificates of others.
async fn drop_outdated(
    saved: SavedState,
    mut status: watch::Receiver<leno_xds::client::Status>,
    certificates: Arc<CertificateManager>,
) {
    let told = |status: &leno_xds::client::Status| {
        status.is_synced() && matches!(status.connection, ConnectionState::Connected { .. })
    };
    if status.wait_for(told).await.is_ok() {
        let held = certificates.statuses();
        // The thread that calls keeps the workers' timers. An error would mean that it panicked, which was reported.
        let _ = tokio::task::spawn_blocking(move || saved.keep_only(held.iter().map(|held| &held.identity))).await;
    }
}

impl<C: Carrier> Running<C> {
    /// Returns when the proxy was told to end and has ended.
    pub(crate) async fn serve(self, ending: &Ending) {
        let cut = ending.cut.cancelled();
        tokio::select! {
            () = ending.drain.cancelled() => {}
            () = ending.cut.cancelled() => {}
        }
        // First its own ports, because the next proxy needs them. Then the signs by which others see that this one
        // makes way.
        self.stop.cancel();
        // Their tasks run on this thread and close the ports at their next turn.
        tokio::task::yield_now().await;
        self.carrier.make_way();
        tracing::info!(deadline = ?self.core.config.drain_deadline, "draining");
        tokio::select! {
            () = self.carrier.wind_down() => {}
            () = self.tell_how_many() => {}
            () = cut => self.carrier.cut().await,
        }
        self.core.access_log.flush(FLUSH);
        tracing::info!("proxy stopped");
    }
}

impl<C: Carrier> Running<C> {
    /// Never returns. If nothing can be told, it only waits.
    async fn tell_how_many(&self) {
        let config = &self.core.config;
        if let Some(dir) = config.draining_dir() {
            match Told::begin(dir, SystemTime::now() + config.drain_deadline) {
                Ok(told) => {
                    let carrier = self.carrier.clone();
                    told.keep_saying(move || carrier.volume().connections).await;
                }
                Err(error) => {
                    let dir = dir.display();
                    tracing::warn!(%dir, %error, "the next proxy can't be told how many connections are waited for");
                }
            }
        }
        std::future::pending().await
    }
}

fn stop_on_signals(ending: &Ending) -> Result<(), Error> {
    for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
        let mut signals = signal(kind).map_err(Error::Signals)?;
        let ending = ending.clone();
        tokio::spawn(async move {
            signals.recv().await;
            ending.drain.cancel();
            // Whoever asks twice does not want to wait. What is cut then looks so: ended by the kernel with the process,
            // a stream that is not complete would look as if it were.
            signals.recv().await;
            ending.cut.cancel();
            signals.recv().await;
            std::process::exit(130);
        });
    }
    Ok(())
}
