//! One consistent picture of the mesh, and the indices the data path looks things up by.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use crate::{
    Authorization, Name, NetworkAddress, NetworkMode, PolicyName, Port, Scope, Service, ServiceName, Workload,
    WorkloadUid,
};

/// A workload as endpoint of one service.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// The workload.
    pub workload: Arc<Workload>,
    /// Its own ports for the service; may be empty, then the service's target ports count.
    pub ports: Arc<[Port]>,
}

impl Endpoint {
    /// The port this endpoint serves `port` of the service on, or `None` if it doesn't: its own
    /// entry first, then the service's target unless that is named, as ztunnel does.
    pub fn target_port(&self, port: &Port) -> Option<u16> {
        self.ports
            .iter()
            .find(|own| own.service_port == port.service_port)
            .map(|own| own.target_port)
            .or(Some(port.target_port))
            .filter(|target| *target != 0)
    }
}

/// Everything a proxy or control plane knows, by every key it is asked for.
///
/// Cheap to clone: each index is shared until it is written. Writers clone, change and publish;
/// readers hold one clone for as long as they need a consistent view.
#[derive(Debug, Clone, Default)]
pub struct Mesh {
    workloads: Arc<HashMap<WorkloadUid, Arc<Workload>>>,
    by_address: Arc<HashMap<NetworkAddress, Vec<Arc<Workload>>>>,
    services: Arc<HashMap<ServiceName, Arc<Service>>>,
    by_vip: Arc<HashMap<NetworkAddress, Vec<Arc<Service>>>>,
    by_hostname: Arc<HashMap<Name, Vec<Arc<Service>>>>,
    ranged: Arc<Vec<Arc<Service>>>,
    // Keyed by the service's name, known or not: endpoints may arrive before their service, and
    // a replaced service keeps them.
    endpoints: Arc<HashMap<ServiceName, HashMap<WorkloadUid, Endpoint>>>,
    policies: Arc<HashMap<PolicyName, Arc<Authorization>>>,
    global_policies: Arc<BTreeSet<PolicyName>>,
    namespace_policies: Arc<HashMap<Name, BTreeSet<PolicyName>>>,
    // By workload that named them when they were removed, and names them still.
    retired_policies: Arc<HashMap<WorkloadUid, Vec<Arc<Authorization>>>>,
}

impl Mesh {
    /// Adds or replaces a workload. Retired policies that it goes on to name stay.
    pub fn upsert_workload(&mut self, workload: Arc<Workload>) {
        let mut retired = self.retired_policies.get(&workload.uid).cloned().unwrap_or_default();
        retired.retain(|policy| workload.authorization_policies.contains(&policy.id));
        self.remove_workload(&workload.uid);
        if !retired.is_empty() {
            Arc::make_mut(&mut self.retired_policies).insert(workload.uid.clone(), retired);
        }
        if workload.network_mode == NetworkMode::Standard {
            let by_address = Arc::make_mut(&mut self.by_address);
            for address in &workload.addresses {
                let key = NetworkAddress { network: workload.network.clone(), address: *address };
                let claimants = by_address.entry(key).or_default();
                claimants.push(workload.clone());
                claimants.sort_by_key(|w| std::cmp::Reverse(claim(w)));
            }
        }
        if !workload.services.is_empty() {
            let endpoints = Arc::make_mut(&mut self.endpoints);
            for (service, ports) in &workload.services {
                let endpoint = Endpoint { workload: workload.clone(), ports: ports.as_slice().into() };
                endpoints.entry(service.clone()).or_default().insert(workload.uid.clone(), endpoint);
            }
        }
        Arc::make_mut(&mut self.workloads).insert(workload.uid.clone(), workload);
    }

    /// Removes a workload; whether there was one.
    pub fn remove_workload(&mut self, uid: &str) -> bool {
        if !self.workloads.contains_key(uid) {
            return false;
        }
        let Some(old) = Arc::make_mut(&mut self.workloads).remove(uid) else { return false };
        if self.retired_policies.contains_key(uid) {
            Arc::make_mut(&mut self.retired_policies).remove(uid);
            self.forget_retired();
        }
        if old.network_mode == NetworkMode::Standard {
            let by_address = Arc::make_mut(&mut self.by_address);
            for address in &old.addresses {
                let key = NetworkAddress { network: old.network.clone(), address: *address };
                remove_from(by_address, &key, |w| w.uid == old.uid);
            }
        }
        if !old.services.is_empty() {
            let endpoints = Arc::make_mut(&mut self.endpoints);
            for service in old.services.keys() {
                if let Some(of_service) = endpoints.get_mut(service) {
                    of_service.remove(uid);
                    if of_service.is_empty() {
                        endpoints.remove(service);
                    }
                }
            }
        }
        true
    }

