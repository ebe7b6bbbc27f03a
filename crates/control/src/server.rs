//! The control plane as proxies see it: discovery and certificates on one port.

use std::future::Future;
use std::sync::Arc;

use leno_telemetry::metrics::Page;
use leno_telemetry::metrics::control::{ConnectionState, ControlMetrics, ControlState};
use leno_tls::{CertificateAuthority, ControlAcceptor};
use leno_xds::server::{Authenticator, CaService, Limits, ProxyStatus, Service, Services, Signer};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::controller::Controller;

/// The version in `istio_build`. It says whose it is, because istiod has a metric of this name, too.
const BUILD: &str = concat!("leno-", env!("CARGO_PKG_VERSION"));

/// The connected proxies, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Followers {
    /// In order of arrival.
    pub proxies: Vec<Follower>,
}

/// A connected proxy, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Follower {
    /// Its node id, `ztunnel~<ip>~<pod>.<namespace>~…`.
    pub id: String,
    /// The node that it serves, if it said so.
    pub node: Option<String>,
    /// Whether it has accepted all that is published.
    pub in_sync: bool,
    /// Its words about what it has refused and has not accepted since.
    pub refused: Vec<String>,
}

/// A control plane that can serve on any number of listeners. Cheap to clone; clones share the state.
#[derive(Clone, Debug)]
pub struct ControlPlane {
    controller: Controller,
    services: Services,
    limits: Limits,
    metrics: ControlMetrics,
}

impl ControlPlane {
    /// A control plane that serves what `controller` publishes, signs what `signer` allows, and accepts the callers
    /// that `authenticator` knows.
    pub fn new(controller: Controller, authenticator: Arc<dyn Authenticator>, signer: Arc<dyn Signer>) -> Self {
        let metrics = ControlMetrics::default();
        let discovery = Service::new(controller.resources(), authenticator.clone()).counted_in(metrics.clone());
        let certificates = CaService::new(authenticator, signer).counted_in(metrics.clone());
        Self { controller, services: Services { discovery, certificates }, limits: Limits::default(), metrics }
    }

    /// Sets other limits. They count for each listener separately.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// The state it serves.
    pub fn controller(&self) -> &Controller {
        &self.controller
    }

    /// Serves connections from `listener` until `shutdown` completes. Then it lets running requests end and returns.
    /// [`Controller::run`] must be running at the same time.
    ///
    /// Until the controller has published its first state, connections queue at the listener. A proxy that was told
    /// "there is nothing" would drop what it knows.
    pub async fn serve(&self, listener: TcpListener, acceptor: ControlAcceptor, shutdown: impl Future<Output = ()>) {
        let mut shutdown = std::pin::pin!(shutdown);
        tokio::select! {
            () = self.controller.ready() => {}
            () = &mut shutdown => return,
        }
        leno_xds::server::serve(listener, acceptor, self.services.clone(), self.limits, shutdown).await;
    }

    /// The metrics of this control plane and of the authority that it signs with.
    pub fn metrics(&self, authority: Arc<CertificateAuthority>) -> Page {
        let plane = self.clone();
        self.metrics.page(BUILD, move || plane.state(&authority))
    }

    fn state(&self, authority: &CertificateAuthority) -> ControlState {
        let mesh = self.controller.mesh().borrow().clone();
        let generation = self.controller.generation();
        ControlState {
            services: mesh.services().count(),
            workloads: mesh.workloads().count(),
            policies: mesh.policies().count(),
            proxies: self.services.discovery.proxies(),
            versions: generation,
            behind: self.services.discovery.behind(generation),
            connection_limits: vec![
                (ConnectionState::Authenticated, self.limits.proven),
                (ConnectionState::Unauthenticated, self.limits.unproven),
            ],
            root_not_after: authority.root_not_after().ok(),
            signing_not_after: Some(authority.signing_not_after()),
        }
    }

    /// All connected proxies and their progress.
    pub fn proxies(&self) -> Vec<ProxyStatus> {
        self.services.discovery.sync_status()
    }

    /// How far each connected proxy follows.
    pub fn followers(&self) -> Followers {
        let generation = self.controller.generation();
        let follower = |proxy: ProxyStatus| {
            let refused: Vec<_> = proxy.types.iter().filter_map(|of_type| of_type.last_nack.clone()).collect();
            Follower {
                in_sync: refused.is_empty() && proxy.generation.is_some_and(|answered| answered >= generation),
                id: proxy.id,
                node: proxy.node,
                refused,
            }
        };
        Followers { proxies: self.proxies().into_iter().map(follower).collect() }
    }

    /// Whether proxies are connected, and all of them have answered the snapshot `generation` and accepted all there is
    /// of a type.
    pub fn all_accepted(&self, type_url: &str, generation: u64) -> bool {
        self.services.discovery.all_accepted(type_url, generation)
    }

    /// Bytes of long requests, counted up as these come, for [`Memory`](crate::Memory).
    pub fn heard(&self) -> watch::Receiver<u64> {
        self.services.discovery.heard()
    }

    /// Wakes whenever [`Self::proxies`] changes.
    pub fn proxy_changes(&self) -> watch::Receiver<u64> {
        self.services.discovery.sync_changes()
    }

    /// Publishes everything taken in so far. Returns when every proxy that was connected at the time has accepted it or
    /// is gone. For callers that must know that a change took effect.
    pub async fn settled(&self) {
        self.controller.publish();
        self.services.discovery.answered(self.controller.generation()).await;
    }
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
