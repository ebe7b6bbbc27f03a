//! The whole lab, with subjects that need no mesh: none, and the floor.
//!
//! This program is every process of the lab, as the `leno` binary is for users: pods' first processes, servers, load
//! generators, relays. `cargo test -p leno-lab --test end_to_end -- lab run latency --quick` runs the command line.
//!
//! Needs root, or a kernel that lets users have namespaces; says so and passes otherwise.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr, reason = "a test, with a main of its own")]

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use leno_lab::cli_args::LabCommand;
use leno_lab::load::Outcome;
use leno_lab::report::{Report, html, text};
use leno_lab::run::{Progress, RunOptions, run};
use leno_lab::scenario::{Size, find};
use leno_lab::subject::Subject;
use leno_local::names::StageName;
use leno_testkit::skips::{not_installed, skip};
use tokio::sync::watch;

#[derive(Debug, Parser)]
struct Lab {
    #[command(subcommand)]
    command: LabCommand,
}

fn main() -> ExitCode {
    if leno_local::init::is_pod_init() {
        leno_local::init::pod_init();
    }
    let arguments: Vec<_> = std::env::args_os().collect();
    if let Some(main) = leno_lab::main_by_name(&arguments[0]) {
        return main();
    }
    if std::env::var_os("LENO_ROLE").is_some() {
        eprintln!("this test program is no node proxy");
        return ExitCode::FAILURE;
    }
    let words: Vec<&str> = arguments[1..].iter().map(|word| word.to_str().unwrap()).collect();
    match words.as_slice() {
        ["lab-load", spec] => leno_lab::load::load_main(spec),
        ["lab-server", spec] => leno_lab::load::server_main(spec),
        ["lab-under", stage, subject] => run_to_be_killed(stage, subject),
        ["lab", ..] => {
            let lab = Lab::parse_from(&words);
            match lab.command.execute(&program(), None) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    eprintln!("error: {error}");
                    ExitCode::FAILURE
                }
            }
        }
        // As in cargo's own harness, an argument selects the tests whose names contain it.
        words => test(words.iter().find(|word| !word.starts_with('-')).copied().unwrap_or_default()),
    }
}

fn program() -> PathBuf {
    std::env::current_exe().unwrap()
}

fn test(filter: &str) -> ExitCode {
    if !"end_to_end".contains(filter) {
        return ExitCode::SUCCESS;
    }
    if let Err(error) = leno_local::privilege::acquire() {
        skip("end_to_end", &error.to_string());
        return ExitCode::SUCCESS;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        throughput_and_its_report().await;
        every_kind_of_load().await;
        envoy_as_node_proxy().await;
        hops().await;
        a_subject_that_does_not_start().await;
        subjects_that_hang().await;
        a_subject_that_dies().await;
        a_killed_run().await;
        an_interrupted_run().await;
    });
    println!("end_to_end: ok");
    ExitCode::SUCCESS
}

fn options(scenario: &str, only: &str, subjects: &[Subject], rounds: usize) -> RunOptions {
    RunOptions {
        scenario: find(scenario, Size::Quick).unwrap(),
        subjects: subjects.to_vec(),
        rounds,
        seconds: 0.5,
        size: Size::Quick,
        only: only.to_owned(),
        program: program(),
        stage: StageName::new(&format!("labtest-{}", std::process::id())).unwrap(),
        command: "test".to_owned(),
        commit: None,
    }
}

async fn report(options: &RunOptions) -> Report {
    let (_never, stop) = watch::channel(false);
    let report = run(options, stop, &mut |progress| println!("{progress:?}")).await.unwrap();
    assert_gone(options);
    report
}

/// Nothing is left: no network namespace, no directory, no process.
fn assert_gone(options: &RunOptions) {
    assert!(!options.stage.run_dir().exists(), "{} is left", options.stage.run_dir().display());
    let names = leno_capture::NetworkNamespace::list(Path::new(leno_capture::NAMED_DIR)).unwrap();
    let left: Vec<_> = names.into_iter().filter(|name| options.stage.owns(name)).collect();
    assert!(left.is_empty(), "left: {left:?}");
    let children = leno_lab::measure::process_tree(std::process::id().cast_signed()).unwrap();
    assert_eq!(children.len(), 1, "processes are left: {children:?}");
}

