//! One consistent snapshot of the mesh, with the indices that the data path needs.

use std::net::IpAddr;
use std::sync::Arc;

use crate::http::{EndpointPolicy, Policy, PolicyTarget, RequestDefaults, Route, RouteName};
use crate::index::{Index, hash};
use crate::{Authorization, Map, Name, NetworkAddress, NetworkMode, PolicyName, Port, Service, ServiceName, Workload};

mod by_service;
mod kept;
mod policies;
mod request_policies;
mod routes;

use by_service::ByService;
pub use kept::{Kept, KeptFor, PolicyChange, Release};
use policies::Policies;
use request_policies::RequestPolicies;
use routes::Routes;

/// A workload as an endpoint of one service.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// The workload.
    pub workload: Arc<Workload>,
    /// The workload's own ports for the service. If empty, the service's target ports apply.
    pub ports: Arc<[Port]>,
}

impl Endpoint {
    /// The port on which this endpoint serves `port` of the service; `None` if it doesn't. The endpoint's own entry
    /// wins, then the service's target port, unless that is a named port. Same order as ztunnel.
    pub fn target_port(&self, port: &Port) -> Option<u16> {
        self.ports
            .iter()
            .find(|own| own.service_port == port.service_port && own.transport == port.transport)
            .map(|own| own.target_port)
            .or(Some(port.target_port))
            .filter(|target| *target != 0)
    }
}

/// Everything a proxy or control plane knows, indexed by every key that is looked up.
///
/// Cloning is cheap, and the cost of a change does not depend on the size of the mesh, because clones share what is
/// equal in them. A writer clones, changes and publishes. A reader holds one clone for as long as it needs a consistent
/// view.
#[derive(Debug, Clone, Default)]
pub struct Mesh {
    workloads: Index<Arc<Workload>>,
    by_address: Index<Arc<Workload>>,
    // Indexed by node, namespace, name and service account. Holds only workloads that are on a node.
    by_pod: Index<Arc<Workload>>,
    services: Index<Arc<Service>>,
    by_vip: Index<Arc<Service>>,
    by_hostname: Index<Arc<Service>>,
    ranged: Map<ServiceName, Arc<Service>>,
    // Indexed by service name, whether or not the service is known: endpoints may arrive before their service, and keep
    // their place when the service is replaced.
    endpoints: Index<Endpoints>,
    policies: Policies,
    routes: Routes,
    request_policies: RequestPolicies,
    endpoint_policies: ByService<EndpointPolicy>,
    request_defaults: ByService<RequestDefaults>,
}

/// The endpoints of one service.
#[derive(Debug, Clone)]
struct Endpoints {
    service: ServiceName,
    by_uid: Index<Endpoint>,
}

impl Endpoints {
    /// These ports, shared with another endpoint that has the same ones, because the endpoints of a service mostly do.
    fn shared(&self, ports: &[Port]) -> Arc<[Port]> {
        let same = self.by_uid.values().next().map(|other| &other.ports).filter(|others| ***others == *ports);
        same.cloned().unwrap_or_else(|| ports.into())
    }
}

impl Mesh {
    /// As [`Self::upsert_workload`]. A policy that the workload no longer names keeps applying to it until [`Self::end`],
    /// until the policy changes or until the workload names it again: it may be about to apply by scope instead.
    pub fn update_workload(&mut self, workload: Arc<Workload>) -> Vec<Kept> {
        let old = self.workload(&workload.uid).cloned();
        let named = old.iter().flat_map(|old| &old.authorization_policies);
        let released = named.filter(|id| !workload.authorization_policies.contains(id)).collect::<Vec<_>>();
        let released = self.policies.released(&workload.uid, &released);
        self.upsert_workload(workload);
        released.iter().for_each(|release| self.policies.release(release.clone()));
        released.into_iter().map(Kept::Released).collect()
    }

    /// Adds or replaces a workload. Removed policies that the new version still names keep applying to it.
    pub fn upsert_workload(&mut self, workload: Arc<Workload>) {
        let old = self.workload(&workload.uid).cloned();
        if let Some(old) = &old {
            for id in old.authorization_policies.iter().filter(|id| !workload.authorization_policies.contains(id)) {
                self.policies.names_no_more(&workload.uid, id);
            }
            if self.put_in_place(old, &workload) {
                return;
            }
            self.take_out(old);
        }
        for address in self.own_addresses(&workload) {
            self.by_address.put_before(address, workload.clone(), |other| claim(other) < claim(&workload));
        }
        if !workload.node.is_empty() {
            self.by_pod.put(pod_hash(&workload), workload.clone());
        }
        for (service, ports) in &workload.services {
            self.add_endpoint(service, &workload, ports);
        }
        for id in &workload.authorization_policies {
            self.policies.names(&workload.uid, id);
        }
        self.workloads.put(hash(&*workload.uid), workload);
    }

