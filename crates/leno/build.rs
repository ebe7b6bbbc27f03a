//! Finds out which commit is built, for `leno version` and the lab's reports.
//!
//! `LENO_COMMIT` in the environment wins: for builds from an archive. Outside of this repository and without git nothing is
//! said, and the build goes on.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=LENO_COMMIT");
    // Without these lines cargo would only look at this crate: a commit, or an edit in any crate, changes the answer. The
    // program is linked anew for each of them anyway.
    for path in ["../../crates", "../../Cargo.toml", "../../Cargo.lock"] {
        println!("cargo::rerun-if-changed={path}");
    }
    for path in ["HEAD", "logs/HEAD"].iter().filter_map(|name| git(&["rev-parse", "--git-path", name])) {
        if Path::new(&path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    let given = std::env::var("LENO_COMMIT").ok().filter(|commit| !commit.is_empty());
    if let Some(commit) = given.or_else(commit) {
        println!("cargo::rustc-env=LENO_COMMIT={commit}");
    }
}

/// The commit of the repository whose root is this workspace: an archive unpacked inside of another one is not of it.
fn commit() -> Option<String> {
    let top = std::fs::canonicalize(git(&["rev-parse", "--show-toplevel"])?).ok()?;
    if top != std::fs::canonicalize("../..").ok()? {
        return None;
    }
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let edits = git(&["status", "--porcelain", "--untracked-files=no"])?;
    Some(if edits.is_empty() { commit } else { format!("{commit}-dirty") })
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("--no-optional-locks").args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
