//! Files that others read at any time.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

/// How the names of files end that are not complete yet.
const TEMPORARY: &str = ".tmp";

/// Puts a file in place of the one at `path`, if there is one. Whoever reads sees one or the other as a whole, also after
/// a crash. The directory is made if it is missing.
///
/// # Errors
/// If the directory can't be written.
pub(crate) fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let missing = || io::Error::new(io::ErrorKind::InvalidInput, "the path names no file in a directory");
    let (dir, name) = path.parent().zip(path.file_name()).ok_or_else(missing)?;
    fs::create_dir_all(dir)?;
    remove_temporaries(path)?;
    // The name ends such that no container runtime takes it for a configuration.
    let temporary = dir.join(format!(".{}.{}{TEMPORARY}", name.to_string_lossy(), std::process::id()));
    let write = || -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&temporary)?;
        // The umask may have taken something away.
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        File::open(dir)?.sync_all()
    };
    let written = write();
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Removes a file, and what is left of it from agents that were killed while they wrote it. One that doesn't exist is not an
/// error.
///
/// # Errors
/// If the directory can't be written.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    remove_temporaries(path)?;
    gone(fs::remove_file(path))
}

fn remove_temporaries(path: &Path) -> io::Result<()> {
    let Some((dir, name)) = path.parent().zip(path.file_name()) else { return Ok(()) };
    let start = format!(".{}.", name.to_string_lossy());
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) => return gone(Err(error)),
    };
    for entry in entries {
        let entry = entry?;
        let found = entry.file_name();
        let middle = found.to_str().and_then(|found| found.strip_prefix(&start)?.strip_suffix(TEMPORARY));
        if middle.is_some_and(|pid| pid.parse::<u32>().is_ok()) {
            gone(fs::remove_file(entry.path()))?;
        }
    }
    Ok(())
}

/// That something is not there is as good as that it was removed.
fn gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_agent_left_half_written_goes() {
        let dir = tempfile::tempdir().unwrap();
        let names = || {
            let mut names: Vec<_> = fs::read_dir(dir.path())
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        let path = dir.path().join("pods.json");
        for other in [".pods.json.497.tmp", ".pods.json.mine.tmp", ".other.json.497.tmp"] {
            fs::write(dir.path().join(other), "half").unwrap();
        }
        replace(&path, b"whole", 0o600).unwrap();
        assert_eq!(names(), [".other.json.497.tmp", ".pods.json.mine.tmp", "pods.json"]);
        fs::write(dir.path().join(".pods.json.498.tmp"), "half").unwrap();
        remove(&path).unwrap();
        assert_eq!(names(), [".other.json.497.tmp", ".pods.json.mine.tmp"]);
        remove(&dir.path().join("missing/file")).unwrap();
    }
}
