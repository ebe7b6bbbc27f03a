//! What a run tells: each step's log when it ends, and at the end a summary.

use std::env;
use std::fs;
use std::io;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::causes::causes;
use super::schedule::Verdict;
use super::skips::{self, Machine};
use super::slowest::{self, Timed};

/// Steps that may be missing also where a change is judged: what they need comes from outside of every package registry.
const ALWAYS_WITHOUT: [&str; 1] = ["advisories"];

/// How a step ended.
#[derive(Debug)]
pub(super) struct Outcome {
    name: String,
    took: Duration,
    verdict: Verdict,
}

impl Outcome {
    pub(super) fn new(name: &str, took: Duration, verdict: Verdict) -> Self {
        Self { name: name.to_owned(), took, verdict }
    }
}

/// Of a run so far.
pub(super) struct Report {
    out: Box<dyn io::Write>,
    began: Instant,
    busy_at_begin: Option<Busy>,
    machine: Machine,
    without: Vec<String>,
    is_strict: bool,
    outcomes: Vec<Outcome>,
    notes: Vec<String>,
    why: Vec<String>,
    skipped: Vec<String>,
    refused: Vec<String>,
    timed: Vec<Timed>,
    tests: Tests,
}

/// Sums of what the harnesses say.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tests {
    passed: u64,
    failed: u64,
    ignored: u64,
}

impl Report {
    pub(super) fn begin(machine: Machine, out: Box<dyn io::Write>) -> Self {
        let without = env::var("LENO_CI_WITHOUT").unwrap_or_default();
        let without = without.split(',').map(str::trim).filter(|name| !name.is_empty());
        Self {
            out,
            began: began(),
            busy_at_begin: Busy::now(),
            machine,
            without: without.chain(ALWAYS_WITHOUT).map(str::to_owned).collect(),
            is_strict: env::var_os("CI").is_some_and(|value| !value.is_empty()),
            outcomes: Vec::new(),
            notes: Vec::new(),
            why: Vec::new(),
            skipped: Vec::new(),
            refused: Vec::new(),
            timed: Vec::new(),
            tests: Tests::default(),
        }
    }

    /// A line of the summary.
    pub(super) fn note(&mut self, text: &str) {
        self.notes.push(text.to_owned());
    }

    /// A step that measures has failed, and is run once more.
    pub(super) fn failed_once(&mut self, name: &str, took: Duration, log: &str) {
        self.show(&format!("=== {name}: failed after {:.0} s, is run once more", took.as_secs_f64()), log);
        self.why.push(format!("--- {name}, the first time\n{}", causes(log)));
    }

    /// Shows what a step said, and keeps what the summary is made of.
    pub(super) fn add(&mut self, outcome: Outcome, log: &str) {
        self.show(
            &format!("=== {}: {} after {:.0} s", outcome.name, told(&outcome.verdict), outcome.took.as_secs_f64()),
            log,
        );
        if let Verdict::Failed(how) = &outcome.verdict {
            self.why.push(format!("--- {} ({how})\n{}", outcome.name, causes(log)));
        }

        let skips = skips::judge(log, &self.machine);
        self.skipped.extend(skips.allowed);
        self.refused.extend(skips.refused);
        self.timed.extend(slowest::timed(&outcome.name, log));
        self.tests.add(log);
        self.outcomes.push(outcome);
    }

    fn show(&mut self, head: &str, log: &str) {
        // Who can't be told can't be told of that, either; the summary fails where this does.
        let _ = write!(self.out, "\n{head}\n{log}").and_then(|()| self.out.flush());
    }

    /// Prints the summary. Its end is what a reader sees who sees nothing else.
    pub(super) fn print(mut self) -> Result<ExitCode> {
        let lacking = self.lacking();
        let mut lines = Vec::new();

        if !self.refused.is_empty() {
            lines.push("\n=== skipped, although this machine could run it".to_owned());
            lines.extend(self.refused.iter().map(|line| format!("NOT ALLOWED: {line}")));
        }
        if !self.why.is_empty() {
            lines.push("\n=== why".to_owned());
            lines.append(&mut self.why);
        }

        lines.push("\n=== the slowest tests and chapters".to_owned());
        lines.extend(slowest::slowest(std::mem::take(&mut self.timed)));
        lines.push(format!("\n=== summary ({} s{})", self.began.elapsed().as_secs(), self.busy()));
        lines.extend(self.outcomes.iter().map(|outcome| {
            format!("{:5.0}s  {:34} {}", outcome.took.as_secs_f64(), outcome.name, told(&outcome.verdict))
        }));
        lines.extend(self.skipped.iter().map(|line| format!("        skipped: {line}")));
        lines.extend(self.notes.iter().map(|line| format!("        {line}")));
        if !lacking.is_empty() {
            let lacking = lacking.join(", ");
            lines.push(format!(
                "        FAILED for want of {lacking}. What a machine can't have is named in LENO_CI_WITHOUT"
            ));
        }

        let is_bad = |outcome: &Outcome| matches!(outcome.verdict, Verdict::Failed(_));
        let failed = self.outcomes.iter().any(is_bad) || !self.refused.is_empty() || !lacking.is_empty();
        let Tests { passed, failed: tests_failed, ignored } = self.tests;
        lines.push(format!("{passed} passed, {tests_failed} failed, {} skipped", ignored + self.skipped.len() as u64));
        writeln!(self.out, "{}", lines.join("\n")).and_then(|()| self.out.flush()).context("writing the summary")?;
        Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    /// Steps that were not done and must be where changes are judged.
    fn lacking(&self) -> Vec<String> {
        if !self.is_strict {
            return Vec::new();
        }
        let is_missed = |outcome: &&Outcome| {
            matches!(outcome.verdict, Verdict::Skipped(_)) && !self.without.contains(&outcome.name)
        };
        self.outcomes.iter().filter(is_missed).map(|outcome| outcome.name.clone()).collect()
    }

    /// How much of the processors' time was used, if the kernel tells.
    fn busy(&self) -> String {
        let share = self.busy_at_begin.as_ref().zip(Busy::now()).and_then(|(begin, end)| end.since(begin));
        share.map_or_else(String::new, |share| format!(", processors {:.0} % busy", share * 100.0))
    }
}

impl Tests {
    /// Adds up the harnesses' closing lines: `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
    fn add(&mut self, log: &str) {
        for line in log.lines().filter_map(|line| line.strip_prefix("test result: ")) {
            let count = |word: &str| {
                let before = line.split(word).next().filter(|before| before.len() < line.len());
                before.and_then(|before| before.split_whitespace().last()?.parse::<u64>().ok()).unwrap_or(0)
            };
            self.passed += count(" passed");
            self.failed += count(" failed");
            self.ignored += count(" ignored");
        }
    }
}

fn told(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Passed => "ok".to_owned(),
        Verdict::PassedAgain => "FLAKY: failed, and passed when it ran once more".to_owned(),
        Verdict::Failed(how) => format!("FAILED: {how}"),
        Verdict::Skipped(why) => format!("not to be had: {why}"),
        Verdict::LeftOut(what) => format!("left out: {what} did not pass"),
    }
}

