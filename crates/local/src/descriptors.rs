//! Descriptors: how many this process may have open, and waiting for those that tokio has no type for.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd, OwnedFd, RawFd};

use nix::sys::inotify::Inotify;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::io::unix::AsyncFd;

/// Raises the limit as far as this process may, and returns it: a pod costs the supervisor about
/// ten descriptors, a proxy costs a control plane two, and the usual soft limit is 1024.
pub fn raise_descriptor_limit() -> u64 {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return 1024 };
    if soft < hard
        && let Err(reason) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    {
        tracing::debug!(%reason, "the limit of open files stays at {soft}");
        return soft;
    }
    hard
}

/// `AsyncFd` wants to know the number of a descriptor.
pub(crate) struct Watching(pub(crate) Inotify);

impl AsRawFd for Watching {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// A socket to wait on.
#[allow(unsafe_code)]
pub(crate) fn socket(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd has the same open descriptor for as long as it lives, and it moves into
    // the AsyncFd.
    unsafe { AsyncFd::register(fd) }.map_err(|failed| failed.into_parts().1)
}

/// An inotify instance to wait on.
#[allow(unsafe_code)]
pub(crate) fn inotify(inotify: Inotify) -> io::Result<AsyncFd<Watching>> {
    // SAFETY: an Inotify owns one descriptor that it never replaces, and it moves into the
    // AsyncFd.
    unsafe { AsyncFd::register(Watching(inotify)) }.map_err(|failed| failed.into_parts().1)
}
