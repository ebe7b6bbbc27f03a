//! `leno control`: a control plane by itself, with objects from files or from a cluster.

mod from_cluster;
mod from_files;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use leno_cli::ControlArgs;
use leno_control::translate::Options;
use leno_control::{Authenticator, CertificatePolicy, ControlPlane, Controller, Endpoints, Limits, Memory, roots};
use leno_kubernetes::StatusWriter;
use leno_telemetry::{Readiness, admin, logging, raise_descriptor_limit};
use leno_tls::{CaOptions, CertificateAuthority, ControlAcceptor};
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::memory;
use crate::signals::Signals;

/// Runs until told to stop.
pub(crate) fn run(args: ControlArgs) -> anyhow::Result<()> {
    logging::init(logging::Format::Plain, logging::Target::Stdout, "info")?;
    // One thread per core serves; this one reads and translates objects, which takes as long as it takes.
    let memory = Arc::new(Memory::new(memory::trim));
    let parks = memory.clone();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_name("serve")
        .enable_all()
        .on_thread_park(move || parks.on_park())
        .build()?;
    runtime.block_on(wire(args, memory))
}

/// How long what is to do at the end may take.
const LEAVING: Duration = Duration::from_secs(3);

/// What comes from files, or from a cluster.
struct Parts {
    /// Says whose token it is.
    authenticator: Arc<dyn Authenticator>,
    authority: Arc<CertificateAuthority>,
    /// Where a person finds the authority's root.
    root: String,
    /// How long a new root is announced before it signs.
    spread: Duration,
    /// Brings the objects' changes.
    following: Pin<Box<dyn Future<Output = anyhow::Result<()>>>>,
    /// What is to do at the end.
    leaving: Pin<Box<dyn Future<Output = ()>>>,
}

/// The parts of a control plane.
async fn wire(args: ControlArgs, memory: Arc<Memory>) -> anyhow::Result<()> {
    let lives = args.min_certificate_ttl..=args.max_certificate_ttl;
    anyhow::ensure!(
        !lives.is_empty(),
        "--min-certificate-ttl is more than --max-certificate-ttl; lower it, or raise that"
    );
    let mut signals = Signals::new()?;
    let readiness = Readiness::default();

    // Objects, who may ask, and who signs.
    let default = Options::default();
    let mesh_config = if args.kubernetes { from_cluster::mesh_config(&args) } else { default.mesh_config.clone() };
    let meaning = Options {
        cluster_id: args.cluster_id.as_str().into(),
        trust_domain: args.trust_domain.as_str().into(),
        cluster_domain: args.cluster_domain.as_str().into(),
        mesh_config,
        ..default
    };
    let options = CaOptions { max_ttl: args.max_certificate_ttl, ..CaOptions::default() };
    let (controller, parts) = if args.kubernetes {
        let status = Arc::new(StatusWriter::default());
        let controller = Controller::telling(meaning, status.clone());
        let parts = tokio::select! {
            parts = from_cluster::parts(&args, &controller, options, &readiness, status) => parts?,
            // It waits for the API server as long as it takes.
            () = signals.come() => return Ok(()),
        };
        (controller, parts)
    } else {
        let controller = Controller::telling(meaning, Arc::new(from_files::Log));
        let parts = from_files::parts(&args, &controller, options)?;
        (controller, parts)
    };
    let Parts { authenticator, authority, root, spread, following, leaving } = parts;
    let mut signer = CertificatePolicy::new(controller.clone(), authority.clone()).with_ttl(lives);
    if !args.node_accounts.is_empty() {
        signer = signer.with_node_accounts(args.node_accounts.clone());
    }

    // One port for discovery and certificates.
    let wanted = Limits {
        unproven: args.max_unproven_clients,
        unproven_per_address: args.max_unproven_per_address,
        proven: args.max_connections,
        first_request: args.first_request_timeout,
    };
    let descriptors = raise_descriptor_limit(0).limit;
    let limits = wanted.within(descriptors);
    if limits != wanted {
        tracing::warn!(
            descriptors,
            max_connections = limits.proven,
            max_unproven = limits.unproven,
            "this process may not open as many files as its limits on connections want, so these are lower; raise \
             its hard limit (ulimit -Hn)"
        );
    }
    let plane = ControlPlane::new(controller.clone(), authenticator, Arc::new(signer)).with_limits(limits);
    let (addresses, names) = addresses_and_names(&args);
    let acceptor = ControlAcceptor::from_authority(authority.clone(), names, addresses)?;
    let listener = TcpListener::bind(args.listen).await.with_context(|| {
        format!(
            "can't listen on {}; is another control plane running? Choose another address with --listen",
            args.listen
        )
    })?;
    let endpoints = Endpoints {
        metrics: listen(args.metrics_port, "metrics", "--metrics-port").await?,
        readiness: listen(args.readiness_port, "readiness", "--readiness-port").await?,
    };
    tracing::info!(
        address = %listener.local_addr()?,
        metrics = endpoints.metrics.local_addr()?.port(),
        readiness = endpoints.readiness.local_addr()?.port(),
        root,
        "control plane started"
    );

    let shutdown = async move { signals.come().await };
    let (told, signs) = (plane.clone(), authority.clone());
    // Beside this thread: a probe must not wait while objects are translated.
    tokio::spawn(async move { endpoints.serve(&told, signs, readiness, std::future::pending()).await });
    let rotating = roots::follow(plane.clone(), authority, spread);
    let heard = plane.heard();
    tokio::spawn(async move { memory.after_bursts(heard).await });
    let serving = tokio::spawn(async move { plane.serve(listener, acceptor, shutdown).await });
    let ended = tokio::select! {
        served = serving => served.context("the server ended by mistake"),
        () = controller.run() => Ok(()),
        () = rotating => Ok(()),
        followed = following => followed,
    };
    // Whoever ends a process does not wait for long.
    let _ = timeout(LEAVING, leaving).await;
    ended
}

async fn listen(port: u16, purpose: &str, flag: &str) -> anyhow::Result<TcpListener> {
    admin::listen(port).await.with_context(|| {
        format!("can't listen on port {port} for {purpose}; is a node proxy or another control plane running here? Choose another port with {flag}")
    })
}

/// What the control plane's own certificate must be good for.
fn addresses_and_names(args: &ControlArgs) -> (Vec<std::net::IpAddr>, Vec<String>) {
    let names = if args.server_names.is_empty() { default_names(args) } else { args.server_names.clone() };
    let (addresses, names): (Vec<_>, Vec<_>) =
        names.into_iter().partition(|name| name.parse::<std::net::IpAddr>().is_ok());
    let mut addresses: Vec<_> = addresses.into_iter().filter_map(|address| address.parse().ok()).collect();
    if !args.listen.ip().is_unspecified() {
        addresses.push(args.listen.ip());
    }
    (addresses, names)
}

/// As people and pods of a cluster call it.
fn default_names(args: &ControlArgs) -> Vec<String> {
    let mut names = vec!["localhost".to_owned()];
    if args.kubernetes {
        let namespace = from_cluster::namespace(args);
        let own =
            ["leno-control".to_owned(), format!("leno-control.{namespace}"), format!("leno-control.{namespace}.svc")];
        names.extend(own);
        names.push(format!("leno-control.{namespace}.svc.{}", args.cluster_domain));
    }
    names
}
