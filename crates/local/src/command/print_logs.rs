//! Printing what containers wrote, and what they go on to write.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom, Write};
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, SystemTime};

use crate::Error;
use crate::files::watch::Watcher;
use crate::names::StageName;
use crate::run_dir::lock::{Holder, Lock};
use crate::run_dir::open_file;
use crate::stage::api::LogFiles;
use crate::stage::logs;

/// What of a log is wanted.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted {
    /// Whether to go on with what is written from now on.
    pub follow: bool,
    /// Only so many lines at the end of what there is.
    pub tail: Option<usize>,
    /// Only what was written since then, to the second.
    pub since: Option<SystemTime>,
}

/// How often it is looked whether the supervisor still lives while a log is followed: nothing is written any more when it
/// is killed, and nothing tells that.
const ALIVE: Duration = Duration::from_secs(1);

/// Writes logs to `out`, one after the other; those that are followed until their pod or the stage is gone.
///
/// # Errors
/// If a log can't be read, or `out` not be written.
pub async fn print_logs(
    name: &StageName,
    logs: &[LogFiles],
    wanted: Wanted,
    out: &mut (dyn Write + Send),
) -> Result<(), Error> {
    let watcher = Watcher::new()?;
    let run_dir = name.run_dir();
    let mut tails = Vec::new();
    for files in logs {
        // Before the first read: what is written in between must not be missed.
        if wanted.follow {
            watcher.cover_log(&files.current)?;
        }
        let mut tail = Tail { files, file: None, line: Vec::new() };
        let first = tail.first(wanted)?;
        tail.write(&first, out)?;
        tails.push(tail);
    }
    loop {
        // Before what is read next: that is all there will be.
        let alive = Lock::holder(&run_dir) != Holder::Nobody;
        for tail in &mut tails {
            tail.advance(out)?;
        }
        out.flush().map_err(Error::io("cannot write"))?;
        let gone = |tail: &Tail<'_>| !tail.files.current.parent().is_some_and(std::path::Path::exists);
        if !wanted.follow || !alive || tails.iter().all(gone) {
            return tails.iter_mut().try_for_each(|tail| tail.finish(out));
        }
        if let Ok(event) = tokio::time::timeout(ALIVE, watcher.event()).await {
            event?;
        }
    }
}

/// One log, and how much of it was printed.
struct Tail<'a> {
    files: &'a LogFiles,
    /// `None` until there is one.
    file: Option<File>,
    /// The begin of a line whose end is not there yet.
    line: Vec<u8>,
}

impl Tail<'_> {
    /// What there is at first, as far as it is wanted.
    fn first(&mut self, wanted: Wanted) -> Result<Vec<u8>, Error> {
        let what = || format!("cannot read {}", self.files.current.display());
        let current = match open_file(&self.files.current) {
            Ok(file) => Some(file),
            Err(reason) if reason.kind() == ErrorKind::NotFound => None,
            Err(reason) => return Err(Error::io(what())(reason)),
        };
        let mut bytes = Vec::new();
        let older = open_file(&self.files.previous).ok();
        // Opened second, it may be what was current a moment ago; then that is read once, and what follows it next.
        let older = older.filter(|older| current.as_ref().is_none_or(|current| !same(older, current)));
        for (file, path) in [(&older, &self.files.previous), (&current, &self.files.current)] {
            let begin = wanted.since.map_or(Some(0), |time| logs::begin_of(path, time));
            let Some(mut file) = file.as_ref() else { continue };
            match begin {
                Some(begin) => file.seek(SeekFrom::Start(begin)).and_then(|_| file.read_to_end(&mut bytes)),
                None => file.seek(SeekFrom::End(0)).map(|_| 0),
            }
            .map_err(Error::io(what()))?;
        }
        self.file = current;
        if let Some(lines) = wanted.tail {
            let begin = last_lines(&bytes, lines);
            bytes.drain(..begin);
        }
        Ok(bytes)
    }

    /// Prints what is new.
    fn advance(&mut self, out: &mut (dyn Write + Send)) -> Result<(), Error> {
        let what = || format!("cannot read {}", self.files.current.display());
        loop {
            if let Some(file) = &mut self.file {
                let mut bytes = Vec::new();
                file.read_to_end(&mut bytes).map_err(Error::io(what()))?;
                self.write(&bytes, out)?;
            }
            let newest = match open_file(&self.files.current) {
                Ok(file) => file,
                Err(reason) if reason.kind() == ErrorKind::NotFound => return Ok(()),
                Err(reason) => return Err(Error::io(what())(reason)),
            };
            // Started anew, or opened for the first time: it is read from its begin.
            if self.file.as_ref().is_some_and(|file| same(file, &newest)) {
                return Ok(());
            }
            self.file = Some(newest);
        }
    }

    fn write(&mut self, bytes: &[u8], out: &mut (dyn Write + Send)) -> Result<(), Error> {
        let Some(prefix) = self.prefix() else {
            return out.write_all(bytes).map_err(Error::io("cannot write"));
        };
        self.line.extend_from_slice(bytes);
        let Some(end) = self.line.iter().rposition(|byte| *byte == b'\n') else { return Ok(()) };
        let rest = self.line.split_off(end + 1);
        let lines = std::mem::replace(&mut self.line, rest);
        let mut text = Vec::with_capacity(lines.len());
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            text.extend_from_slice(prefix.as_bytes());
            text.extend_from_slice(line);
        }
        out.write_all(&text).map_err(Error::io("cannot write"))
    }

    /// Prints a last line that has no end.
    fn finish(&mut self, out: &mut (dyn Write + Send)) -> Result<(), Error> {
        if self.line.is_empty() { Ok(()) } else { self.write(b"\n", out) }
    }

    fn prefix(&self) -> Option<String> {
        self.files.container.as_ref().map(|container| format!("[{container}] "))
    }
}

/// Where the last `count` lines begin; a last one without an end counts.
fn last_lines(bytes: &[u8], count: usize) -> usize {
    if count == 0 {
        return bytes.len();
    }
    let complete = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let mut ends = complete.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
    ends.nth(count - 1).map_or(0, |(at, _)| at + 1)
}

fn same(a: &File, b: &File) -> bool {
    let inode = |file: &File| -> io::Result<(u64, u64)> {
        let meta = file.metadata()?;
        Ok((meta.dev(), meta.ino()))
    };
    matches!((inode(a), inode(b)), (Ok(a), Ok(b)) if a == b)
}

#[cfg(test)]
#[path = "print_logs_tests.rs"]
mod tests;
