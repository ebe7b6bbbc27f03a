//! `cluster up` is killed at several points, and `cluster down` finds all there is.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use sha2::{Digest as _, Sha256};

use super::super::places::{Places, workspace};
use super::super::say;
use crate::kept;

/// Lines of `cluster up`; it is killed when it says so.
const MOMENTS: [&str; 3] = ["waiting for the API server", "waiting for n1", "waiting for the nodes to be ready"];
/// A kubectl that was asking ends with `up`, by the kernel's hand, and may still be on its way.
const PATIENCE_TO_END: Duration = Duration::from_secs(10);

/// Passes without doing it again where the sources of `cargo xtask cluster` are those with which it passed on this machine.
pub(super) fn run() -> Result<i32> {
    let passed = Places::find()?.passed(&format!("cluster-kill-{}", sources()?));
    if passed.exists() {
        say("passed before on this machine, with the same sources of `cargo xtask cluster`");
        return Ok(0);
    }

    for moment in MOMENTS {
        killed_at(moment)?;
    }
    fs::create_dir_all(passed.parent().context("a directory")?).context("creating a directory")?;
    fs::write(&passed, "").with_context(|| format!("writing {}", passed.display()))?;
    Ok(0)
}

fn killed_at(moment: &str) -> Result<()> {
    let this = std::env::current_exe().context("finding this program")?;
    let cluster = |word: &str| {
        let mut command = Command::new(&this);
        command.args(["cluster", word]).stdin(Stdio::null());
        command
    };

    let mut up = cluster("up").stderr(Stdio::piped()).stdout(Stdio::null()).spawn().context("starting `cluster up`")?;
    let lines = BufReader::new(up.stderr.take().context("its errors")?).lines();
    let said = lines.map_while(Result::ok).any(|line| line.starts_with(moment));
    up.kill().context("killing `cluster up`")?;
    up.wait().context("waiting for `cluster up`")?;
    ensure!(said, "`cluster up` ended before it said {moment:?}");

    ensure!(cluster("down").status().context("starting `cluster down`")?.success(), "`cluster down` failed");
    let deadline = Instant::now() + PATIENCE_TO_END;
    loop {
        let left = left_behind()?;
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("left behind by an end at {moment:?}: {left:#?}");
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Links, control groups and processes of a cluster.
fn left_behind() -> Result<Vec<String>> {
    let named = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let links = entries(Path::new("/sys/class/net")).into_iter().filter(|path| named(path).starts_with("lc"));
    let groups = entries(Path::new("/sys/fs/cgroup")).into_iter().flat_map(|path| [path.join("leno-cluster"), path]);
    let groups = groups.filter(|path| named(path) == "leno-cluster" && path.exists());
    let programs = entries(Path::new("/proc")).into_iter().filter_map(|process| {
        let program = fs::read_link(process.join("exe")).ok()?;
        let is_of_a_cluster = program.components().any(|part| part.as_os_str() == "parts");
        is_of_a_cluster.then(|| format!("{} runs {}", process.display(), program.display()))
    });
    Ok(links.chain(groups).map(|path| path.display().to_string()).chain(programs).collect())
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// A digest of all that makes the cluster: our sources of it, and this machine's kernel.
fn sources() -> Result<String> {
    let mut files = Vec::new();
    for folder in ["xtask/src/cluster", "xtask/cluster"] {
        collect(&workspace().join(folder), &mut files);
    }
    files.sort();
    ensure!(!files.is_empty(), "there are no sources of the cluster");
    let mut hash = Sha256::new();
    hash.update(fs::read("/proc/version").unwrap_or_default());
    for file in files {
        hash.update(fs::read(&file).with_context(|| format!("reading {}", file.display()))?);
    }
    Ok(kept::key(hash))
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) {
    for path in entries(directory) {
        if path.is_dir() { collect(&path, files) } else { files.push(path) }
    }
}
