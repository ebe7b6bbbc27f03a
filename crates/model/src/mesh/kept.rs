//! Policies that go on to count for some workloads after the change that was to end this.
//!
//! A control plane tells of policies and of the workloads that name them in separate messages, in any order. Between
//! the two, a workload would be covered neither by the old policies nor by the new ones.

use std::sync::Arc;

use crate::{Authorization, Map, PolicyName, Scope, Set, Workload, WorkloadUid};

/// A policy that goes on to count until it is ended with [`Mesh::end`](crate::Mesh::end).
#[derive(Debug, Clone)]
pub enum Kept {
    /// A policy that applied by scope, in its last version, for workloads that may yet have to name its successor.
    Replaced(Arc<Authorization>),
    /// A policy for a workload that named it, and that it may yet have to reach by scope.
    Released(Arc<Release>),
}

/// A workload names a policy no more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    /// The policy, which is unchanged since.
    pub policy: PolicyName,
    /// The workload.
    pub workload: WorkloadUid,
}

/// Why a policy goes on to count, and for whom.
#[derive(Debug, Clone, Copy)]
pub enum KeptFor<'a> {
    /// It was removed, and these workloads named it then and name it still.
    Naming(&'a Set<WorkloadUid>),
    /// It applied by scope. It counts for the workloads of that scope that name none of these policies yet.
    NotYetNaming(&'a Set<PolicyName>),
    /// These workloads named it until a while ago.
    NamedBefore(&'a Set<WorkloadUid>),
}

/// What a change of policies came to.
#[derive(Debug, Clone, Default)]
pub struct PolicyChange {
    /// Policies that were added, replaced, removed or that ceased to be kept, each with every scope that it has or had.
    pub policies: Vec<(PolicyName, Scope)>,
    /// Workloads for which a policy ceased to be kept.
    pub workloads: Vec<WorkloadUid>,
    /// Policies that go on to count. Each is to be ended, at the latest when workloads had time to be told of.
    pub kept: Vec<Kept>,
}

/// All that are kept.
#[derive(Debug, Clone, Default)]
pub(super) struct KeptPolicies {
    retired: Map<PolicyName, Retired>,
    replaced: Map<PolicyName, Replaced>,
    released: Map<WorkloadUid, Map<PolicyName, Arc<Release>>>,
    released_from: Map<PolicyName, Set<WorkloadUid>>,
}

/// A policy that was removed.
#[derive(Debug, Clone)]
struct Retired {
    policy: Arc<Authorization>,
    /// Those that named it then, and name it still.
    named_by: Set<WorkloadUid>,
}

/// A policy that applied by scope.
#[derive(Debug, Clone)]
struct Replaced {
    policy: Arc<Authorization>,
    /// Who names one of these has been told of the change.
    successors: Set<PolicyName>,
}

impl Replaced {
    fn covers(&self, workload: &Workload) -> bool {
        let told = |id: &PolicyName| *id == self.policy.id || self.successors.contains_key(id);
        covers_by_scope(&self.policy, workload) && !workload.authorization_policies.iter().any(told)
    }
}

impl KeptPolicies {
    /// The last version of a policy that was removed, if it counts for this workload.
    pub(super) fn retired_for(&self, uid: &str, id: &PolicyName) -> Option<&Arc<Authorization>> {
        let retired = self.retired.get(id)?;
        retired.named_by.contains_key(uid).then_some(&retired.policy)
    }

    pub(super) fn replaced_for<'a>(&'a self, workload: &'a Workload) -> impl Iterator<Item = &'a Arc<Authorization>> {
        self.replaced.values().filter(|old| old.covers(workload)).map(|old| &old.policy)
    }

    pub(super) fn released_from<'a>(&'a self, uid: &str) -> impl Iterator<Item = &'a PolicyName> + use<'a> {
        self.released.get(uid).into_iter().flat_map(Map::keys)
    }

    /// All of them. `held` are the policies that workloads were released from: those are kept elsewhere.
    pub(super) fn all<'a>(
        &'a self,
        held: impl Fn(&PolicyName) -> Option<&'a Arc<Authorization>>,
    ) -> impl Iterator<Item = (&'a Arc<Authorization>, KeptFor<'a>)> {
        let retired = self.retired.values().map(|one| (&one.policy, KeptFor::Naming(&one.named_by)));
        let replaced = self.replaced.values().map(|one| (&one.policy, KeptFor::NotYetNaming(&one.successors)));
        let released =
            self.released_from.iter().filter_map(move |(id, from)| Some((held(id)?, KeptFor::NamedBefore(from))));
        retired.chain(replaced).chain(released)
    }

    pub(super) fn retire(&mut self, policy: Arc<Authorization>, named_by: Set<WorkloadUid>) {
        self.retired.insert(policy.id.clone(), Retired { policy, named_by });
    }

    /// Ends whatever is kept of this policy, except that it was replaced.
    pub(super) fn changes(&mut self, id: &PolicyName) -> Vec<WorkloadUid> {
        self.retired.remove(id);
        let released = self.released_from.get(id).map(|from| from.keys().cloned().collect::<Vec<_>>());
        let released = released.unwrap_or_default();
        // The message that changes one of the policies that a workload named brings all that it was told ahead of.
        released.iter().for_each(|uid| self.forget(uid));
        released
    }

    /// It applies by scope again, or is gone.
    pub(super) fn is_replaced_no_more(&mut self, id: &PolicyName) -> Option<Scope> {
        self.replaced.remove(id).map(|old| old.policy.scope)
    }

    /// Keeps policies that applied by scope, now that those which follow them apply to the workloads that name them.
    pub(super) fn replace(
        &mut self,
        removed: &[PolicyName],
        by_scope: Vec<Arc<Authorization>>,
        successors: &Set<PolicyName>,
    ) -> Vec<Arc<Authorization>> {
        // Whose successor is replaced in turn has one more, and begins anew.
        let is_again =
            |old: &Replaced| removed.iter().any(|id| *id == old.policy.id || old.successors.contains_key(id));
        let again: Vec<_> = self.replaced.values().filter(|old| is_again(old)).cloned().collect();
        let again = again.into_iter().map(|mut old| {
            old.successors.extend(successors.iter().map(|(id, ())| (id.clone(), ())));
            old
        });
        let begin = by_scope.into_iter().map(|policy| Replaced { policy, successors: successors.clone() });
        let kept: Vec<_> = again.chain(begin).collect();
        for old in &kept {
            self.replaced.insert(old.policy.id.clone(), old.clone());
        }
        kept.into_iter().map(|old| old.policy).collect()
    }

    pub(super) fn release(&mut self, release: Arc<Release>) {
        let Release { policy, workload } = &*release;
        self.released_from.get_or_insert_with(policy.clone(), Set::new).insert(workload.clone(), ());
        self.released.get_or_insert_with(workload.clone(), Map::new).insert(policy.clone(), release.clone());
    }

    pub(super) fn names(&mut self, uid: &WorkloadUid, id: &PolicyName) {
        let release = self.released.get(uid).and_then(|of| of.get(id)).cloned();
        release.iter().for_each(|release| self.end_release(release));
    }

    pub(super) fn names_no_more(&mut self, uid: &str, id: &PolicyName) {
        if let Some(retired) = self.retired.get_mut(id) {
            retired.named_by.remove(uid);
            if retired.named_by.is_empty() {
                self.retired.remove(id);
            }
        }
    }

    /// The workload is released from nothing any more.
    pub(super) fn forget(&mut self, uid: &str) {
        let releases = self.released.get(uid).map(|of| of.values().cloned().collect::<Vec<_>>());
        releases.iter().flatten().for_each(|release| self.end_release(release));
    }

    /// Whether it was kept.
    pub(super) fn end(&mut self, kept: &Kept) -> bool {
        match kept {
            Kept::Replaced(old) => {
                let is_it = self.replaced.get(&old.id).is_some_and(|held| Arc::ptr_eq(&held.policy, old));
                is_it && self.replaced.remove(&old.id).is_some()
            }
            Kept::Released(release) => {
                let held = self.released.get(&release.workload).and_then(|of| of.get(&release.policy));
                let is_it = held.is_some_and(|held| Arc::ptr_eq(held, release));
                if is_it {
                    self.end_release(release);
                }
                is_it
            }
        }
    }

    fn end_release(&mut self, release: &Release) {
        if let Some(of) = self.released.get_mut(&release.workload) {
            of.remove(&release.policy);
            if of.is_empty() {
                self.released.remove(&release.workload);
            }
        }
        if let Some(from) = self.released_from.get_mut(&release.policy) {
            from.remove(&release.workload);
            if from.is_empty() {
                self.released_from.remove(&release.policy);
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
