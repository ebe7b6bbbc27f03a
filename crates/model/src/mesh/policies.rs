//! The policies of a mesh, and which workloads each applies to.

use std::sync::Arc;

use super::kept::{Kept, KeptFor, KeptPolicies, PolicyChange, Release};
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
    kept: KeptPolicies,
}

impl Policies {
    pub(super) fn get(&self, id: &PolicyName) -> Option<&Arc<Authorization>> {
        find(&self.by_id, id)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Authorization>> {
        self.by_id.values()
    }

    pub(super) fn of<'a>(
        &'a self,
        workload: &'a Workload,
    ) -> impl Iterator<Item = Result<&'a Arc<Authorization>, &'a PolicyName>> {
        let of_namespace = self.of_namespace.get(&workload.namespace).into_iter().flat_map(Map::values);
        let replaced = self.kept.replaced_for(workload);
        let released = self.kept.released_from(&workload.uid).filter_map(|id| self.get(id));
        let named = workload.authorization_policies.iter();
        let named = named.map(|id| self.get(id).or_else(|| self.kept.retired_for(&workload.uid, id)).ok_or(id));
        self.global.values().chain(of_namespace).chain(replaced).chain(released).map(Ok).chain(named)
    }

    pub(super) fn kept(&self) -> impl Iterator<Item = (&Arc<Authorization>, KeptFor<'_>)> {
        self.kept.all(|id| self.get(id))
    }

    pub(super) fn upsert(&mut self, policy: Arc<Authorization>) {
        self.remove(&policy.id);
        self.put(policy);
    }

    pub(super) fn remove(&mut self, id: &PolicyName) -> bool {
        self.kept.changes(id);
        self.kept.is_replaced_no_more(id);
        self.take_out(id).is_some()
    }

    /// The changes of one message: what is removed, then what is new or other than before.
    pub(super) fn change(&mut self, removed: &[PolicyName], told: Vec<Arc<Authorization>>) -> PolicyChange {
        let before = self.by_id.clone();
        let mut change = PolicyChange::default();
        // Versions that applied by scope, and the policies that apply to those who name them now, and did not before.
        let (mut by_scope, mut successors) = (Vec::new(), Set::new());
        for id in removed {
            // One that has been retired before is not here any more, and stays retired.
            let Some(old) = self.take_out(id) else { continue };
            change.workloads.append(&mut self.kept.changes(id));
            change.policies.push((id.clone(), old.scope));
            if let Some(named_by) = self.named_by.get(id).cloned() {
                self.kept.retire(old.clone(), named_by);
            }
            by_scope.extend(applies_by_scope(&old).then_some(old));
        }
        for new in told {
            let id = &new.id;
            if self.get(id).is_some_and(|held| **held == *new) {
                continue;
            }
            change.workloads.append(&mut self.kept.changes(id));
            let old = self.take_out(id);
            change.policies.extend(old.iter().chain([&new]).map(|policy| (id.clone(), policy.scope)));
            if applies_by_scope(&new) {
                let scope = self.kept.is_replaced_no_more(id);
                change.policies.extend(scope.map(|scope| (id.clone(), scope)));
                by_scope.retain(|old| old.id != *id);
            } else {
                by_scope.extend(old.filter(|old| applies_by_scope(old)));
                if find(&before, id).is_none_or(|before| applies_by_scope(before)) {
                    successors.insert(id.clone(), ());
                }
            }
            self.put(new);
        }
        if successors.is_empty() {
            for id in removed {
                let scope = self.kept.is_replaced_no_more(id);
                change.policies.extend(scope.map(|scope| (id.clone(), scope)));
            }
        } else {
            for old in self.kept.replace(removed, by_scope, &successors) {
                change.policies.push((old.id.clone(), old.scope));
                change.kept.push(Kept::Replaced(old));
            }
        }
        change
    }

    fn put(&mut self, policy: Arc<Authorization>) {
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

    fn take_out(&mut self, id: &PolicyName) -> Option<Arc<Authorization>> {
        let policy = self.get(id).cloned()?;
        self.by_id.remove(hash(id), |policy| policy.id == *id);
        self.global.remove(id);
        if let Some(of_namespace) = self.of_namespace.get_mut(&id.namespace) {
            of_namespace.remove(id);
            if of_namespace.is_empty() {
                self.of_namespace.remove(&id.namespace);
            }
        }
        Some(policy)
    }

    /// What is to be kept for a workload that is about to name these policies no more.
    pub(super) fn released(&self, uid: &WorkloadUid, ids: &[&PolicyName]) -> Vec<Arc<Release>> {
        // One of them was removed before, so the policies of this change have come already.
        if ids.iter().any(|id| self.kept.retired_for(uid, id).is_some()) {
            return Vec::new();
        }
        let may_apply_by_scope = |id: &&&PolicyName| {
            // "Mutual TLS is required" always is for those who name it. Not to require it takes effect at once.
            !id.is_static_strict() && self.get(id).is_some_and(|policy| !applies_by_scope(policy))
        };
        let ids = ids.iter().filter(may_apply_by_scope);
        ids.map(|id| Arc::new(Release { policy: PolicyName::clone(id), workload: uid.clone() })).collect()
    }

    pub(super) fn release(&mut self, release: Arc<Release>) {
        self.kept.release(release);
    }

    pub(super) fn end(&mut self, kept: &Kept) -> bool {
        self.kept.end(kept)
    }

    pub(super) fn names(&mut self, uid: &WorkloadUid, id: &PolicyName) {
        self.named_by.get_or_insert_with(id.clone(), Set::new).insert(uid.clone(), ());
        self.kept.names(uid, id);
    }

    pub(super) fn names_no_more(&mut self, uid: &str, id: &PolicyName) {
        if let Some(named_by) = self.named_by.get_mut(id) {
            named_by.remove(uid);
            if named_by.is_empty() {
                self.named_by.remove(id);
            }
        }
        self.kept.names_no_more(uid, id);
    }

    /// Nothing is kept for this workload any more.
    pub(super) fn forget(&mut self, uid: &str) {
        self.kept.forget(uid);
    }
}

fn find<'a>(by_id: &'a Index<Arc<Authorization>>, id: &PolicyName) -> Option<&'a Arc<Authorization>> {
    by_id.at(hash(id)).iter().find(|policy| policy.id == *id)
}

fn applies_by_scope(policy: &Authorization) -> bool {
    policy.scope != Scope::WorkloadSelector
}
