//! Steps that are more than one call of another program. Each is a process of its own: `cargo xtask ci-part NAME`.

mod cluster_kill;
mod on_cluster;
mod packages;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::child::NOT_TO_BE_HAD;
use super::places::{Places, workspace};
use super::{say, tools};
use crate::command::{cargo, done};

/// Carries one out. Returns its exit code.
pub(super) fn run(name: &str, arguments: &[String]) -> Result<i32> {
    match name {
        "advisories" => advisories(),
        "demo" => demo(&beside_this("leno")?),
        "first-command" => first_command(),
        "dist" => dist(),
        "previous-image" => previous_image(),
        "cluster-kill" => cluster_kill::run(),
        "packages" => packages::run(),
        packages::IN_AN_EMPTY_ROOT => packages::become_in(arguments).map(|()| 1),
        "on-cluster" => on_cluster::run(arguments.first().context("no test program was named")?),
        _ => bail!("there is no step {name:?}"),
    }
}

/// Known vulnerabilities. The database of them is the only thing here that comes from outside of every registry.
fn advisories() -> Result<i32> {
    /// Fetching it takes a second or two. Where packets are lost without a word, nothing ever comes.
    const PATIENCE_SECONDS: &str = "20";
    const OUT_OF_TIME: i32 = 124;
    let deny = tools::DENY.path(&Places::find()?)?;
    let mut command = Command::new("timeout");
    command.arg(PATIENCE_SECONDS).arg(deny).args(["--workspace", "check", "advisories"]).current_dir(workspace());
    let output = command.stdin(Stdio::null()).output().context("starting timeout")?;
    let said = String::from_utf8_lossy(&output.stderr);
    say(&said);

    let is_unreachable =
        output.status.code() == Some(OUT_OF_TIME) || said.contains("failed to fetch advisory database");
    match output.status.success() {
        true => Ok(0),
        false if is_unreachable => {
            say("SKIPPED: the advisory database cannot be reached from here");
            Ok(NOT_TO_BE_HAD)
        }
        false => Ok(1),
    }
}

/// README's first command, with a program that is there.
fn demo(program: &Path) -> Result<i32> {
    let mut command = Command::new(program);
    command.args(["demo", "-o", "json"]);
    demo_held(&mut command).map(|()| 0)
}

/// Runs a call of the demo and looks at what it says of its claims.
fn demo_held(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("starting {}", command.get_program().display()))?;
    std::io::stdout().write_all(&output.stdout)?;
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).context("the demo's answer")?;
    ensure!(output.status.success() && told["ok"] == true, "the demo ended with {}", output.status);
    Ok(())
}

/// README's first command as a newcomer runs it: nothing is compiled yet.
fn first_command() -> Result<i32> {
    /// From clone to the demo's end on two cores.
    const MOST: Duration = Duration::from_secs(6 * 60);
    let target = tempfile::tempdir().context("creating a directory")?;
    let began = Instant::now();
    let mut cargo = cargo();
    cargo.args(["run", "--release", "--", "demo", "-o", "json"]).env("CARGO_TARGET_DIR", target.path());
    let status = cargo.status().context("running cargo")?;
    let took = began.elapsed();
    say(&format!("from nothing to the demo's end: {:.0} s", took.as_secs_f64()));
    ensure!(status.success(), "README's first command ended with {status}");
    ensure!(took <= MOST, "a newcomer waits longer than {} s", MOST.as_secs());
    Ok(0)
}

/// One commit and one compiler give one image, whatever the directory.
fn dist() -> Result<i32> {
    let scratch = tempfile::tempdir().context("creating a directory")?;
    let [first, second] = ["first.tar", "second.tar"].map(|name| scratch.path().join(name));
    let elsewhere = scratch.path().join("elsewhere");
    let image = |directory: &Path, output: &Path, more: &[&str]| {
        let mut command = cargo();
        command.current_dir(directory).args(["xtask", "image", "--output"]).arg(output).args(more);
        // Its own directory for what it compiles, as in any checkout.
        command.env_remove("CARGO_TARGET_DIR");
        done(&mut command)
    };
    image(&workspace(), &first, &[])?;
    let mut clone = Command::new("git");
    clone.args(["clone", "--quiet"]).arg(workspace()).arg(&elsewhere);
    done(&mut clone)?;
    image(&elsewhere, &second, &["--same-as", &first.display().to_string()])?;
    Ok(0)
}

/// Where [`previous_image`] puts it.
pub(super) fn previous_image_path() -> PathBuf {
    workspace().join("target/ci/previous.tar")
}

/// The image of the release before, from a work tree of its own. Where nothing has been released, of the commit before.
fn previous_image() -> Result<i32> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).current_dir(workspace()).output().context("running git")?;
        Ok::<_, anyhow::Error>(
            output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        )
    };
    let released = git(&["describe", "--tags", "--abbrev=0", "HEAD~1"])?;
    let Some(commit) = released.map_or_else(|| git(&["rev-parse", "HEAD~1"]), |tag| Ok(Some(tag)))? else {
        say("SKIPPED: there is no commit before this one");
        return Ok(NOT_TO_BE_HAD);
    };
    say(&format!("the image of {commit}"));

    let scratch = tempfile::tempdir().context("creating a directory")?;
    let tree = scratch.path().join("tree");
    let tree_name = tree.display().to_string();
    ensure!(git(&["worktree", "add", "--detach", &tree_name, &commit])?.is_some(), "git has no work tree of {commit}");
    let mut image = cargo();
    image.current_dir(&tree).env_remove("CARGO_TARGET_DIR");
    image.args(["xtask", "image", "--profile", "dev", "--output"]).arg(previous_image_path());
    let built = done(&mut image);
    git(&["worktree", "remove", "--force", &tree_name])?;
    built.map(|()| 0)
}

/// A program that was compiled together with this one.
fn beside_this(name: &str) -> Result<PathBuf> {
    let this = std::env::current_exe().context("finding this program")?;
    let path = this.with_file_name(name);
    ensure!(fs::exists(&path)?, "there is no {}", path.display());
    Ok(path)
}
