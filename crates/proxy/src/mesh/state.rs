//! The current [`Mesh`] as discovery describes it, and the feed that updates it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use bytes::Bytes;
use leno_model::{
    Authorization, Identity, Kept, Mesh, Name, Names, NetworkAddress, PolicyName, Service, ServiceName, Workload,
    WorkloadUid,
};
use leno_proto::{
    ADDRESS_TYPE, AUTHORIZATION_TYPE, ConvertError, ENDPOINT_POLICY_TYPE, REQUEST_DEFAULTS_TYPE, REQUEST_POLICY_TYPE,
    ROUTE_TYPE, Resource, address_from_proto, address_stand_in, authorization_from_proto, policy_stand_in, security,
    workload as wire,
};
use leno_tls::CertificateManager;
use leno_xds::client::{ConnectionState, Handler, Rejection, Status, Update};
use parking_lot::Mutex;
use prost::Message;
use tokio::sync::watch;

use super::departed::Departed;
use super::overlaps::Overlaps;
use super::recent::{Change, Changed, Recent};

/// The mesh as this node knows it. A reader takes one snapshot and keeps it for all decisions about a connection, so it
/// sees one consistent mesh.
#[derive(Default)]
pub struct MeshState {
    mesh: ArcSwap<Mesh>,
    changes: watch::Sender<Changes>,
    recent: Mutex<Recent>,
    departed: Departed,
    overlaps: Overlaps,
    /// Held from loading a snapshot until its successor is published.
    writing: Mutex<()>,
}

/// A summary of what the latest snapshots changed, for those that must look at live connections again.
#[derive(Debug, Clone, Default)]
pub struct Changes {
    /// The number of the snapshot.
    pub generation: u64,
    /// The latest generation that changed a policy.
    pub policies: u64,
    /// Which types the control plane has answered at least once: addresses, policies.
    answered: (bool, bool),
    /// Whether HTTP routes, and policies about requests, are to be waited for.
    awaits: (bool, bool),
    /// Whether no control plane can be reached.
    away: bool,
}

impl MeshState {
    /// A state that is complete only when HTTP routes and policies about requests have been sent, too: before that, a waypoint
    /// may know a service without what its requests must follow and obey.
    pub fn of_requests() -> Self {
        let changes = Changes { awaits: (true, true), ..Changes::default() };
        Self { changes: watch::Sender::new(changes), ..Self::default() }
    }

    /// Whether an address that nobody has belonged to the mesh a moment ago.
    pub fn has_just_left(&self, address: IpAddr) -> bool {
        self.departed.contains(address, Instant::now())
    }

    /// The current snapshot.
    pub fn load(&self) -> Arc<Mesh> {
        self.mesh.load_full()
    }

    /// Whether the control plane has sent everything once. Before that, a workload may be known without the policies
    /// that guard it, so nothing may pass.
    pub fn is_complete(&self) -> bool {
        let changes = self.changes.borrow();
        changes.answered == (true, true) && changes.awaits == (false, false)
    }

    /// Whether no control plane can be reached, so that nobody tells of a pod that starts now. One that refuses this proxy is
    /// not away.
    pub fn is_away(&self) -> bool {
        self.changes.borrow().away
    }

    /// Follows the link to the control plane. Returns when its client is gone.
    pub(crate) async fn follow(self: Arc<Self>, mut status: watch::Receiver<Status>) {
        loop {
            let away = absent(&status.borrow_and_update().connection);
            if let Some(away) = away {
                self.changes.send_if_modified(|changes| std::mem::replace(&mut changes.away, away) != away);
            }
            if status.changed().await.is_err() {
                return;
            }
        }
    }

    fn answered(&self, type_url: &str) {
        self.changes.send_modify(|changes| {
            changes.awaits.0 &= type_url != ROUTE_TYPE;
            changes.awaits.1 &= type_url != REQUEST_POLICY_TYPE;
            changes.answered.0 |= type_url == ADDRESS_TYPE;
            changes.answered.1 |= type_url == AUTHORIZATION_TYPE;
        });
    }

    /// Notifies of every new snapshot.
    pub fn subscribe(&self) -> watch::Receiver<Changes> {
        self.changes.subscribe()
    }

    /// The changes since that generation.
    pub fn changed_since(&self, generation: u64) -> Changed {
        self.recent.lock().since(generation)
    }

    /// Ends what goes on to count for a while only, each when its time has come. Never returns; for the control
    /// thread.
    pub(crate) async fn end_in_time(self: Arc<Self>) {
        loop {
            self.overlaps.next_end().await;
            self.end_overlaps(tokio::time::Instant::now());
        }
    }

