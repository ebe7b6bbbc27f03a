//! A control plane's own endpoints: metrics and readiness.

use std::sync::Arc;

use leno_telemetry::{Readiness, admin};
use leno_tls::CertificateAuthority;
use tokio::net::TcpListener;

use crate::server::ControlPlane;

/// Where a control plane tells of itself.
#[derive(Debug)]
pub struct Endpoints {
    /// Serves `/metrics` and `/stats/prometheus`.
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
        let metrics = admin::serve(self.metrics, admin::metrics(&plane.metrics(authority)), std::future::pending());
        let ready = admin::serve(self.readiness, admin::readiness(&readiness), std::future::pending());
        tokio::select! {
            () = async { tokio::join!(becomes_ready, metrics, ready); } => {}
            () = shutdown => {}
        }
    }
}
