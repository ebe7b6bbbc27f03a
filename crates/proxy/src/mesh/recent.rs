//! What the latest snapshots changed, so that who must look at something again looks at nothing else.

use std::collections::{HashSet, VecDeque};

use leno_model::{PolicyName, Scope, Workload, WorkloadUid};

/// Changes remembered, at most. Who comes later than that looks at everything once.
const MOST: usize = 4096;

/// One thing that is not what it was.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Change {
    /// A workload has come, has gone, or is another.
    Workload(WorkloadUid),
    /// A policy has, that had or has this scope.
    Policy(PolicyName, Scope),
    /// Nobody knows what.
    Something,
}

/// What has changed since a generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Changed {
    /// Nobody knows any more: perhaps all.
    Perhaps,
    /// These, and nothing else.
    These {
        /// Workloads that have come, have gone, or are others.
        workloads: HashSet<WorkloadUid>,
        /// Policies that have, and how far each reached before and reaches now.
        policies: HashSet<(PolicyName, Scope)>,
    },
}

impl Changed {
    /// Whether that workload may be another than before.
    pub fn concerns(&self, uid: &str) -> bool {
        match self {
            Self::Perhaps => true,
            Self::These { workloads, .. } => workloads.contains(uid),
        }
    }

    /// Whether who may connect to that workload may be others than before.
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
    /// The last generation of which not all is remembered.
    forgotten: u64,
}

impl Recent {
    /// What is in `generation` other than before.
    pub(crate) fn add(&mut self, generation: u64, changes: Vec<Change>) {
        if changes.len() > MOST || changes.contains(&Change::Something) {
            *self = Self { changes: VecDeque::new(), forgotten: generation };
            return;
        }
        self.changes.extend(changes.into_iter().map(|change| (generation, change)));
        while self.changes.len() > MOST {
            self.forgotten = self.changes.pop_front().map_or(generation, |(forgotten, _)| forgotten);
        }
    }

    /// What has changed since `generation`.
    pub(crate) fn since(&self, generation: u64) -> Changed {
        if generation < self.forgotten {
            return Changed::Perhaps;
        }
        let (mut workloads, mut policies) = (HashSet::new(), HashSet::new());
        for (_, change) in self.changes.iter().rev().take_while(|(of, _)| *of > generation) {
            match change {
                Change::Workload(uid) => drop(workloads.insert(uid.clone())),
                Change::Policy(id, scope) => drop(policies.insert((id.clone(), *scope))),
                Change::Something => return Changed::Perhaps,
            }
        }
        Changed::These { workloads, policies }
    }
}

#[cfg(test)]
#[path = "recent_tests.rs"]
mod tests;
