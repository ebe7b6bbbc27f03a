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
use crate::state::{Holder, Lock, State};

/// Longest a supervisor gets to end in order. Pods have at most three seconds each, all at once.
const PATIENCE: Duration = Duration::from_secs(20);

/// What `down` found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The stage ran and has ended.
    Stopped,
    /// Its supervisor was gone; what it left has been removed.
    Cleaned,
    /// There was nothing.
    Nothing,
}

/// Ends the stage of this name, or removes what a killed one left.
///
/// # Errors
/// If the supervisor neither ends in order nor can be killed.
pub async fn run(name: &StageName) -> Result<Outcome, Error> {
    let run_dir = name.run_dir();
    if let Holder::Process(pid) = Lock::holder(&run_dir) {
        let asked = match Client::connect(name).await {
            Ok(mut client) => client.down().await.is_ok(),
            Err(_) => false,
        };
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
        return Ok(Outcome::Stopped);
    }
    if !run_dir.exists()
        && let Some(theirs) = elsewhere(name)
    {
        return Err(theirs);
    }
    let left = finish(name, &run_dir)?;
    Ok(if left { Outcome::Cleaned } else { Outcome::Nothing })
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
    let run_dir = name.run_dir();
    if Lock::holder(&run_dir) == Holder::Nobody {
        finish(name, &run_dir)?;
    }
    Ok(())
}

/// Removes what is left; whether there was anything.
fn finish(name: &StageName, run_dir: &Path) -> Result<bool, Error> {
    // Without a record only what the machine's root made can be there; others' is not ours to touch.
    let recorded = State::read(run_dir).map(|state| state.netns_dir);
    let netns_dir = recorded.or_else(|| crate::privilege::is_machine_root().then(|| PathBuf::from(NAMED_DIR)));
    let mut left = netns_dir.is_some_and(|netns_dir| sweep(name, run_dir, &netns_dir));
    if run_dir.exists() {
        left = true;
        name.remove_run_dir().map_err(Error::io(format!("cannot remove {}", run_dir.display())))?;
    }
    Ok(left)
}

/// Kills what still runs in this stage's network namespaces and removes their names and the pods'
/// directories. Namespaces of others are never touched. Whether there was anything.
pub(crate) fn sweep(name: &StageName, run_dir: &Path, netns_dir: &Path) -> bool {
    let _ = std::fs::remove_dir_all(run_dir.join("pods"));
    let names: Vec<String> =
        NetworkNamespace::list(netns_dir).unwrap_or_default().into_iter().filter(|netns| name.owns(netns)).collect();
    let host =
        std::fs::metadata("/proc/self/ns/net").map(|meta| NamespaceId { device: meta.dev(), inode: meta.ino() }).ok();
    let mut ours: BTreeSet<NamespaceId> = names
        .iter()
        .filter_map(|netns| NetworkNamespace::open_named(netns_dir, netns).ok())
        .map(|namespace| namespace.id())
        .collect();
    if let Some(host) = host {
        // A name without a namespace mounted on it is a plain file; and ours is never the host's.
        ours.remove(&host);
    }
    let mut left = !names.is_empty();
    left |= end_inside(&ours, Duration::ZERO);
    for netns in names {
        if let Err(reason) = NetworkNamespace::delete_named(netns_dir, &netns) {
            tracing::warn!(%reason, "cannot remove a network namespace");
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
