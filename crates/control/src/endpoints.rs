//! A control plane's own endpoints: metrics, readiness, and how far the proxies follow.

use std::sync::Arc;

use leno_telemetry::admin::Routes;
use leno_telemetry::{Readiness, admin};
use leno_tls::CertificateAuthority;
use tokio::net::TcpListener;

use crate::server::ControlPlane;

/// Path of the page that lists the connected proxies, as [`Followers`] in JSON.
pub const PROXIES: &str = "/proxies";

/// Where a control plane tells of itself.
#[derive(Debug)]
pub struct Endpoints {
    /// Serves `/metrics`, `/stats/prometheus` and [`PROXIES`].
    pub metrics: TcpListener,
    /// Serves `/healthz/ready`.
    pub readiness: TcpListener,
}

impl Endpoints {
    /// Serves until `shutdown` completes. The control plane is ready when its first state is published and every other
    /// task of `readiness` is.
    pub async fn serve(
        self,
        plane: &ControlPlane,
        authority: Arc<CertificateAuthority>,
        readiness: Readiness,
        shutdown: impl Future<Output = ()>,
    ) {
        let mut published = readiness.task("objects");
        published.not_ready("not all objects have come from their source yet");
        let becomes_ready = async {
            plane.controller().ready().await;
            published.ready();
        };
        let listed = plane.clone();
        let proxies = Routes::new().get(PROXIES, move |_| {
            let plane = listed.clone();
            admin::json(move |out| serde_json::to_writer(out, &plane.followers()).map_err(std::io::Error::from))
        });
        let pages = admin::metrics(&plane.metrics(authority)).merge(proxies);
        let metrics = admin::serve(self.metrics, pages, std::future::pending());
        let ready = admin::serve(self.readiness, admin::readiness(&readiness), std::future::pending());
        tokio::select! {
            () = async { tokio::join!(becomes_ready, metrics, ready); } => {}
            () = shutdown => {}
        }
    }
}