    /// Replaces a workload in place, if none of its index keys has changed.
    fn put_in_place(&mut self, old: &Workload, new: &Arc<Workload>) -> bool {
        let stays = (&old.network, old.network_mode, &old.addresses)
            == (&new.network, new.network_mode, &new.addresses)
            && claim(old) == claim(new)
            && (&old.node, &old.namespace, &old.name, &old.service_account)
                == (&new.node, &new.namespace, &new.name, &new.service_account)
            && old.services.keys().eq(new.services.keys());
        if !stays {
            return false;
        }
        let is_it = |other: &Arc<Workload>| other.uid == new.uid;
        let uid = hash(&*new.uid);
        // Of several that have one address the newest comes last, so it can't stay where it was.
        if !self.own_addresses(new).all(|address| self.by_address.replace_only(address, new, is_it))
            || !new.node.is_empty() && !self.by_pod.replace_only(pod_hash(new), new, is_it)
        {
            return false;
        }
        for (service, ports) in &new.services {
            let Some(of) = self.endpoints.find_mut(hash(service), |of| of.service == *service) else { return false };
            let ports = match of.by_uid.at(uid).iter().find(|held| is_it(&held.workload)) {
                Some(held) if *held.ports == **ports => held.ports.clone(),
                _ => of.shared(ports),
            };
            let Some(held) = of.by_uid.find_mut(uid, |held| is_it(&held.workload)) else { return false };
            *held = Endpoint { workload: new.clone(), ports };
        }
        for id in new.authorization_policies.iter().filter(|id| !old.authorization_policies.contains(id)) {
            self.policies.names(&new.uid, id);
        }
        self.workloads.replace_only(uid, new, is_it)
    }

    /// Removes a workload; whether there was one.
    pub fn remove_workload(&mut self, uid: &str) -> bool {
        let Some(old) = self.workload(uid).cloned() else { return false };
        self.take_out(&old);
        for id in &old.authorization_policies {
            self.policies.names_no_more(uid, id);
        }
        self.policies.forget(uid);
        true
    }

    /// Removes a workload from all indices except that of the policies it names.
    fn take_out(&mut self, old: &Workload) {
        let is_it = |other: &Arc<Workload>| other.uid == old.uid;
        self.workloads.remove(hash(&*old.uid), is_it);
        for address in self.own_addresses(old) {
            self.by_address.remove(address, is_it);
        }
        if !old.node.is_empty() {
            self.by_pod.remove(pod_hash(old), is_it);
        }
        let uid = hash(&*old.uid);
        for service in old.services.keys() {
            let key = hash(service);
            let Some(of) = self.endpoints.find_mut(key, |of| of.service == *service) else { continue };
            of.by_uid.remove(uid, |endpoint| endpoint.workload.uid == old.uid);
            if of.by_uid.is_empty() {
                self.endpoints.remove(key, |of| of.service == *service);
            }
        }
    }

