//! The record of what the stage has made in a place that others use too: the machine's network namespaces.
//!
//! It is kept on disk for the command that ends the stage when its supervisor was killed. A namespace is recorded with
//! its identity before it gets its name. A namespace that is not recorded is not the stage's, whatever its name.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use leno_capture::NetworkNamespace;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::run_dir::disk::failed;
use crate::run_dir::{open_file, write_file};

const FILE: &str = "state.json";

/// The record that `leno down` reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct State {
    /// The directory of the stage's named network namespaces.
    pub netns_dir: PathBuf,
    /// Names and identities of its network namespaces. A Leno before this one did not write them down.
    #[serde(default)]
    made: BTreeMap<String, Identity>,
    /// Since when the machine runs: a namespace's identity means nothing after the next start.
    #[serde(default)]
    boot: String,
}

/// What tells a network namespace of the stage from every other one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
    /// Device and inode don't suffice: once the namespace is gone, the kernel gives the same number to the next one.
    /// Linux before 5.14 has no cookies, and a Leno before this one did not write them down.
    #[serde(default)]
    cookie: Option<u64>,
}

impl Identity {
    pub(crate) fn of(namespace: &NetworkNamespace) -> leno_capture::Result<Self> {
        let id = namespace.id();
        Ok(Self { device: id.device, inode: id.inode, cookie: namespace.cookie()? })
    }

    /// Whether it is that of `namespace`. Not where there are no cookies: it may be that of another one then.
    pub(crate) fn is(self, namespace: &NetworkNamespace) -> bool {
        self.cookie.is_some() && Self::of(namespace).is_ok_and(|other| other == self)
    }
}

impl State {
    pub(crate) fn read(run_dir: &Path) -> Option<Self> {
        serde_json::from_reader(open_file(&run_dir.join(FILE)).ok()?).ok()
    }

    /// The network namespaces that it made.
    pub(crate) fn made(&self) -> impl Iterator<Item = (&str, Identity)> {
        let valid = self.boot == boot();
        let made = self.made.iter().filter(move |_| valid);
        made.map(|(name, id)| (name.as_str(), *id))
    }

    /// As it is after all but these network namespaces have been removed.
    pub(crate) fn keep_only(&mut self, names: &BTreeSet<String>) {
        self.made.retain(|name, _| names.contains(name));
    }

    fn write(&self, run_dir: &Path) -> Result<(), Error> {
        let text =
            serde_json::to_vec(self).map_err(io::Error::other).map_err(Error::io("cannot write the stage's record"))?;
        // Renamed into place: a supervisor killed while it writes must not leave half a record.
        let (path, draft) = (run_dir.join(FILE), run_dir.join("state.json.new"));
        write_file(&draft, &text, 0o600)?;
        std::fs::rename(&draft, &path).map_err(failed(format!("cannot write {}", path.display())))
    }
}

/// The record of a stage that runs.
#[derive(Debug)]
pub(crate) struct Record {
    run_dir: PathBuf,
    state: Mutex<State>,
}

impl Record {
    /// The record of a stage that has made nothing yet. `left` is what could not be removed of the stage before; it
    /// remains this stage's to remove.
    ///
    /// # Errors
    /// [`Error::Io`] if it can't be written.
    pub(crate) fn begin(run_dir: &Path, netns_dir: &Path, left: Option<State>) -> Result<Self, Error> {
        let left = left.filter(|left| left.boot == boot() && left.netns_dir == netns_dir);
        let made = left.map(|left| left.made).unwrap_or_default();
        let state = State { netns_dir: netns_dir.to_owned(), made, boot: boot() };
        state.write(run_dir)?;
        Ok(Self { run_dir: run_dir.to_owned(), state: Mutex::new(state) })
    }

    /// Writes down a network namespace that is about to get its name.
    ///
    /// # Errors
    /// [`Error::Network`] if it can't be examined, [`Error::Io`] if the record can't be written.
    pub(crate) fn add(&self, name: &str, made: &NetworkNamespace) -> Result<(), Error> {
        let identity = Identity::of(made).map_err(Error::network("cannot write down a network namespace"))?;
        let mut state = self.state.lock();
        state.made.insert(name.to_owned(), identity);
        state.write(&self.run_dir)
    }

    /// Forgets one that is gone.
    pub(crate) fn remove(&self, name: &str) {
        let mut state = self.state.lock();
        state.made.remove(name);
        // An entry that stays by mistake is recognised as gone.
        let _ = state.write(&self.run_dir);
    }
}

fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
