//! Looks for what a user can get wrong, before an installation and after.
//!
//! Each check is one sentence about how things should be. One that fails says how they are, and what to do.

mod before;
mod installed;
mod nodes;
mod objects;
mod parts;
mod waypoints;

use leno_kubernetes::Client;
use serde::Serialize;
use serde_json::{Value, json};

/// How one check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It is as it should be.
    Ok,
    /// It works, but somebody should look.
    Warning,
    /// It does not work.
    Failed,
    /// It could not be found out.
    Unknown,
}

/// One check and what it found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What it belongs to: `cluster`, `nodes`, `installation`, `pods`, `parts`, `waypoints`, `objects`.
    pub category: &'static str,
    /// How things should be.
    pub check: String,
    /// How it ended.
    pub outcome: Outcome,
    /// How things are, where that differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found: Option<String>,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Finding {
    fn ok(category: &'static str, check: impl Into<String>) -> Self {
        Self { category, check: check.into(), outcome: Outcome::Ok, found: None, hint: None }
    }

    fn but(mut self, outcome: Outcome, found: impl Into<String>, hint: impl Into<String>) -> Self {
        self.outcome = outcome;
        self.found = Some(found.into());
        self.hint = Some(hint.into());
        self
    }

    /// Fails if something was found, which is then listed.
    fn unless(self, found: &[String], outcome: Outcome, hint: &str) -> Self {
        if found.is_empty() { self } else { self.but(outcome, found.join("; "), hint) }
    }

    fn unknown(self, error: &leno_kubernetes::Error) -> Self {
        let hint = "grant the right that the answer names, or run the check as somebody who has it";
        self.but(Outcome::Unknown, error.to_string(), hint)
    }
}

/// What would keep an installation in `namespace` from working. Without an answer from the API server that is the only finding.
pub async fn before(client: &Client, namespace: &str) -> Vec<Finding> {
    let mut findings = before::cluster(client, namespace).await;
    if findings.iter().all(|finding| finding.check != before::REACHABLE || finding.outcome == Outcome::Ok) {
        findings.extend(nodes::all(client).await);
    }
    findings
}

/// What keeps the installation in `namespace` from working.
pub async fn after(client: &Client, namespace: &str) -> Vec<Finding> {
    let mut findings = before::reachable(client).await;
    if findings.iter().all(|finding| finding.outcome != Outcome::Failed) {
        findings.push(before::definitions(client, true).await);
        findings.push(before::alone(client).await);
        findings.extend(nodes::all(client).await);
        findings.extend(installed::all(client, namespace).await);
        findings.extend(parts::all(client, namespace).await);
        findings.extend(waypoints::all(client).await);
        findings.extend(objects::all(client).await);
    }
    findings
}

/// What the API server's authorizer says. `kind` is that of a review, which says whose rights `spec` is about.
async fn is_allowed(client: &Client, kind: &str, spec: &Value) -> Result<bool, leno_kubernetes::Error> {
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec});
    let path = format!("/apis/authorization.k8s.io/v1/{}s", kind.to_lowercase());
    let answer = client.create::<Value>(&path, &review).await?;
    Ok(answer["status"]["allowed"] == true)
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
