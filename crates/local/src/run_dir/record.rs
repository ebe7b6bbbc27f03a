//! The record of what the stage has made in a place that others use too: the machine's network namespaces.
//!
//! It is kept on disk for the command that ends the stage when its supervisor was killed. A namespace is recorded with
//! its identity before it gets its name. A namespace that is not recorded is not the stage's, whatever its name.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use leno_capture::NamespaceId;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::Error;
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    device: u64,
    inode: u64,
}

impl State {
    pub(crate) fn read(run_dir: &Path) -> Option<Self> {
        serde_json::from_reader(open_file(&run_dir.join(FILE)).ok()?).ok()
    }

    /// The network namespaces that it made.
    pub(crate) fn made(&self) -> impl Iterator<Item = (&str, NamespaceId)> {
        let valid = self.boot == boot();
        let made = self.made.iter().filter(move |_| valid);
        made.map(|(name, id)| (name.as_str(), NamespaceId { device: id.device, inode: id.inode }))
    }

    fn write(&self, run_dir: &Path) -> Result<(), Error> {
        let text =
            serde_json::to_vec(self).map_err(io::Error::other).map_err(Error::io("cannot write the stage's record"))?;
        // Renamed into place: a supervisor killed while it writes must not leave half a record.
        let (path, draft) = (run_dir.join(FILE), run_dir.join("state.json.new"));
        write_file(&draft, &text, 0o600)?;
        std::fs::rename(&draft, &path).map_err(Error::io(format!("cannot write {}", path.display())))
    }
}

/// The record of a stage that runs.
#[derive(Debug)]
pub(crate) struct Record {
    run_dir: PathBuf,
    state: Mutex<State>,
}

impl Record {
    /// An empty record, in place of that of the stage before.
    ///
    /// # Errors
    /// [`Error::Io`] if it can't be written.
    pub(crate) fn begin(run_dir: &Path, netns_dir: &Path) -> Result<Self, Error> {
        let state = State { netns_dir: netns_dir.to_owned(), made: BTreeMap::new(), boot: boot() };
        state.write(run_dir)?;
        Ok(Self { run_dir: run_dir.to_owned(), state: Mutex::new(state) })
    }

    /// Writes down a network namespace that is about to get its name.
    pub(crate) fn add(&self, name: &str, id: NamespaceId) -> Result<(), Error> {
        let mut state = self.state.lock();
        state.made.insert(name.to_owned(), Identity { device: id.device, inode: id.inode });
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