/// Subjects take turns, every result is kept, and the figures are those of the results.
async fn throughput_and_its_report() {
    let options = options("throughput", "across-nodes/1-stream/", &[Subject::None, Subject::Floor], 2);
    let report = report(&options).await;
    let turns: Vec<_> = report
        .results
        .iter()
        .map(|one| (one.subject.as_str(), one.round, one.step.rsplit('/').next().unwrap()))
        .collect();
    let mut expected = Vec::new();
    for round in [1, 2] {
        for subject in ["none", "floor"] {
            expected.extend(["send", "receive"].map(|step| (subject, round, step)));
        }
    }
    assert_eq!(turns, expected);
    for result in &report.results {
        assert_eq!(result.proxies.len(), if result.subject == "floor" { 2 } else { 0 });
        for proxy in &result.proxies {
            assert!(proxy.cpu.seconds() > 0.0, "the bytes went past the relays: {result:?}");
        }
        let Outcome::Stream(outcome) = &result.loads[0].outcome else { panic!("{result:?}") };
        assert!(outcome.errors.is_empty() && outcome.bytes[0] > 1_000_000, "{outcome:?}");
    }
    let throughput = report.figures.iter().find(|figure| figure.name == "throughput").unwrap();
    assert_eq!(throughput.of("floor").unwrap().values.len(), 2);
    assert!(throughput.of("floor").unwrap().doubt.is_some(), "two rounds carry no claim");
    assert!(text(&report).contains("across-nodes/1-stream/send"));
    assert!(html(&report).unwrap().contains("Published: John Howard"));
}

/// Every kind of load gets through both hops without an error.
async fn every_kind_of_load() {
    for (scenario, only) in [("latency", "450"), ("latency", "closed"), ("connections", ""), ("mixed", "")] {
        let report = report(&options(scenario, only, &[Subject::Floor], 1)).await;
        assert_fine(&report);
    }
}

/// Every load did what it should, without an error.
fn assert_fine(report: &Report) {
    for result in &report.results {
        for load in &result.loads {
            let (fine, errors) = match &load.outcome {
                Outcome::Http(outcome) => (outcome.answered > 0, &outcome.errors),
                Outcome::Stream(outcome) => (outcome.bytes.iter().all(|bytes| *bytes > 0), &outcome.errors),
                Outcome::Idle(outcome) => (outcome.opened == 1000 && outcome.alive == 1000, &outcome.errors),
            };
            assert!(fine && errors.is_empty(), "{result:?}");
        }
    }
}

/// A program that does not know the stage carries its traffic, encrypted. The run itself checks that.
async fn envoy_as_node_proxy() {
    let Some(path) = std::env::var("LENO_ENVOY").ok() else {
        skip("envoy_as_node_proxy", "set LENO_ENVOY=PATH to an Envoy binary");
        return;
    };
    let envoy = Subject::parse(&format!("envoy={path}")).unwrap();
    for (scenario, only) in [("throughput", "1-stream/send"), ("connections", "")] {
        let report = report(&options(scenario, only, std::slice::from_ref(&envoy), 1)).await;
        assert_fine(&report);
        for result in &report.results {
            // Envoy takes tens of MiB, and the agent that configures it does not. So what was measured is Envoy.
            assert!(result.proxies.len() == 2 && result.proxies.iter().all(|proxy| proxy.fresh.rss_bytes > 30 << 20));
        }
    }
}

