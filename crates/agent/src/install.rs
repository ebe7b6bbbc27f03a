//! The plugin on the node: its binary, and its entry in the configuration that the container runtime uses.
//!
//! The configuration belongs to whoever brings the network (the primary CNI). It may come later than the agent, be written
//! anew at any time, and give way to another. So it is looked at again and again, and the entry is put where it belongs.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::conflist::{List, Unusable};
use crate::install_watch::Watch;
use crate::{files, plugin};

/// What a container runtime reads in its configuration directory.
const EXTENSIONS: [&str; 3] = ["conf", "conflist", "json"];

/// How long the start of a pod waits for an agent that is being replaced. After a failure, the kubelet waits for longer.
const AGENT_WAIT_SECONDS: u64 = 10;

/// Why the plugin is not in place. Each says what to do, unless it resolves itself.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Trouble {
    /// There is no such directory.
    #[error(
        "{} does not exist; mount the node's CNI configuration directory there (usually /etc/cni/net.d), or name it with \
         --cni-net-dir",
        .0.display()
    )]
    NoDirectory(PathBuf),
    /// The primary CNI has not written its configuration.
    #[error("there is no CNI configuration in {} yet; waiting for the cluster's network plugin to write one", .0.display())]
    NoConfig(PathBuf),
    /// The runtime's configuration can't be added to.
    #[error("{} is what the container runtime uses, and no plugin can be added to it: {reason}", .path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: Unusable,
    },
    /// The plugins are elsewhere.
    #[error(
        "{} uses the plugin {primary}, which is not in {}; mount the directory from which the container runtime takes its \
         plugins there (usually /opt/cni/bin), or name it with --cni-bin-dir",
        .config.display(), .dir.display()
    )]
    WrongBinDirectory {
        /// The runtime's configuration.
        config: PathBuf,
        /// Its first plugin.
        primary: String,
        /// Where it is not.
        dir: PathBuf,
    },
    /// A file can't be read or written.
    #[error("{what} {}: {source}{}", .path.display(), hint(.source))]
    File {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
}

impl Trouble {
    /// Whether it may pass without anybody changing how the agent is set up.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        !matches!(self, Self::NoDirectory(_) | Self::WrongBinDirectory { .. })
    }
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ReadOnlyFilesystem => "; mount the directory read-write",
        io::ErrorKind::PermissionDenied => {
            "; run the agent as root with CAP_DAC_OVERRIDE, and without SELinux's confinement"
        }
        io::ErrorKind::StorageFull => "; the node's disk is full",
        _ => "",
    }
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Trouble {
    let path = path.to_owned();
    move |source| Trouble::File { what, path, source }
}

/// Keeps the plugin in place.
#[derive(Debug)]
pub struct Installer {
    net_dir: PathBuf,
    bin_dir: PathBuf,
    /// The program that is installed as the plugin.
    program: PathBuf,
    entry: String,
    /// The binary as it was when it was last found to be right.
    known_binary: Option<(u64, u64, i64, i64)>,
}

/// Where plugin and agent find each other, as the node sees it.
#[derive(Debug, Clone)]
pub struct Paths {
    /// The agent's socket.
    pub socket: PathBuf,
    /// The file with the agent's state.
    pub state_file: PathBuf,
    /// The namespace that the agent runs in.
    pub agent_namespace: String,
}

/// What one look has found and done.
#[derive(Debug, PartialEq, Eq)]
pub struct Looked {
    /// The configuration that the container runtime uses.
    pub config: PathBuf,
    /// Whether something was written.
    pub changed: bool,
}

impl Installer {
    /// Installs `program`. `net_dir` and `bin_dir` are the node's directories as this process sees them.
    #[must_use]
    pub fn new(net_dir: PathBuf, bin_dir: PathBuf, program: PathBuf, paths: &Paths) -> Self {
        let entry = json!({
            "type": plugin::NAME,
            "socket": paths.socket,
            "stateFile": paths.state_file,
            "agentNamespace": paths.agent_namespace,
            "agentWaitSeconds": AGENT_WAIT_SECONDS,
        });
        Self { net_dir, bin_dir, program, entry: entry.to_string(), known_binary: None }
    }

    /// Tells of changes in its directories; `None` if the node can't tell of them.
    pub(crate) fn watch(&self) -> Option<Watch> {
        Watch::of([&self.net_dir, &self.bin_dir])
            .inspect_err(|error| tracing::debug!(%error, "the CNI configuration can't be watched; it is looked at again and again"))
            .ok()
    }

