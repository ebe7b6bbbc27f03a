//! What discovery has told: the current [`Mesh`], and the feed that keeps it.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;
use leno_model::{
    Action, Authorization, Identity, Mesh, PolicyName, Rule, Scope, ServiceName, TunnelProtocol, Workload, WorkloadUid,
};
use leno_proto::{ADDRESS_TYPE, AUTHORIZATION_TYPE, Resource, address_from_proto, authorization_from_proto};
use leno_tls::CertificateManager;
use leno_xds::client::{Handler, Rejection, Update};
use prost::Message;
use tokio::sync::watch;

/// The mesh as this node knows it. Readers take one snapshot and keep it for a connection's
/// decisions, so that they see one consistent mesh.
#[derive(Default)]
pub(crate) struct MeshState {
    mesh: ArcSwap<Mesh>,
    changes: watch::Sender<Changes>,
}

/// What the latest snapshots changed, for those who must look at live connections again.
#[derive(Debug, Clone, Default)]
pub(crate) struct Changes {
    /// Counts snapshots.
    pub(crate) generation: u64,
    /// The last generation that changed a policy.
    pub(crate) policies: u64,
    /// Which types the control plane has answered at least once: addresses, policies.
    answered: (bool, bool),
}

impl MeshState {
    /// The current snapshot.
    pub(crate) fn load(&self) -> Arc<Mesh> {
        self.mesh.load_full()
    }

    /// Whether the control plane has told all it has, once. Before that, a workload may be known
    /// and the policies that guard it not: nothing may pass.
    pub(crate) fn is_complete(&self) -> bool {
        self.changes.borrow().answered == (true, true)
    }

    fn answered(&self, type_url: &str) {
        self.changes.send_modify(|changes| {
            changes.answered.0 |= type_url == ADDRESS_TYPE;
            changes.answered.1 |= type_url == AUTHORIZATION_TYPE;
        });
    }

    /// Wakes at every new snapshot.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Changes> {
        self.changes.subscribe()
    }

    fn publish(&self, mesh: Mesh, policies_changed: bool) {
        self.mesh.store(Arc::new(mesh));
        self.changes.send_modify(|changes| {
            changes.generation += 1;
            if policies_changed {
                changes.policies = changes.generation;
            }
        });
    }
}

/// Applies discovery responses to a [`MeshState`] and keeps certificates warm for the pods of
/// this node.
pub(crate) struct Feed {
    state: Arc<MeshState>,
    certificates: Arc<CertificateManager>,
    node: String,
    /// Enrolled workloads of this node by identity: the certificate is kept while one is left.
    local: HashMap<WorkloadUid, Identity>,
}

impl Feed {
    pub(crate) fn new(state: Arc<MeshState>, certificates: Arc<CertificateManager>, node: String) -> Self {
        Self { state, certificates, node, local: HashMap::new() }
    }

    fn upsert_address(&mut self, mesh: &mut Mesh, name: &str, body: Bytes) -> Result<(), String> {
        let address = leno_proto::workload::Address::decode(body).map_err(|e| e.to_string())?;
        match address_from_proto(address).map_err(|e| e.to_string())? {
            Resource::Workload(workload) => {
                if *workload.uid != *name {
                    return Err(format!("the resource is named {name:?} but its uid is {:?}", workload.uid));
                }
                self.track_local(&workload);
                mesh.upsert_workload(Arc::new(workload));
            }
            Resource::Service(service) => {
                if service.id.to_string() != name {
                    return Err(format!("the resource is named {name:?} but is service {}", service.id));
                }
                mesh.upsert_service(Arc::new(service));
            }
        }
        Ok(())
    }

    fn track_local(&mut self, workload: &Workload) {
        let hosted = *workload.node == *self.node
            && (workload.tunnel_protocol == TunnelProtocol::Hbone || workload.native_tunnel);
        match workload.identity().filter(|_| hosted) {
            Some(identity) => {
                self.certificates.warm(&identity);
                let before = self.local.insert(workload.uid.clone(), identity.clone());
                if let Some(before) = before.filter(|before| *before != identity) {
                    self.forget_unused(&before);
                }
            }
            None => self.untrack_local(&workload.uid),
        }
    }

