//! Network namespaces: naming, visiting and creating them.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};

use crate::error::{Error, Result};

/// Where `ip netns` keeps its names, and therefore where namespaces made here are visible to it.
pub const NAMED_DIR: &str = "/run/netns";

/// The namespace of the calling thread. Not `/proc/self`: that is the main thread, which may live elsewhere.
const OWN: &str = "/proc/thread-self/ns/net";

thread_local! {
    /// The namespace that this thread has been shown to be able to return to.
    static HOME: Cell<Option<NamespaceId>> = const { Cell::new(None) };
    /// Whether this thread goes home only when told to ([`NetworkNamespace::linger`]).
    static LINGERS: Cell<bool> = const { Cell::new(false) };
    /// How a thread that lingers comes home; `None` while it is there.
    static AWAY: RefCell<Option<WayBack>> = const { RefCell::new(None) };
    /// The namespace this thread is in. Only [`NetworkNamespace::run`] moves a thread that has
    /// been asked for it; asking `/proc` each time would cost a connection three system calls.
    static HERE: RefCell<Option<NetworkNamespace>> = const { RefCell::new(None) };
}

/// What makes a namespace the same one: two descriptors with equal ids refer to one namespace for as long as either is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NamespaceId {
    /// Device of the namespace file system.
    pub device: u64,
    /// Inode number; this is the number that `lsns` and `readlink /proc/PID/ns/net` show.
    pub inode: u64,
}

impl fmt::Display for NamespaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "net:[{}]", self.inode)
    }
}

/// An open network namespace. It exists at least as long as this value or a clone of it does.
#[derive(Debug, Clone)]
pub struct NetworkNamespace {
    fd: Arc<OwnedFd>,
    id: NamespaceId,
}

impl PartialEq for NetworkNamespace {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for NetworkNamespace {}

impl fmt::Display for NetworkNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.id.fmt(f)
    }
}

impl AsFd for NetworkNamespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl NetworkNamespace {
    /// Takes over a descriptor, such as one received from a node agent.
    ///
    /// # Errors
    /// When the descriptor can't be examined. That it is a *network* namespace is found out when it is entered.
    pub fn from_fd(fd: OwnedFd) -> Result<Self> {
        let file = File::from(fd);
        let metadata = file.metadata().map_err(|e| Error::system("examining a network namespace descriptor", e))?;
        let id = NamespaceId { device: metadata.dev(), inode: metadata.ino() };
        Ok(Self { fd: Arc::new(file.into()), id })
    }

    /// Opens a namespace by path: `/run/netns/NAME`, `/proc/PID/ns/net`, a bind mount of a container runtime.
    ///
    /// # Errors
    /// When the path can't be opened.
    pub fn from_path(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let file =
            File::open(path).map_err(|e| Error::system(format!("opening network namespace {}", path.display()), e))?;
        Self::from_fd(file.into())
    }

    /// The namespace of a process.
    ///
    /// # Errors
    /// When the process is gone or belongs to somebody else.
    pub fn from_pid(pid: u32) -> Result<Self> {
        Self::from_path(format!("/proc/{pid}/ns/net"))
    }

    /// The namespace of the calling thread.
    ///
    /// # Errors
    /// When `/proc` is not mounted.
    pub fn current() -> Result<Self> {
        Self::from_path(OWN)
    }

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

