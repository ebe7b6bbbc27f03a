//! How the cluster's programs are started. Between this program and each of them stands this program once more, called as
//! `cluster-process`: it joins the control group by which the daemon is found again, leaves the terminal, and then becomes
//! the daemon.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::Pid;

use super::cgroups;
use super::layout::Layout;

/// This program, also after a build has put another in its place.
pub(crate) const THIS: &str = "/proc/self/exe";
/// The hidden command that [`become_what_is_asked`] carries out.
pub(crate) const COMMAND: &str = "cluster-process";

/// A program that was started and is to go on when this one has ended.
pub(crate) struct Daemon {
    pub(crate) name: String,
    log: PathBuf,
    child: Child,
}

impl Daemon {
    /// Starts a program of the control plane.
    pub(crate) fn start(layout: &Layout, group: &Path, program: &Path, arguments: &[String]) -> Result<Self> {
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let log = layout.log(&name);
        let mut command = start(group, &log)?;
        let child = command
            .arg(program)
            .args(arguments)
            .stdin(Stdio::null())
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        Ok(Self { name, log, child })
    }

    /// # Errors
    ///
    /// If it has ended, with the end of its log.
    pub(crate) fn check(&mut self) -> Result<()> {
        match self.child.try_wait() {
            Ok(Some(status)) => bail!("{} ended ({status}); its log says:\n{}", self.name, tail(&self.log)),
            _ => Ok(()),
        }
    }
}

/// This program, called so that it joins `group` and then becomes the program whose name and arguments are to be added.
pub(crate) fn start(group: &Path, log: &Path) -> Result<Command> {
    let output = File::create(log).with_context(|| format!("creating {}", log.display()))?;
    let errors = output.try_clone().context("duplicating a descriptor")?;
    let mut command = Command::new(THIS);
    command.args([OsStr::new(COMMAND), OsStr::new("daemon"), group.as_os_str()]).stdout(output).stderr(errors);
    command.current_dir("/");
    Ok(command)
}

/// A process in words: its number, its name, its state as `ps` shows it, and what it waits for in the kernel.
pub(crate) fn described(pid: Pid) -> String {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let status = read("status");
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("?").trim().to_owned();
    format!("{pid} {} ({}, waits in {})", field("Name:"), field("State:"), read("wchan"))
}

/// This program, called so that it becomes a program that ends when this one does.
pub(crate) fn tied(program: &str) -> Command {
    let mut command = Command::new(THIS);
    command.args([COMMAND, "tied", program]);
    command
}

/// The command [`COMMAND`]. Returns only if it fails.
pub(crate) fn become_what_is_asked(role: &str, mut arguments: impl Iterator<Item = String>) -> Result<()> {
    // `up` blocks signals to wait for them, and a blocked signal stays blocked in every program that is started: without
    // this no container could be stopped by SIGTERM.
    SigSet::empty().thread_set_mask().context("unblocking signals")?;
    match role {
        "daemon" => {
            cgroups::join(Path::new(&arguments.next().context("no control group was named")?))?;
            // A session of its own: what is typed at the terminal is not meant for it.
            nix::unistd::setsid().context("starting a session")?;
        }
        "tied" => nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).context("tying this process to its parent")?,
        _ => bail!("{COMMAND} {role:?} is not for people to call"),
    }
    let program = arguments.next().context("no program was named")?;
    Err(Command::new(&program).args(arguments).exec()).with_context(|| format!("starting {program}"))
}

/// The last lines of a log.
pub(crate) fn tail(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().collect();
    let mut shown = lines[lines.len().saturating_sub(12)..].join("\n");
    if shown.is_empty() {
        shown = "(nothing)".to_owned();
    }
    format!("{shown}\n(all of it: {})", log.display())
}
