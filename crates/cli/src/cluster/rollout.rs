//! Waiting until an installation runs.

use std::io::IsTerminal as _;
use std::time::Duration;

use anyhow::bail;
use leno_install::cluster::{Rollout, rollouts};
use leno_kubernetes::Client;
use tokio::time::Instant;

use crate::output;

/// How often it is looked.
const INTERVAL: Duration = Duration::from_millis(250);

/// How long something is waited for without a word: a pipe's reader wants results, a person wants to know.
const QUIET_IN_A_PIPE: Duration = Duration::from_secs(5);
const QUIET_ON_A_TERMINAL: Duration = Duration::from_secs(2);

/// Returns when all of it runs, and prints how much that is.
pub(super) async fn wait(client: &Client, namespace: &str, timeout: Duration) -> anyhow::Result<()> {
    output::line(&ready(&settled(client, namespace, timeout).await?))
}

/// What runs, once all of it does.
pub(crate) async fn settled(client: &Client, namespace: &str, timeout: Duration) -> anyhow::Result<Vec<Rollout>> {
    let start = Instant::now();
    let quiet = if std::io::stderr().is_terminal() { QUIET_ON_A_TERMINAL } else { QUIET_IN_A_PIPE };
    let mut told = Vec::new();
    loop {
        // An API server that is away for a moment is part of what is waited for.
        let waiting = match rollouts(client, namespace).await {
            Ok(rollouts) if rollouts.is_empty() => vec![format!("there is no installation in {namespace}")],
            Ok(rollouts) if rollouts.iter().all(|rollout| rollout.done) => return Ok(rollouts),
            Ok(rollouts) => rollouts.iter().filter(|rollout| !rollout.done).map(line).collect(),
            Err(error) if error.is_retryable() => vec![error.to_string()],
            Err(error) => return Err(error.into()),
        };
        if start.elapsed() >= timeout {
            bail!(
                "not ready after {} s: {}; `kubectl get pods -n {namespace}` shows more",
                timeout.as_secs(),
                waiting.join("; ")
            );
        }
        if start.elapsed() >= quiet {
            for line in waiting.iter().filter(|line| !told.contains(*line)) {
                eprintln!("waiting: {line}");
            }
            told = waiting;
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

fn ready(rollouts: &[Rollout]) -> String {
    let counts: Vec<_> = rollouts.iter().map(|rollout| format!("{} {}", rollout.name, rollout.ready)).collect();
    format!("ready: {}", counts.join(", "))
}

fn line(rollout: &Rollout) -> String {
    let because = rollout.because.as_ref().map(|because| format!(" ({because})")).unwrap_or_default();
    format!("{} has {} of {} pods ready{because}", rollout.name, rollout.ready, rollout.wanted)
}
