//! Noticing that something was changed in the directories of the container runtime.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd, RawFd};
use std::path::Path;
use std::time::Duration;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::io::unix::AsyncFd;
use tokio::time::sleep;

/// Who writes a file anew takes several steps. Nobody who does so all the time keeps the agent busy.
const CALM: Duration = Duration::from_millis(50);

/// Tells of changes in directories.
pub(crate) struct Watch {
    inotify: AsyncFd<Watching>,
}

/// `AsyncFd` wants to know the number of a descriptor.
struct Watching(Inotify);

impl AsRawFd for Watching {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl Watch {
    /// # Errors
    /// If one of them is not there, or the node's limit of inotify instances or watches is reached.
    pub(crate) fn of<'a>(directories: impl IntoIterator<Item = &'a (impl AsRef<Path> + 'a)>) -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        let flags = AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_ATTRIB
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ONLYDIR;
        for directory in directories {
            inotify.add_watch(directory.as_ref(), flags)?;
        }
        Ok(Self { inotify: register(inotify)? })
    }

    /// Waits until something has changed since the last call.
    pub(crate) async fn changed(&self) {
        loop {
            let Ok(mut ready) = self.inotify.readable().await else { return sleep(CALM).await };
            match ready.try_io(|inotify| inotify.get_ref().0.read_events().map_err(Into::into)) {
                Err(_would_block) => {}
                Ok(_) => break,
            }
        }
        sleep(CALM).await;
        // What has come meanwhile is seen by the same look.
        while self.inotify.get_ref().0.read_events().is_ok_and(|events| !events.is_empty()) {}
    }
}

#[allow(unsafe_code)]
fn register(inotify: Inotify) -> io::Result<AsyncFd<Watching>> {
    // SAFETY: an Inotify owns one descriptor that it never replaces, and it moves into the AsyncFd.
    unsafe { AsyncFd::register(Watching(inotify)) }.map_err(|failed| failed.into_parts().1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn changes_are_told_and_nothing_else_is() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let paths = dirs.each_ref().map(|dir| dir.path().to_owned());
        let watch = Watch::of(&paths).unwrap();
        let is_told = async || tokio::time::timeout(Duration::from_secs(30), watch.changed()).await.is_ok();
        let is_quiet = async || tokio::time::timeout(Duration::from_millis(1), watch.changed()).await.is_err();
        assert!(is_quiet().await);
        for path in &paths {
            std::fs::write(path.join("10-network.conflist"), "{}").unwrap();
            assert!(is_told().await, "written");
            std::fs::rename(path.join("10-network.conflist"), path.join("other")).unwrap();
            assert!(is_told().await, "renamed");
            std::fs::remove_file(path.join("other")).unwrap();
            assert!(is_told().await, "removed");
            assert!(is_quiet().await, "read only");
        }
        assert!(Watch::of(&[paths[0].join("none")]).is_err());
    }
}