    /// As [`Self::create_named`]; `record` is told which namespace it will be before the name exists. Whoever keeps that can
    /// tell it from a namespace that somebody else gave the same name ([`Self::delete_recorded`]), however this process ends.
    ///
    /// # Errors
    /// As [`Self::create_named`], or what `record` says.
    pub fn create_recorded(
        dir: &Path,
        name: &str,
        record: impl FnOnce(NamespaceId) -> io::Result<()> + Send,
    ) -> Result<Self> {
        let path = named_path(dir, name)?;
        prepare_directory(dir)?;
        Self::create_with(|| {
            let created = Self::current()?;
            record(created.id)
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

    /// Removes the name of a namespace that [`Self::create_recorded`] told as `id`, and what a crash half-way through left of
    /// it. Any other namespace of this name stays; says whether the name is gone.
    ///
    /// # Errors
    /// As [`Self::delete_named`].
    pub fn delete_recorded(dir: &Path, name: &str, id: NamespaceId) -> Result<bool> {
        let path = named_path(dir, name)?;
        let failed = |e| Error::system(format!("examining network namespace {}", path.display()), e);
        let found = match fs::symlink_metadata(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(true),
            found => found.map_err(failed)?,
        };
        // An empty file on which nothing is mounted is no namespace of anybody's.
        let unmounted = found.is_file() && found.len() == 0 && found.dev() == fs::metadata(dir).map_err(failed)?.dev();
        if !unmounted && (NamespaceId { device: found.dev(), inode: found.ino() }) != id {
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

    /// Which namespace this is.
    #[must_use]
    pub fn id(&self) -> NamespaceId {
        self.id
    }

    /// Another descriptor for the same namespace, for instance to send to a node proxy.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn try_clone_fd(&self) -> Result<OwnedFd> {
        self.fd.try_clone().map_err(|e| Error::system("duplicating a network namespace descriptor", e))
    }

    /// Runs `f` inside this namespace on the calling thread and returns to where the thread was, also when `f` panics; a
    /// thread that lingers returns later ([`Self::linger`]).
    ///
    /// `f` must not await or hand the thread to somebody else. Sockets and child processes that it makes belong to this
    /// namespace for good. Costs two system calls for the descriptor and two `setns`; nothing when the thread is already here.
    ///
    /// # Errors
    /// When the namespace can't be entered. The process aborts when it can't be left: the thread would go on to open sockets
    /// of one pod in the namespace of another, and no caller could notice.
    pub fn run<T>(&self, f: impl FnOnce() -> T) -> Result<T> {
        let home = match HERE.with_borrow(Clone::clone) {
            Some(here) => here,
            None => Self::current()?,
        };
        if home.id == self.id {
            return Ok(f());
        }
        let away = AWAY.with_borrow(Option::is_some);
        // Leaving first and then finding the way back barred would mean an abort. Entering the current namespace needs the
        // same permission as coming back to it, so that is tried once per thread and home.
        if !away && HOME.get() != Some(home.id) {
            setns(&home, CloneFlags::CLONE_NEWNET).map_err(|e| Error::NoWayBack { source: e.into() })?;
            HOME.set(Some(home.id));
        }
        setns(self, CloneFlags::CLONE_NEWNET)
            .map_err(|e| Error::system(format!("entering network namespace {self}"), e))?;
        HERE.set(Some(self.clone()));
        if LINGERS.get() {
            AWAY.with_borrow_mut(|way_back| {
                way_back.get_or_insert_with(|| WayBack(home));
            });
            return Ok(f());
        }
        let _way_back = WayBack(home);
        Ok(f())
    }

    /// From now on, the calling thread stays in the namespace it visited last until [`Self::go_home`]: of many connections
    /// that are opened in a row, each would cost two system calls. Whatever runs on the thread must open its sockets by
    /// [`Self::run`], and the thread must go home before it waits: it keeps a namespace alive as long as it is there. Threads
    /// that it starts begin where it is. A visit within a visit is not followed by a return to the outer one.
    pub fn linger() {
        LINGERS.set(true);
    }

    /// Brings a thread that lingers home; nothing for one that is there.
    pub fn go_home() {
        drop(AWAY.take());
    }

    /// Makes a namespace on a thread of its own, because `unshare` would otherwise move the caller.
    fn create_with(keep: impl FnOnce() -> Result<Self> + Send) -> Result<Self> {
        let created = std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    unshare(CloneFlags::CLONE_NEWNET).map_err(|e| Error::system("creating a network namespace", e))?;
                    let namespace = keep()?;
                    crate::links::set_up(&namespace, "lo")?;
                    Ok(namespace)
                })
                .join()
        });
        created.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// Brings the thread home when dropped.
struct WayBack(NetworkNamespace);

impl Drop for WayBack {
    fn drop(&mut self) {
        if let Err(error) = setns(&self.0, CloneFlags::CLONE_NEWNET) {
            tracing::error!(%error, namespace = %self.0, "cannot return to the process's own network namespace; aborting");
            std::process::abort();
        }
        // Fails only while the thread ends.
        let _ = HERE.try_with(|here| here.replace(Some(self.0.clone())));
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

#[cfg(test)]
#[path = "netns_tests.rs"]
mod tests;
