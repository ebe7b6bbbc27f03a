//! Printing what containers wrote, and what they go on to write.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Write};
use std::os::unix::fs::MetadataExt as _;

use crate::Error;
use crate::files::watch::Watcher;
use crate::run_dir::open_file;
use crate::stage::api::LogFiles;

/// Writes logs to `out`, one after the other; with `follow` until their pod or the stage is gone.
///
/// # Errors
/// If a log can't be read, or `out` not be written.
pub async fn print_logs(logs: &[LogFiles], follow: bool, out: &mut (dyn Write + Send)) -> Result<(), Error> {
    let watcher = Watcher::new()?;
    let mut tails = Vec::new();
    for files in logs {
        // Before the first read: what is written in between must not be missed.
        if follow {
            watcher.cover_log(&files.current)?;
        }
        let mut tail = Tail { files, file: None, line: Vec::new() };
        let older = open_file(&files.previous).and_then(read_all).unwrap_or_default();
        tail.write(&older, out)?;
        tails.push(tail);
    }
    loop {
        for tail in &mut tails {
            tail.advance(out)?;
        }
        out.flush().map_err(Error::io("cannot write"))?;
        let gone = |tail: &Tail<'_>| !tail.files.current.parent().is_some_and(std::path::Path::exists);
        if !follow || tails.iter().all(gone) {
            return tails.iter_mut().try_for_each(|tail| tail.finish(out));
        }
        watcher.event().await?;
    }
}

/// One log, and how far it was printed.
struct Tail<'a> {
    files: &'a LogFiles,
    /// `None` until there is one.
    file: Option<File>,
    /// The begin of a line whose end is not there yet.
    line: Vec<u8>,
}

impl Tail<'_> {
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

fn read_all(mut file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
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
