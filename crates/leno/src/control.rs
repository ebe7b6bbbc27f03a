//! `leno control`: a control plane by itself, with objects from files.

use std::sync::Arc;

use anyhow::Context as _;
use leno_cli::ControlArgs;
use leno_control::status::{Status, StatusSink};
use leno_control::translate::Options;
use leno_control::{CertificatePolicy, ControlPlane, Controller, Feed, Limits, Memory, StaticTokens, roots};
use leno_local::files;
use leno_objects::{Kind, ObjectKey};
use leno_telemetry::{logging, raise_descriptor_limit};
use leno_tls::{CaOptions, CertificateAuthority, ControlAcceptor};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::memory;

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

/// Writes what is found about objects into the log.
#[derive(Debug)]
struct Log;

impl StatusSink for Log {
    fn status(&self, object: &ObjectKey, status: &Status) {
        for finding in status.findings() {
            tracing::warn!("{object}: {finding}");
        }
    }
}

/// The parts of a control plane.
async fn wire(args: ControlArgs, memory: Arc<Memory>) -> anyhow::Result<()> {
    // Objects: all of them once, then whatever an edit changes.
    let meaning = Options {
        cluster_id: args.cluster_id.as_str().into(),
        trust_domain: args.trust_domain.as_str().into(),
        cluster_domain: args.cluster_domain.as_str().into(),
        ..Options::default()
    };
    let controller = Controller::telling(meaning, Arc::new(Log));
    let feed = Feed::announce(controller.clone(), Kind::OF_THE_MESH);
    let load = |read: Result<files::Manifests, leno_local::Error>| match read {
        Ok(manifests) => {
            let passed_over = manifests.passed_over.iter().map(ToString::to_string);
            for warning in passed_over.chain(manifests.warnings.iter().cloned()) {
                tracing::warn!("{warning}");
            }
            tracing::info!(objects = manifests.objects.len(), "manifests loaded");
            feed.replace(manifests.objects.into_values().map(|sourced| sourced.object));
            controller.lint();
        }
        Err(error) => tracing::error!("the edit is refused as a whole, the last good state stays: {error}"),
    };
    load(Ok(files::read(&args.files)?));

    // Who may ask, and who signs.
    let tokens = std::fs::read_to_string(&args.tokens)
        .with_context(|| format!("can't read the tokens of the node proxies from {}", args.tokens.display()))?;
    let tokens = StaticTokens::parse(&tokens).with_context(|| format!("in {}", args.tokens.display()))?;
    let lives = args.min_certificate_ttl..=args.max_certificate_ttl;
    anyhow::ensure!(
        !lives.is_empty(),
        "--min-certificate-ttl is more than --max-certificate-ttl; lower it, or raise that"
    );
    let options = CaOptions { max_ttl: args.max_certificate_ttl, ..CaOptions::default() };
    let authority = Arc::new(CertificateAuthority::open(&args.ca_dir, args.trust_domain.as_str(), options)?);
    let signer = CertificatePolicy::new(controller.clone(), authority.clone()).with_ttl(lives);

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
    let plane = ControlPlane::new(controller.clone(), Arc::new(tokens), Arc::new(signer)).with_limits(limits);
    let (addresses, names) = addresses_and_names(&args);
    let acceptor = ControlAcceptor::from_authority(authority.clone(), names, addresses)?;
    let listener = TcpListener::bind(args.listen).await.with_context(|| {
        format!(
            "can't listen on {}; is another control plane running? Choose another address with --listen",
            args.listen
        )
    })?;
    tracing::info!(
        address = %listener.local_addr()?,
        root = %args.ca_dir.join("root-cert.pem").display(),
        "control plane started"
    );

    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let shutdown = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    let rotating = roots::follow(plane.clone(), authority, roots::SPREAD);
    let heard = plane.heard();
    tokio::spawn(async move { memory.after_bursts(heard).await });
    let serving = tokio::spawn(async move { plane.serve(listener, acceptor, shutdown).await });
    tokio::select! {
        served = serving => served.context("the server ended by mistake"),
        () = controller.run() => Ok(()),
        () = rotating => Ok(()),
        watched = files::follow(&args.files, load) => watched.context("can't watch the manifests for changes"),
    }
}

/// What the control plane's own certificate must be good for.
fn addresses_and_names(args: &ControlArgs) -> (Vec<std::net::IpAddr>, Vec<String>) {
    let (addresses, names): (Vec<_>, Vec<_>) =
        args.server_names.iter().partition(|name| name.parse::<std::net::IpAddr>().is_ok());
    let mut addresses: Vec<_> = addresses.into_iter().filter_map(|address| address.parse().ok()).collect();
    if !args.listen.ip().is_unspecified() {
        addresses.push(args.listen.ip());
    }
    (addresses, names.into_iter().cloned().collect())
}
