//! Packages are installed into directories that hold nothing else, and README's first command is run from there.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::super::places::workspace;
use super::super::{PART, say, tools};
use super::demo_held;
use crate::command::done;

/// The hidden step that ends as a program in a directory which holds all that it can see.
pub(super) const IN_AN_EMPTY_ROOT: &str = "in-an-empty-root";

/// Packs the program of the cluster's image, installs both packages, and runs the demo from each.
pub(super) fn run() -> Result<i32> {
    ensure!(nix::unistd::geteuid().is_root(), "an empty root is made by root");
    let scratch = tempfile::tempdir().context("creating a directory")?;
    let packages = scratch.path().join("packages");
    let program = workspace().join("target/image/leno");
    let mut package = this()?;
    package.args(["package", "--binary"]).arg(&program).arg("--output").arg(&packages);
    done(&mut package)?;

    let wheel = scratch.path().join("wheel");
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--root-user-action=ignore", "--prefix"]);
    pip.arg(&wheel).arg(only(&packages, "whl")?);
    done(&mut pip)?;
    demo_from(&wheel, "/bin/leno")?;

    if tools::has("dpkg") {
        let deb = scratch.path().join("deb");
        let database = deb.join("var/lib/dpkg");
        for directory in ["info", "updates", "triggers"] {
            fs::create_dir_all(database.join(directory)).context("making dpkg's directories")?;
        }
        fs::write(database.join("status"), "").context("making dpkg's list")?;
        let mut dpkg = Command::new("dpkg");
        dpkg.arg(format!("--root={}", deb.display()))
            .args(["--log=/dev/null", "--install"])
            .arg(only(&packages, "deb")?);
        done(&mut dpkg)?;
        demo_from(&deb, "/usr/bin/leno")?;
    }
    Ok(0)
}

/// The file of a directory with this ending.
fn only(directory: &Path, ending: &str) -> Result<PathBuf> {
    let entries = fs::read_dir(directory).with_context(|| format!("listing {}", directory.display()))?;
    let mut paths = entries.flatten().map(|entry| entry.path());
    let found = paths.find(|path| path.extension().is_some_and(|extension| extension == ending));
    found.with_context(|| format!("no package ends with {ending}"))
}

fn demo_from(root: &Path, program: &str) -> Result<()> {
    say(&format!("the demo, where there is nothing but {program}"));
    let mut demo = Command::new("unshare");
    demo.args(["--mount", "--pid", "--fork", "--kill-child"]).arg(std::env::current_exe()?);
    demo.args([PART, IN_AN_EMPTY_ROOT]).arg(root).args([program, "demo", "-o", "json"]);
    demo_held(&mut demo)
}

/// Becomes `program`, which sees the directory as its root, with what the kernel itself shows and two files that
/// every machine has. Returns only if it fails.
pub(super) fn become_in(arguments: &[String]) -> Result<()> {
    let [root, program, arguments @ ..] = arguments else { anyhow::bail!("a directory and a program are wanted") };
    let root = Path::new(root);
    let nothing: Option<&str> = None;

    // What is mounted here is nobody else's business, and the root has to be a mount to be swapped.
    mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing)
        .context("keeping mounts to oneself")?;
    mount(Some(root), root, nothing, MsFlags::MS_BIND, nothing).context("mounting the directory")?;
    for (name, kind) in [("proc", "proc"), ("sys", "sysfs"), ("run", "tmpfs"), ("tmp", "tmpfs")] {
        let place = root.join(name);
        fs::create_dir_all(&place).with_context(|| format!("creating {}", place.display()))?;
        mount(Some(kind), &place, Some(kind), MsFlags::empty(), nothing).with_context(|| format!("mounting {name}"))?;
    }
    // A stage gives each pod its own in their place.
    fs::create_dir_all(root.join("etc")).context("creating etc")?;
    for file in ["resolv.conf", "hosts"] {
        fs::write(root.join("etc").join(file), "").with_context(|| format!("writing {file}"))?;
    }
    let devices = root.join("dev");
    fs::create_dir_all(&devices).context("creating dev")?;
    mount(Some("/dev"), &devices, nothing, MsFlags::MS_BIND | MsFlags::MS_REC, nothing).context("mounting dev")?;

    std::env::set_current_dir(root).context("entering the directory")?;
    nix::unistd::pivot_root(".", ".").context("taking it for the root")?;
    umount2(".", MntFlags::MNT_DETACH).context("leaving the root that was")?;
    std::env::set_current_dir("/").context("entering the root")?;
    Err(Command::new(program).args(arguments).stdin(Stdio::null()).exec())
        .with_context(|| format!("starting {program}"))
}

fn this() -> Result<Command> {
    Ok(Command::new(std::env::current_exe().context("finding this program")?))
}
