//! What is added to an explanation that only a stage knows: what is in the manifests about the two pods and not in force.

use std::collections::BTreeSet;

use leno_policy::explain::Explanation;

use crate::stage::listing::PassedOverListing;

/// What is not in force and about one of the pods of these explanations; each names only those of them.
pub(crate) fn passed_over_for(explanations: &[Explanation], all: &[PassedOverListing]) -> Vec<PassedOverListing> {
    let mut pods: BTreeSet<&str> = BTreeSet::new();
    for explanation in explanations {
        pods.insert(&explanation.source.workload);
        let workloads = explanation.all_endpoints().filter_map(|endpoint| endpoint.workload.as_ref());
        pods.extend(workloads.map(|workload| workload.workload.as_str()));
    }
    let mut found = Vec::new();
    for one in all {
        let concerned: Vec<String> = one.pods.iter().filter(|pod| pods.contains(pod.as_str())).cloned().collect();
        if !concerned.is_empty() {
            found.push(PassedOverListing { pods: concerned, ..one.clone() });
        }
    }
    found
}
