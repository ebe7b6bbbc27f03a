//! Ending a stage from outside, also one whose supervisor was killed.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use leno_capture::{NAMED_DIR, NamespaceId, NetworkNamespace};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::Error;
use crate::client::{Client, elsewhere};
use crate::names::StageName;
use crate::run_dir::record::State;
use crate::run_dir;
use crate::run_dir::lock::{Holder, Lock};

/// Longest a supervisor gets to end in order. Pods have at most three seconds each, all at once.
const PATIENCE: Duration = Duration::from_secs(20);

/// What `down` found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The stage ran and has ended.
    Stopped,
    /// Its supervisor was gone, or could not be asked; what it left has been removed.
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
        // One that could not be asked was dying already, as after a SIGKILL.
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

/// Removes what a start that was given up left behind, unless somebody else has the stage by now.
pub(crate) fn sweep_abandoned(name: &StageName) -> Result<(), Error> {
    let run_dir = run_dir::check(name)?;
    if Lock::holder(&run_dir) == Holder::Nobody {
        finish(name, &run_dir)?;
    }
    Ok(())
}

/// Removes what is left; whether there was anything.
fn finish(name: &StageName, run_dir: &Path) -> Result<bool, Error> {
    let mut left = sweep(run_dir);
    if run_dir.exists() {
        left = true;
        name.remove_run_dir().map_err(Error::io(format!("cannot remove {}", run_dir.display())))?;
    }
    Ok(left)
}

/// Kills what still runs in the network namespaces that the stage has recorded, and removes their names and the pods'
/// directories. Whether there was anything. Nothing else is touched, whatever its name.
pub(crate) fn sweep(run_dir: &Path) -> bool {
    let _ = std::fs::remove_dir_all(run_dir.join("pods"));
    // What another user has written down is that user's to do.
    let Some(state) = State::read(run_dir).filter(|_| run_dir::is_own(run_dir)) else { return false };
    let dir = &state.netns_dir;
    let still =
        |(name, id): &(&str, NamespaceId)| NetworkNamespace::open_named(dir, name).is_ok_and(|found| found.id() == *id);
    let made: Vec<_> = state.made().collect();
    let mut left = end_inside(&made.iter().filter(|made| still(made)).map(|(_, id)| *id).collect(), Duration::ZERO);
    for (name, id) in made {
        left |= dir.join(name).exists();
        match NetworkNamespace::delete_recorded(dir, name, id) {
            Ok(true) => {}
            Ok(false) => {
                tracing::warn!(name, "somebody else has the name of a network namespace of this stage; it stays")
            }
            Err(reason) => tracing::warn!(%reason, "cannot remove a network namespace"),
        }
    }
    left
}

/// Ends every process in one of these namespaces but this one, those by force that are still there after `grace`. Whether there
/// was any. To be called where waiting is right.
pub(crate) fn end_inside(namespaces: &BTreeSet<NamespaceId>, grace: Duration) -> bool {
    /// For killed processes to disappear, and for what was being forked meanwhile.
    const KILLING: Duration = Duration::from_millis(500);
    const LOOK: Duration = Duration::from_millis(10);
    let begun = Instant::now();
    let mut asked = false;
    let mut any = false;
    while begun.elapsed() < grace + KILLING {
        let found = processes_in(namespaces);
        if found.is_empty() {
            break;
        }
        any = true;
        let force = begun.elapsed() >= grace;
        if force || !asked {
            let signal = if force { Signal::SIGKILL } else { Signal::SIGTERM };
            for pid in found {
                let _ = kill(pid, signal);
            }
        }
        asked = true;
        std::thread::sleep(LOOK);
    }
    any
}

fn processes_in(namespaces: &BTreeSet<NamespaceId>) -> Vec<Pid> {
    if namespaces.is_empty() {
        return Vec::new();
    }
    let me = Pid::this();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?);
            let meta = std::fs::metadata(entry.path().join("ns/net")).ok()?;
            let id = NamespaceId { device: meta.dev(), inode: meta.ino() };
            (pid != me && namespaces.contains(&id)).then_some(pid)
        })
        .collect()
}
