//! `leno check`.

use std::process::ExitCode;

use leno_install::check::{self, Finding, Outcome};
use serde_json::json;

use super::client;
use crate::args::{CheckArgs, Format};
use crate::output::{self, Paint};

/// Prints what was looked at. Exits with 1 if something does not work.
pub(super) async fn run(args: CheckArgs) -> anyhow::Result<ExitCode> {
    let client = client(&args.cluster).await?;
    let namespace = &args.cluster.namespace;
    let findings =
        if args.pre { check::before(&client, namespace).await } else { check::after(&client, namespace).await };
    let bad = findings.iter().any(|finding| [Outcome::Failed, Outcome::Unknown].contains(&finding.outcome));
    match args.output.output {
        Format::Json => output::json(&json!({"ok": !bad, "server": client.server(), "checks": findings}))?,
        Format::Text => output::line(&text(&findings, Paint::stdout()))?,
    }
    Ok(if bad { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn text(findings: &[Finding], paint: Paint) -> String {
    let mut lines = Vec::new();
    let mut category = "";
    for finding in findings {
        if finding.category != category {
            category = finding.category;
            lines.push(paint.bold(category));
        }
        let mark = match finding.outcome {
            Outcome::Ok => paint.good("✓"),
            Outcome::Warning => "!".to_owned(),
            Outcome::Failed => paint.bad("✗"),
            Outcome::Unknown => paint.bad("?"),
        };
        let found = finding.found.as_ref().map(|found| format!(": {found}")).unwrap_or_default();
        lines.push(format!("  {mark} {}{found}", finding.check));
        if let Some(hint) = &finding.hint {
            lines.push(format!("    → {hint}"));
        }
    }
    let count = |outcome| findings.iter().filter(|finding| finding.outcome == outcome).count();
    let (failed, unknown, warnings) = (count(Outcome::Failed), count(Outcome::Unknown), count(Outcome::Warning));
    lines.push(match (failed + unknown, warnings) {
        (0, 0) => "all is well".to_owned(),
        (0, warnings) => format!("it works; {warnings} to look at"),
        (bad, _) => format!("{bad} of {} checks failed", findings.len()),
    });
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_is_told_with_its_hint() {
        let finding = |outcome, found: Option<&str>| Finding {
            category: "cluster",
            check: "the API server answers".to_owned(),
            outcome,
            found: found.map(str::to_owned),
            hint: found.map(|_| "do this".to_owned()),
        };
        let good = finding(Outcome::Ok, None);
        assert_eq!(
            text(std::slice::from_ref(&good), Paint::never()),
            "cluster\n  ✓ the API server answers\nall is well"
        );
        let both = [good, finding(Outcome::Failed, Some("it does not"))];
        let expected = "cluster\n  ✓ the API server answers\n  ✗ the API server answers: it does not\n    → do this\n1 of 2 checks failed";
        assert_eq!(text(&both, Paint::never()), expected);
    }
}