    /// Adds or replaces a service. Its endpoints stay.
    pub fn upsert_service(&mut self, service: Arc<Service>) {
        self.remove_service(&service.id);
        let by_vip = Arc::make_mut(&mut self.by_vip);
        for address in &service.addresses {
            by_vip.entry(address.clone()).or_default().push(service.clone());
        }
        Arc::make_mut(&mut self.by_hostname).entry(service.id.hostname.clone()).or_default().push(service.clone());
        if !service.ranges.is_empty() {
            Arc::make_mut(&mut self.ranged).push(service.clone());
        }
        Arc::make_mut(&mut self.services).insert(service.id.clone(), service);
    }

    /// Removes a service; whether there was one. Its endpoints stay, for it may come back.
    pub fn remove_service(&mut self, id: &ServiceName) -> bool {
        if !self.services.contains_key(id) {
            return false;
        }
        let Some(old) = Arc::make_mut(&mut self.services).remove(id) else { return false };
        let by_vip = Arc::make_mut(&mut self.by_vip);
        for address in &old.addresses {
            remove_from(by_vip, address, |s| s.id == old.id);
        }
        remove_from(Arc::make_mut(&mut self.by_hostname), &old.id.hostname, |s| s.id == old.id);
        if !old.ranges.is_empty() {
            Arc::make_mut(&mut self.ranged).retain(|s| s.id != old.id);
        }
        true
    }

    /// Adds or replaces a policy.
    pub fn upsert_policy(&mut self, policy: Arc<Authorization>) {
        self.remove_policy(&policy.id);
        match policy.scope {
            Scope::Global => {
                Arc::make_mut(&mut self.global_policies).insert(policy.id.clone());
            }
            Scope::Namespace => {
                Arc::make_mut(&mut self.namespace_policies)
                    .entry(policy.id.namespace.clone())
                    .or_default()
                    .insert(policy.id.clone());
            }
            Scope::WorkloadSelector => {}
        }
        Arc::make_mut(&mut self.policies).insert(policy.id.clone(), policy);
    }

    /// Removes a policy, for everybody and at once; whether there was one.
    pub fn remove_policy(&mut self, id: &PolicyName) -> bool {
        if !self.retired_policies.is_empty() {
            let retired = Arc::make_mut(&mut self.retired_policies);
            retired.values_mut().for_each(|policies| policies.retain(|policy| policy.id != *id));
            retired.retain(|_, policies| !policies.is_empty());
            self.forget_retired();
        }
        if !self.policies.contains_key(id) {
            return false;
        }
        Arc::make_mut(&mut self.policies).remove(id);
        Arc::make_mut(&mut self.global_policies).remove(id);
        if let Some(of_namespace) = Arc::make_mut(&mut self.namespace_policies).get_mut(&id.namespace) {
            of_namespace.remove(id);
        }
        true
    }

    /// Removes policies, except for the workloads that name them: for each of those a policy goes on to
    /// count, as it was last, until that workload changes to name it no more, is removed, or the policy
    /// comes back.
    pub fn retire_policies(&mut self, ids: &[PolicyName]) {
        let gone: HashMap<&PolicyName, Arc<Authorization>> =
            ids.iter().filter_map(|id| Some((id, self.policies.get(id)?.clone()))).collect();
        // A policy that has been retired before is not among them, and stays so.
        for id in gone.keys() {
            self.remove_policy(id);
        }
        if gone.is_empty() {
            return;
        }
        let retired = Arc::make_mut(&mut self.retired_policies);
        for workload in self.workloads.values() {
            for policy in workload.authorization_policies.iter().filter_map(|id| gone.get(id)) {
                retired.entry(workload.uid.clone()).or_default().push(policy.clone());
            }
        }
    }

    /// A map never shrinks by itself, and one policy may have been named by all workloads.
    fn forget_retired(&mut self) {
        if self.retired_policies.is_empty() {
            self.retired_policies = Arc::default();
        }
    }

    /// A workload by key.
    pub fn workload(&self, uid: &str) -> Option<&Arc<Workload>> {
        self.workloads.get(uid)
    }

    /// The workload that owns an address. Of several, pods with HBONE win, then pods, then
    /// HBONE, as ztunnel does. One that was not understood counts as if it had HBONE.
    pub fn workload_by_address(&self, network: &Name, address: IpAddr) -> Option<&Arc<Workload>> {
        let key = NetworkAddress { network: network.clone(), address };
        self.by_address.get(&key).and_then(|claimants| claimants.first())
    }

    /// The workload a node agent announces as `namespace/name` with a service account, if it
    /// runs on `node`, as ztunnel finds its own.
    pub fn workload_on_node(
        &self,
        node: &str,
        namespace: &str,
        name: &str,
        service_account: &str,
    ) -> Option<&Arc<Workload>> {
        self.workloads.values().find(|w| {
            &*w.name == name && &*w.namespace == namespace && &*w.service_account == service_account && &*w.node == node
        })
    }

    /// All workloads, in no order.
    pub fn workloads(&self) -> impl Iterator<Item = &Arc<Workload>> {
        self.workloads.values()
    }

    /// A service by key.
    pub fn service(&self, id: &ServiceName) -> Option<&Arc<Service>> {
        self.services.get(id)
    }

