//! Where a log is: asked of the stage while it runs, and looked for in what a dead supervisor left.

use std::path::Path;

use crate::Error;
use crate::command::client::Client;
use crate::error::name_flag;
use crate::names::StageName;
use crate::run_dir;
use crate::stage::api::LogFiles;
use crate::stage::{journal, logs};

/// Whose log is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The stage's own.
    Stage,
    /// That of a node's proxy.
    Node(String),
    /// What a pod's containers wrote, or one of them.
    Pod {
        /// Namespace.
        namespace: String,
        /// Name of the pod, or while the stage runs of a Deployment for any one of its pods.
        name: String,
        /// `None` for all.
        container: Option<String>,
    },
}

/// Where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The files.
    pub files: Vec<LogFiles>,
    /// What to tell of a stage whose supervisor is dead.
    pub note: Option<String>,
}

/// Finds a log.
///
/// # Errors
/// [`Error::NotRunning`] if there is nothing of a stage of this name; [`Error::NotFound`] and [`Error::Refused`] if it has no
/// such node, pod or container.
pub async fn find_logs(name: &StageName, source: &Source) -> Result<Found, Error> {
    let run_dir = run_dir::check(name)?;
    match Client::connect(name).await {
        Ok(client) => Ok(Found { files: of_running(client, &run_dir, source).await?, note: None }),
        // Dead, or just starting.
        Err(Error::NotRunning { .. } | Error::Died { .. }) if journal::path(&run_dir).exists() => {
            let files = of_dead(&run_dir, source)?;
            let flag = name_flag(name.as_str());
            let note = format!("the stage's supervisor is gone; `leno down{flag}` removes what it left, with this log");
            let dead = run_dir::lock::Lock::holder(&run_dir) == run_dir::lock::Holder::Nobody;
            Ok(Found { files, note: dead.then_some(note) })
        }
        Err(reason) => Err(reason),
    }
}

async fn of_running(mut client: Client, run_dir: &Path, source: &Source) -> Result<Vec<LogFiles>, Error> {
    match source {
        Source::Stage => Ok(vec![files(&journal::path(run_dir))]),
        Source::Node(node) => {
            let nodes: Vec<_> = client.ps().await?.nodes.into_iter().map(|node| node.name).collect();
            of_node(run_dir, node, &nodes)
        }
        Source::Pod { namespace, name, container } => client.logs(namespace, name, container.as_deref()).await,
    }
}

fn of_dead(run_dir: &Path, source: &Source) -> Result<Vec<LogFiles>, Error> {
    match source {
        Source::Stage => Ok(vec![files(&journal::path(run_dir))]),
        Source::Node(node) => {
            let nodes = names_in(run_dir).into_iter().filter(|name| run_dir.join(name).join(PROXY).exists());
            of_node(run_dir, node, &nodes.collect::<Vec<_>>())
        }
        Source::Pod { namespace, name, container } => {
            let pods = run_dir.join("pods");
            let dir = pods.join(format!("{namespace}_{name}"));
            let logs = names_in(&dir).into_iter().filter_map(|file| Some(file.strip_suffix(".log")?.to_owned()));
            let mut containers: Vec<_> = logs.collect();
            if containers.is_empty() {
                let known: Vec<_> = names_in(&pods).iter().map(|pod| pod.replacen('_', "/", 1)).collect();
                let known = if known.is_empty() { "no pod's".to_owned() } else { known.join(", ") };
                return Err(Error::NotFound(format!(
                    "there is no log of a pod {namespace}/{name}; the supervisor is gone, and left the logs of: {known}"
                )));
            }
            if let Some(wanted) = container {
                if !containers.contains(wanted) {
                    let known = containers.join(", ");
                    return Err(Error::NotFound(format!("pod {name} has no container {wanted}; it has: {known}")));
                }
                containers.retain(|container| container == wanted);
            }
            let apart = containers.len() > 1;
            let of = |container: String| {
                let found = files(&dir.join(format!("{container}.log")));
                LogFiles { container: apart.then_some(container), ..found }
            };
            Ok(containers.into_iter().map(of).collect())
        }
    }
}

/// File of a proxy's log in its node's directory.
const PROXY: &str = "proxy.log";

fn of_node(run_dir: &Path, node: &String, known: &[String]) -> Result<Vec<LogFiles>, Error> {
    if known.contains(node) {
        return Ok(vec![files(&run_dir.join(node).join(PROXY))]);
    }
    Err(Error::NotFound(format!("there is no node {node}; the nodes are {}", known.join(", "))))
}

fn files(current: &Path) -> LogFiles {
    LogFiles { container: None, previous: logs::previous(current), current: current.to_owned() }
}

/// Names of what is in a directory, in order.
fn names_in(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

#[cfg(test)]
#[path = "find_logs_tests.rs"]
mod tests;
