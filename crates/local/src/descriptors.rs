//! Waiting for descriptors that tokio has no type for.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd, OwnedFd, RawFd};

use nix::sys::inotify::Inotify;
use tokio::io::unix::AsyncFd;

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
