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
use crate::run_dir::lock::{Holder, Lock};
use crate::run_dir::record::State;

/// What a sweep has found.
pub(crate) struct Swept {
    /// Whether there was anything.
    pub(crate) any: bool,
    /// The record of what could not be removed.
    pub(crate) left: Option<State>,
}

/// Removes what is left. Returns whether there was anything.
pub(crate) fn finish(name: &StageName, run_dir: &Path) -> Result<bool, Error> {
    let mut any = sweep(run_dir).any;
    if run_dir.exists() {
        any = true;
        name.remove_run_dir().map_err(Error::io(format!("cannot remove {}", run_dir.display())))?;
    }
    Ok(any)
}

/// Removes what one has left that could not begin, or was killed as it did, unless another holds the stage.
pub(crate) fn finish_unheld(name: &StageName, run_dir: &Path) -> Result<bool, Error> {
    if Lock::holder(run_dir) == Holder::Nobody { finish(name, run_dir) } else { Ok(false) }
}

/// Kills what still runs in the network namespaces that the stage has recorded, and removes their names and the pods'
/// directories. Nothing else is touched, whatever its name or number.
pub(crate) fn sweep(run_dir: &Path) -> Swept {
    let _ = std::fs::remove_dir_all(run_dir.join("pods"));
    // What another user has recorded is that user's to remove.
    let recorded = State::read(run_dir).filter(|_| run_dir::is_own(run_dir));
    let Some(mut state) = recorded else { return Swept { any: false, left: None } };
    let dir = state.netns_dir.clone();
    // Those of the stage are held open until the end: nobody else gets their numbers meanwhile.
    let made = state.made().map(|(name, identity)| {
        let own = NetworkNamespace::open_named(&dir, name).ok().filter(|found| identity.is(found));
        (name.to_owned(), own)
    });
    let made: Vec<_> = made.collect();
    let own = made.iter().filter_map(|(_, own)| own.as_ref().map(NetworkNamespace::id));
    let mut any = end_inside(&own.collect(), Duration::ZERO);
    let mut left = BTreeSet::new();
    for (name, own) in made {
        any |= dir.join(&name).exists();
        match NetworkNamespace::delete_recorded(&dir, &name, own.as_ref()) {
            Ok(true) => {}
            Ok(false) => {
                tracing::warn!(
                    name,
                    "this network namespace is not known to be this stage's, in spite of its name; it stays"
                )
            }
            Err(reason) => {
                tracing::warn!(%reason, "cannot remove a network namespace");
                left.insert(name);
            }
        }
    }
    state.keep_only(&left);
    Swept { any, left: Some(state) }
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
