//! A control plane as subject: started, fed, followed by proxies, ended.
//!
//! This program is every process of the lab, as the `leno` binary is for users.
//! `cargo test -p leno-lab --test churn -- lab run churn --quick` runs the command line. Needs no rights.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr, reason = "a test, with a main of its own")]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use leno_lab::churn::{Phase, PhaseResult, Shape};
use leno_lab::cli_args::LabCommand;
use leno_lab::report::{Report, html, text};
use leno_lab::run::{Progress, RunOptions, run};
use leno_lab::scenario::{Scenario, Size, find};
use leno_lab::subject::Subject;
use leno_local::names::StageName;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::sync::watch;

#[derive(Debug, Parser)]
struct Lab {
    #[command(subcommand)]
    command: LabCommand,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["lab-control"] => leno_lab::churn::control_main(),
        ["version"] => ExitCode::SUCCESS,
        ["lab", ..] => match Lab::parse_from(&words).command.execute(&program(), None) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("error: {error}");
                ExitCode::FAILURE
            }
        },
        // As in cargo's own harness, an argument selects the tests whose names contain it.
        words => test(words.iter().find(|word| !word.starts_with('-')).copied().unwrap_or_default()),
    }
}

fn program() -> PathBuf {
    std::env::current_exe().unwrap()
}

fn test(filter: &str) -> ExitCode {
    if !"churn".contains(filter) {
        return ExitCode::SUCCESS;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        every_phase().await;
        some_phases_of_two_builds().await;
        an_interrupted_run().await;
        a_control_plane_that_dies().await;
        a_program_that_is_no_control_plane().await;
    });
    println!("churn: ok");
    ExitCode::SUCCESS
}

fn options(only: &str, shape: Shape) -> RunOptions {
    RunOptions {
        scenario: Scenario { mesh: Some(shape), ..find("churn", Size::Quick).unwrap() },
        subjects: vec![Subject::Leno(None)],
        rounds: 1,
        seconds: 0.4,
        size: Size::Quick,
        only: only.to_owned(),
        program: program(),
        stage: StageName::new(&format!("churntest-{}", std::process::id())).unwrap(),
        command: "test".to_owned(),
        commit: None,
    }
}

const SMALL: Shape = Shape { services: 6, pods: 5, proxies: 4, changes: 10.0, arriving: 2 };

