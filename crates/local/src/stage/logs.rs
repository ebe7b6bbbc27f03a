//! What containers print, kept in files of bounded size, with the times at which it came.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;

/// Size at which a log starts anew. One older file is kept beside it, as the kubelet's default
/// of 10 MiB would.
const LIMIT: u64 = 10 * 1024 * 1024;

/// A log file that starts anew when it is full.
///
/// Beside it lies another with the times: for each second in which something was written, the second (since 1970) and where in
/// the log that begins, eight bytes each, little endian. A program's lines say no time themselves, or each in its own way.
pub(crate) struct Log {
    path: PathBuf,
    file: File,
    times: File,
    /// The last second that was written down.
    second: Option<u64>,
    size: u64,
    limit: u64,
    /// Why the last attempt to write into it has failed, as the system's number.
    failed: Option<i32>,
}

impl Log {
    /// Continues the log at `path`.
    ///
    /// # Errors
    /// If it can't be opened for writing.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Self::with_limit(path, LIMIT)
    }

    /// An empty log at `path`; a file that is there is emptied.
    ///
    /// # Errors
    /// If it can't be opened for writing.
    pub(crate) fn empty(path: &Path) -> io::Result<Self> {
        let log = Self::open(path)?;
        log.file.set_len(0)?;
        log.times.set_len(0)?;
        Ok(Self { size: 0, ..log })
    }

    fn with_limit(path: &Path, limit: u64) -> io::Result<Self> {
        let file = append(path)?;
        let size = file.metadata()?.len();
        Ok(Self { times: append(&times(path))?, path: path.to_owned(), file, second: None, size, limit, failed: None })
    }

    /// Adds to it.
    ///
    /// # Errors
    /// If the disk is full, for instance.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let written = self.write_at(bytes, SystemTime::now());
        self.failed = written.as_ref().err().map(|reason| reason.raw_os_error().unwrap_or(libc::EIO));
        written
    }

    /// Why the last attempt to write into it has failed; `None` if it has not.
    pub(crate) fn failed(&self) -> Option<io::Error> {
        self.failed.map(io::Error::from_raw_os_error)
    }

    /// What is to be said before the next that is written, if something could not be written before.
    pub(crate) fn gap(&self) -> Option<String> {
        self.failed().map(|reason| format!("something is missing before this line, it could not be written: {reason}"))
    }

    fn write_at(&mut self, bytes: &[u8], now: SystemTime) -> io::Result<()> {
        if self.size >= self.limit {
            let older = previous(&self.path);
            std::fs::rename(&self.path, &older)?;
            // Without it all of the older part counts as late enough.
            let _ = std::fs::rename(times(&self.path), times(&older));
            self.file = append(&self.path)?;
            self.times = append(&times(&self.path))?;
            self.size = 0;
            self.second = None;
        }
        let now = seconds(now);
        if self.second != Some(now) {
            // Asked of the file: another process may write there, too.
            let begin = self.file.metadata()?.len();
            let mut record = [0; RECORD];
            record[..8].copy_from_slice(&now.to_le_bytes());
            record[8..].copy_from_slice(&begin.to_le_bytes());
            self.times.write_all(&record)?;
            self.second = Some(now);
        }
        self.file.write_all(bytes)?;
        self.size += bytes.len() as u64;
        Ok(())
    }
}

/// Bytes that tell one second.
const RECORD: usize = 16;

fn append(path: &Path) -> io::Result<File> {
    crate::run_dir::options().append(true).create(true).mode(0o600).open(path)
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The file that holds the older part of a log.
pub(crate) fn previous(path: &Path) -> PathBuf {
    path.with_extension("log.1")
}

/// Where the times of a log, or of its older part, are.
fn times(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".times");
    name.into()
}

/// Where in a log, or in its older part, that begins which was written since `time`, to the second; `None` if nothing was.
/// Where no times are known, all of it counts.
pub(crate) fn begin_of(path: &Path, time: SystemTime) -> Option<u64> {
    let mut file = match crate::run_dir::open_file(&times(path)) {
        Ok(file) => file,
        Err(_) => return Some(0),
    };
    let mut bytes = Vec::new();
    if io::Read::read_to_end(&mut file, &mut bytes).is_err() {
        return Some(0);
    }
    let number = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes).unwrap_or(0);
    let mut records = bytes.chunks_exact(RECORD).map(|record| (number(&record[..8]), number(&record[8..])));
    // Not searched by halves: a clock that was set back makes earlier seconds follow later ones.
    records.find(|(second, _)| *second >= seconds(time)).map(|(_, begin)| begin)
}

/// A pipe whose returned end may be a container's output. What comes through it is appended to the log until every
/// writer has closed it. Without a log it goes nowhere: a disk that can't be written must not keep a node from its proxy.
pub(crate) fn capture(path: &Path) -> io::Result<OwnedFd> {
    let path = path.to_owned();
    let mut log = Log::open(&path);
    if let Err(reason) = &log {
        tracing::warn!(path = %path.display(), %reason, "what a program prints is lost until its log can be opened");
    }
    let (writer, mut reader) = pipe::pipe()?;
    tokio::spawn(async move {
        let mut buffer = vec![0; 8192];
        loop {
            match reader.read(&mut buffer).await {
                Ok(0) | Err(_) => return,
                Ok(length) => {
                    if log.is_err() {
                        log = Log::open(&path);
                    }
                    let Ok(log) = &mut log else { continue };
                    let gap = log.gap().map(|gap| format!("[leno: {gap}]\n")).unwrap_or_default();
                    // A full disk must not stop the container: what can't be kept is dropped, and that is said.
                    let _ = log.write(&[gap.as_bytes(), &buffer[..length]].concat());
                }
            }
        }
    });
    writer.into_blocking_fd()
}

#[cfg(test)]
#[path = "logs_tests.rs"]
mod tests;
