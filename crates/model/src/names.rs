//! Names that many workloads and services share, stored once.

use std::collections::HashSet;
use std::sync::Arc;

use crate::index::hash;
use crate::{GatewayAddress, GatewayDestination, Map, Name, Port, Recent, Service, ServiceName, Workload};

/// With fewer names than this, unused ones are not looked for.
const FEW: usize = 1024;

/// The names that workloads and services have in common. Without sharing, each of a namespace's 1 000 pods would hold
/// its own copies of the names of its namespace, its node and its service.
#[derive(Debug, Default)]
pub struct Names {
    held: HashSet<Name>,
    /// The services that workloads belong to. The replicas of one Deployment have the same ones.
    services: Recent<Map<ServiceName, Vec<Port>>>,
    /// As many as make it worth a look for those that only this holds: it may take up to twice what is
    /// in use, and looks at each as often as one is added.
    look_at: usize,
}

impl Names {
    /// Prepares a workload for being kept: strings it has in common with others are shared with them, and spare
    /// capacity is given back.
    pub fn settle_workload(&mut self, workload: &mut Workload) {
        let Workload {
            namespace,
            hostname,
            network,
            trust_domain,
            service_account,
            node,
            canonical_name,
            canonical_revision,
            workload_name,
            cluster_id,
            locality,
            ..
        } = workload;
        for name in [namespace, hostname, network, trust_domain, service_account, node, workload_name, cluster_id] {
            self.share(name);
        }
        for name in
            [canonical_name, canonical_revision, &mut locality.region, &mut locality.zone, &mut locality.subzone]
        {
            self.share(name);
        }
        for gateway in [&mut workload.waypoint, &mut workload.network_gateway].into_iter().flatten() {
            self.share_gateway(gateway);
        }
        for policy in &mut workload.authorization_policies {
            self.share(&mut policy.namespace);
            self.share(&mut policy.name);
        }
        workload.addresses.shrink_to_fit();
        workload.authorization_policies.shrink_to_fit();
        if !workload.services.is_empty() {
            let held = &mut self.held;
            let first = hash(workload.services.first_key_value().map(|(service, _)| service));
            self.services.share(first, &mut workload.services, |services| {
                let settled = services.iter().map(|(service, ports)| {
                    let mut service = service.clone();
                    share(held, &mut service.namespace);
                    share(held, &mut service.hostname);
                    // A clone has no room left over.
                    (service, ports.clone())
                });
                *services = settled.collect();
            });
        }
        self.forget_unused();
    }

    /// Does for a service what [`Names::settle_workload`] does for a workload.
    pub fn settle_service(&mut self, service: &mut Service) {
        self.share_service_name(&mut service.id);
        service.addresses.iter_mut().for_each(|address| self.share(&mut address.network));
        service.waypoint.iter_mut().for_each(|gateway| self.share_gateway(gateway));
        service.addresses.shrink_to_fit();
        service.ports.shrink_to_fit();
        self.forget_unused();
    }

    /// Replaces a name by the shared one with the same text.
    pub fn settle_name(&mut self, name: &mut Name) {
        self.share(name);
        self.forget_unused();
    }

    fn share(&mut self, name: &mut Name) {
        share(&mut self.held, name);
    }

    fn share_service_name(&mut self, service: &mut ServiceName) {
        self.share(&mut service.namespace);
        self.share(&mut service.hostname);
    }

    fn share_gateway(&mut self, gateway: &mut GatewayAddress) {
        match &mut gateway.destination {
            GatewayDestination::Hostname(service) => self.share_service_name(service),
            GatewayDestination::Address(address) => self.share(&mut address.network),
        }
    }

    fn forget_unused(&mut self) {
        if self.held.len() > self.look_at.max(FEW) {
            self.held.retain(|name| Arc::strong_count(name) > 1);
            self.held.shrink_to(2 * self.held.len());
            self.look_at = 2 * self.held.len();
        }
    }
}

fn share(held: &mut HashSet<Name>, name: &mut Name) {
    match held.get(name) {
        Some(held) => *name = held.clone(),
        None => drop(held.insert(name.clone())),
    }
}

#[cfg(test)]
#[path = "names_tests.rs"]
mod tests;
