//! The run directory: used only where nobody else can have put anything.
//!
//! Its name can be guessed, and for an ordinary user it may lie in `/tmp`, where anybody can make it first, with symbolic links
//! in it that lead to the user's own files, or with a socket in it that takes what `leno exec` hands over. So owner and mode are
//! looked at before anything in it is, and no file in it is opened through a link.

pub(crate) mod disk;
pub(crate) mod lock;
pub(crate) mod record;

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use libc::{O_DIRECTORY, O_NOFOLLOW, O_PATH};

use crate::Error;
use crate::names::StageName;
use crate::privilege;
use crate::run_dir::disk::{ADVICE, failed};

/// Name of the supervisor's socket in the run directory.
pub(crate) const SOCKET: &str = "stage.sock";

/// Write permission of group and others.
const OTHERS_WRITE: u32 = 0o022;
/// Nobody but its owner may remove or rename what lies in a directory of this mode.
const STICKY: u32 = 0o1000;

impl StageName {
    /// Directory with this stage's sockets, logs and state: `LENO_RUN_DIR`, else `/run/leno` for
    /// the machine's root, else `leno` in `XDG_RUNTIME_DIR`, else `/tmp/leno-<uid>`; then the stage's name.
    pub fn run_dir(&self) -> PathBuf {
        self.base().join(self.as_str())
    }

    /// The directory that holds the run directories of all stages.
    pub(crate) fn base(&self) -> PathBuf {
        self.chosen_base().unwrap_or_else(default_base)
    }

    /// Whether somebody has said where run directories are.
    pub(crate) fn is_chosen(&self) -> bool {
        self.chosen_base().is_some()
    }

    /// Names of the stages other than this one that run, or have left something behind.
    #[must_use]
    pub fn others(&self) -> Vec<String> {
        if check_base(self).is_err() {
            return Vec::new();
        }
        let entries = std::fs::read_dir(self.base()).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<_> = names.filter(|name| *name != self.as_str() && Self::new(name).is_ok()).collect();
        names.sort();
        names
    }

    /// Removes the run directory, and the one above if that was Leno's choice and is empty now.
    pub(crate) fn remove_run_dir(&self) -> io::Result<()> {
        match std::fs::remove_dir_all(self.run_dir()) {
            // `leno down` waits for a supervisor whose own end removes it as well.
            Err(reason) if reason.kind() == io::ErrorKind::NotFound => {}
            removed => removed?,
        }
        if self.chosen_base().is_none() {
            // Other stages may be there.
            let _ = std::fs::remove_dir(default_base());
        }
        Ok(())
    }

    /// Directories that pods must not see into: those of all stages, or where somebody has chosen
    /// the directory, and so may keep other things there, only this one's.
    pub(crate) fn hidden(&self) -> Vec<PathBuf> {
        let mut hidden = vec![default_base()];
        if self.chosen_base().is_some() {
            hidden.push(self.run_dir());
        }
        hidden
    }

    fn chosen_base(&self) -> Option<PathBuf> {
        let chosen = || std::env::var_os("LENO_RUN_DIR").filter(|dir| !dir.is_empty()).map(PathBuf::from);
        let base = self.base.clone().or_else(chosen)?;
        // Proxies and pods are told of it, and begin in other directories.
        Some(std::path::absolute(&base).unwrap_or(base))
    }
}

fn default_base() -> PathBuf {
    if privilege::is_machine_root() {
        PathBuf::from("/run/leno")
    } else if let Some(dir) = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty()) {
        PathBuf::from(dir).join("leno")
    } else {
        PathBuf::from(format!("/tmp/leno-{}", privilege::outer_uid()))
    }
}

/// Makes the run directory of a stage if it is not there, and checks it.
///
/// # Errors
/// [`Error::RunDirectory`] if somebody else made it or may write into it; [`Error::Io`] if it can't be made.
pub(crate) fn make(name: &StageName) -> Result<PathBuf, Error> {
    let run_dir = name.run_dir();
    let make = |dir: &Path, mode| match DirBuilder::new().recursive(true).mode(mode).create(dir) {
        // Something that is no directory: looked at below, in words that say what.
        Err(reason) if reason.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made.map_err(failed(format!("cannot create the directory {}", dir.display()))),
    };
    // Others may ask whether a stage of some name runs, and see nothing of it.
    make(&name.base(), 0o711)?;
    check_base(name)?;
    make(&run_dir, 0o700)?;
    check(name)?;
    Ok(run_dir)
}

