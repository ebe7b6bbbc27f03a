//! The workload that this process is, as the control plane tells of it.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use leno_model::{Mesh, Workload, WorkloadUid};
use leno_policy::NotUnderstood;
use leno_proxy::mesh::MeshState;
use leno_proxy::peers::headers;
use leno_tunnel::timers;
use parking_lot::Mutex;

use crate::config::Config;
use crate::failure::Failure;

/// The own workload.
pub(crate) struct Own {
    state: Arc<MeshState>,
    node: String,
    namespace: String,
    name: String,
    account: String,
    patience: Duration,
    /// Its UID, so that it need not be searched again.
    uid: Mutex<Option<WorkloadUid>>,
    /// The latest description for peers, with the workload it was made from.
    baggage: Mutex<Option<(Arc<Workload>, Option<HeaderValue>)>>,
}

impl Own {
    pub(crate) fn new(state: Arc<MeshState>, config: &Config) -> Self {
        Self {
            state,
            node: config.proxy.node.clone(),
            namespace: config.proxy.pod_namespace.clone(),
            name: config.proxy.pod_name.clone(),
            account: config.waypoint.service_account.clone(),
            patience: config.proxy.workload_timeout,
            uid: Mutex::default(),
            baggage: Mutex::default(),
        }
    }

    /// The current mesh and the own workload in it, if everything has been told once.
    pub(crate) fn now(&self) -> Option<(Arc<Mesh>, Arc<Workload>)> {
        let mesh = self.state.load();
        let is_it = |workload: &&Arc<Workload>| {
            *workload.name == *self.name
                && *workload.namespace == *self.namespace
                && *workload.service_account == *self.account
        };
        let mut uid = self.uid.lock();
        if let Some(workload) = uid.as_ref().and_then(|uid| mesh.workload(uid)).filter(is_it) {
            let workload = workload.clone();
            return Some((mesh, workload));
        }
        // Before that, a policy or route may be missing.
        if !self.state.is_complete() {
            return None;
        }
        let workload = mesh.workload_on_node(&self.node, &self.namespace, &self.name, &self.account)?.clone();
        *uid = Some(workload.uid.clone());
        drop(uid);
        Some((mesh, workload))
    }

    /// As [`Self::now`]; waits for the control plane to tell.
    pub(crate) async fn workload(&self) -> Result<(Arc<Mesh>, Arc<Workload>), Failure> {
        let found = self.until(|mesh, own| Some((mesh.clone(), own.clone()))).await;
        let found = found.ok_or_else(|| Failure::UnknownWorkload {
            pod: format!("{}/{}", self.namespace, self.name),
            waited: self.patience,
        })?;
        NotUnderstood::workload(&found.1).map_err(|error| Failure::NotUnderstood(Arc::new(error)))?;
        Ok(found)
    }

    /// What `look` finds, in the current mesh or in one that comes soon.
    pub(crate) async fn until<T>(&self, mut look: impl FnMut(&Arc<Mesh>, &Arc<Workload>) -> Option<T>) -> Option<T> {
        let mut now = || self.now().and_then(|(mesh, own)| look(&mesh, &own));
        if let Some(found) = now() {
            return Some(found);
        }
        let mut changes = self.state.subscribe();
        let found = timers::timeout(self.patience, async {
            loop {
                if let Some(found) = now() {
                    return Some(found);
                }
                changes.changed().await.ok()?;
            }
        });
        found.await.ok().flatten()
    }

    /// The description of the own workload for peers.
    pub(crate) fn baggage(&self, own: &Arc<Workload>) -> Option<HeaderValue> {
        let mut last = self.baggage.lock();
        if let Some((of, baggage)) = &*last
            && Arc::ptr_eq(of, own)
        {
            return baggage.clone();
        }
        let baggage = headers::baggage(own);
        *last = Some((own.clone(), baggage.clone()));
        baggage
    }
}
