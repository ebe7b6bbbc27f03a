//! What an installation needs of a cluster.

use http::StatusCode;
use leno_kubernetes::Client;
use serde_json::{Value, json};

use super::{Finding, Outcome, is_allowed};
use crate::cluster::{meshes, missing_version};
use crate::release;

const CATEGORY: &str = "cluster";

pub(super) const REACHABLE: &str = "the API server answers";

/// The oldest minor version of Kubernetes 1 that the chart's objects fit: AppArmor profiles are a field since then.
const OLDEST_MINOR: u64 = 30;

/// That there is an API server, and that it is new enough.
pub(super) async fn reachable(client: &Client) -> Vec<Finding> {
    let answers = Finding::ok(CATEGORY, REACHABLE);
    match client.get::<Value>("/version").await {
        Ok(version) => vec![answers, new_enough(&version)],
        Err(error) => {
            let hint = match error.status() {
                Some(StatusCode::UNAUTHORIZED) => {
                    "log in again, or name a kubeconfig that is known there with --kubeconfig"
                }
                Some(StatusCode::FORBIDDEN) => {
                    "have the right granted to read /version, which everybody has by default"
                }
                _ => "name a cluster that runs with --kubeconfig or --context",
            };
            vec![answers.but(Outcome::Failed, error.to_string(), hint)]
        }
    }
}

pub(super) fn new_enough(version: &Value) -> Finding {
    let check = Finding::ok(CATEGORY, format!("Kubernetes is 1.{OLDEST_MINOR} or newer"));
    // Some vendors write `30+`.
    let number = |field: &str| {
        let digits: String =
            version[field].as_str().unwrap_or_default().chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u64>().unwrap_or(0)
    };
    if (number("major"), number("minor")) >= (1, OLDEST_MINOR) {
        return check;
    }
    let found = version["gitVersion"].as_str().unwrap_or("a version that it does not tell").to_owned();
    check.but(Outcome::Failed, format!("it is {found}"), "upgrade the cluster first")
}

/// That an installation is possible.
pub(super) async fn cluster(client: &Client, namespace: &str) -> Vec<Finding> {
    let mut findings = reachable(client).await;
    if findings.iter().any(|finding| finding.check == REACHABLE && finding.outcome != Outcome::Ok) {
        return findings;
    }
    findings.push(permitted(client, namespace).await);
    findings.push(definitions(client, false).await);
    findings.push(alone(client).await);
    findings
}

/// What `leno install` does, as the API server's authorizer has it: verb, group, resource, and whether it is in the namespace.
const NEEDED: [(&str, &str, &str, bool); 12] = [
    // In one namespace, by which commands wait for each other.
    ("create", "coordination.k8s.io", "leases", false),
    ("create", "", "namespaces", false),
    ("patch", "rbac.authorization.k8s.io", "clusterroles", false),
    ("patch", "rbac.authorization.k8s.io", "clusterrolebindings", false),
    ("patch", "apiextensions.k8s.io", "customresourcedefinitions", false),
    ("patch", "admissionregistration.k8s.io", "validatingadmissionpolicies", false),
    ("patch", "admissionregistration.k8s.io", "validatingadmissionpolicybindings", false),
    ("patch", "rbac.authorization.k8s.io", "roles", true),
    ("patch", "apps", "deployments", true),
    ("patch", "apps", "daemonsets", true),
    ("patch", "", "serviceaccounts", true),
    ("patch", "", "configmaps", true),
];

async fn permitted(client: &Client, namespace: &str) -> Finding {
    let check = Finding::ok(CATEGORY, "you may install");
    let mut refused = Vec::new();
    for (verb, group, resource, namespaced) in NEEDED {
        let attributes = json!({
            "verb": verb, "group": group, "resource": resource, "namespace": if namespaced { namespace } else { "" },
        });
        match is_allowed(client, "SelfSubjectAccessReview", &json!({"resourceAttributes": attributes})).await {
            Ok(true) => {}
            Ok(false) => refused.push(format!("{verb} {resource}")),
            Err(error) => return check.unknown(&error),
        }
    }
    check.unless(&refused, Outcome::Failed, "you lack these rights; install as a cluster administrator")
}

/// The definitions that the program brings, or others that are as good. Before an installation there may be none.
pub(super) async fn definitions(client: &Client, needed: bool) -> Finding {
    let check = Finding::ok(CATEGORY, if needed { DEFINED } else { DEFINED_WELL });
    let ours = match release::definitions() {
        Ok(ours) => ours,
        Err(error) => return check.but(Outcome::Unknown, error.to_string(), "this is a defect of the program"),
    };
    let (mut old, mut no_policies, mut missing) = (Vec::new(), Vec::new(), Vec::new());
    for definition in &ours {
        let name = definition.name();
        let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}");
        match client.find::<Value>(&path).await {
            Ok(Some(theirs)) => {
                if let Some(version) = missing_version(&theirs, &definition.object) {
                    old.push(format!("{name} has no {version}"));
                }
            }
            Ok(None) if !needed => {}
            Ok(None) if definition.object["spec"]["group"] == "security.istio.io" => {
                no_policies.push(format!("{name} is missing"));
            }
            Ok(None) => missing.push(format!("{name} is missing")),
            Err(error) => return check.unknown(&error),
        }
    }
    if !no_policies.is_empty() {
        let hint =
            "nobody can write policies of that kind, and none is in force: `leno upgrade` brings the definitions";
        return check.unless(&no_policies, Outcome::Failed, hint);
    }
    if !old.is_empty() {
        let hint = "upgrade them (Istio's chart `base`, the Gateway API's release), or remove them and let `leno install` \
                    bring its own";
        return check.unless(&old, Outcome::Failed, hint);
    }
    let hint = "nobody can write objects of that kind: `leno upgrade` brings the definitions";
    check.unless(&missing, Outcome::Warning, hint)
}

const DEFINED: &str = "the kinds that Leno reads are defined, in versions that it reads";
const DEFINED_WELL: &str = "definitions that are there already have versions that Leno reads";

pub(super) async fn alone(client: &Client) -> Finding {
    let check = Finding::ok(CATEGORY, "there is no other mesh");
    let others: Vec<_> = match meshes::others(client).await {
        Ok(others) => others.into_iter().map(|other| other.text).collect(),
        Err(error) => return check.but(Outcome::Unknown, error.to_string(), "run the check as somebody who may look"),
    };
    let hint = "Istio's ambient mode uses the same labels and ports: remove it first, or leave a part to it with \
                --set agent.enabled=false or node.enabled=false; keep namespaces that use sidecars out of this mesh";
    check.unless(&others, Outcome::Warning, hint)
}
