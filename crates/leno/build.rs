//! Finds out which commit is built and by which profile, for `leno version` and the lab's reports; and how the program is
//! linked.
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
    if let Some(profile) = profile() {
        println!("cargo::rustc-env=LENO_PROFILE={profile}");
    }
    if packs_relocations() {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

/// The profile's name. Cargo's own variable says `release` for every profile that inherits from it, so the name is read from
/// the directory of this build: `target/[TRIPLE/]PROFILE/build/CRATE-HASH/out`.
fn profile() -> Option<String> {
    let out = std::env::var_os("OUT_DIR")?;
    Some(Path::new(&out).ancestors().nth(3)?.file_name()?.to_str()?.to_owned())
}

/// Whether the list of addresses that the loader adjusts may be packed. Unpacked, each process reads all 0.8 MiB of it at
/// its start and keeps that in memory. Loaders know how since glibc 2.36; an older one refuses such a program.
fn packs_relocations() -> bool {
    println!("cargo::rerun-if-env-changed=LENO_PACK_RELOCATIONS");
    let variable = |name| std::env::var(name).unwrap_or_default();
    if variable("LENO_PACK_RELOCATIONS") == "0" {
        return false;
    }
    // The libc asked is this machine's.
    if variable("CARGO_CFG_TARGET_ENV") != "gnu" || variable("HOST") != variable("TARGET") {
        return false;
    }
    let Ok(output) = Command::new("getconf").arg("GNU_LIBC_VERSION").output() else { return false };
    let answer = String::from_utf8_lossy(&output.stdout);
    let version = answer.trim().strip_prefix("glibc ").and_then(|version| version.split_once('.'));
    let number = |text: &str| text.parse::<u32>().ok();
    version.and_then(|(major, minor)| Some((number(major)?, number(minor)?))).is_some_and(|version| version >= (2, 36))
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