/// Proxies by themselves, in every kind of step that a quick run has.
async fn hops() {
    let haproxy = Path::new("/usr/sbin/haproxy");
    if !haproxy.exists() {
        skip("hops", &not_installed("haproxy"));
        return;
    }
    let mut subjects = vec![Subject::None, Subject::parse("haproxy=/usr/sbin/haproxy").unwrap()];
    if let Ok(path) = std::env::var("LENO_ENVOY") {
        subjects.push(Subject::parse(&format!("envoy={path}")).unwrap());
    }
    // A closed loop counts what ends within the time, and a mebibyte takes long on a machine that has much else to do.
    let steps =
        [("hop/plain", 0.5), ("hop/rule", 0.5), ("hop/100", 0.5), ("hop/grpc", 0.5), ("hop/1-MiB", 4.0), ("pair", 0.5)];
    for (only, seconds) in steps {
        let report = report(&RunOptions { seconds, ..options("http", only, &subjects, 1) }).await;
        assert_fine(&report);
        for result in &report.results {
            let proxies = match (result.subject.as_str(), only) {
                ("none", _) => 0,
                (_, "pair") => 2,
                _ => 1,
            };
            assert_eq!(result.proxies.len(), proxies, "{result:?}");
            assert!(result.proxies.iter().all(|proxy| proxy.cpu.seconds() > 0.0), "it was bypassed: {result:?}");
        }
        let cost = if only == "pair" { "CPU of both proxies" } else { "CPU of the proxy" };
        assert!(report.figures.iter().any(|figure| figure.name == cost && figure.of("haproxy").is_some()), "{only}");
    }
}

/// A program that the lab can't measure.
fn script(scratch: &Path, name: &str, text: &str) -> PathBuf {
    let path = scratch.join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    path
}

/// A subject's failure as text, and how many seconds it took. Nothing is left behind.
async fn failure(subject: Subject) -> (String, f64) {
    let options = options("throughput", "across-nodes/1-stream/send", &[subject], 1);
    let (_never, stop) = watch::channel(false);
    let begun = Instant::now();
    let error = run(&options, stop, &mut |_| {}).await.unwrap_err();
    assert_gone(&options);
    assert!(!error.is_usage(), "{error}");
    // The stage's directory is removed, so the error must not refer to it.
    let error = error.to_string();
    assert!(!error.contains("proxy.log") && !error.contains("wireguard.log"), "{error}");
    (error, begun.elapsed().as_secs_f64())
}

/// The error has the subject's own output. Nothing is left behind, not even what the subject has started.
async fn a_subject_that_does_not_start() {
    let scratch = tempfile::tempdir().unwrap();
    let pipe = Witness::new(scratch.path());
    let daemon = "case \"$1\" in *version) ;; *) setsid sleep 600 & esac";
    let text =
        format!("exec 9>{}; echo >&9; sleep 600 & {daemon}\necho the flux capacitor is missing >&2; exit 1", pipe.path);
    let broken = script(scratch.path(), "broken", &text);
    for (subject, name) in [(Subject::Ztunnel(broken.clone()), "ztunnel"), (Subject::Wireguard(broken), "wireguard")] {
        let mut pipe = pipe.open();
        let (error, seconds) = failure(subject).await;
        assert!(!pipe.said().is_empty(), "it has not run");
        assert!(pipe.is_closed(), "what {name} had started is left");
        assert!(error.contains(&format!("subject {name}")), "{error}");
        assert!(error.contains("the flux capacitor is missing"), "{error}");
        assert!(seconds < 60.0, "a program that ends at once needs no long wait");
    }
}

/// A pipe that shows whether programs live: a process's descriptors are closed when it has ended, in whatever way.
struct Witness {
    path: String,
}

struct Witnessing(File);

impl Witness {
    fn new(scratch: &Path) -> Self {
        let path = scratch.join("pipe");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        Self { path: path.to_str().unwrap().to_owned() }
    }

    /// Call this before a program opens it.
    fn open(&self) -> Witnessing {
        Witnessing(File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&self.path).unwrap())
    }
}

impl Witnessing {
    /// What was written so far.
    fn said(&mut self) -> String {
        let mut said = String::new();
        let _ = self.0.read_to_string(&mut said);
        said
    }

    /// Whether no process holds it, and everything written has been read.
    fn is_closed(&mut self) -> bool {
        self.0.read(&mut [0]).is_ok_and(|count| count == 0)
    }
}

/// For programs that live and do nothing, the error says what was waited for, and comes soon.
async fn subjects_that_hang() {
    let scratch = tempfile::tempdir().unwrap();
    let hangs = script(scratch.path(), "hangs", "test \"$1\" = version && exit; echo here I am; exec sleep 600");
    for (subject, words) in [
        (Subject::Ztunnel(hangs.clone()), ["15021/healthz/ready", "really a ztunnel"]),
        (Subject::Wireguard(hangs), ["nobody listens at /var/run/wireguard/leno-lab1.sock", "wireguard-go"]),
    ] {
        let (error, seconds) = failure(subject).await;
        assert!(words.iter().all(|word| error.contains(word)) && error.contains("node-1: here I am"), "{error}");
        assert!(seconds < 60.0, "{seconds} s: {error}");
    }
}

