//! Files that only this user can read and write.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Longest file that is read, bytes.
const LONGEST: u64 = 1 << 20;

/// Makes a directory that only this user can read and write. One that is there must be so already: others may have put
/// files into it, or still have it open.
pub(super) fn make_private(dir: &Path) -> io::Result<()> {
    match DirBuilder::new().recursive(true).mode(0o700).create(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = fs::symlink_metadata(dir)?;
    let own = nix::unistd::geteuid().as_raw();
    let problem = if !found.is_dir() {
        "is not a directory".to_owned()
    } else if found.uid() != own {
        format!("belongs to user {}, and the proxy runs as user {own}", found.uid())
    } else if found.mode() & 0o077 != 0 {
        format!("is open to others (mode {:o}); remove it, and the proxy makes it anew", found.mode() & 0o777)
    } else {
        return Ok(());
    };
    Err(io::Error::other(format!("{} {problem}", dir.display())))
}

/// Reads a file of this user's alone, never through a link.
pub(super) fn read_private(path: &Path) -> io::Result<String> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    let found = file.metadata()?;
    if !found.is_file() || found.mode() & 0o077 != 0 {
        return Err(io::Error::other("others may read or write it; it must be a file of mode 600"));
    }
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text)?;
    Ok(text)
}

/// Puts the whole text in place of what is there. A reader finds one or the other.
pub(super) fn write_private(path: &Path, text: &str) -> io::Result<()> {
    // Two proxies may write the same file. In containers of their own they may have the same process id.
    let new = path.with_extension(format!("new-{:08x}", rand::random::<u32>()));
    let attempt = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(text.as_bytes())?;
        fs::rename(&new, path)
    };
    attempt().inspect_err(|_| {
        let _ = fs::remove_file(&new);
    })
}
