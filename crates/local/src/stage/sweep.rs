//! Removing what a stage has left whose supervisor did not end in order.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use leno_capture::{NamespaceId, NetworkNamespace};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::Error;
use crate::names::StageName;
use crate::run_dir;
use crate::run_dir::record::State;

/// Removes what is left. Returns whether there was anything.
pub(crate) fn finish(name: &StageName, run_dir: &Path) -> Result<bool, Error> {
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
    // What another user has recorded is that user's to remove.
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