/// No process is left. One that was killed may be on its way still, on a machine that has much else to do.
fn assert_gone() {
    const PATIENCE: Duration = Duration::from_secs(30);
    let this = std::process::id().cast_signed();
    let begun = Instant::now();
    loop {
        let children = leno_lab::measure::process_tree(this).unwrap();
        if children.len() == 1 {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "processes are left: {children:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

async fn report(options: &RunOptions) -> Report {
    let (_never, stop) = watch::channel(false);
    let report = run(options, stop, &mut |progress| println!("{progress:?}")).await.unwrap();
    assert_gone();
    report
}

/// The result of every phase is there and as expected.
async fn every_phase() {
    let report = report(&options("", SMALL)).await;
    let steps: Vec<_> = report.churn.iter().map(|result| result.step.as_str()).collect();
    assert_eq!(steps, Phase::CHURN.map(Phase::name));
    assert!(report.results.is_empty());
    for result in &report.churn {
        let phase = Phase::of(&result.step).unwrap();
        assert!(result.after.rss_bytes > 1 << 20 && result.after.peak_bytes >= result.after.rss_bytes, "{result:?}");
        assert!(result.cpu.seconds() > 0.0 || phase == Phase::Idle, "{result:?}");
        let with_proxies = phase.needs_proxies() || phase == Phase::FirstSync;
        assert_eq!(result.proxies, if with_proxies { 4 } else { 0 }, "{result:?}");
        match phase {
            Phase::Start | Phase::Ready | Phase::Idle => {
                assert_eq!((result.changes, result.bytes), (0, 0), "{result:?}")
            }
            // Six services and thirty workloads for each.
            Phase::FirstSync => assert!(result.bytes > 4 * 36 * 50 && result.responses >= 8, "{result:?}"),
            Phase::Alone(_) => assert!(result.changes >= 3 && result.bytes == 0, "{result:?}"),
            Phase::Churn(kind) => {
                let latency = result.latency.as_ref().unwrap();
                assert_eq!(latency.count as usize, result.changes * 4, "{result:?}");
                assert!(latency.max_us < 20e6, "{result:?}");
                assert_eq!(kind.is_at_fixed_times(), result.touched == result.changes, "{result:?}");
                assert!(result.bytes as usize > result.touched * 4 * 50, "{result:?}");
            }
            // Ten pods were replaced meanwhile. The proxies said that they hold everything else.
            Phase::Reconnect => {
                let sync = report.churn.iter().find(|other| other.step == Phase::FirstSync.name()).unwrap();
                assert!(result.changes == 10 && result.bytes > 0, "{result:?}");
                assert!(result.bytes < sync.bytes * 3 / 4, "{} of {} bytes were sent again", result.bytes, sync.bytes);
            }
        }
    }
    let figure = |step: &str, name: &str| {
        let of = |figure: &&leno_lab::stats::Figure| figure.step == step && figure.name == name;
        report.figures.iter().find(of).unwrap_or_else(|| panic!("{step}: {name}")).of("leno").unwrap().median
    };
    assert!(figure("start", "memory per workload") > 0.0 && figure("churn/replace-pod", "fed to seen p99") > 0.0);
    assert!(
        figure("alone/replace-service", "CPU per pod changed")
            < figure("alone/replace-service", "CPU per change") * 1e3
    );
    let page = html(&report).unwrap();
    assert!(
        page.contains("churn/relabel-namespace") && page.contains("latency by percentile"),
        "no curve of what was seen when"
    );
    assert!(text(&report).contains("CPU per proxy and change"));
    let json = serde_json::to_string(&report).unwrap();
    let again = serde_json::from_str::<Report>(&json).unwrap().churn;
    let raw = |results: &[PhaseResult]| -> Vec<_> {
        results
            .iter()
            .map(|one| (one.step.clone(), one.bytes, one.after, one.latency.as_ref().map(|some| some.count)))
            .collect()
    };
    assert_eq!(raw(&again), raw(&report.churn));
}

/// Phases that others require run and are not reported. Subjects take turns.
async fn some_phases_of_two_builds() {
    let subjects = vec![Subject::Leno(None), Subject::Leno(Some(program()))];
    let report = report(&RunOptions { subjects, rounds: 2, ..options("churn/replace-pod", SMALL) }).await;
    let turns: Vec<_> = report.churn.iter().map(|one| (one.subject.len() > 4, one.round, one.step.as_str())).collect();
    let step = "churn/replace-pod";
    assert_eq!(turns, [(false, 1, step), (true, 1, step), (false, 2, step), (true, 2, step)]);
}

/// Ctrl-C during a measurement leaves nothing behind.
async fn an_interrupted_run() {
    for step in ["start", "first-sync", "churn/replace-pod"] {
        let options = RunOptions { seconds: 600.0, ..options("churn/replace-pod", SMALL) };
        let (interrupt, stop) = watch::channel(false);
        let mut tell = |progress: Progress| {
            if matches!(progress, Progress::Begins { step: begun, .. } if begun == step) {
                interrupt.send_replace(true);
            }
        };
        let outcome = run(&options, stop, &mut tell).await;
        assert!(matches!(outcome, Err(leno_lab::Error::Interrupted)), "{step}: {outcome:?}");
        assert_gone();
    }
}

/// The run ends at once, with a reason.
async fn a_control_plane_that_dies() {
    let options = RunOptions { seconds: 600.0, ..options("idle", SMALL) };
    let (_never, stop) = watch::channel(false);
    let mut tell = |progress: Progress| {
        if matches!(progress, Progress::Begins { step, .. } if step == "idle") {
            let own = std::process::id().cast_signed();
            let children = leno_lab::measure::process_tree(own).unwrap();
            let child = children.into_iter().find(|pid| *pid != own).unwrap();
            kill(Pid::from_raw(child), Signal::SIGKILL).unwrap();
        }
    };
    let begun = Instant::now();
    let error = run(&options, stop, &mut tell).await.unwrap_err();
    let words = error.to_string();
    assert!(words.contains("subject leno") && !error.is_usage(), "{words}");
    assert!(words.contains("has ended") || words.contains("connection") || words.contains("gone"), "{words}");
    assert!(words.contains("discovery stream opened"), "its log is told: {words}");
    assert!(begun.elapsed() < Duration::from_secs(60), "{words}");
    assert_gone();
}

/// The error has the program's own output and comes without a long wait.
async fn a_program_that_is_no_control_plane() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("other");
    let script = "#!/bin/sh\ntest \"$1\" = version && exit\necho the flux capacitor is missing >&2; exit 1\n";
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let options = RunOptions { subjects: vec![Subject::Leno(Some(path))], ..options("start", SMALL) };
    let error = run(&options, watch::channel(false).1, &mut |_| {}).await.unwrap_err().to_string();
    assert!(error.contains("the flux capacitor is missing"), "{error}");
    assert_gone();
}