    /// Has policies count no more that were kept for workloads that might yet be told of, if their time ends by `now`.
    pub fn end_overlaps(&self, now: tokio::time::Instant) {
        let ended = self.overlaps.take_ended(now);
        if ended.is_empty() {
            return;
        }
        let _writing = self.writing.lock();
        let mut mesh = Mesh::clone(&self.load());
        let counted = ended.into_iter().filter(|kept| mesh.end(kept)).collect::<Vec<_>>();
        if counted.is_empty() {
            return;
        }
        let change = |kept| match kept {
            Kept::Replaced(old) => Change::Policy(old.id.clone(), old.scope),
            Kept::Released(release) => Change::Workload(release.workload.clone()),
        };
        let changes = counted.into_iter().map(change).collect();
        self.publish(mesh, true, changes);
    }

    fn keep(&self, kept: Vec<Kept>) {
        self.overlaps.add(kept, tokio::time::Instant::now());
    }

    fn publish(&self, mesh: Mesh, policies_changed: bool, what: Vec<Change>) {
        let generation = self.changes.borrow().generation + 1;
        self.mesh.store(Arc::new(mesh));
        self.recent.lock().add(generation, what);
        self.changes.send_modify(|changes| {
            changes.generation = generation;
            if policies_changed {
                changes.policies = generation;
            }
        });
    }
}

/// Whether no control plane can be reached; `None` while that is being tried.
fn absent(connection: &ConnectionState) -> Option<bool> {
    match connection {
        ConnectionState::Connecting => None,
        ConnectionState::Connected { .. } => Some(false),
        ConnectionState::Disconnected { retryable, .. } => Some(*retryable),
    }
}

/// Applies discovery responses to a [`MeshState`], and keeps valid certificates for the pods of this node.
pub struct Feed {
    state: Arc<MeshState>,
    certificates: Arc<CertificateManager>,
    node: Option<String>,
    local: HashMap<WorkloadUid, Local>,
    names: Names,
}

/// A workload of this node. While one in the mesh has its identity, its certificate is requested ahead and renewed. A
/// workload that is not in the mesh is remembered as well: the node agent may hand its pod over anyway, and the
/// certificate that this requests must not be renewed when the pod is gone.
#[derive(Clone, PartialEq, Eq)]
struct Local {
    identity: Identity,
    in_mesh: bool,
}

impl Feed {
    /// A feed that keeps `state`, and certificates for the pods of `node`, if it is a node's.
    pub fn new(state: Arc<MeshState>, certificates: Arc<CertificateManager>, node: Option<String>) -> Self {
        Self { state, certificates, node, local: HashMap::new(), names: Names::default() }
    }

    /// Adds or replaces a workload or service. If it is refused, what it describes is closed.
    fn upsert_address(&mut self, mesh: &mut Mesh, name: &Name, body: Bytes) -> Result<(), String> {
        match read_address(name, body.clone()) {
            // An earlier stand-in with this name may be of the other kind. A resource that is sent again unchanged, as
            // after a reconnect, is not replaced: replacing all of them would spread the mesh over twice the memory.
            Ok(Resource::Workload(mut workload)) => {
                mesh.remove_service(&service_name(name));
                // Discovery will refer to it by this name.
                workload.uid = name.clone();
                self.track_local(&workload);
                if mesh.workload(name).is_none_or(|held| **held != workload) {
                    self.names.settle_workload(&mut workload);
                    self.state.keep(mesh.update_workload(Arc::new(workload)));
                }
                Ok(())
            }
            Ok(Resource::Service(mut service)) => {
                mesh.remove_workload(name);
                if mesh.service(&service.id).is_none_or(|held| **held != service) {
                    self.names.settle_service(&mut service);
                    mesh.upsert_service(Arc::new(service));
                }
                Ok(())
            }
            Err(reason) => {
                // A certificate of one of this node's pods is kept: it will be needed again.
                close_address(mesh, name, wire::Address::decode(body).ok(), &reason);
                Err(reason)
            }
        }
    }

    fn track_local(&mut self, workload: &Workload) {
        let Some(identity) = workload.identity().filter(|_| self.node.as_deref() == Some(&workload.node)) else {
            return self.untrack_local(&workload.uid);
        };
        let in_mesh = workload.takes_hbone();
        if in_mesh {
            self.certificates.warm(&identity);
        }
        let now = Local { identity, in_mesh };
        let before = self.local.insert(workload.uid.clone(), now.clone());
        if let Some(before) = before.filter(|before| *before != now) {
            self.forget_unused(&before.identity);
        }
    }

