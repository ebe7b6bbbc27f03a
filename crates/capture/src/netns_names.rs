//! Network namespaces: making, naming, finding and removing them.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

use crate::error::{Error, Result};
use crate::links;
use crate::netns::{NamespaceId, NetworkNamespace, OWN};

/// The directory of `ip netns`. Namespaces named there are visible to it.
pub const NAMED_DIR: &str = "/run/netns";

impl NetworkNamespace {
    /// Creates a namespace without a name, with `lo` up. It vanishes with the last descriptor and the last process in it.
    ///
    /// # Errors
    /// When the caller may not create namespaces.
    pub fn create() -> Result<Self> {
        Self::create_with(Self::current)
    }

    /// Creates a namespace called `name` in `dir` (usually [`NAMED_DIR`], so that `ip netns` sees it), with `lo` up. It lives
    /// until [`Self::delete_named`], also when this process ends.
    ///
    /// # Errors
    /// When the name is taken or unusable, or when the caller may not create namespaces or mount.
    pub fn create_named(dir: &Path, name: &str) -> Result<Self> {
        Self::create_recorded(dir, name, |_| Ok(()))
    }

    /// As [`Self::create_named`]. `record` is handed the namespace before the name exists. If it writes down the
    /// namespace's [cookie](Self::cookie), the namespace can later be told from another one of the same name, however
    /// this process ends.
    ///
    /// # Errors
    /// As [`Self::create_named`], or what `record` says.
    pub fn create_recorded(
        dir: &Path,
        name: &str,
        record: impl FnOnce(&Self) -> io::Result<()> + Send,
    ) -> Result<Self> {
        let path = named_path(dir, name)?;
        prepare_directory(dir)?;
        Self::create_with(|| {
            let created = Self::current()?;
            record(&created)
                .map_err(|e| Error::system(format!("recording network namespace {}", path.display()), e))?;
            OpenOptions::new()
                .create_new(true)
                .write(true)
                .mode(0o444)
                .open(&path)
                .map_err(|e| Error::system(format!("creating network namespace {}", path.display()), e))?;
            let mounted = mount(Some(OWN), &path, None::<&str>, MsFlags::MS_BIND, None::<&str>);
            if mounted.is_err() {
                // Without this the name would stay taken by an empty file.
                let _ = fs::remove_file(&path);
            }
            mounted.map_err(|e| Error::system(format!("mounting network namespace {}", path.display()), e))?;
            Ok(created)
        })
    }

    /// Opens the namespace called `name` in `dir`.
    ///
    /// # Errors
    /// When there is none.
    pub fn open_named(dir: &Path, name: &str) -> Result<Self> {
        Self::from_path(named_path(dir, name)?)
    }

    /// Removes a name made by [`Self::create_named`] or `ip netns add`. Processes and descriptors keep the namespace itself
    /// alive. A name that doesn't exist is not an error.
    ///
    /// # Errors
    /// When the caller may not unmount or remove it.
    pub fn delete_named(dir: &Path, name: &str) -> Result<()> {
        let path = named_path(dir, name)?;
        match umount2(&path, MntFlags::MNT_DETACH) {
            // EINVAL: the file is there but nothing is mounted on it, which a crash half-way through creation leaves behind.
            Ok(()) | Err(nix::Error::ENOENT | nix::Error::EINVAL) => {}
            Err(e) => return Err(Error::system(format!("unmounting network namespace {}", path.display()), e)),
        }
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(Error::system(format!("removing network namespace {}", path.display()), e))
            }
            _ => Ok(()),
        }
    }

    /// Removes the name if it is that of `own`, or if a crash of [`Self::create_recorded`] has left it without a
    /// namespace. Any other namespace with this name stays. Returns whether the name is gone.
    ///
    /// # Errors
    /// As [`Self::delete_named`].
    pub fn delete_recorded(dir: &Path, name: &str, own: Option<&Self>) -> Result<bool> {
        let path = named_path(dir, name)?;
        let failed = |e| Error::system(format!("examining network namespace {}", path.display()), e);
        let found = match fs::symlink_metadata(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(true),
            found => found.map_err(failed)?,
        };
        // An empty file on which nothing is mounted is no namespace of anybody's.
        let unmounted = found.is_file() && found.len() == 0 && found.dev() == fs::metadata(dir).map_err(failed)?.dev();
        let found = NamespaceId { device: found.dev(), inode: found.ino() };
        // As long as `own` is open, nobody else has its id.
        if !unmounted && own.is_none_or(|own| own.id() != found) {
            return Ok(false);
        }
        Self::delete_named(dir, name).map(|()| true)
    }

    /// The names in `dir`, sorted. A directory that doesn't exist has none.
    ///
    /// # Errors
    /// When the directory can't be read.
    pub fn list(dir: &Path) -> Result<Vec<String>> {
        let fail = |e| Error::system(format!("listing network namespaces in {}", dir.display()), e);
        let entries = match fs::read_dir(dir) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(fail)?,
        };
        let mut names = Vec::new();
        for entry in entries {
            if let Ok(name) = entry.map_err(fail)?.file_name().into_string() {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    /// Makes a namespace on a thread of its own, because `unshare` would otherwise move the caller.
    fn create_with(keep: impl FnOnce() -> Result<Self> + Send) -> Result<Self> {
        let created = std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    unshare(CloneFlags::CLONE_NEWNET).map_err(|e| Error::system("creating a network namespace", e))?;
                    let namespace = keep()?;
                    links::set_up(&namespace, "lo")?;
                    Ok(namespace)
                })
                .join()
        });
        created.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

fn named_path(dir: &Path, name: &str) -> Result<PathBuf> {
    // The name becomes one path component; anything else would let a pod's name reach outside the directory.
    if name.is_empty() || name.len() > 255 || name == "." || name == ".." || name.contains(['/', '\0']) {
        return Err(Error::InvalidName {
            name: name.into(),
            what: "network namespace name",
            reason: "it must be one path component of at most 255 bytes",
        });
    }
    Ok(dir.join(name))
}

/// Makes `dir` a shared mount, as `ip netns` does: otherwise a name created here would be invisible in mount namespaces that
/// exist already, and one deleted here would stay busy in them.
fn prepare_directory(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).map_err(|e| Error::system(format!("creating directory {}", dir.display()), e))?;
    let share = || mount(None::<&str>, dir, None::<&str>, MsFlags::MS_SHARED | MsFlags::MS_REC, None::<&str>);
    match share() {
        Ok(()) => Ok(()),
        // EINVAL: not a mount point yet.
        Err(nix::Error::EINVAL) => {
            mount(Some(dir), dir, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)
                .and_then(|()| share())
                .map_err(|e| Error::system(format!("making {} a shared mount", dir.display()), e))
        }
        Err(e) => Err(Error::system(format!("making {} a shared mount", dir.display()), e)),
    }
}
