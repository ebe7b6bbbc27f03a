//! Ending a stage from outside, also one whose supervisor was killed.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use leno_capture::{NAMED_DIR, NetworkNamespace};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::Error;
use crate::command::client::{Client, elsewhere};
use crate::names::StageName;
use crate::run_dir;
use crate::run_dir::lock::{Holder, Lock};
use crate::run_dir::record::State;
use crate::stage::sweep::finish;

/// Longest a supervisor gets to end in order. Pods have at most three seconds each, all at once.
const PATIENCE: Duration = Duration::from_secs(20);

/// The result of `down`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The stage ran and has ended.
    Stopped,
    /// Its supervisor was gone or could not be asked. What it left has been removed.
    Cleaned,
    /// There was nothing.
    Nothing,
}

/// Ends the stage of this name, or removes what a killed one left.
///
/// # Errors
/// If the supervisor neither ends in order nor can be killed, or somebody else may have made what is to be removed.
pub async fn run(name: &StageName) -> Result<Outcome, Error> {
    let run_dir = run_dir::check(name)?;
    if let Holder::Process(pid) = Lock::holder(&run_dir) {
        let asked = match Client::connect(name).await {
            Ok(mut client) => client.down().await.is_ok(),
            Err(_) => false,
        };
        // The number is what the directory's owner wrote.
        let pid = if owns(&run_dir, pid) { pid } else { 0 };
        if !asked && pid > 0 {
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        if !released(&run_dir, PATIENCE).await && pid > 0 {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            if !released(&run_dir, Duration::from_secs(5)).await {
                return Err(Error::Timeout(format!("the supervisor (pid {pid}) does not end")));
            }
        }
        finish(name, &run_dir)?;
        // A supervisor that could not be asked was dying already, as after a SIGKILL.
        return Ok(if asked { Outcome::Stopped } else { Outcome::Cleaned });
    }
    if !run_dir.exists()
        && let Some(theirs) = elsewhere(name)
    {
        return Err(theirs);
    }
    let left = finish(name, &run_dir)?;
    Ok(if left { Outcome::Cleaned } else { Outcome::Nothing })
}

/// Whether a process belongs to the user whose run directory this is.
fn owns(run_dir: &Path, pid: i32) -> bool {
    let user = |path: &Path| std::fs::metadata(path).ok().map(|meta| meta.uid());
    user(run_dir).is_some_and(|owner| user(&PathBuf::from(format!("/proc/{pid}"))) == Some(owner))
}

/// Network namespaces that have a name as this stage's have, though nothing says that it made them: others' ones, and those that
/// a Leno left which did not write down what it made.
pub fn unrecorded(name: &StageName) -> Vec<String> {
    if !crate::privilege::is_machine_root() {
        return Vec::new();
    }
    let recorded = State::read(&name.run_dir());
    let made: BTreeSet<&str> = recorded.iter().flat_map(State::made).map(|(netns, _)| netns).collect();
    let all = NetworkNamespace::list(Path::new(NAMED_DIR)).unwrap_or_default();
    all.into_iter().filter(|netns| name.owns(netns) && !made.contains(netns.as_str())).collect()
}

async fn released(run_dir: &Path, limit: Duration) -> bool {
    let end = Instant::now() + limit;
    while Lock::holder(run_dir) != Holder::Nobody {
        if Instant::now() > end {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    true
}