    fn untrack_local(&mut self, uid: &str) {
        if let Some(before) = self.local.remove(uid) {
            self.forget_unused(&before.identity);
        }
    }

    fn forget_unused(&self, identity: &Identity) {
        if !self.local.values().any(|local| local.in_mesh && local.identity == *identity) {
            self.certificates.forget(identity);
        }
    }

    fn remove_address(&mut self, mesh: &mut Mesh, name: &str) {
        // Of both kinds, because a stand-in may be of another kind than the resource.
        mesh.remove_workload(name);
        self.untrack_local(name);
        mesh.remove_service(&service_name(name));
    }
}

/// The addresses by which `name` is part of the mesh: those of a service, or of a workload that takes HBONE.
fn addresses_of(mesh: &Mesh, name: &str) -> Vec<NetworkAddress> {
    let workload = mesh.workload(name).filter(|w| w.takes_hbone());
    let pods = workload.into_iter().flat_map(|w| {
        w.addresses.iter().map(|address| NetworkAddress { network: w.network.clone(), address: *address })
    });
    let service = mesh.service(&service_name(name));
    pods.chain(service.into_iter().flat_map(|service| service.addresses.iter().cloned())).collect()
}

/// The key of the service that discovery calls `name`.
fn service_name(name: &str) -> ServiceName {
    let (namespace, hostname) = name.split_once('/').unwrap_or(("", name));
    ServiceName { namespace: namespace.into(), hostname: hostname.into() }
}

fn read_address(name: &str, body: Bytes) -> Result<Resource, String> {
    let address = wire::Address::decode(body).map_err(|e| undecodable("Address", &e))?;
    let resource = address_from_proto(address).map_err(|e| e.to_string())?;
    let own = resource.name();
    if own == name { Ok(resource) } else { Err(format!("the resource is named {name:?} but calls itself {own:?}")) }
}

/// Closes what a refused resource describes: its previous version, and the parts of the new one that can be read. The
/// last good version must not stay open, because the refused one may be stricter. For example, a workload that spoke
/// plaintext and now wants HBONE would go on getting plaintext.
fn close_address(mesh: &mut Mesh, name: &str, address: Option<wire::Address>, reason: &str) {
    let mut known = false;
    if let Some(before) = mesh.workload(name).cloned() {
        mesh.upsert_workload(Arc::new(Workload { not_understood: Some(reason.into()), ..Workload::clone(&before) }));
        known = true;
    }
    let id = service_name(name);
    if let Some(before) = mesh.service(&id).cloned() {
        mesh.upsert_service(Arc::new(Service { not_understood: Some(reason.into()), ..Service::clone(&before) }));
        known = true;
    }
    match address.and_then(|address| address_stand_in(name, address, reason)) {
        Some(Resource::Workload(workload)) => mesh.upsert_workload(Arc::new(workload)),
        Some(Resource::Service(service)) => mesh.upsert_service(Arc::new(service)),
        None if known => {}
        None => {
            // A service's resource name contains its host name, which can be closed at least. A workload's has more
            // parts and says nothing.
            if name.matches('/').count() == 1 {
                mesh.upsert_service(Arc::new(Service {
                    not_understood: Some(reason.into()),
                    ..Service::new(id.namespace, "", id.hostname)
                }));
            }
            tracing::error!(
                name,
                "no address can be read of this resource, so connections to what it describes can't be told from those \
                 that leave the mesh, and pass as those do"
            );
        }
    }
}

fn undecodable(message: &'static str, error: &prost::DecodeError) -> String {
    ConvertError::Undecodable { message, reason: error.to_string() }.to_string()
}

/// The policy that an update brings. If it is refused, this is one that lets nobody in where it would have applied: the
/// last good version does not stay, because the refused one may be stricter.
fn read_policy(name: &Name, body: Bytes) -> (Option<Authorization>, Result<(), String>) {
    let decoded = security::Authorization::decode(body).map_err(|e| undecodable("Authorization", &e));
    let policy = decoded.as_ref().ok().cloned();
    let understood = decoded.and_then(|policy| {
        let policy = authorization_from_proto(policy).map_err(|e| e.to_string())?;
        if policy.id.to_string() == **name {
            Ok(policy)
        } else {
            Err(format!("the resource is named {name:?} but is policy {}", policy.id))
        }
    });
    match understood {
        Ok(policy) => (Some(policy), Ok(())),
        Err(reason) => (policy_stand_in(name, policy.as_ref(), &reason), Err(reason)),
    }
}