/// The processors' time in ticks since the machine began: all of it, and what of it was idle (proc_stat(5)).
#[derive(Debug)]
struct Busy {
    all: u64,
    idle: u64,
}

impl Busy {
    fn now() -> Option<Self> {
        Self::read(&fs::read_to_string("/proc/stat").ok()?)
    }

    fn read(text: &str) -> Option<Self> {
        let line = text.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<u64> = line.split_whitespace().map_while(|field| field.parse().ok()).collect();
        // The fields after the eighth are parts of the first two.
        let all = ticks.iter().take(8).sum();
        Some(Self { all, idle: ticks.get(3)? + ticks.get(4)? })
    }

    /// The share in use between two looks.
    fn since(&self, begin: &Self) -> Option<f64> {
        let all = self.all.checked_sub(begin.all).filter(|ticks| *ticks > 0)?;
        Some(1.0 - self.idle.checked_sub(begin.idle)? as f64 / all as f64)
    }
}

/// Since when this run lasts, for its summary: `.ci/run` compiles this program before.
fn began() -> Instant {
    let now = Instant::now();
    let earlier = env::var("LENO_CI_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    earlier.and_then(|seconds| now.checked_sub(Duration::from_secs(seconds))).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(is_strict: bool) -> Report {
        Report {
            is_strict,
            without: vec!["advisories".to_owned()],
            ..Report::begin(Machine::default(), Box::new(io::sink()))
        }
    }

    fn outcome(name: &str, verdict: Verdict) -> Outcome {
        Outcome::new(name, Duration::from_secs(1), verdict)
    }

    #[test]
    fn what_can_not_be_had_fails_a_run_that_judges_a_change() {
        for (is_strict, name, wanted) in
            [(true, "conformance-build", 1), (false, "conformance-build", 0), (true, "advisories", 0)]
        {
            let mut report = report(is_strict);
            report.add(outcome(name, Verdict::Skipped("no network".to_owned())), "");
            assert_eq!(report.lacking().len(), wanted, "{name}");
        }
    }

    #[test]
    fn a_run_is_good_only_if_nothing_failed_and_nothing_was_skipped_in_secret() {
        let ended = |verdict: Verdict, log: &str| {
            let mut report = report(true);
            report.add(outcome("a", Verdict::Passed), "test result: ok. 3 passed; 0 failed; 2 ignored; 0 measured\n");
            report.add(outcome("b", verdict), log);
            format!("{:?}", report.print().expect("it can be printed"))
        };
        let good = format!("{:?}", ExitCode::SUCCESS);
        assert_eq!(ended(Verdict::Passed, ""), good);
        assert_eq!(ended(Verdict::PassedAgain, ""), good);
        assert_ne!(ended(Verdict::Failed("exit code 1".to_owned()), ""), good);
        assert_ne!(ended(Verdict::Passed, "SKIP a: nginx is not installed\n"), good);
    }

    #[test]
    fn closing_lines_are_added_up() {
        let mut tests = Tests::default();
        tests.add("test result: ok. 12 passed; 0 failed; 3 ignored; 0 measured; 0 filtered out; finished in 1s\n");
        tests.add("x\ntest result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured\ntest result:\n");
        assert_eq!(tests, Tests { passed: 13, failed: 2, ignored: 3 });
    }

    #[test]
    fn the_share_in_use_is_read() {
        let begin = Busy::read("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1\n").expect("a line");
        let end = Busy::read("cpu  200 0 100 850 50 0 0 0 0 0\n").expect("a line");
        let share = end.since(&begin).expect("time has passed");
        assert!((share - 0.75).abs() < 0.001, "{share}");
        assert!(end.since(&end).is_none());
    }
}
