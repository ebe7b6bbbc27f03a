//! Where everything lies: one directory outside the source tree, with what was built and the one cluster that may run.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use super::plan::{Node, Plan};
use super::telling::say;
use crate::{kept, whole_file};

/// The directory and the names in it.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    root: PathBuf,
}

/// What is known of the cluster. It is written before anything is started and once more when all is ready.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) plan: Plan,
    /// Whether `up` came to its end. If not, what there is has to be removed.
    pub(crate) complete: bool,
    /// The directories of what was built, by part.
    pub(crate) parts: Vec<PathBuf>,
}

impl Layout {
    /// `LENO_CLUSTER_CACHE`, else `leno-cluster` where this user's caches are.
    pub(crate) fn find() -> Result<Self> {
        let Some(root) = kept::directory("LENO_CLUSTER_CACHE", "leno-cluster") else {
            bail!("there is no place for the cluster's files: neither LENO_CLUSTER_CACHE nor HOME is set");
        };
        fs::create_dir_all(&root)
            .with_context(|| format!("creating {}; LENO_CLUSTER_CACHE=DIR names another", root.display()))?;
        let root = root.canonicalize().with_context(|| format!("resolving {}", root.display()))?;
        Ok(Self { root })
    }

    /// That of a directory which is known.
    pub(crate) fn of(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// What was built, one directory for each part and key.
    pub(crate) fn parts(&self) -> PathBuf {
        self.root.join("parts")
    }

    /// Links to the programs of the cluster that was started last, for people's `PATH`.
    pub(crate) fn bin(&self) -> PathBuf {
        self.root.join("bin")
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.root.join("kubeconfig")
    }

    /// Everything that belongs to the cluster itself and goes with it.
    pub(crate) fn cluster(&self) -> PathBuf {
        self.root.join("cluster")
    }

    pub(crate) fn pki(&self) -> PathBuf {
        self.cluster().join("pki")
    }

    pub(crate) fn etcd(&self) -> PathBuf {
        self.cluster().join("etcd")
    }

    pub(crate) fn node(&self, node: Node) -> PathBuf {
        self.cluster().join("nodes").join(node.name())
    }

    /// The number of a node's first process, as the host counts.
    pub(crate) fn node_pid(&self, node: Node) -> PathBuf {
        self.node(node).join("pid")
    }

    pub(crate) fn sysctls(&self) -> PathBuf {
        self.root.join("sysctls.json")
    }

    /// They outlive the cluster, until the next one: they tell why it failed.
    pub(crate) fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.logs().join(format!("{name}.log"))
    }

    fn state_file(&self) -> PathBuf {
        self.root.join("state.json")
    }

    /// `None` where there is no cluster, or nothing that can be read of one.
    pub(crate) fn state(&self) -> Option<State> {
        serde_json::from_slice(&fs::read(self.state_file()).ok()?).ok()
    }

    pub(crate) fn record(&self, state: &State) -> Result<()> {
        whole_file::write(&self.state_file(), &serde_json::to_vec_pretty(state)?, 0o644)
    }

    pub(crate) fn forget(&self) -> Result<()> {
        for file in [self.kubeconfig(), self.state_file()] {
            remove(&file)?;
        }
        Ok(())
    }

    /// One `up` or `down` at a time. The kernel releases it when its holder ends, however that happens.
    pub(crate) fn lock(&self) -> Result<Flock<File>> {
        let path = self.root.join("lock");
        let open = || File::create(&path).with_context(|| format!("opening {}", path.display()));
        match Flock::lock(open()?, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(lock),
            Err((file, nix::errno::Errno::EWOULDBLOCK)) => {
                say("waiting for another `cargo xtask cluster up` or `down` to end");
                Flock::lock(file, FlockArg::LockExclusive)
                    .map_err(|(_, error)| error)
                    .with_context(|| format!("locking {}", path.display()))
            }
            Err((_, error)) => Err(error).with_context(|| format!("locking {}", path.display())),
        }
    }
}

/// Removes a file that may be gone already.
pub(crate) fn remove(file: &Path) -> Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", file.display()))
        }
        _ => Ok(()),
    }
}