/// A proxy that dies during a measurement ends the run at once, not at the load's end.
async fn a_subject_that_dies() {
    let options =
        RunOptions { seconds: 600.0, ..options("throughput", "across-nodes/1-stream/send", &[Subject::Floor], 1) };
    let mut tell = |progress| {
        if let Progress::Begins { .. } = progress {
            let mut proxies = leno_lab::measure::process_tree(std::process::id().cast_signed()).unwrap().into_iter();
            let name = |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let proxy = proxies.rfind(|pid| name(pid).contains("leno-lab-floor")).unwrap();
            nix::sys::signal::kill(nix::unistd::Pid::from_raw(proxy), nix::sys::signal::Signal::SIGKILL).unwrap();
        }
    };
    let begun = Instant::now();
    let error = run(&options, watch::channel(false).1, &mut tell).await.unwrap_err().to_string();
    assert!(error.contains("subject floor: the proxy of node-"), "{error}");
    assert!(error.contains("died while it was measured") || error.contains("is gone"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(60), "{error}");
    assert_gone(&options);
}

/// Checks repeatedly.
fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !happened() {
        assert!(begun.elapsed() < Duration::from_secs(30), "waited for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A process that [`a_killed_run`] kills.
fn run_to_be_killed(stage: &str, subject: &str) -> ExitCode {
    leno_local::privilege::acquire().unwrap();
    let subject = Subject::parse(subject).unwrap();
    let options = RunOptions {
        stage: StageName::new(stage).unwrap(),
        ..options("throughput", "across-nodes/1-stream/send", &[subject], 1)
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let error = runtime.block_on(run(&options, watch::channel(false).1, &mut |_| {}));
    eprintln!("it was to be killed: {error:?}");
    ExitCode::FAILURE
}

/// A killed lab's subject ends with it, and the next lab removes the rest.
async fn a_killed_run() {
    let options = options("throughput", "across-nodes/1-stream/send", &[Subject::None], 1);
    let scratch = tempfile::tempdir().unwrap();
    let pipe = Witness::new(scratch.path());
    let text = format!("test \"$1\" = --version && exit; exec >{}; echo $$; exec sleep 600", pipe.path);
    let tunnel = script(scratch.path(), "tunnel", &text);
    let mut lab = std::process::Command::new(program())
        .args(["lab-under", options.stage.as_str(), &format!("wireguard={}", tunnel.display())])
        .spawn()
        .unwrap();
    let mut pipe = pipe.open();
    let mut said = String::new();
    eventually("the tunnel's program to start", || {
        assert!(lab.try_wait().unwrap().is_none(), "the lab has ended");
        said += &pipe.said();
        said.ends_with('\n')
    });
    assert!(said.trim().parse::<u32>().is_ok(), "{said:?}");
    lab.kill().unwrap();
    lab.wait().unwrap();
    eventually("the tunnel's program to end with the lab", || pipe.is_closed());
    assert!(options.stage.run_dir().exists(), "nothing was left that could be cleared");
    report(&options).await;
}

/// Ctrl-C during a measurement leaves nothing behind.
async fn an_interrupted_run() {
    let options =
        RunOptions { seconds: 600.0, ..options("throughput", "across-nodes/1-stream/send", &[Subject::Floor], 1) };
    let (interrupt, stop) = watch::channel(false);
    let (told, mut began) = watch::channel(false);
    let mut tell = |progress| {
        if matches!(progress, Progress::Turn { .. }) {
            told.send_replace(true);
        }
    };
    let running = run(&options, stop, &mut tell);
    let interrupting = async {
        began.wait_for(|began| *began).await.unwrap();
        // Setting up or measuring: every moment must work.
        tokio::time::sleep(Duration::from_secs(4)).await;
        interrupt.send_replace(true);
    };
    let (outcome, ()) = tokio::join!(running, interrupting);
    assert!(matches!(outcome, Err(leno_lab::Error::Interrupted)), "{outcome:?}");
    assert_gone(&options);
}
