//! The result, for people and for programs.

use serde::{Deserialize, Serialize};

use super::claims::{Claim, Denial, Phase, Seen, Talk};
use crate::output::Paint;

/// The output of `-o json`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Report {
    /// Whether every claim held.
    pub(super) ok: bool,
    phases: Vec<Phase>,
    talks: Vec<Talk>,
    denial: Denial,
    claims: Vec<Claim>,
}

impl Report {
    pub(super) fn new(seen: Seen, claims: Vec<Claim>) -> Self {
        let ok = claims.iter().all(|claim| claim.held);
        Self { ok, phases: seen.phases, talks: seen.talks, denial: seen.denial, claims }
    }

    /// For a terminal or a pipe.
    pub(super) fn text(&self, paint: Paint) -> String {
        let mut lines = vec![paint.bold(&row(&[
            "phase",
            "requests",
            "failed",
            "p50 ms",
            "p99 ms",
            "canary read",
            "mTLS conns",
            "denied",
        ]))];
        for phase in &self.phases {
            lines.push(row(&[
                &phase.name,
                &phase.requests.to_string(),
                &phase.errors.to_string(),
                &format!("{:.2}", phase.p50_ms),
                &format!("{:.2}", phase.p99_ms),
                &phase.plaintext_canary_hits.to_string(),
                &phase.mtls_connections.to_string(),
                &phase.denied.to_string(),
            ]));
        }
        if !self.talks.is_empty() {
            lines.push(String::new());
            lines.push(paint.bold("who talks to whom, by certificate"));
            let width = self.talks.iter().map(|talk| talk.edge.source.len()).max().unwrap_or_default();
            for talk in &self.talks {
                let (source, destination) = (&talk.edge.source, &talk.edge.destination);
                lines.push(format!("  {source:width$} → {destination}  ({} connections)", talk.connections));
            }
        }
        if let Some(reason) = &self.denial.explained {
            lines.push(String::new());
            lines.push(paint.bold("why snoop is denied"));
            lines.push(format!("  {reason}"));
        }
        lines.push(String::new());
        for claim in &self.claims {
            lines.push(if claim.held {
                format!("{} {} ({})", paint.good("✓"), claim.claim, claim.seen)
            } else {
                format!("{} {}: {}", paint.bad("✗"), paint.bad(&claim.claim), claim.seen)
            });
        }
        lines.join("\n")
    }
}

/// One row of the table: the name left-aligned, numbers right-aligned.
fn row(cells: &[&str; 8]) -> String {
    let [name, requests, failed, p50, p99, canary, mtls, denied] = cells;
    format!("{name:8} {requests:>9} {failed:>7} {p50:>8} {p99:>8} {canary:>12} {mtls:>11} {denied:>7}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_line_up() {
        let heading = row(&["phase", "requests", "failed", "p50 ms", "p99 ms", "canary read", "mTLS conns", "denied"]);
        assert_eq!(heading.chars().count(), row(&["mesh", "1", "0", "0.10", "1.00", "0", "12", "3"]).chars().count());
        assert!(heading.chars().count() <= 80);
    }
}
