//! `leno ps --stages`: what stages there are.

use serde::Serialize;

use crate::Error;
use crate::command::client::Client;
use crate::names::{DEFAULT_STAGE, StageName};
use crate::run_dir;
use crate::run_dir::lock::{Holder, Lock};

/// How a stage is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// All nodes and pods are as they should be.
    Ready,
    /// It runs, and something is missing.
    NotReady,
    /// Its supervisor comes up, ends, or does not answer.
    Busy,
    /// Its supervisor is dead, and what it made is left.
    Dead,
}

/// A stage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Its name.
    pub name: String,
    /// How it is.
    pub state: State,
    /// Process id of the supervisor, if there is one.
    pub supervisor: Option<i32>,
    /// Number of nodes.
    pub nodes: usize,
    /// Number of pods.
    pub pods: usize,
    /// Number of pods that are as they should be.
    pub settled: usize,
}

/// All stages of this user that run or have left something, by name.
///
/// # Errors
/// [`Error::RunDirectory`] if somebody else may have put things where they are.
pub async fn list() -> Result<Vec<Summary>, Error> {
    let mut all = Vec::new();
    for name in names()? {
        all.push(summary(&name).await);
    }
    Ok(all)
}

/// Names of all stages of this user that run or have left something.
///
/// # Errors
/// [`Error::RunDirectory`] if somebody else may have put things where they are.
pub fn names() -> Result<Vec<StageName>, Error> {
    let Ok(default) = StageName::new(DEFAULT_STAGE) else { return Ok(Vec::new()) };
    run_dir::check_base(&default)?;
    let mut names = default.others();
    if default.run_dir().exists() {
        names.push(default.as_str().to_owned());
    }
    names.sort();
    Ok(names.iter().filter_map(|name| StageName::new(name).ok()).collect())
}

async fn summary(name: &StageName) -> Summary {
    let supervisor = match Lock::holder(&name.run_dir()) {
        Holder::Process(pid) => Some(pid).filter(|pid| *pid > 0),
        Holder::Nobody => None,
    };
    let listing = match Client::connect(name).await {
        Ok(mut client) => client.ps().await.ok(),
        Err(_) => None,
    };
    let state = match (&listing, supervisor) {
        (Some(listing), _) if listing.is_ready() => State::Ready,
        (Some(_), _) => State::NotReady,
        (None, Some(_)) => State::Busy,
        (None, None) => State::Dead,
    };
    let listing = listing.unwrap_or_default();
    Summary {
        name: name.as_str().to_owned(),
        state,
        supervisor,
        nodes: listing.nodes.len(),
        pods: listing.pods.len(),
        settled: listing.pods.iter().filter(|pod| pod.is_settled()).count(),
    }
}
