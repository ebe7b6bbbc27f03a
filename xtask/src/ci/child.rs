//! A step as a process: in a session of its own, with the share of the machine that its place gives it.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::step::{Place, Step};

/// The hidden command by which a step's process begins.
pub(crate) const COMMAND: &str = "ci-step";

/// The least share: a session in the background gets what the others leave. The kernel shares a processor between sessions
/// first and between their processes after (sched_autogroup, sched(7)), so `nice` alone changes nothing across sessions.
const AUTOGROUP_NICE: &str = "19";

/// From the request to end to the end by force.
const PATIENCE_TO_END: Duration = Duration::from_secs(30);

/// Exit code of a step that needs what can't be had on this machine.
pub(super) const NOT_TO_BE_HAD: i32 = 4;

/// A step that runs.
pub(super) struct Running {
    pub(super) number: usize,
    pub(super) place: Place,
    pub(super) began: Instant,
    pub(super) log: PathBuf,
    group: Pid,
    /// When it is asked to end, and then when it is forced to.
    deadline: Instant,
    limit: Duration,
    is_late: bool,
    frozen_since: Option<Instant>,
}

/// What [`Running`] became.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    Good,
    NotToBeHad,
    Bad(String),
}

/// Starts a step. Its end is told through `ended`, with its number.
pub(super) fn start(step: &Step, number: usize, log: PathBuf, ended: Sender<(usize, End)>) -> Result<Running> {
    let output = File::create(&log).with_context(|| format!("creating {}", log.display()))?;
    let errors = output.try_clone().context("duplicating a descriptor")?;
    let role = if step.place == Place::Behind { "behind" } else { "front" };

    let mut command = Command::new(std::env::current_exe().context("finding this program")?);
    command.args([COMMAND, role]).args(&step.command);
    command.stdin(Stdio::null()).stdout(output).stderr(errors);
    command.envs(step.environment.iter().map(|(name, value)| (name, value)));
    command.envs(step.programs.iter().filter(|(_, path)| path.exists()).map(|(name, path)| (name, path)));
    if let Some(directory) = &step.directory {
        command.current_dir(directory);
    }
    let mut child = command.spawn().with_context(|| format!("starting {}", step.name))?;

    let group = Pid::from_raw(i32::try_from(child.id()).context("a process id")?);
    let began = Instant::now();
    std::thread::spawn(move || {
        let end = match child.wait() {
            Ok(status) if status.success() => End::Good,
            Ok(status) if status.code() == Some(NOT_TO_BE_HAD) => End::NotToBeHad,
            Ok(status) => End::Bad(match (status.code(), status.signal()) {
                (Some(code), _) => format!("exit code {code}"),
                (None, Some(signal)) => format!("ended by signal {signal}"),
                (None, None) => "ended".to_owned(),
            }),
            Err(error) => End::Bad(error.to_string()),
        };
        // Nobody listens where the run was given up.
        let _ = ended.send((number, end));
    });
    Ok(Running {
        number,
        place: step.place,
        began,
        log,
        group,
        deadline: began + step.limit,
        limit: step.limit,
        is_late: false,
        frozen_since: None,
    })
}

impl Running {
    /// Why it was ended, if its time was up.
    pub(super) fn lateness(&self) -> Option<String> {
        self.is_late.then(|| format!("took more than {} minutes", self.limit.as_secs() / 60))
    }

    /// Ends it if its time is up: at first with SIGTERM.
    pub(super) fn end_if_late(&mut self) {
        if self.frozen_since.is_some() || Instant::now() < self.deadline {
            return;
        }
        self.signal(if self.is_late { Signal::SIGKILL } else { Signal::SIGTERM });
        self.is_late = true;
        self.deadline = Instant::now() + PATIENCE_TO_END;
    }

    /// Stops it in the middle of its work, or lets it go on. That time does not count.
    pub(super) fn freeze(&mut self, is_frozen: bool) {
        match (is_frozen, self.frozen_since) {
            (true, None) => {
                self.signal(Signal::SIGSTOP);
                self.frozen_since = Some(Instant::now());
            }
            (false, Some(since)) => {
                self.signal(Signal::SIGCONT);
                self.deadline += since.elapsed();
                self.frozen_since = None;
            }
            _ => {}
        }
    }

    /// Asks it to end, because the whole run ends.
    pub(super) fn give_up(&self) {
        self.signal(Signal::SIGTERM);
        self.signal(Signal::SIGCONT);
    }

    fn signal(&self, signal: Signal) {
        match killpg(self.group, signal) {
            // It ended in the same moment, or has not made its group yet: then its session is ended by its name.
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(error) => super::say(&format!("{} can't be sent {signal}: {error}", self.group)),
        }
    }
}

/// The command [`COMMAND`]. Returns only if it fails.
pub(super) fn become_the_step(mut arguments: impl Iterator<Item = String>) -> Result<()> {
    let role = arguments.next().context("no role was named")?;
    let program = arguments.next().context("no program was named")?;
    // Blocked in the program that starts the steps, and what is blocked stays so in what is started.
    nix::sys::signal::SigSet::empty().thread_set_mask().context("unblocking signals")?;
    nix::unistd::setsid().context("starting a session")?;
    nix::sys::prctl::set_pdeathsig(Signal::SIGTERM).context("tying this process to its parent")?;

    let mut command = match role.as_str() {
        "front" => Command::new(&program),
        "behind" => {
            yield_to_others();
            let mut command = Command::new("nice");
            command.args(["-n", "19", &program]);
            command
        }
        _ => bail!("{COMMAND} {role:?} is not for people to call"),
    };
    Err(command.args(arguments).exec()).with_context(|| format!("starting {program}"))
}

/// Where the kernel groups processes by their sessions, this session gets the least.
fn yield_to_others() {
    match fs::write("/proc/self/autogroup", AUTOGROUP_NICE) {
        Ok(()) => {}
        // A kernel without such groups: there `nice` is enough.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => super::say(&format!("this session can't be put behind the others: {error}")),
    }
}
