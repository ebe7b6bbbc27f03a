//! The changes of the latest snapshots, so that only what they affect must be looked at again.

use std::collections::{HashSet, VecDeque};

use leno_model::{PolicyName, Scope, Workload, WorkloadUid};

/// Most changes that are remembered. A reader that is further behind looks at everything once.
const MOST: usize = 4096;

/// A change of one object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Change {
    /// A workload was added, removed or replaced.
    Workload(WorkloadUid),
    /// A policy was added, removed or replaced. It has, or had, this scope.
    Policy(PolicyName, Scope),
}

/// The changes since a generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Changed {
    /// Unknown: everything may have changed.
    Perhaps,
    /// Exactly these.
    These {
        /// Workloads that were added, removed or replaced.
        workloads: HashSet<WorkloadUid>,
        /// Policies that were added, removed or replaced, with their old and new scopes.
        policies: HashSet<(PolicyName, Scope)>,
    },
}

impl Changed {
    /// Whether this workload may have changed.
    pub fn concerns(&self, uid: &str) -> bool {
        match self {
            Self::Perhaps => true,
            Self::These { workloads, .. } => workloads.contains(uid),
        }
    }

    /// Whether the set of peers that may connect to this workload may have changed.
    pub fn concerns_access_to(&self, workload: &Workload) -> bool {
        let Self::These { workloads, policies } = self else { return true };
        let applies = |(id, scope): &(PolicyName, Scope)| match scope {
            Scope::Global => true,
            Scope::Namespace => id.namespace == workload.namespace,
            Scope::WorkloadSelector => false,
        };
        workloads.contains(&workload.uid)
            || policies.iter().any(|policy| applies(policy) || workload.authorization_policies.contains(&policy.0))
    }
}

/// The changes of the latest generations, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    changes: VecDeque<(u64, Change)>,
    /// The latest generation whose changes are not all remembered.
    forgotten: u64,
}

impl Recent {
    /// Adds the changes that `generation` made.
    pub(crate) fn add(&mut self, generation: u64, changes: Vec<Change>) {
        if changes.len() > MOST {
            *self = Self { changes: VecDeque::new(), forgotten: generation };
            return;
        }
        self.changes.extend(changes.into_iter().map(|change| (generation, change)));
        while self.changes.len() > MOST {
            self.forgotten = self.changes.pop_front().map_or(generation, |(forgotten, _)| forgotten);
        }
    }

    /// The changes since `generation`.
    pub(crate) fn since(&self, generation: u64) -> Changed {
        if generation < self.forgotten {
            return Changed::Perhaps;
        }
        let (mut workloads, mut policies) = (HashSet::new(), HashSet::new());
        for (_, change) in self.changes.iter().rev().take_while(|(of, _)| *of > generation) {
            match change {
                Change::Workload(uid) => drop(workloads.insert(uid.clone())),
                Change::Policy(id, scope) => drop(policies.insert((id.clone(), *scope))),
            }
        }
        Changed::These { workloads, policies }
    }
}

#[cfg(test)]
#[path = "recent_tests.rs"]
mod tests;