/// Checks the run directory of a stage if it is there; where it is.
///
/// # Errors
/// [`Error::RunDirectory`] if somebody else made it or may write into it.
pub(crate) fn check(name: &StageName) -> Result<PathBuf, Error> {
    let run_dir = name.run_dir();
    let Some(base) = check_base(name)? else { return Ok(run_dir) };
    let Some(found) = look(&run_dir, false)? else { return Ok(run_dir) };
    let owned = found.uid() == own_uid() || (name.is_chosen() && found.uid() == base.uid());
    if !owned {
        return Err(foreign(&run_dir, &found));
    }
    if found.mode() & 0o077 != 0 {
        return Err(open(&run_dir, &found, "700"));
    }
    Ok(run_dir)
}

/// Whether the checked run directory belongs to the user of this process, and not to the one whose directory was chosen for it.
pub(crate) fn is_own(run_dir: &Path) -> bool {
    std::fs::symlink_metadata(run_dir).is_ok_and(|found| found.uid() == own_uid())
}

/// Checks the directory in which those of all stages are; `None` if there is none.
pub(crate) fn check_base(name: &StageName) -> Result<Option<Metadata>, Error> {
    let base = name.base();
    // A directory chosen by the user may be a link or belong to others: the user named it.
    let Some(found) = look(&base, name.is_chosen())? else { return Ok(None) };
    if !name.is_chosen() && found.uid() != own_uid() {
        return Err(foreign(&base, &found));
    }
    let replaceable = found.mode() & OTHERS_WRITE != 0 && !(name.is_chosen() && found.mode() & STICKY != 0);
    if replaceable { Err(open(&base, &found, "711")) } else { Ok(Some(found)) }
}

/// The user of this process as the file system shows it, also to root of a user namespace.
fn own_uid() -> u32 {
    nix::unistd::geteuid().as_raw()
}

/// Looks at `path`, which must be a directory.
fn look(path: &Path, follow: bool) -> Result<Option<Metadata>, Error> {
    let link = if follow { 0 } else { O_NOFOLLOW };
    // O_PATH: others' directories can be looked at that can't be read.
    let flags = O_PATH | O_DIRECTORY | link;
    match OpenOptions::new().read(true).custom_flags(flags).open(path).and_then(|dir| dir.metadata()) {
        Ok(found) => Ok(Some(found)),
        Err(reason) if reason.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(reason) => match std::fs::symlink_metadata(path) {
            Ok(found) if !found.is_dir() => Err(Error::RunDirectory {
                path: path.to_owned(),
                problem: format!("is no directory but a {}", if found.is_symlink() { "symbolic link" } else { "file" }),
                remedy: format!("remove it, {ELSEWHERE}"),
            }),
            _ => Err(Error::io(format!("cannot look into {}{ADVICE}", path.display()))(reason)),
        },
    }
}

/// The way out where the directory can't be mended.
const ELSEWHERE: &str = "or choose another place with LENO_RUN_DIR=DIR";

fn foreign(path: &Path, found: &Metadata) -> Error {
    Error::RunDirectory {
        path: path.to_owned(),
        problem: format!("belongs to user {}, not to you (user {})", found.uid(), own_uid()),
        remedy: format!("have its owner or root remove it, {ELSEWHERE}"),
    }
}

fn open(path: &Path, found: &Metadata, wanted: &str) -> Error {
    Error::RunDirectory {
        path: path.to_owned(),
        problem: format!("is open to other users (mode {:o})", found.mode() & 0o7777),
        remedy: format!(
            "if you made it and trust what is in it, `chmod {wanted} {}`; else remove it, {ELSEWHERE}",
            path.display()
        ),
    }
}

/// How a file in the run directory is opened: never through a link.
pub(crate) fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.custom_flags(O_NOFOLLOW);
    options
}

/// Opens a file of the run directory for reading.
pub(crate) fn open_file(path: &Path) -> io::Result<File> {
    options().read(true).open(path)
}

/// Writes a whole file with the given mode, naming the path in the error.
pub(crate) fn write_file(path: &Path, content: &[u8], mode: u32) -> Result<(), Error> {
    let attempt = || -> io::Result<()> {
        let mut file = options().write(true).create(true).truncate(true).mode(mode).open(path)?;
        file.write_all(content)
    };
    attempt().map_err(failed(format!("cannot write {}", path.display())))
}

/// Creates a directory of the run directory, and those between, mode 0700.
pub(crate) fn make_dir(path: &Path) -> Result<PathBuf, Error> {
    let what = || format!("cannot create the directory {}", path.display());
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed(what()))?;
    if std::fs::symlink_metadata(path).map_err(failed(what()))?.is_symlink() {
        return Err(failed(what())(io::Error::other("a symbolic link has its name")));
    }
    Ok(path.to_owned())
}

#[cfg(test)]
#[path = "run_dir_tests.rs"]
mod tests;
