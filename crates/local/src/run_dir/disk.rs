//! The disk below the run directory: it may be full, or not be there for writing.

use std::io;
use std::path::Path;

use nix::sys::statvfs::{FsFlags, statvfs};

use crate::Error;

/// Advice about a directory that can't be made.
pub(crate) const ADVICE: &str = " (LENO_RUN_DIR=DIR chooses another place for the stage's sockets and logs)";
const FULL: &str = " (its disk is full: make room there, or choose another place with LENO_RUN_DIR=DIR)";
const READ_ONLY: &str =
    " (its disk can't be written: mount it for writing, or choose another place with LENO_RUN_DIR=DIR)";

/// The error of something that is made or written in the run directory, with the way out.
pub(crate) fn failed(what: String) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Io { what: what + advice(&source), source }
}

fn advice(reason: &io::Error) -> &'static str {
    match reason.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => FULL,
        io::ErrorKind::ReadOnlyFilesystem => READ_ONLY,
        _ => ADVICE,
    }
}

/// Why nothing can be written into a run directory now and what to do, as far as its disk tells, or `failed`, which is why the last
/// attempt has failed. `None` if all is well.
pub(crate) fn trouble(run_dir: &Path, failed: Option<&io::Error>) -> Option<String> {
    let read_only = || io::Error::from_raw_os_error(libc::EROFS);
    let full = || io::Error::from_raw_os_error(libc::ENOSPC);
    let told = statvfs(run_dir).ok().and_then(|disk| {
        // Some file systems have no such number.
        let is_full = disk.blocks() > 0 && disk.blocks_available() == 0;
        if disk.flags().contains(FsFlags::ST_RDONLY) { Some(read_only()) } else { is_full.then(full) }
    });
    let reason = failed.or(told.as_ref())?;
    Some(format!(
        "logs lose what is written now, and new pods may not start: {}{}: {reason}",
        run_dir.display(),
        advice(reason)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_and_a_read_only_disk_are_told_with_the_way_out() {
        let said = |code| failed("cannot write x".to_owned())(io::Error::from_raw_os_error(code)).to_string();
        assert!(said(libc::ENOSPC).contains("x (its disk is full: make room"), "{}", said(libc::ENOSPC));
        assert!(said(libc::EROFS).contains("mount it for writing"), "{}", said(libc::EROFS));
        assert!(said(libc::EACCES).contains("LENO_RUN_DIR=DIR chooses another place"), "{}", said(libc::EACCES));
    }

    #[test]
    fn a_disk_that_takes_nothing_is_told_until_it_does() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(trouble(dir.path(), None), None);
        let told = trouble(dir.path(), Some(&io::Error::from_raw_os_error(libc::EROFS))).unwrap();
        assert!(told.contains("mount it for writing") && told.contains(&dir.path().display().to_string()), "{told}");
        // Linux lets nobody write there.
        assert!(trouble(Path::new("/proc"), None).is_none_or(|told| told.contains("mount it")));
    }
}
