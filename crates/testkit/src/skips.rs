//! Tests that did not run because the machine lacks something: each says so at once, and the last lines of a run sum it up.
//!
//! `cargo test --workspace` runs many programs, and the lines of one are lost among a thousand others. So what is skipped is
//! also kept in a file beside the test programs, one for each run: runs are told apart by the cargo that started them. The
//! program that cargo starts last (`xtask/tests/summary.rs`) prints what was kept.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// How a reason ends that a package would help against.
const NOT_INSTALLED: &str = " is not installed";

/// Why a test needs more rights.
pub const NEEDS_ROOT: &str = "needs root";

/// What the files of skipped tests are called, before the run they belong to.
const PREFIX: &str = "skipped-";

/// The reason of a test that lacks a program.
pub fn not_installed(program: &str) -> String {
    format!("{program}{NOT_INSTALLED}")
}

/// Says that a test is skipped and why, past the test runner's capture: a skipped test must not look like a passed one.
/// `.ci/run` looks for these lines.
pub fn skip(test: &str, reason: &str) {
    // Each line in one write: tests run side by side.
    let _ = io::stderr().write_all(format!("SKIP {test}: {reason}\n").as_bytes());
    if let Some(path) = record() {
        let line = format!("{test}\t{reason}\n");
        let _ =
            fs::OpenOptions::new().append(true).create(true).open(path).and_then(|mut f| f.write_all(line.as_bytes()));
    }
}

/// What was skipped in the run that this process belongs to, as the last lines of it; `None` if nothing was. Forgets it.
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

/// Where what this run skips is kept: named after the process that started this one, which is cargo, and when it began.
fn record() -> Option<PathBuf> {
    let parent = std::os::unix::process::parent_id();
    Some(std::env::current_exe().ok()?.parent()?.join(format!("{PREFIX}{}", run_of(parent)?)))
}

/// A process's number and when it began, in ticks since the machine did (proc_pid_stat(5)): numbers are used again.
fn run_of(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before it may hold spaces and brackets; this is the 22nd field, and the 3rd comes first behind the name.
    let began = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?;
    Some(format!("{pid}-{began}"))
}

/// Removes what runs left that were broken off.
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
    fn nothing_is_offered_for_what_no_package_has() {
        let text = summarise("a\tset X=PATH\n", "nginx nginx-light\n");
        assert_eq!(text, "\n1 test was skipped:\n    1  set X=PATH\n");
    }

    #[test]
    fn what_is_skipped_is_kept_until_it_is_told() {
        // A run of its own, which has this process for its cargo.
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
        // What it says of a test that does not exist is nobody's to read: `.ci/run` would take it for a skipped one.
        let status = child.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
        assert!(status.success());
    }
}
