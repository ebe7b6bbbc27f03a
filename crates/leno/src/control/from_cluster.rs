//! A control plane whose objects, tokens and authority are a cluster's.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::OptionFuture;
use leno_cli::ControlArgs;
use leno_control::Controller;
use leno_kubernetes::{
    Candidate, Client, Cluster, ClusterAuthority, ClusterFeed, GatewayKeeper, StatusWriter, TokenReviews,
    WaypointTemplate, mesh_config as installed,
};
use leno_objects::ObjectKey;
use leno_telemetry::Readiness;
use leno_tls::CaOptions;

use super::Parts;

/// The namespace of a control plane that runs in no pod.
const NAMESPACE: &str = "leno-system";

/// Where this control plane keeps what is its own.
pub(super) fn namespace(args: &ControlArgs) -> &str {
    args.namespace.as_deref().unwrap_or(NAMESPACE)
}

/// The ConfigMap of the mesh's configuration, which the installation makes.
pub(super) fn mesh_config(args: &ControlArgs) -> ObjectKey {
    installed::key(namespace(args))
}

/// The time between announcing a new root and signing with it. Each replica knows only whether its own proxies trust the
/// root, and the others hear of it within seconds.
const SPREAD: Duration = Duration::from_secs(120);

/// Logs in, and reads or makes the authority. Objects come with [`Parts::following`].
pub(super) async fn parts(
    args: &ControlArgs,
    controller: &Controller,
    options: CaOptions,
    readiness: &Readiness,
    status: Arc<StatusWriter>,
) -> anyhow::Result<Parts> {
    let cluster = Cluster { kubeconfig: args.kubeconfig.clone(), context: args.context.clone() };
    let client = Client::new(&cluster).await?;
    let namespace = namespace(args);
    tracing::info!(server = client.server(), namespace, "following a cluster");
    let feed = ClusterFeed::announce(client.clone(), controller.clone(), readiness);
    let file = args.mesh_config.clone();
    let config = file.map(|file| installed::MeshConfigFile::announce(file, namespace, controller.clone()));
    let config = OptionFuture::from(config.map(installed::MeshConfigFile::run));

    let ready = readiness.task("certificate authority");
    let kept = ClusterAuthority::open(client.clone(), namespace, &args.trust_domain, options, ready).await?;
    let authority = kept.authority().clone();
    // Each replica answers; one of them writes.
    let identity = args.pod_name.clone().unwrap_or_else(|| format!("process-{}", std::process::id()));
    let candidate = Arc::new(Candidate::new(client.clone(), namespace, identity));
    let leads = candidate.leads();
    let template = args.waypoint_template.clone().map(|file| WaypointTemplate { file, roots: authority.trust() });
    let gateways = GatewayKeeper::new(client.clone(), controller.clone(), template).run(leads.clone());
    let (asking, running, told) = (client.clone(), candidate.clone(), controller.clone());
    let following = async move {
        let writing = status.run(&asking, &told, leads.clone());
        tokio::join!(feed.run(), config, running.run(), kept.run(leads), writing, gateways);
        Ok(())
    };
    Ok(Parts {
        authenticator: Arc::new(TokenReviews::new(client)),
        authority,
        root: format!("ConfigMap {namespace}/leno-ca-root"),
        spread: SPREAD,
        following: Box::pin(following),
        leaving: Box::pin(async move { candidate.resign().await }),
    })
}
