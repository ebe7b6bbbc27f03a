//! The policies of a mesh, and to whom each applies.
//!
//! A change of a policy and the change of the workloads that name it are told one after the other.
//! What this keeps beside the current policies bridges the time in between.

use std::sync::Arc;

use crate::index::{Index, hash};
use crate::{Authorization, Map, Name, PolicyName, Scope, Set, Workload, WorkloadUid};

/// All of them, by what they are looked up by.
#[derive(Debug, Clone, Default)]
pub(super) struct Policies {
    by_id: Index<Arc<Authorization>>,
    global: Map<PolicyName, Arc<Authorization>>,
    of_namespace: Map<Name, Map<PolicyName, Arc<Authorization>>>,
    // Which workloads name a policy, known or not.
    named_by: Map<PolicyName, Set<WorkloadUid>>,
    retired: Map<PolicyName, Retired>,
    /// Old versions, which applied by scope, of policies that reach only those who name them now.
    narrowed: Map<PolicyName, Arc<Authorization>>,
}

/// A policy that was removed.
#[derive(Debug, Clone)]
struct Retired {
    policy: Arc<Authorization>,
    /// Those that named it then, and name it still.
    named_by: Set<WorkloadUid>,
}

impl Policies {
    pub(super) fn get(&self, id: &PolicyName) -> Option<&Arc<Authorization>> {
        self.by_id.at(hash(id)).iter().find(|policy| policy.id == *id)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Authorization>> {
        self.by_id.values()
    }

    pub(super) fn of<'a>(
        &'a self,
        workload: &'a Workload,
    ) -> impl Iterator<Item = Result<&'a Arc<Authorization>, &'a PolicyName>> {
        let of_namespace = self.of_namespace.get(&workload.namespace).into_iter().flat_map(Map::values);
        let narrowed = self.narrowed.values().filter(|old| {
            // Who names it is covered by the new version.
            covers_by_scope(old, workload) && !workload.authorization_policies.contains(&old.id)
        });
        let named = workload.authorization_policies.iter();
        let named = named.map(|id| self.get(id).or_else(|| self.retired_for(workload, id)).ok_or(id));
        self.global.values().chain(of_namespace).chain(narrowed).map(Ok).chain(named)
    }

    fn retired_for(&self, workload: &Workload, id: &PolicyName) -> Option<&Arc<Authorization>> {
        let retired = self.retired.get(id)?;
        retired.named_by.contains_key(&workload.uid).then_some(&retired.policy)
    }

    pub(super) fn upsert(&mut self, policy: Arc<Authorization>) {
        self.remove(&policy.id);
        let id = policy.id.clone();
        match policy.scope {
            Scope::Global => {
                self.global.insert(id, policy.clone());
            }
            Scope::Namespace => {
                let namespace = id.namespace.clone();
                self.of_namespace.get_or_insert_with(namespace, Map::new).insert(id, policy.clone());
            }
            Scope::WorkloadSelector => {}
        }
        self.by_id.put(hash(&policy.id), policy);
    }

    pub(super) fn remove(&mut self, id: &PolicyName) -> bool {
        self.retired.remove(id);
        self.narrowed.remove(id);
        if self.get(id).is_none() {
            return false;
        }
        self.by_id.remove(hash(id), |policy| policy.id == *id);
        self.global.remove(id);
        if let Some(of_namespace) = self.of_namespace.get_mut(&id.namespace) {
            of_namespace.remove(id);
            if of_namespace.is_empty() {
                self.of_namespace.remove(&id.namespace);
            }
        }
        true
    }

    pub(super) fn retire(&mut self, id: &PolicyName) {
        // One that has been retired before is not here any more, and stays retired.
        let Some(policy) = self.get(id).cloned() else { return };
        self.remove(id);
        if let Some(named_by) = self.named_by.get(id).cloned() {
            self.retired.insert(id.clone(), Retired { policy, named_by });
        }
    }

    pub(super) fn retired(&self) -> usize {
        self.retired.values().map(|retired| retired.named_by.len()).sum()
    }

    pub(super) fn narrow(&mut self, policy: Arc<Authorization>) -> Option<Arc<Authorization>> {
        let id = policy.id.clone();
        let before = self.get(&id).filter(|before| before.scope != Scope::WorkloadSelector).cloned();
        // One that was narrowed a moment ago, and is told again with other content.
        let old = before.or_else(|| self.narrowed.get(&id).cloned());
        self.upsert(policy);
        if let Some(old) = &old {
            self.narrowed.insert(id, old.clone());
        }
        old
    }

    pub(super) fn narrowed(&self, id: &PolicyName) -> Option<&Arc<Authorization>> {
        self.narrowed.get(id)
    }

    pub(super) fn end_narrowing(&mut self, old: &Arc<Authorization>) -> bool {
        let is_it = self.narrowed.get(&old.id).is_some_and(|held| Arc::ptr_eq(held, old));
        is_it && self.narrowed.remove(&old.id).is_some()
    }

    pub(super) fn names(&mut self, uid: &WorkloadUid, id: &PolicyName) {
        self.named_by.get_or_insert_with(id.clone(), Set::new).insert(uid.clone(), ());
    }

    pub(super) fn names_no_more(&mut self, uid: &str, id: &PolicyName) {
        if let Some(named_by) = self.named_by.get_mut(id) {
            named_by.remove(uid);
            if named_by.is_empty() {
                self.named_by.remove(id);
            }
        }
        if let Some(retired) = self.retired.get_mut(id) {
            retired.named_by.remove(uid);
            if retired.named_by.is_empty() {
                self.retired.remove(id);
            }
        }
    }
}

/// Whether it applies to `workload` without being named by it.
fn covers_by_scope(policy: &Authorization, workload: &Workload) -> bool {
    match policy.scope {
        Scope::Global => true,
        Scope::Namespace => policy.id.namespace == workload.namespace,
        Scope::WorkloadSelector => false,
    }
}
