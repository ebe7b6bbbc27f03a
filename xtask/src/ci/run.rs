//! A run: steps are started as the schedule allows, and what each said is shown when it ends.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::child::{self, End, Running};
use super::executables::{self, Executable, Package};
use super::places::{Places, workspace};
use super::plan::{self, Tier};
use super::report::{Outcome, Report};
use super::schedule::{Schedule, Verdict};
use super::skips::{self, Machine};
use super::step::Place;
use super::{say, tools};
use crate::cluster::interrupt;
use crate::command;

/// Without an event, how long until signals are looked at again.
const LOOK: Duration = Duration::from_millis(250);

/// Runs all steps of a tier.
pub(super) fn run(tier: Tier) -> Result<ExitCode> {
    let places = Places::find()?;
    let logs = workspace().join("target/ci");
    fs::create_dir_all(&logs).with_context(|| format!("creating {}", logs.display()))?;
    interrupt::watch()?;

    let (sender, receiver) = mpsc::channel();
    let mut run = Run {
        schedule: Schedule::new(plan::before_the_build(tier, &places)?),
        running: Vec::new(),
        failed_once: BTreeSet::new(),
        report: Report::begin(machine(), Box::new(std::io::stdout())),
        logs,
        sender,
    };
    run.report.note(&format!("disk: {} free at the start; all of this takes about 30 GB", free_disk()));
    let whole = run.until_all_have_ended(tier, &places, &receiver);
    if whole.is_err() {
        run.running.iter().for_each(Running::give_up);
    }
    whole?;
    run.report.note(&format!("disk: {} free at the end", free_disk()));
    run.report.print()
}

struct Run {
    schedule: Schedule,
    running: Vec<Running>,
    /// Steps that measure, and are run once more.
    failed_once: BTreeSet<usize>,
    report: Report,
    logs: PathBuf,
    sender: Sender<(usize, End)>,
}

impl Run {
    fn until_all_have_ended(&mut self, tier: Tier, places: &Places, ended: &Receiver<(usize, End)>) -> Result<()> {
        loop {
            self.start_what_may()?;
            if self.schedule.is_done() && self.running.is_empty() {
                return Ok(());
            }

            match ended.recv_timeout(LOOK) {
                Ok((number, end)) => self.one_ended(number, end, tier, places)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => unreachable!("this holds a sender"),
            }
            interrupt::check()?;
            self.running.iter_mut().for_each(Running::end_if_late);
        }
    }

    fn start_what_may(&mut self) -> Result<()> {
        let next = self.schedule.next();
        for (number, why) in next.left_out {
            let name = self.schedule.step(number).name.clone();
            self.report.add(Outcome::new(&name, Duration::ZERO, Verdict::LeftOut(why)), "");
        }

        // Before what measures begins.
        let is_anything_alone = self.schedule.is_anything_alone();
        for running in self.running.iter_mut().filter(|running| running.place == Place::Behind) {
            running.freeze(is_anything_alone);
        }
        next.start.into_iter().try_for_each(|number| self.start(number))
    }

    fn start(&mut self, number: usize) -> Result<()> {
        let step = self.schedule.step(number);
        say(&format!("--- {} begins", step.name));
        let log = plan::log_of(step, &self.logs);
        self.running.push(child::start(step, number, log, self.sender.clone())?);
        Ok(())
    }

    fn one_ended(&mut self, number: usize, end: End, tier: Tier, places: &Places) -> Result<()> {
        let at = self.running.iter().position(|running| running.number == number).context("an end of what runs")?;
        let running = self.running.swap_remove(at);
        let step = self.schedule.step(number).clone();
        let log = fs::read(&running.log).with_context(|| format!("reading {}", running.log.display()))?;
        let log = String::from_utf8_lossy(&log).into_owned();

        let verdict = match (running.lateness(), end) {
            (Some(late), _) => Verdict::Failed(late),
            (None, End::Bad(why)) => Verdict::Failed(why),
            (None, End::NotToBeHad) => Verdict::Skipped(reason_of(&log)),
            (None, End::Good) if self.failed_once.contains(&number) => Verdict::PassedAgain,
            (None, End::Good) => Verdict::Passed,
        };

        let measures_once_more = step.place == Place::Alone
            && matches!(verdict, Verdict::Failed(_))
            && running.lateness().is_none()
            && self.failed_once.insert(number);
        if measures_once_more {
            self.report.failed_once(&step.name, running.began.elapsed(), &log);
            return self.start(number);
        }

        let shown = if step.is_quiet && verdict == Verdict::Passed { "" } else { log.as_str() };
        self.report.add(Outcome::new(&step.name, running.began.elapsed(), verdict.clone()), shown);
        let is_built = step.name == plan::BUILD && verdict == Verdict::Passed;
        self.schedule.ended(number, verdict);
        if is_built {
            self.schedule.add(plan::after_the_build(tier, &test_programs()?, places)?);
        }
        Ok(())
    }
}

/// What the step said last of why it can't do its work here.
fn reason_of(log: &str) -> String {
    let said = log.lines().rev().find_map(|line| line.strip_prefix("SKIPPED: "));
    said.or_else(|| log.lines().last()).unwrap_or("it can't be had here").to_owned()
}

/// Asks cargo for the test programs. They are compiled already.
fn test_programs() -> Result<Vec<Executable>> {
    let cargo = |arguments: &[&str]| -> Result<String> {
        let output = command::cargo().args(arguments).stderr(Stdio::inherit()).output().context("running cargo")?;
        ensure!(output.status.success(), "cargo {} ended with {}", arguments.join(" "), output.status);
        String::from_utf8(output.stdout).context("what cargo prints")
    };
    let metadata: serde_json::Value =
        serde_json::from_str(&cargo(&["metadata", "--no-deps", "--format-version", "1"])?)
            .context("cargo's metadata")?;
    let packages = metadata["packages"].as_array().context("packages")?;
    let packages = packages.iter().filter_map(|package| {
        let manifest = fs::read_to_string(package["manifest_path"].as_str()?).ok()?;
        Package::of(package, manifest)
    });
    let packages: Vec<_> = packages.collect();
    let messages = cargo(&["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"])?;
    executables::executables(&messages, &packages)
}

/// What decides which tests this machine must run.
fn machine() -> Machine {
    let congestion = "/proc/sys/net/ipv4/tcp_available_congestion_control";
    let congestion = fs::read_to_string(congestion).unwrap_or_default();
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let set = std::env::vars_os().filter(|(_, value)| !value.is_empty());
    Machine {
        is_root: nix::unistd::geteuid().is_root(),
        cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        has_bbr: congestion.split_whitespace().any(|name| name == "bbr"),
        has_migration: fs::exists("/proc/sys/net/ipv4/tcp_migrate_req").unwrap_or(false),
        kernel: skips::kernel_version(&release).unwrap_or_default(),
        has_helm: tools::has("helm"),
        set: set.filter_map(|(name, _)| name.into_string().ok()).collect(),
    }
}

/// A full disk shows as errors of every kind; the summary says it plainly.
fn free_disk() -> String {
    match nix::sys::statvfs::statvfs(&workspace()) {
        Ok(disk) => format!("{:.0} GB", (disk.blocks_available() * disk.fragment_size()) as f64 / 1e9),
        Err(error) => error.to_string(),
    }
}