/// The policy that discovery calls `name`.
fn policy_name(name: &str) -> Option<PolicyName> {
    let (namespace, name) = name.split_once('/')?;
    Some(PolicyName { namespace: namespace.into(), name: name.into() })
}

/// Refused resources, as the control plane is told of them.
#[derive(Default)]
struct Refused(Vec<Rejection>);

impl Refused {
    fn add(&mut self, name: Name, reason: String) {
        tracing::warn!(%name, %reason, "refused a resource from the control plane; what it describes is closed");
        self.0.push(Rejection { name, reason });
    }
}

impl Feed {
    fn apply_addresses(&mut self, mesh: &mut Mesh, updates: Vec<Update>, refused: &mut Refused) -> Vec<Change> {
        let mut held = Vec::new();
        let mut changes = Vec::new();
        for update in updates {
            let (Update::Upsert { name, .. } | Update::Unreadable { name, .. } | Update::Remove { name }) = &update;
            let name = name.clone();
            if !matches!(update, Update::Unreadable { .. }) {
                held.extend(addresses_of(mesh, &name));
            }
            let before = mesh.workload(&name).cloned();
            match update {
                Update::Upsert { name, body } => {
                    if let Err(reason) = self.upsert_address(mesh, &name, body) {
                        refused.add(name, reason);
                    }
                }
                Update::Unreadable { name, reason } => {
                    close_address(mesh, &name, None, &reason);
                    refused.add(name, reason);
                }
                Update::Remove { name } => self.remove_address(mesh, &name),
            }
            if before.as_ref().map(Arc::as_ptr) != mesh.workload(&name).map(Arc::as_ptr) {
                changes.push(Change::Workload(name));
            }
        }
        held.retain(|NetworkAddress { network, address }| !mesh.has_address(network, *address));
        if !held.is_empty() {
            // Before the snapshot without them is published: at any moment an address must be found in one of the two.
            self.state.departed.left(held.into_iter().map(|held| held.address), Instant::now());
        }
        changes
    }

    fn apply_policies(&self, mesh: &mut Mesh, updates: Vec<Update>, refused: &mut Refused) -> Vec<Change> {
        let (mut removed, mut told) = (Vec::new(), Vec::new());
        for update in updates {
            let (name, policy, result) = match update {
                Update::Remove { name } => {
                    removed.extend(policy_name(&name));
                    continue;
                }
                Update::Upsert { name, body } => {
                    let (policy, result) = read_policy(&name, body);
                    (name, policy, result)
                }
                Update::Unreadable { name, reason } => {
                    (name.clone(), policy_stand_in(&name, None, &reason), Err(reason))
                }
            };
            told.extend(policy.map(Arc::new));
            if let Err(reason) = result {
                refused.add(name, reason);
            }
        }
        let change = mesh.change_policies(&removed, told);
        self.state.keep(change.kept);
        let policies = change.policies.into_iter().map(|(id, scope)| Change::Policy(id, scope));
        policies.chain(change.workloads.into_iter().map(Change::Workload)).collect()
    }
}

impl Handler for Feed {
    fn apply(&mut self, type_url: &str, updates: Vec<Update>) -> Vec<Rejection> {
        let policies = type_url == AUTHORIZATION_TYPE;
        const KNOWN: [&str; 6] = [
            AUTHORIZATION_TYPE,
            ADDRESS_TYPE,
            ROUTE_TYPE,
            REQUEST_POLICY_TYPE,
            ENDPOINT_POLICY_TYPE,
            REQUEST_DEFAULTS_TYPE,
        ];
        if !KNOWN.contains(&type_url) {
            return Vec::new();
        }
        let state = self.state.clone();
        let _writing = state.writing.lock();
        let mut mesh = Mesh::clone(&state.load());
        let mut refused = Refused::default();
        let changes = match type_url {
            AUTHORIZATION_TYPE => self.apply_policies(&mut mesh, updates, &mut refused),
            ADDRESS_TYPE => self.apply_addresses(&mut mesh, updates, &mut refused),
            _ => {
                let of_requests = match type_url {
                    ROUTE_TYPE => super::routes::apply,
                    ENDPOINT_POLICY_TYPE => super::endpoint_policies::apply,
                    REQUEST_DEFAULTS_TYPE => super::request_defaults::apply,
                    _ => super::request_policies::apply,
                };
                for (name, reason) in of_requests(&mut mesh, updates) {
                    refused.add(name, reason);
                }
                Vec::new()
            }
        };
        state.publish(mesh, policies, changes);
        refused.0
    }

    fn synced(&mut self, type_url: &str) {
        self.state.answered(type_url);
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
