//! The stage's own log: what happened and when. It is a file, so that it can be read when the supervisor is dead.

use std::fmt::{self, Display};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use time::OffsetDateTime;
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;

use crate::Error;
use crate::run_dir::disk;
use crate::stage::logs::Log;

/// RFC 3339, UTC, milliseconds.
const TIME: &[BorrowedFormatItem<'_>] =
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z");

/// Where the log of a stage is.
pub(crate) fn path(run_dir: &Path) -> PathBuf {
    run_dir.join("stage.log")
}

/// A way to write into it. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Journal(Arc<Mutex<Log>>);

impl Journal {
    /// An empty log, in place of that of the stage before. A file that is there stays the same one: the standard error of a
    /// detached supervisor goes there, too.
    ///
    /// # Errors
    /// [`Error::Io`] if it can't be written.
    pub(crate) fn begin(run_dir: &Path) -> Result<Self, Error> {
        let path = path(run_dir);
        let log = Log::empty(&path).map_err(disk::failed(format!("cannot write {}", path.display())))?;
        Ok(Self(Arc::new(Mutex::new(log))))
    }

    /// Writes down what happened just now. Each line of `text` gets the time.
    pub(crate) fn note(&self, text: impl Display) {
        let text = text.to_string();
        let now = OffsetDateTime::from(SystemTime::now());
        let time = now.format(TIME).unwrap_or_default();
        let mut log = self.0.lock();
        let gap = log.gap();
        let lines = gap.iter().map(String::as_str).chain(text.lines()).map(|line| format!("{time} {line}\n"));
        // A full disk must not stop the stage. It is told by `failed`, and here once there is room.
        let _ = log.write(lines.collect::<String>().as_bytes());
    }

    /// Why what happened last could not be written down.
    pub(crate) fn failed(&self) -> Option<io::Error> {
        self.0.lock().failed()
    }
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Journal")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_has_its_time_and_is_on_the_disk_at_once() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(path(dir.path()), "of the stage before\n").unwrap();
        let journal = Journal::begin(dir.path()).unwrap();
        journal.note("the stage starts");
        journal.note("edit refused:\na.yaml:1: no kind");
        let text = std::fs::read_to_string(path(dir.path())).unwrap();
        let lines: Vec<_> = text.lines().map(|line| line.split_once(' ').unwrap()).collect();
        let said: Vec<_> = lines.iter().map(|(_, said)| *said).collect();
        assert_eq!(said, ["the stage starts", "edit refused:", "a.yaml:1: no kind"]);
        for (time, _) in lines {
            let parsed: leno_objects::Timestamp = time.parse().unwrap();
            assert!(parsed.0.elapsed().unwrap().as_secs() < 3600, "{time}");
        }
    }
}
