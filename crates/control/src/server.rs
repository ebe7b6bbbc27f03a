//! The control plane as proxies see it: discovery and certificates on one port.

use std::future::Future;
use std::sync::Arc;

use leno_tls::ControlAcceptor;
use leno_xds::server::{Authenticator, CaService, Limits, ProxyStatus, Service, Services, Signer};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::controller::Controller;

/// A control plane that can serve on any number of listeners. Cheap to clone; clones share the state.
#[derive(Clone, Debug)]
pub struct ControlPlane {
    controller: Controller,
    services: Services,
    limits: Limits,
}

impl ControlPlane {
    /// A control plane that serves what `controller` publishes, signs what `signer` allows, and accepts the callers
    /// that `authenticator` knows.
    pub fn new(controller: Controller, authenticator: Arc<dyn Authenticator>, signer: Arc<dyn Signer>) -> Self {
        let discovery = Service::new(controller.resources(), authenticator.clone());
        let certificates = CaService::new(authenticator, signer);
        Self { controller, services: Services { discovery, certificates }, limits: Limits::default() }
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

    /// All connected proxies and their progress.
    pub fn proxies(&self) -> Vec<ProxyStatus> {
        self.services.discovery.sync_status()
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
