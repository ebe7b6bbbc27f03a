//! What containers print, kept in files of bounded size.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;

/// Size at which a log starts anew. One older file is kept beside it, as the kubelet's default
/// of 10 MiB would.
const LIMIT: u64 = 10 * 1024 * 1024;

/// A log file that starts anew when it is full.
pub(crate) struct Log {
    path: PathBuf,
    file: File,
    size: u64,
    limit: u64,
}

impl Log {
    /// Continues the log at `path`.
    ///
    /// # Errors
    /// If it can't be opened for writing.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Self::with_limit(path, LIMIT)
    }

    fn with_limit(path: &Path, limit: u64) -> io::Result<Self> {
        let file = append(path)?;
        let size = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), file, size, limit })
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.size >= self.limit {
            std::fs::rename(&self.path, previous(&self.path))?;
            self.file = append(&self.path)?;
            self.size = 0;
        }
        self.file.write_all(bytes)?;
        self.size += bytes.len() as u64;
        Ok(())
    }
}

fn append(path: &Path) -> io::Result<File> {
    crate::run_dir::options().append(true).create(true).mode(0o600).open(path)
}

/// Where the older part of a log is.
pub(crate) fn previous(path: &Path) -> PathBuf {
    path.with_extension("log.1")
}

/// A pipe whose other end, as returned, may be a container's output; what comes through is
/// appended to the log until every writer has closed it.
pub(crate) fn capture(path: &Path) -> io::Result<OwnedFd> {
    let mut log = Log::open(path)?;
    let (writer, mut reader) = pipe::pipe()?;
    tokio::spawn(async move {
        let mut buffer = vec![0; 8192];
        loop {
            match reader.read(&mut buffer).await {
                Ok(0) | Err(_) => return,
                // A full disk must not stop the container: what can't be kept is dropped.
                Ok(length) => drop(log.write(&buffer[..length])),
            }
        }
    });
    writer.into_blocking_fd()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_anew_when_full() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.log");
        let mut log = Log::with_limit(&path, 8).unwrap();
        for line in ["one\n", "two\n", "three\n"] {
            log.write(line.as_bytes()).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "three\n");
        assert_eq!(std::fs::read_to_string(previous(&path)).unwrap(), "one\ntwo\n");
    }
}