    /// Puts in place what is not. The binary comes first: a runtime that reads the entry runs it.
    ///
    /// # Errors
    /// What is in the way.
    pub fn look(&mut self) -> Result<Looked, Trouble> {
        let configs = self.configs()?;
        let primary = configs.iter().position(|config| config.list().is_ok() || config.is_single());
        let Some(primary) = primary.and_then(|at| configs.get(at)) else {
            return match configs.into_iter().next() {
                None => Err(Trouble::NoConfig(self.net_dir.clone())),
                Some(broken) => {
                    let reason = broken.list().err().unwrap_or(Unusable::Empty);
                    Err(Trouble::Unusable { path: broken.path, reason })
                }
            };
        };
        let unusable = |reason| Trouble::Unusable { path: primary.path.clone(), reason };
        let list = primary.list().map_err(unusable)?;
        let first = list.first().ok_or_else(|| unusable(Unusable::Empty))?;
        if !self.bin_dir.join(first).exists() {
            return Err(Trouble::WrongBinDirectory {
                config: primary.path.clone(),
                primary: first.to_owned(),
                dir: self.bin_dir.clone(),
            });
        }
        let mut changed = self.install_binary()?;
        if let Some(text) = list.with(&self.entry).map_err(unusable)? {
            primary.replace(&text)?;
            changed = true;
        }
        for other in configs.iter().filter(|other| other.path != primary.path) {
            changed |= other.remove_entry()?;
        }
        Ok(Looked { config: primary.path.clone(), changed })
    }

    /// Removes entry and binary. The entry goes first.
    ///
    /// # Errors
    /// What is in the way. Everything else is removed nevertheless.
    pub fn remove(&mut self) -> Result<(), Trouble> {
        self.known_binary = None;
        let mut outcome = Ok(());
        let configs = match self.configs() {
            Err(Trouble::NoDirectory(_)) => Vec::new(),
            other => other?,
        };
        for config in configs {
            if let Err(trouble) = config.remove_entry() {
                outcome = Err(trouble);
            }
        }
        // A runtime that still has the entry would fail without the binary.
        outcome?;
        let path = self.binary();
        files::remove(&path).map_err(failed("can't remove", &path))
    }

    fn binary(&self) -> PathBuf {
        self.bin_dir.join(plugin::NAME)
    }

    /// The runtime's configurations, in its order.
    fn configs(&self) -> Result<Vec<ConfigFile>, Trouble> {
        let entries = match fs::read_dir(&self.net_dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Trouble::NoDirectory(self.net_dir.clone()));
            }
            other => other.map_err(failed("can't list", &self.net_dir))?,
        };
        let mut paths = Vec::new();
        for entry in entries {
            let path = entry.map_err(failed("can't list", &self.net_dir))?.path();
            let known = path.extension().is_some_and(|extension| EXTENSIONS.iter().any(|known| extension == *known));
            if known && path.is_file() {
                paths.push(path);
            }
        }
        paths.sort();
        let mut configs = Vec::new();
        for path in paths {
            match fs::read(&path) {
                Ok(bytes) => configs.push(ConfigFile { path, text: String::from_utf8_lossy(&bytes).into_owned() }),
                // Its owner has just removed it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed("can't read", &path)(error)),
            }
        }
        Ok(configs)
    }

    /// Returns whether it wrote anything.
    fn install_binary(&mut self) -> Result<bool, Trouble> {
        let path = self.binary();
        let seen = fs::metadata(&path).ok().map(|m| (m.ino(), m.size(), m.mtime(), m.mtime_nsec()));
        if seen.is_some() && seen == self.known_binary {
            return Ok(false);
        }
        let wrote = if seen.is_some() && same_content(&self.program, &path).unwrap_or(false) {
            false
        } else {
            let program = fs::read(&self.program).map_err(failed("can't read this program", &self.program))?;
            files::replace(&path, &program, 0o755).map_err(failed("can't write the plugin", &path))?;
            true
        };
        let metadata = fs::metadata(&path).map_err(failed("can't examine the plugin", &path))?;
        self.known_binary = Some((metadata.ino(), metadata.size(), metadata.mtime(), metadata.mtime_nsec()));
        Ok(wrote)
    }
}

struct ConfigFile {
    path: PathBuf,
    text: String,
}

impl ConfigFile {
    fn list(&self) -> Result<List<'_>, Unusable> {
        List::parse(&self.text)
    }

    /// Whether a runtime takes it although it has no list of plugins.
    fn is_single(&self) -> bool {
        serde_json::from_str::<serde_json::Value>(&self.text).is_ok_and(|value| value["type"].is_string())
    }

    fn remove_entry(&self) -> Result<bool, Trouble> {
        let Some(text) = self.list().ok().and_then(|list| list.without()) else { return Ok(false) };
        self.replace(&text).map(|()| true)
    }

    fn replace(&self, text: &str) -> Result<(), Trouble> {
        let mode = fs::metadata(&self.path).map_or(0o644, |metadata| metadata.mode() & 0o777);
        files::replace(&self.path, text.as_bytes(), mode).map_err(failed("can't write", &self.path))
    }
}

fn same_content(one: &Path, other: &Path) -> io::Result<bool> {
    let (mut one, mut other) = (File::open(one)?, File::open(other)?);
    if one.metadata()?.len() != other.metadata()?.len() || other.metadata()?.mode() & 0o111 != 0o111 {
        return Ok(false);
    }
    let (mut a, mut b) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        let count = one.read(&mut a)?;
        if count == 0 {
            return Ok(true);
        }
        other.read_exact(&mut b[..count])?;
        if a[..count] != b[..count] {
            return Ok(false);
        }
    }
}

#[cfg(test)]
#[path = "install_tests.rs"]
mod tests;
