//! The claims of the demonstration, and whether the observations support them. Pure: observations in, claims out.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::metrics::Edge;

/// One act.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Phase {
    pub(super) name: Cow<'static, str>,
    /// Requests of the steady client that ended in this phase.
    pub(super) requests: u64,
    /// The number of them that failed.
    pub(super) errors: u64,
    /// Median latency in milliseconds.
    pub(super) p50_ms: f64,
    /// 99th percentile.
    pub(super) p99_ms: f64,
    /// Packets on the nodes' links in which the canary could be read.
    pub(super) plaintext_canary_hits: u64,
    /// All packets on those links: none of the former among none of the latter would prove nothing.
    pub(super) link_packets: u64,
    /// Connections accepted over mutual TLS.
    pub(super) mtls_connections: u64,
    /// Connections that policy refused.
    pub(super) denied: u64,
    /// Requests of snoop that succeeded.
    pub(super) snoop_succeeded: u64,
    /// Requests of snoop that failed.
    pub(super) snoop_failed: u64,
    /// Why a request of the steady client failed, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) last_error: Option<String>,
}

/// How often one workload called another.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Talk {
    #[serde(flatten)]
    pub(super) edge: Edge,
    /// Connections in the phase `mesh`.
    pub(super) connections: u64,
}

/// A denial, as told by those who were asked.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Denial {
    /// The reason given by `leno explain`.
    pub(super) explained: Option<String>,
    /// The line of the destination node's access log.
    pub(super) access_log: Option<String>,
}

/// Everything that was seen.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) phases: Vec<Phase>,
    pub(super) talks: Vec<Talk>,
    /// Processes of the sample before enrolment and after, by pod.
    pub(super) processes: (BTreeMap<String, String>, BTreeMap<String, String>),
    pub(super) denial: Denial,
    /// What was left after the clean-up; `None` if the sample was kept on request.
    pub(super) left_behind: Option<Vec<String>>,
}

/// A claim and its proof.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Claim {
    /// The claim.
    pub(super) claim: Cow<'static, str>,
    pub(super) held: bool,
    /// The observation that supports or contradicts it.
    pub(super) seen: String,
}

/// Calls that the sample makes: service account of caller and callee.
const CALLS: [(&str, &str); 4] = [("vote-bot", "web"), ("web", "emoji"), ("web", "voting"), ("snoop", "voting")];

fn principal(account: &str) -> String {
    format!("spiffe://cluster.local/ns/emojivoto/sa/{account}")
}

/// Checks every claim.
pub(super) fn check(seen: &Seen) -> Vec<Claim> {
    let none = Phase::default();
    let phase = |name: &str| seen.phases.iter().find(|phase| phase.name == name).unwrap_or(&none);
    let (outside, enroll, mesh, deny) = (phase("outside"), phase("enroll"), phase("mesh"), phase("deny"));
    let mut claims = Vec::new();
    let mut claim = |claim: &'static str, held, seen| claims.push(Claim { claim: claim.into(), held, seen });

    claim("outside the mesh the application works", outside.requests > 0 && outside.errors == 0, requests(outside));
    claim(
        "outside the mesh anyone on the link can read it",
        outside.plaintext_canary_hits > 0 && outside.mtls_connections == 0,
        canary(outside),
    );
    let (before, after) = &seen.processes;
    claim(
        "enrolment restarts nothing",
        !before.is_empty() && before == after,
        if before == after {
            format!("the same {} processes", before.len())
        } else {
            format!("{before:?} became {after:?}")
        },
    );
    claim("enrolment loses no request", enroll.requests > 0 && enroll.errors == 0, requests(enroll));
    claim("in the mesh the application works", mesh.requests > 0 && mesh.errors == 0, requests(mesh));
    claim(
        "in the mesh nothing on the link can be read",
        mesh.plaintext_canary_hits == 0 && mesh.link_packets > 0 && deny.plaintext_canary_hits == 0,
        canary(mesh),
    );
    let missing: Vec<_> = CALLS
        .iter()
        .filter(|(source, destination)| {
            let (source, destination) = (principal(source), principal(destination));
            !seen.talks.iter().any(|talk| talk.edge.source == source && talk.edge.destination == destination)
        })
        .map(|(source, destination)| format!("{source} → {destination}"))
        .collect();
    claim(
        "every call is mutual TLS between the two workloads' own identities",
        missing.is_empty() && mesh.mtls_connections > 0,
        if missing.is_empty() {
            format!("{} connections, {} pairs", mesh.mtls_connections, CALLS.len())
        } else {
            format!("never seen: {}", missing.join(", "))
        },
    );
    claim(
        "a policy turns snoop away",
        mesh.snoop_succeeded > 0 && deny.snoop_succeeded == 0 && deny.snoop_failed > 0 && deny.denied > 0,
        format!(
            "snoop succeeded {} times before and {} after, failed {} times after; {} connections denied",
            mesh.snoop_succeeded, deny.snoop_succeeded, deny.snoop_failed, deny.denied
        ),
    );
    claim("and nobody else notices", deny.requests > 0 && deny.errors == 0, requests(deny));
    let (held, told) = match (&seen.denial.explained, &seen.denial.access_log) {
        (Some(reason), Some(line)) => (line.contains(reason.as_str()), reason.clone()),
        (None, _) => (false, "`leno explain` gave no reason".to_owned()),
        (_, None) => (false, "the access log of the destination's node has no such denial".to_owned()),
    };
    claim("the access log and `leno explain` give the reason in the same words", held, told);
    if let Some(left) = &seen.left_behind {
        let told = if left.is_empty() { "no namespace or process left".to_owned() } else { left.join(", ") };
        claim("it cleans up", left.is_empty(), told);
    }
    claims
}

fn requests(phase: &Phase) -> String {
    let mut text = format!("{} of {} requests failed", phase.errors, phase.requests);
    if let Some(error) = &phase.last_error {
        text.push_str(": ");
        text.push_str(error);
    }
    text
}

fn canary(phase: &Phase) -> String {
    format!("the canary in {} of {} packets", phase.plaintext_canary_hits, phase.link_packets)
}

#[cfg(test)]
#[path = "claims_tests.rs"]
mod tests;
