//! Tests that did not run because the machine lacks something. Each reports that at once, and a run's last lines sum it
//! up.
//!
//! `cargo test --workspace` runs many programs, and a single line among a thousand is overlooked. So skipped tests are
//! also recorded in files beside the test programs, one for each run. A run is identified by the cargo process that
//! started it. The program that cargo starts last (`xtask/tests/summary.rs`) prints the record.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// The ending of a reason that a package would remedy.
const NOT_INSTALLED: &str = " is not installed";

/// The reason of a test that needs more rights.
pub const NEEDS_ROOT: &str = "needs root";

/// Prefix of the files that record skipped tests. The run's id follows.
const PREFIX: &str = "skipped-";

/// The reason of a test that lacks a program.
pub fn not_installed(program: &str) -> String {
    format!("{program}{NOT_INSTALLED}")
}

/// Reports that a test is skipped, and why, past the test runner's capture: a skipped test must not look like a passed
/// one.
/// `.ci/run` looks for these lines.
pub fn skip(test: &str, reason: &str) {
    // Each line in one write, because tests run in parallel.
    let _ = io::stderr().write_all(format!("SKIP {test}: {reason}\n").as_bytes());
    if let Some(path) = record() {
        let line = format!("{test}\t{reason}\n");
        let _ =
            fs::OpenOptions::new().append(true).create(true).open(path).and_then(|mut f| f.write_all(line.as_bytes()));
    }
}

/// The tests skipped in this process's run, as the last lines of its output. `None` if there are none. Deletes the
/// record.
/// `packages` are lines of a program's name and that of the package it is in.
pub fn summary(packages: &str) -> Option<String> {
    let path = record()?;
    sweep(path.parent()?);
    let text = fs::read_to_string(&path).ok()?;
    let _ = fs::remove_file(&path);
    Some(summarise(&text, packages))
}

fn summarise(recorded: &str, packages: &str) -> String {
    let mut tests: BTreeMap<&str, &str> = BTreeMap::new();
    tests.extend(recorded.lines().filter_map(|line| line.split_once('\t')));
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (test, reason) in &tests {
        reasons.entry(reason).or_default().push(test);
    }
    let mut by_number: Vec<_> = reasons.into_iter().collect();
    by_number.sort_by_key(|(_, tests)| std::cmp::Reverse(tests.len()));
    let (is, plural) = if tests.len() == 1 { ("was", "") } else { ("were", "s") };
    let mut text = format!("\n{} test{plural} {is} skipped:\n", tests.len());
    for (reason, tests) in by_number {
        let _ = writeln!(text, "  {:3}  {reason}", tests.len());
    }
    let missing: BTreeSet<&str> =
        tests.values().flat_map(|reason| reason.split(", ")).filter_map(|r| r.strip_suffix(NOT_INSTALLED)).collect();
    let known: BTreeMap<&str, &str> = packages.lines().filter_map(|line| line.split_once(' ')).collect();
    let wanted: BTreeSet<&str> = missing.iter().filter_map(|program| known.get(program).copied()).collect();
    if !wanted.is_empty() {
        let wanted: Vec<_> = wanted.into_iter().collect();
        let _ = writeln!(
            text,
            "install what they want:  sudo apt-get install -y --no-install-recommends {}",
            wanted.join(" ")
        );
    }
    if tests.values().any(|reason| reason.split(", ").any(|reason| reason == NEEDS_ROOT)) {
        let _ = writeln!(text, "run those that need root: sudo -E env \"PATH=$PATH\" cargo test --workspace");
    }
    text
}

/// The record of this run, named after the process that started this one, which is cargo, and its start time.
fn record() -> Option<PathBuf> {
    let parent = std::os::unix::process::parent_id();
    Some(std::env::current_exe().ok()?.parent()?.join(format!("{PREFIX}{}", run_of(parent)?)))
}

/// A process id and its start time in ticks since boot (proc_pid_stat(5)). Process ids are reused.
fn run_of(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before the fields may contain spaces and brackets. After it comes the 3rd field; this is the 22nd.
    let began = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?;
    Some(format!("{pid}-{began}"))
}

/// Removes the records of aborted runs.
fn sweep(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(run) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else { continue };
        let pid = run.split('-').next().and_then(|pid| pid.parse().ok());
        if pid.is_none_or(|pid| run_of(pid).as_deref() != Some(run)) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    #[test]
    fn the_summary_says_how_many_why_and_what_to_do() {
        let recorded = "a\tnginx is not installed\nb\tneeds root, socat is not installed\na\tnginx is not installed\n\
                        c\tnginx is not installed\nd\tset X=PATH\n";
        let text = summarise(recorded, "nginx nginx-light\nsocat socat\ncurl curl\n");
        assert!(text.starts_with("\n4 tests were skipped:\n    2  nginx is not installed\n"), "{text}");
        assert!(text.contains("    1  set X=PATH\n"), "{text}");
        assert!(text.contains("apt-get install -y --no-install-recommends nginx-light socat\n"), "{text}");
        assert!(text.contains("sudo -E") && text.ends_with('\n'), "{text}");
    }

    #[test]
    fn no_command_is_offered_without_a_package() {
        let text = summarise("a\tset X=PATH\n", "nginx nginx-light\n");
        assert_eq!(text, "\n1 test was skipped:\n    1  set X=PATH\n");
    }

    #[test]
    fn skipped_tests_are_recorded_until_they_are_printed() {
        // A run of its own, with this process in the place of cargo.
        if std::env::var_os("LENO_TEST_SKIPS").is_some() {
            skip("one", &not_installed("nginx"));
            let told = summary("nginx nginx-light\n").expect("something was skipped");
            assert!(told.contains("1 test was skipped"), "{told}");
            assert_eq!(summary(""), None);
            return;
        }
        let this = std::env::current_exe().unwrap();
        let mut child = std::process::Command::new(this);
        child.arg("what_is_skipped").env("LENO_TEST_SKIPS", "1");
        // `.ci/run` must not see this: it would take the test for a skipped one.
        let status = child.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
        assert!(status.success());
    }
}
