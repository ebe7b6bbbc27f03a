//! Network namespaces: which one it is, and visiting it.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use nix::sched::{CloneFlags, setns};
use socket2::{Domain, Protocol, Socket, Type};

use crate::error::{Error, Result};
use crate::sys;

/// The namespace of the calling thread. Not `/proc/self`: that is the main thread, which may live elsewhere.
pub(crate) const OWN: &str = "/proc/thread-self/ns/net";

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

/// The identity of a namespace: two descriptors with equal ids refer to one namespace, as long as either is open. What
/// must know a namespace again later needs its [cookie](NetworkNamespace::cookie).
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

    /// Which namespace this is.
    #[must_use]
    pub fn id(&self) -> NamespaceId {
        self.id
    }

    /// A number that no other namespace gets until the machine starts again, unlike [`Self::id`], whose number is
    /// given to the next namespace as soon as nothing refers to this one. `None` before Linux 5.14.
    ///
    /// # Errors
    /// When the namespace can't be entered, or no socket can be opened in it.
    pub fn cookie(&self) -> Result<Option<u64>> {
        let failed = |e| Error::system(format!("asking for the cookie of network namespace {self}"), e);
        // A socket of this family can be opened whatever protocols the kernel has.
        let socket = self.run(|| Socket::new(Domain::UNIX, Type::DGRAM.cloexec(), None))?.map_err(failed)?;
        match sys::get_option(&socket, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE) {
            Ok(cookie) => Ok(Some(u64::from_ne_bytes(cookie))),
            Err(e) if e.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(None),
            Err(e) => Err(failed(e)),
        }
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
    /// `f` must not await or give the thread to another task. Sockets and child processes that it creates belong to
    /// this namespace permanently. It costs two system calls for the descriptor and two `setns`; nothing if the thread
    /// is already there.
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

    /// Opens a socket that belongs to this namespace, of the family of `like`.
    pub(crate) fn socket(&self, like: SocketAddr, kind: Type, protocol: Protocol) -> io::Result<Socket> {
        let kind = kind.nonblocking().cloexec();
        self.run(|| Socket::new(Domain::for_address(like), kind, Some(protocol)))?
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

#[cfg(test)]
#[path = "netns_tests.rs"]
mod tests;
