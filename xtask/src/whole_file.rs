//! Files that are written as a whole or not at all, whoever reads them and however this program ends.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};

/// Puts `content` in place of what is at `path`. The directory is made if it is missing.
pub(crate) fn write(path: &Path, content: &[u8], mode: u32) -> Result<()> {
    write_with(path, mode, |mut file| file.write_all(content))
}

/// As [`write`], with what `content` writes.
pub(crate) fn write_with(path: &Path, mode: u32, content: impl FnOnce(&File) -> io::Result<()>) -> Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(directory).with_context(|| format!("creating {}", directory.display()))?;
    let file = tempfile::NamedTempFile::new_in(directory)
        .with_context(|| format!("creating a file in {}", directory.display()))?;
    content(file.as_file()).with_context(|| format!("writing {}", path.display()))?;
    // A temporary file is its maker's alone.
    let permissions = fs::Permissions::from_mode(mode);
    file.as_file().set_permissions(permissions).with_context(|| format!("setting the mode of {}", path.display()))?;
    file.persist(path).with_context(|| format!("replacing {}", path.display()))?;
    Ok(())
}
