//! The policies about requests of a mesh, by what they are attached to.

use std::sync::Arc;

use crate::http::{Policy, PolicyTarget};
use crate::{Map, PolicyName};

/// All of them.
#[derive(Debug, Clone, Default)]
pub(super) struct RequestPolicies {
    by_name: Map<PolicyName, Arc<Policy>>,
    by_target: Map<PolicyTarget, Map<PolicyName, Arc<Policy>>>,
}

impl RequestPolicies {
    pub(super) fn get(&self, id: &PolicyName) -> Option<&Arc<Policy>> {
        self.by_name.get(id)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Policy>> {
        self.by_name.values()
    }

    pub(super) fn of(&self, target: &PolicyTarget) -> Option<&Map<PolicyName, Arc<Policy>>> {
        self.by_target.get(target)
    }

    pub(super) fn upsert(&mut self, policy: Arc<Policy>) {
        self.remove(&policy.id);
        for target in &policy.targets {
            let of_target = self.by_target.get_or_insert_with(target.clone(), Map::default);
            of_target.insert(policy.id.clone(), policy.clone());
        }
        self.by_name.insert(policy.id.clone(), policy);
    }

    pub(super) fn remove(&mut self, id: &PolicyName) -> bool {
        let Some(old) = self.by_name.remove(id) else { return false };
        for target in &old.targets {
            if let Some(of_target) = self.by_target.get_mut(target) {
                of_target.remove(id);
                if of_target.is_empty() {
                    self.by_target.remove(target);
                }
            }
        }
        true
    }
}
