//! What is added to an explanation that only who reads the manifests knows: what of a policy is not checked here, and what is
//! about the two pods and not in force.

use std::collections::{BTreeMap, BTreeSet};

use leno_control::status::Status;
use leno_objects::{Kind, ObjectKey};
use leno_policy::explain::Explanation;

use crate::stage::listing::PassedOverListing;

/// Words that a finding has which says that something of a policy is not checked as it is written.
const UNCHECKED: [&str; 4] = ["needs a waypoint", "is DENIED", "are DENIED", "no rule is left"];

/// Notes at each policy that was asked which of its rules were dropped, and what follows.
pub(crate) fn unchecked_rules(explanation: &mut Explanation, findings: &BTreeMap<ObjectKey, Status>) {
    for endpoint in &mut explanation.endpoints {
        for check in endpoint.arrival.iter_mut().flat_map(|arrival| &mut arrival.policies) {
            let Some((namespace, name)) = check.policy.split_once('/') else { continue };
            let key = ObjectKey::new(Kind::AuthorizationPolicy, namespace, name);
            let said = findings.get(&key).into_iter().flat_map(Status::findings).map(|finding| finding.to_string());
            check.notes.extend(said.filter(|finding| UNCHECKED.iter().any(|words| finding.contains(words))));
        }
    }
}

/// The policies in the namespaces of the destination's pods that no node proxy is told of, with the reason.
pub(crate) fn never_enforced(
    explanations: &[Explanation],
    findings: &BTreeMap<ObjectKey, Status>,
) -> Vec<(String, String)> {
    let pods = explanations.iter().flat_map(|one| &one.endpoints).filter_map(|endpoint| endpoint.workload.as_ref());
    let namespaces: BTreeSet<&str> = pods.filter_map(|pod| Some(pod.workload.split_once('/')?.0)).collect();
    let mut found = Vec::new();
    for (key, status) in findings {
        if key.kind != Kind::AuthorizationPolicy || !namespaces.contains(&*key.namespace) {
            continue;
        }
        let said = status.findings().map(|finding| finding.to_string());
        let never = said.filter(|finding| finding.contains("NOT enforced") || finding.contains("has no effect"));
        found.extend(never.map(|finding| (format!("{}/{}", key.namespace, key.name), finding)));
    }
    found
}

/// What is not in force and about one of the pods of these explanations; each names only those of them.
pub(crate) fn passed_over_for(explanations: &[Explanation], all: &[PassedOverListing]) -> Vec<PassedOverListing> {
    let mut pods: BTreeSet<&str> = BTreeSet::new();
    for explanation in explanations {
        pods.insert(&explanation.source.workload);
        pods.extend(
            explanation.endpoints.iter().filter_map(|endpoint| Some(endpoint.workload.as_ref()?.workload.as_str())),
        );
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
