//! A node of the stage: a namespace with a proxy, a DNS server and the rules for services.

use std::net::SocketAddr;
use std::sync::Arc;

use leno_capture::zds::Agent;
use leno_control::ControlPlane;
use leno_model::Mesh;
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::watch;

use crate::Error;
use crate::cluster::addresses::{CLUSTER_DNS, NodeAddresses};
use crate::cluster::dns;
use crate::cluster::services::{self, DeclaredPorts, ServiceRule};
use crate::stage::context::SETTLE;
use crate::stage::network::Named;
use crate::stage::proxy::ProxyState;

/// A node.
pub(crate) struct Node {
    pub name: String,
    pub addresses: NodeAddresses,
    pub network: Named,
    /// Announces pods to the node's proxy.
    pub agent: Agent,
    /// The proxy as it is now.
    pub proxy: watch::Receiver<ProxyState>,
}

/// Opens the node's DNS server and returns its task.
///
/// # Errors
/// If the sockets can't be bound.
pub(crate) fn serve_dns(
    network: &Named,
    mesh: watch::Receiver<Arc<Mesh>>,
    cluster_domain: Arc<str>,
) -> Result<impl Future<Output = ()> + Send + use<>, Error> {
    let what = "cannot open the cluster's DNS server";
    let (udp, tcp) = network
        .namespace
        .run(|| dns::bind(SocketAddr::new(CLUSTER_DNS.into(), 53)))
        .map_err(Error::network(what))?
        .map_err(Error::io(what))?;
    let udp = UdpSocket::from_std(udp).map_err(Error::io(what))?;
    let tcp = TcpListener::from_std(tcp).map_err(Error::io(what))?;
    Ok(dns::serve(udp, tcp, dns::Names { mesh, cluster_domain }))
}

/// A node's service rules, kept as the mesh says.
pub(crate) struct ServiceRules {
    /// The node's.
    pub name: String,
    pub network: Named,
    pub addresses: NodeAddresses,
    pub mesh: watch::Receiver<Arc<Mesh>>,
    pub ports: watch::Receiver<Arc<DeclaredPorts>>,
    /// The proxies that must know of a service before there are rules for it.
    pub proxies: ControlPlane,
    /// Publishes the mesh that is in force.
    pub in_force: watch::Sender<Arc<Mesh>>,
}

impl ServiceRules {
    /// Keeps them until the mesh's publisher is gone.
    pub(crate) async fn keep(mut self) {
        let mut installed: Option<Vec<ServiceRule>> = None;
        loop {
            let now = self.mesh.borrow_and_update().clone();
            let declared = self.ports.borrow_and_update().clone();
            let wanted = services::plan(&now, &declared, &self.name);
            let known = services::known(&wanted, installed.as_deref().unwrap_or_default());
            let grows = known != wanted;
            if !self.put(known, &mut installed).await {
                return;
            }
            if grows {
                // A proxy that hangs must not keep services from everybody.
                let _ = tokio::time::timeout(SETTLE, self.proxies.settled()).await;
                if !self.put(wanted, &mut installed).await {
                    return;
                }
            }
            self.in_force.send_replace(now);
            tokio::select! {
                changed = self.mesh.changed() => if changed.is_err() { return },
                changed = self.ports.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Puts `rules` in place of those that are installed; `false` if the stage ends.
    async fn put(&self, rules: Vec<ServiceRule>, installed: &mut Option<Vec<ServiceRule>>) -> bool {
        if installed.as_ref() == Some(&rules) {
            return true;
        }
        let (namespace, addresses, new) = (self.network.namespace.clone(), self.addresses, rules.clone());
        match tokio::task::spawn_blocking(move || services::install(&namespace, addresses, &new)).await {
            Ok(Ok(())) => *installed = Some(rules),
            Ok(Err(reason)) => {
                tracing::error!(node = self.name, %reason, "services are not reachable as they should be");
            }
            Err(_) => return false,
        }
        true
    }
}
