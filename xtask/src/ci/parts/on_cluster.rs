//! The tests on the cluster that runs.

use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};

use crate::cluster::{Layout, status_of};

/// Runs the test program. A kubeconfig that is named is one that has to answer.
pub(super) fn run(program: &str) -> Result<i32> {
    let layout = Layout::find()?;
    let status = status_of(&layout)?.context("no cluster runs")?;
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":");
    path.push(&status.bin);

    let mut tests = Command::new(program);
    tests.args(["--nocapture", "-Zunstable-options", "--report-time"]).stdin(Stdio::null());
    tests.env("LENO_KUBECONFIG", &status.kubeconfig).env("PATH", path);
    let status = tests.status().with_context(|| format!("starting {program}"))?;
    Ok(status.code().unwrap_or(1))
}
