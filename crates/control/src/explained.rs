//! What would happen to a connection, with what only those know who read the objects: what of a policy is not checked as it is
//! written, and which policies no proxy is told of.

use std::collections::{BTreeMap, BTreeSet};

use leno_model::http::PolicyTarget;
use leno_model::{Mesh, PolicyName, Transport};
use leno_objects::{Kind, ObjectKey};
use leno_policy::explain::{Explanation, explain_request};
use leno_policy::explain_groups;
pub use leno_policy::explain_request::Asked;
use leno_policy::explain_udp::explain_udp;

use crate::lookup;
use crate::status::Status;

/// Words that a finding has which says that something of a policy is not checked as it is written.
const UNCHECKED: [&str; 5] =
    ["needs a waypoint", "is DENIED", "are DENIED", "no rule is left", "the version before stays in force"];

/// The answer to "what would happen to a connection?".
#[derive(Debug, Clone)]
pub struct Explained {
    /// One for each address that the destination may stand for.
    pub explanations: Vec<Explanation>,
    /// Policies about the destination's pods that no node proxy is told of, with the reason.
    never: Vec<(String, String)>,
    /// The policies that the explanations name, and those for which others stand in.
    policies: BTreeSet<PolicyName>,
}

/// Explains a connection from `source` (`NAMESPACE/NAME`) to `destination` (`NAME:PORT`), and a request on it if one is asked
/// about, in a mesh about whose objects this was found.
///
/// # Errors
/// If source or destination mean nothing.
pub fn explained(
    mesh: &Mesh,
    findings: &BTreeMap<ObjectKey, Status>,
    source: &str,
    destination: &str,
    asked: Option<&Asked>,
) -> Result<Explained, lookup::Error> {
    let source = lookup::source(mesh, source)?;
    let target = lookup::destination(mesh, &source, destination)?;
    let one = |to| match target.transport {
        Transport::Tcp => explain_request(mesh, &source, to, asked),
        Transport::Udp => explain_udp(mesh, &source, to),
    };
    let mut explanations: Vec<_> = target.destinations.iter().cloned().map(one).collect();
    explanations.iter_mut().for_each(|explanation| unchecked_rules(mesh, explanation, findings));
    let never = never_enforced(&explanations, findings);
    let policies = asked_policies(mesh, &explanations);
    Ok(Explained { explanations, never, policies })
}

impl Explained {
    /// The explanations in words.
    pub fn text(&self) -> String {
        explain_groups::text(&self.explanations)
    }

    /// Whether a policy was asked, or another one that stands in for it.
    pub fn names_policy(&self, policy: &PolicyName) -> bool {
        self.policies.contains(policy)
    }

    /// Which policies are not in force, a line for each.
    pub fn not_in_force(&self) -> String {
        let lines =
            self.never.iter().map(|(policy, why)| format!("not in force: AuthorizationPolicy {policy}: {why}\n"));
        lines.collect()
    }
}

/// Notes at each policy that was asked which of its rules were dropped, and what follows.
fn unchecked_rules(mesh: &Mesh, explanation: &mut Explanation, findings: &BTreeMap<ObjectKey, Status>) {
    let said_of = |namespace: &str, name: &str| {
        let key = ObjectKey::new(Kind::AuthorizationPolicy, namespace, name);
        findings.get(&key).into_iter().flat_map(Status::findings).map(ToString::to_string).collect::<Vec<_>>()
    };
    for endpoint in explanation.all_endpoints_mut() {
        for check in endpoint.arrival.iter_mut().flat_map(|arrival| &mut arrival.policies) {
            let Some((namespace, name)) = check.policy.split_once('/') else { continue };
            let id = PolicyName { namespace: namespace.into(), name: name.into() };
            let said = said_of(namespace, name).into_iter();
            let unchecked: Vec<_> =
                said.filter(|finding| UNCHECKED.iter().any(|words| finding.contains(words))).collect();
            check.notes.extend(unchecked);
            let Some(service) = id.stands_in_for() else { continue };
            for policy in attached(mesh, namespace, service) {
                check.notes.push(format!("it stands in for {policy}"));
                check.notes.extend(said_of(&policy.namespace, &policy.name));
            }
        }
    }
}

fn asked_policies(mesh: &Mesh, explanations: &[Explanation]) -> BTreeSet<PolicyName> {
    let named = explanations.iter().flat_map(Explanation::policies).filter_map(|policy| policy.split_once('/'));
    let mut all: BTreeSet<_> =
        named.map(|(namespace, name)| PolicyName { namespace: namespace.into(), name: name.into() }).collect();
    for stand_in in all.clone() {
        if let Some(service) = stand_in.stands_in_for() {
            all.extend(attached(mesh, &stand_in.namespace, service).cloned());
        }
    }
    all
}

/// The policies that are attached to a service.
fn attached<'m>(mesh: &'m Mesh, namespace: &str, service: &str) -> impl Iterator<Item = &'m PolicyName> {
    let services = mesh.services().find(|it| *it.id.namespace == *namespace && *it.name == *service);
    let attached = services.and_then(|it| mesh.request_policies_of(&PolicyTarget::Service(it.id.clone())));
    attached.into_iter().flat_map(|policies| policies.keys())
}

fn never_enforced(explanations: &[Explanation], findings: &BTreeMap<ObjectKey, Status>) -> Vec<(String, String)> {
    let pods =
        explanations.iter().flat_map(Explanation::all_endpoints).filter_map(|endpoint| endpoint.workload.as_ref());
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
