//! Noticing that manifest files changed: inotify on the directories that hold them, never on the
//! files, so that editors that replace a file and ConfigMap-like symlink swaps are seen too.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::io::unix::AsyncFd;

use crate::Error;
use crate::descriptors::{self, Watching};

/// How long files must be left alone before they are read: an editor writes in several steps.
const QUIET: Duration = Duration::from_millis(80);
/// Even files that never rest are read this often.
const PATIENCE: Duration = Duration::from_secs(1);

/// Watches paths given by the user.
pub(crate) struct Watcher {
    inotify: AsyncFd<Watching>,
}

impl Watcher {
    /// Starts to watch; call [`Watcher::cover`] to say what.
    ///
    /// # Errors
    /// If the user's limit of inotify instances is reached.
    pub(crate) fn new() -> Result<Self, Error> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC).map_err(Error::errno(
            "cannot watch files (raise `sysctl fs.inotify.max_user_instances` if that is the limit)",
        ))?;
        let inotify = descriptors::inotify(inotify).map_err(Error::io("cannot watch files"))?;
        Ok(Self { inotify })
    }

    /// Watches every directory below the given directories, and the directory of each given file.
    /// To be called again after a change, for new directories.
    ///
    /// # Errors
    /// If the user's limit of watches is reached.
    pub(crate) fn cover(&self, paths: &[PathBuf]) -> Result<(), Error> {
        let mut wanted = BTreeSet::new();
        for path in paths {
            if path.is_dir() {
                directories(path, &mut wanted, 0);
            } else {
                let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                wanted.insert(parent.unwrap_or(Path::new(".")).to_owned());
            }
            // Changes can also happen where a symlink leads.
            if let Some(parent) = path.canonicalize().ok().as_deref().and_then(Path::parent) {
                wanted.insert(parent.to_owned());
            }
        }
        let flags = AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ONLYDIR;
        for directory in &wanted {
            // Adding one twice changes nothing, and renews the watch of one that was replaced.
            match self.inotify.get_ref().0.add_watch(directory, flags) {
                Ok(_) | Err(nix::errno::Errno::ENOENT | nix::errno::Errno::ENOTDIR) => {}
                Err(reason) => {
                    return Err(Error::errno(format!(
                        "cannot watch {} (raise `sysctl fs.inotify.max_user_watches` if that is the limit)",
                        directory.display()
                    ))(reason));
                }
            }
        }
        Ok(())
    }

    /// Watches a file that grows: every write counts, and its replacement.
    ///
    /// # Errors
    /// If the user's limit of watches is reached.
    pub(crate) fn cover_log(&self, file: &Path) -> Result<(), Error> {
        let directory = file.parent().unwrap_or(Path::new("."));
        let flags = AddWatchFlags::IN_MODIFY
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_DELETE_SELF;
        let added = self.inotify.get_ref().0.add_watch(directory, flags);
        added.map(drop).map_err(Error::errno(format!("cannot watch {}", directory.display())))
    }

    /// Waits until something changed and then rested.
    ///
    /// # Errors
    /// If inotify itself fails.
    pub(crate) async fn changed(&self) -> Result<(), Error> {
        self.event().await?;
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            tokio::select! {
                event = self.event() => event?,
                () = tokio::time::sleep(QUIET) => return Ok(()),
                () = tokio::time::sleep_until(deadline) => return Ok(()),
            }
        }
    }

    /// Waits until something changed.
    ///
    /// # Errors
    /// If inotify itself fails.
    pub(crate) async fn event(&self) -> Result<(), Error> {
        loop {
            let mut guard = self.inotify.readable().await.map_err(Error::io("cannot watch files"))?;
            match guard.try_io(|inotify| inotify.get_ref().0.read_events().map_err(Into::into)) {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(reason)) => return Err(Error::io("cannot watch files")(reason)),
                Err(_would_block) => {}
            }
        }
    }
}

fn directories(path: &Path, into: &mut BTreeSet<PathBuf>, depth: usize) {
    // Symlinks are followed, so a loop is possible.
    if depth > 32 || !into.insert(path.to_owned()) {
        return;
    }
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            directories(&entry.path(), into, depth + 1);
        }
    }
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