    /// The index keys of the workload's own addresses.
    fn own_addresses<'a>(&self, workload: &'a Workload) -> impl Iterator<Item = u64> + use<'a> {
        let owns = workload.network_mode == NetworkMode::Standard;
        let addresses = workload.addresses.iter().filter(move |_| owns);
        addresses.map(|address| address_hash(&workload.network, *address))
    }

    fn add_endpoint(&mut self, service: &ServiceName, workload: &Arc<Workload>, ports: &[Port]) {
        let key = hash(service);
        if !self.endpoints.at(key).iter().any(|of| of.service == *service) {
            self.endpoints.put(key, Endpoints { service: service.clone(), by_uid: Index::default() });
        }
        let Some(of) = self.endpoints.find_mut(key, |of| of.service == *service) else { return };
        let endpoint = Endpoint { ports: of.shared(ports), workload: workload.clone() };
        of.by_uid.put(hash(&*workload.uid), endpoint);
    }

    /// Adds or replaces a service. Its endpoints stay.
    pub fn upsert_service(&mut self, service: Arc<Service>) {
        self.remove_service(&service.id);
        for address in &service.addresses {
            self.by_vip.put(address_hash(&address.network, address.address), service.clone());
        }
        self.by_hostname.put(hash(&*service.id.hostname), service.clone());
        if !service.ranges.is_empty() {
            self.ranged.insert(service.id.clone(), service.clone());
        }
        self.services.put(hash(&service.id), service);
    }

    /// Removes a service. Returns whether it was there. Its endpoints stay, because the service may come back.
    pub fn remove_service(&mut self, id: &ServiceName) -> bool {
        let Some(old) = self.service(id).cloned() else { return false };
        let is_it = |other: &Arc<Service>| other.id == *id;
        self.services.remove(hash(id), is_it);
        for address in &old.addresses {
            self.by_vip.remove(address_hash(&address.network, address.address), is_it);
        }
        self.by_hostname.remove(hash(&*id.hostname), is_it);
        self.ranged.remove(id);
        true
    }

    /// Adds or replaces an HTTP route.
    pub fn upsert_route(&mut self, route: Arc<Route>) {
        self.routes.upsert(route);
    }

    /// Removes an HTTP route. Returns whether there was one.
    pub fn remove_route(&mut self, id: &RouteName) -> bool {
        self.routes.remove(id)
    }

    /// The HTTP route with this name.
    pub fn route(&self, id: &RouteName) -> Option<&Arc<Route>> {
        self.routes.get(id)
    }

    /// All HTTP routes, by name.
    pub fn routes(&self) -> impl Iterator<Item = &Arc<Route>> {
        self.routes.all()
    }

    /// The HTTP routes that belong to a service or to one of its ports, by name; `None` if there are none. Two versions of a
    /// mesh whose routes of a service are the same share them ([`Map::ptr_eq`]), unless they were changed back and forth.
    pub fn routes_of(&self, service: &ServiceName) -> Option<&Map<RouteName, Arc<Route>>> {
        self.routes.of(service)
    }

    /// Adds or replaces a policy about requests.
    pub fn upsert_request_policy(&mut self, policy: Arc<Policy>) {
        self.request_policies.upsert(policy);
    }

    /// Removes a policy about requests. Returns whether there was one.
    pub fn remove_request_policy(&mut self, id: &PolicyName) -> bool {
        self.request_policies.remove(id)
    }

    /// The policy about requests with this name.
    pub fn request_policy(&self, id: &PolicyName) -> Option<&Arc<Policy>> {
        self.request_policies.get(id)
    }

    /// All policies about requests, by name.
    pub fn request_policies(&self) -> impl Iterator<Item = &Arc<Policy>> {
        self.request_policies.all()
    }

    /// The policies about requests that are attached to `target`, by name; `None` if there are none. As for
    /// [`Self::routes_of`], versions of a mesh share what is equal.
    pub fn request_policies_of(&self, target: &PolicyTarget) -> Option<&Map<PolicyName, Arc<Policy>>> {
        self.request_policies.of(target)
    }

    /// Adds or replaces what is said of services' endpoints.
    pub fn upsert_endpoint_policy(&mut self, policy: Arc<EndpointPolicy>) {
        self.endpoint_policies.upsert(policy);
    }

    /// Removes what is said of services' endpoints. Returns whether there was anything.
    pub fn remove_endpoint_policy(&mut self, id: &PolicyName) -> bool {
        self.endpoint_policies.remove(id)
    }

    /// What is said of services' endpoints, by name.
    pub fn endpoint_policy(&self, id: &PolicyName) -> Option<&Arc<EndpointPolicy>> {
        self.endpoint_policies.get(id)
    }

    /// All that is said of services' endpoints, by name.
    pub fn endpoint_policies(&self) -> impl Iterator<Item = &Arc<EndpointPolicy>> {
        self.endpoint_policies.all()
    }

    /// What is said of a service's endpoints; `None` if nothing is.
    pub fn endpoint_policy_of(&self, service: &ServiceName) -> Option<&Arc<EndpointPolicy>> {
        self.endpoint_policies.of(service)
    }

    /// Adds or replaces what happens to requests without a route.
    pub fn upsert_request_defaults(&mut self, defaults: Arc<RequestDefaults>) {
        self.request_defaults.upsert(defaults);
    }

    /// Removes what happens to requests without a route. Returns whether there was anything.
    pub fn remove_request_defaults(&mut self, id: &PolicyName) -> bool {
        self.request_defaults.remove(id)
    }

    /// What happens to requests without a route, by name.
    pub fn request_defaults(&self, id: &PolicyName) -> Option<&Arc<RequestDefaults>> {
        self.request_defaults.get(id)
    }

    /// All that happens to requests without a route, by name.
    pub fn all_request_defaults(&self) -> impl Iterator<Item = &Arc<RequestDefaults>> {
        self.request_defaults.all()
    }

    /// What happens to a service's requests without a route; `None` if nothing does.
    pub fn request_defaults_of(&self, service: &ServiceName) -> Option<&Arc<RequestDefaults>> {
        self.request_defaults.of(service)
    }

    /// Adds or replaces a policy.
    pub fn upsert_policy(&mut self, policy: Arc<Authorization>) {
        self.policies.upsert(policy);
    }

    /// Removes a policy for all workloads at once. Returns whether it was there.
    pub fn remove_policy(&mut self, id: &PolicyName) -> bool {
        self.policies.remove(id)
    }

    /// Changes policies as one message of a control plane tells: the removed ones, then those that are new or other than
    /// before. Workloads are told of in other messages, earlier or later, so some old versions are kept:
    ///
    /// - A removed policy keeps applying to the workloads that name it. For each of them this ends when it is removed,
    ///   when a new version of it no longer names the policy, or when the policy comes back.
    /// - A policy that applied by scope is kept if the message has policies that workloads have to name from now on: the
    ///   same one, narrowed, or another in its place. It keeps applying to each workload that it covered and that names
    ///   none of these yet, until [`Self::end`].
    pub fn change_policies(&mut self, removed: &[PolicyName], told: Vec<Arc<Authorization>>) -> PolicyChange {
        self.policies.change(removed, told)
    }

    /// Ends a kept policy. Returns whether it was kept still.
    pub fn end(&mut self, kept: &Kept) -> bool {
        self.policies.end(kept)
    }

    /// The policies that are kept for some workloads, and for whom.
    pub fn kept_policies(&self) -> impl Iterator<Item = (&Arc<Authorization>, KeptFor<'_>)> {
        self.policies.kept()
    }

    /// The workload with this UID.
    pub fn workload(&self, uid: &str) -> Option<&Arc<Workload>> {
        self.workloads.at(hash(uid)).iter().find(|workload| &*workload.uid == uid)
    }

    /// The workload that owns an address. If several claim it, the order is ztunnel's: pods with HBONE, other pods,
    /// other workloads with HBONE, the rest. A workload that was not understood ranks as if it had HBONE.
    pub fn workload_by_address(&self, network: &Name, address: IpAddr) -> Option<&Arc<Workload>> {
        let mut claimants = self.by_address.at(address_hash(network, address)).iter();
        claimants.find(|workload| workload.network == *network && workload.addresses.contains(&address))
    }

    /// The workload that a node agent announces by `namespace/name` and service account, if it runs on `node`. ztunnel
    /// looks up its own workloads the same way.
    pub fn workload_on_node(
        &self,
        node: &str,
        namespace: &str,
        name: &str,
        service_account: &str,
    ) -> Option<&Arc<Workload>> {
        let is_it = |w: &&Arc<Workload>| {
            &*w.name == name && &*w.namespace == namespace && &*w.service_account == service_account && &*w.node == node
        };
        if node.is_empty() {
            return self.workloads().find(is_it);
        }
        self.by_pod.at(hash((node, namespace, name, service_account))).iter().find(is_it)
    }

    /// A workload of the mesh on `node` with this service account, whichever it is; its certificate is every such workload's.
    /// Looks at all of them.
    pub fn peer_on_node(&self, node: &str, namespace: &str, service_account: &str) -> Option<&Arc<Workload>> {
        let is_it = |w: &&Arc<Workload>| {
            &*w.node == node
                && &*w.namespace == namespace
                && &*w.service_account == service_account
                && w.takes_hbone()
                && w.not_understood.is_none()
        };
        self.workloads().find(is_it)
    }

    /// All workloads, in no particular order.
    pub fn workloads(&self) -> impl Iterator<Item = &Arc<Workload>> {
        self.workloads.values()
    }

    /// The service with this name.
    pub fn service(&self, id: &ServiceName) -> Option<&Arc<Service>> {
        self.services.at(hash(id)).iter().find(|service| service.id == *id)
    }

    /// Whether a workload or a service has exactly this address (ranges are not checked).
    pub fn has_address(&self, network: &Name, address: IpAddr) -> bool {
        self.workload_by_address(network, address).is_some() || self.with_vip(network, address).next().is_some()
    }

    fn with_vip<'a>(&'a self, network: &Name, address: IpAddr) -> impl Iterator<Item = &'a Arc<Service>> + Clone {
        let has_it = move |own: &NetworkAddress| own.network == *network && own.address == address;
        let candidates = self.by_vip.at(address_hash(network, address)).iter();
        candidates.filter(move |service| service.addresses.iter().any(has_it))
    }

    /// The service that a client in `client_namespace` reaches by a virtual address. Exact addresses win over ranges,
    /// as in ztunnel.
    pub fn service_by_vip(&self, network: &Name, address: IpAddr, client_namespace: &str) -> Option<&Arc<Service>> {
        let exact = preferred(self.with_vip(network, address), client_namespace);
        exact.or_else(|| {
            self.ranged
                .values()
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

    /// The service that a client in `client_namespace` reaches by a host name.
    pub fn service_by_hostname(&self, hostname: &str, client_namespace: &str) -> Option<&Arc<Service>> {
        let candidates = self.by_hostname.at(hash(hostname)).iter();
        preferred(candidates.filter(|service| &*service.id.hostname == hostname), client_namespace)
    }

    /// All services, in no particular order.
    pub fn services(&self) -> impl Iterator<Item = &Arc<Service>> {
        self.services.values()
    }

    /// The endpoints of a service, healthy or not, in no particular order.
    pub fn endpoints(&self, service: &ServiceName) -> impl Iterator<Item = &Endpoint> {
        self.endpoints_of(service).into_iter().flat_map(|of| of.by_uid.values())
    }

    fn endpoints_of(&self, service: &ServiceName) -> Option<&Endpoints> {
        self.endpoints.at(hash(service)).iter().find(|of| of.service == *service)
    }

    /// The service by which a connection to `port` of the workload most likely came; `None` if there are several
    /// candidates. For telemetry only: no decision may depend on it.
    pub fn service_at(&self, workload: &Workload, port: u16) -> Option<&Arc<Service>> {
        let mut matching = workload.services.keys().filter_map(|id| {
            let service = self.service(id)?;
            let of = self.endpoints_of(id)?.by_uid.at(hash(&*workload.uid));
            let endpoint = of.iter().find(|endpoint| endpoint.workload.uid == workload.uid)?;
            service.tcp_ports().any(|p| endpoint.target_port(p) == Some(port)).then_some(service)
        });
        matching.next().filter(|_| matching.next().is_none())
    }

    /// The policy with this name.
    pub fn policy(&self, id: &PolicyName) -> Option<&Arc<Authorization>> {
        self.policies.get(id)
    }

    /// All policies, in no particular order.
    pub fn policies(&self) -> impl Iterator<Item = &Arc<Authorization>> {
        self.policies.all()
    }

    /// The policies that apply to `workload` as Istio scopes them, in a stable order, and those that are kept for it. An
    /// `Err` is a policy the workload names and this mesh does not hold: the caller must fail closed.
    pub fn policies_for<'a>(
        &'a self,
        workload: &'a Workload,
    ) -> impl Iterator<Item = Result<&'a Arc<Authorization>, &'a PolicyName>> {
        self.policies.of(workload)
    }
}

fn address_hash(network: &Name, address: IpAddr) -> u64 {
    hash((&**network, address))
}

fn pod_hash(workload: &Workload) -> u64 {
    hash((&*workload.node, &*workload.namespace, &*workload.name, &*workload.service_account))
}

fn claim(w: &Workload) -> (bool, bool) {
    (w.is_pod(), w.may_be_in_mesh())
}

/// The preferred service for a client: one in its own namespace, then a canonical one, then the first. Services that
/// the client may not see never count. Same order as ztunnel.
fn preferred<'a>(
    candidates: impl Iterator<Item = &'a Arc<Service>> + Clone,
    client_namespace: &str,
) -> Option<&'a Arc<Service>> {
    let mut visible = candidates.filter(|s| s.visible_to(client_namespace)).peekable();
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

#[cfg(test)]
#[path = "mesh_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "mesh_history_tests.rs"]
mod history_tests;

#[cfg(test)]
#[path = "mesh_requests_tests.rs"]
mod requests_tests;