    /// Whether a workload or a service has this very address.
    pub fn has_address(&self, network: &Name, address: IpAddr) -> bool {
        let key = NetworkAddress { network: network.clone(), address };
        self.by_address.contains_key(&key) || self.by_vip.contains_key(&key)
    }

    /// The service a client in `client_namespace` means by a virtual address: exact addresses
    /// first, then ranges, as ztunnel does.
    pub fn service_by_vip(&self, network: &Name, address: IpAddr, client_namespace: &str) -> Option<&Arc<Service>> {
        let key = NetworkAddress { network: network.clone(), address };
        let exact = self.by_vip.get(&key).and_then(|candidates| preferred(candidates, client_namespace));
        exact.or_else(|| {
            self.ranged
                .iter()
                .filter(|s| s.visible_to(client_namespace))
                .filter_map(|s| {
                    let longest = s
                        .ranges
                        .iter()
                        .filter(|(net, range)| net == network && range.contains(&address))
                        .map(|(_, range)| range.prefix_len())
                        .max()?;
                    Some((&*s.id.namespace == client_namespace, longest, s.canonical, s))
                })
                .max_by_key(|(own, longest, canonical, _)| (*own, *longest, *canonical))
                .map(|(_, _, _, s)| s)
        })
    }

    /// The service a client in `client_namespace` means by a host name.
    pub fn service_by_hostname(&self, hostname: &str, client_namespace: &str) -> Option<&Arc<Service>> {
        self.by_hostname.get(hostname).and_then(|candidates| preferred(candidates, client_namespace))
    }

    /// All services, in no order.
    pub fn services(&self) -> impl Iterator<Item = &Arc<Service>> {
        self.services.values()
    }

    /// The endpoints of a service, in no order, healthy or not.
    pub fn endpoints(&self, service: &ServiceName) -> impl Iterator<Item = &Endpoint> {
        self.endpoints.get(service).into_iter().flat_map(HashMap::values)
    }

    /// The service a connection to `port` of the workload most likely came by, where only that
    /// is known; `None` if it could be one of several: for telemetry, never for decisions.
    pub fn service_at(&self, workload: &Workload, port: u16) -> Option<&Arc<Service>> {
        let mut matching = workload.services.keys().filter_map(|id| {
            let service = self.services.get(id)?;
            let endpoint = self.endpoints.get(id)?.get(&workload.uid)?;
            service.ports.iter().any(|p| endpoint.target_port(p) == Some(port)).then_some(service)
        });
        matching.next().filter(|_| matching.next().is_none())
    }

    /// A policy by key.
    pub fn policy(&self, id: &PolicyName) -> Option<&Arc<Authorization>> {
        self.policies.get(id)
    }

    /// All policies, in no order.
    pub fn policies(&self) -> impl Iterator<Item = &Arc<Authorization>> {
        self.policies.values()
    }

    /// The policies that apply to `workload` as Istio scopes them, in a stable order; those that were
    /// retired since the workload last changed among them. An `Err` is a policy the workload names and
    /// this mesh does not hold: the caller must fail closed.
    pub fn policies_for<'a>(
        &'a self,
        workload: &'a Workload,
    ) -> impl Iterator<Item = Result<&'a Arc<Authorization>, &'a PolicyName>> {
        let of_namespace = self.namespace_policies.get(&workload.namespace).into_iter().flatten();
        self.global_policies
            .iter()
            .chain(of_namespace)
            .chain(&workload.authorization_policies)
            .map(|id| self.policies.get(id).or_else(|| self.retired_policy(workload, id)).ok_or(id))
    }

    fn retired_policy(&self, workload: &Workload, id: &PolicyName) -> Option<&Arc<Authorization>> {
        self.retired_policies.get(&workload.uid)?.iter().find(|policy| policy.id == *id)
    }

    /// How many policies are retired and still count, once for each workload that names one.
    pub fn retired_policies(&self) -> usize {
        self.retired_policies.values().map(Vec::len).sum()
    }
}

fn claim(w: &Workload) -> (bool, bool) {
    (w.is_pod(), w.may_be_in_mesh())
}

/// Same namespace, then canonical, then the first, as ztunnel does; invisible ones never.
fn preferred<'a>(candidates: &'a [Arc<Service>], client_namespace: &str) -> Option<&'a Arc<Service>> {
    let mut visible = candidates.iter().filter(|s| s.visible_to(client_namespace)).peekable();
    let first = visible.peek().copied();
    let mut canonical = None;
    for service in visible {
        if &*service.id.namespace == client_namespace {
            return Some(service);
        }
        if service.canonical && canonical.is_none() {
            canonical = Some(service);
        }
    }
    canonical.or(first)
}

fn remove_from<K: std::hash::Hash + Eq, V>(map: &mut HashMap<K, Vec<V>>, key: &K, is: impl Fn(&V) -> bool) {
    if let Some(values) = map.get_mut(key) {
        values.retain(|value| !is(value));
        if values.is_empty() {
            map.remove(key);
        }
    }
}

#[cfg(test)]
#[path = "mesh_tests.rs"]
mod tests;