    fn untrack_local(&mut self, uid: &str) {
        if let Some(identity) = self.local.remove(uid) {
            self.forget_unused(&identity);
        }
    }

    fn forget_unused(&self, identity: &Identity) {
        if !self.local.values().any(|used| used == identity) {
            self.certificates.forget(identity);
        }
    }

    fn remove_address(&mut self, mesh: &mut Mesh, name: &str) {
        if mesh.remove_workload(name) {
            self.untrack_local(name);
        } else if let Some((namespace, hostname)) = name.split_once('/') {
            mesh.remove_service(&ServiceName { namespace: namespace.into(), hostname: hostname.into() });
        }
    }
}

fn upsert_policy(mesh: &mut Mesh, name: &str, body: Bytes) -> Result<(), String> {
    let decoded = leno_proto::security::Authorization::decode(body);
    let scope = decoded.as_ref().ok().map(|policy| policy.scope());
    let understood = decoded.map_err(|e| e.to_string()).and_then(|policy| {
        let policy = authorization_from_proto(policy).map_err(|e| e.to_string())?;
        if policy.id.to_string() == name {
            Ok(policy)
        } else {
            Err(format!("the resource is named {name:?} but is policy {}", policy.id))
        }
    });
    match understood {
        Ok(policy) => mesh.upsert_policy(Arc::new(policy)),
        Err(reason) => {
            if let Some(closed) = stand_in(name, scope).filter(|closed| mesh.policy(&closed.id).is_none()) {
                mesh.upsert_policy(Arc::new(closed));
            }
            return Err(reason);
        }
    }
    Ok(())
}

/// What holds instead of a policy that can't be understood and has no last good form: nobody
/// gets in where it would have applied. Without it, what the policy was written to refuse would
/// pass.
fn stand_in(name: &str, scope: Option<leno_proto::security::Scope>) -> Option<Authorization> {
    use leno_proto::security::Scope as Wire;
    let (namespace, name) = name.split_once('/')?;
    Some(Authorization {
        id: PolicyName { namespace: namespace.into(), name: name.into() },
        scope: match scope {
            Some(Wire::Global) => Scope::Global,
            Some(Wire::WorkloadSelector) => Scope::WorkloadSelector,
            // Not even that could be read: its namespace is what its name tells.
            Some(Wire::Namespace) | None => Scope::Namespace,
        },
        action: Action::Deny,
        rules: vec![Rule::default()],
        dry_run: false,
    })
}

impl Handler for Feed {
    fn apply(&mut self, type_url: &str, updates: Vec<Update>) -> Vec<Rejection> {
        let policies = type_url == AUTHORIZATION_TYPE;
        if !policies && type_url != ADDRESS_TYPE {
            return Vec::new();
        }
        let mut mesh = Mesh::clone(&self.state.load());
        let mut rejections = Vec::new();
        for update in updates {
            match update {
                Update::Upsert { name, body } => {
                    let result = if policies {
                        upsert_policy(&mut mesh, &name, body)
                    } else {
                        self.upsert_address(&mut mesh, &name, body)
                    };
                    if let Err(reason) = result {
                        tracing::warn!(%name, %reason, "refused a resource from the control plane; the last good one stays");
                        rejections.push(Rejection { name, reason });
                    }
                }
                Update::Remove { name } if policies => {
                    if let Some((namespace, name)) = name.split_once('/') {
                        mesh.remove_policy(&PolicyName { namespace: namespace.into(), name: name.into() });
                    }
                }
                Update::Remove { name } => self.remove_address(&mut mesh, &name),
            }
        }
        self.state.publish(mesh, policies);
        rejections
    }

    fn synced(&mut self, type_url: &str) {
        self.state.answered(type_url);
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
