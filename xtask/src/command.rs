//! Other programs, called from here, and where the sources are.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

/// The cargo that runs this program.
pub(crate) fn cargo_program() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// A call of cargo in the workspace, not made yet.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(cargo_program());
    cargo.current_dir(workspace()).stdin(Stdio::null());
    cargo
}

/// Runs a program to its end.
///
/// # Errors
///
/// If it can't be started or does not succeed.
pub(crate) fn done(command: &mut Command) -> Result<()> {
    let status = command.stdin(Stdio::null()).status().with_context(|| format!("starting {command:?}"))?;
    ensure!(status.success(), "{command:?} failed ({status})");
    Ok(())
}

/// The root of the sources.
pub(crate) fn workspace() -> PathBuf {
    // Without `..`, because paths are shown.
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}
