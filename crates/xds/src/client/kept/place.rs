//! The directory of a journal, which several processes share while one proxy follows another.
//!
//! A process has its journal locked as long as it lives, so the others can tell whether its writer does. Who puts a
//! journal in place holds the directory's lock meanwhile.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::journal::Journal;

/// Where the journal is that counts.
#[derive(Clone)]
pub(super) struct Place {
    path: PathBuf,
}

/// Whose journal is in place.
pub(super) enum Holder {
    This,
    /// Another process that lives.
    Another,
    /// Another process that has ended.
    Dead,
    /// There is no journal.
    Nobody,
}

impl Place {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The journal in place, if there is one and only this user can have written it.
    pub(super) fn open(&self) -> io::Result<Option<File>> {
        let file = match open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let found = file.metadata()?;
        if !found.is_file() || found.mode() & 0o077 != 0 {
            return Err(io::Error::other("others may read or write it; it must be a file of mode 600"));
        }
        Ok(Some(file))
    }

    /// A new file beside the one in place, locked. What processes have left there that were killed is removed.
    pub(super) fn beside(&self) -> io::Result<(File, PathBuf)> {
        let _lock = self.lock()?;
        for left in
            std::fs::read_dir(self.directory())?.flatten().map(|entry| entry.path()).filter(|path| self.is_beside(path))
        {
            if open(&left).is_ok_and(|file| file.try_lock().is_ok()) {
                std::fs::remove_file(&left)?;
            }
        }
        let mut name = self.path.as_os_str().to_owned();
        name.push(format!(".{:08x}", rand::random::<u32>()));
        let new = PathBuf::from(name);
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&new)?;
        file.lock()?;
        Ok((file, new))
    }

    /// Puts a journal in place of whatever is there.
    pub(super) fn put(&self, journal: &mut Journal) -> io::Result<()> {
        let _lock = self.lock()?;
        self.rename(journal)
    }

    /// Puts a journal that was written anew in place, unless a process that followed this one has taken it.
    pub(super) fn put_unless_followed(&self, journal: &mut Journal) -> io::Result<()> {
        let _lock = self.lock()?;
        let held = std::fs::symlink_metadata(&self.path).is_ok_and(|found| Some(found.ino()) == journal.before);
        if held {
            return self.rename(journal);
        }
        match journal.beside.take() {
            Some(beside) => std::fs::remove_file(beside),
            None => Ok(()),
        }
    }

    pub(super) fn holder(&self, journal: &Journal) -> io::Result<Holder> {
        let found = match std::fs::symlink_metadata(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Holder::Nobody),
            found => found?,
        };
        if found.ino() == journal.inode()? {
            return Ok(Holder::This);
        }
        match open(&self.path)?.try_lock() {
            Ok(()) => Ok(Holder::Dead),
            Err(TryLockError::WouldBlock) => Ok(Holder::Another),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Removes what is outdated from now on: this process's journal, and that of a process which has ended.
    pub(super) fn abandon(&self, journal: Option<&Journal>) {
        if let Some(journal) = journal {
            self.remove_beside(journal);
        }
        let Ok(_lock) = self.lock() else { return };
        let own = journal.is_some_and(|journal| matches!(self.holder(journal), Ok(Holder::This)));
        if own || open(&self.path).is_ok_and(|file| file.try_lock().is_ok()) {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    /// Removes a journal that was not put in place.
    pub(super) fn remove_beside(&self, journal: &Journal) {
        if let Some(beside) = &journal.beside {
            let _ = std::fs::remove_file(beside);
        }
    }

    fn rename(&self, journal: &mut Journal) -> io::Result<()> {
        if let Some(beside) = journal.beside.take() {
            std::fs::rename(beside, &self.path)?;
        }
        Ok(())
    }

    fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("."))
    }

    fn is_beside(&self, path: &Path) -> bool {
        let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
        let (Some(own), Some(other)) = (name(&self.path), name(path)) else { return false };
        other.strip_prefix(&own).is_some_and(|rest| rest.starts_with('.'))
    }

    /// The lock ends with the file.
    fn lock(&self) -> io::Result<File> {
        let directory = File::open(self.directory())?;
        directory.lock()?;
        Ok(directory)
    }
}

/// Never through a link.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
}
