//! `leno up` ended by signals at any moment, however often: it reports the end, leaves nothing behind, and exits as its help says.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::stage::{Stage, eventually, leno, run, skip};

/// Two pods in the mesh. One of them ignores SIGTERM.
const PODS: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: mesh, labels: {istio.io/dataplane-mode: ambient}}
---
apiVersion: v1
kind: Pod
metadata: {name: meek, namespace: mesh}
spec: {nodeName: node-1, containers: [{name: main, command: [sleep, infinity]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: stubborn, namespace: mesh}
spec:
  nodeName: node-2
  containers: [{name: main, command: [sh, -c, 'trap : TERM; while :; do sleep 1; done']}]
";

/// What is left of a stage that should be gone: namespaces, run directory, processes.
pub(crate) fn left_of(name: &str) -> Vec<String> {
    let run_dir = run_dir(name);
    let mut left: Vec<String> = namespaces(name);
    if run_dir.exists() {
        left.push(format!(
            "{run_dir:?}: {:?}",
            std::fs::read_dir(&run_dir).map(|all| all.flatten().collect::<Vec<_>>())
        ));
    }
    // The environment of proxies and of pods' first processes names files in the run directory.
    let mark = format!("{}/", run_dir.display());
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let read = |file: &str| std::fs::read(process.path().join(file)).unwrap_or_default();
        let holds = |bytes: &[u8]| String::from_utf8_lossy(bytes).contains(&mark);
        if process.file_name().to_string_lossy().parse::<u32>().is_ok() && holds(&read("environ")) {
            left.push(format!("process {:?}: {}", process.file_name(), String::from_utf8_lossy(&read("cmdline"))));
        }
    }
    left
}

fn run_dir(name: &str) -> PathBuf {
    Path::new("/run/leno").join(name)
}

fn namespaces(name: &str) -> Vec<String> {
    let prefix = format!("leno-{name}.");
    let all = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    all.map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|netns| netns.starts_with(&prefix))
        .collect()
}

/// `leno up` in the foreground.
fn up(stage: &Stage) -> Child {
    let mut command = leno();
    command.args(["up", "--name", stage.name(), "-f"]).arg(stage.dir.path());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn send(child: &Child, signal: Signal) {
    // The child has not been waited for yet, so its process id is not reused, even if it has ended.
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
}

/// A moment in the life of a stage.
type Moment = fn(&str) -> bool;

/// At the first of them it listens for signals.
const MOMENTS: [(&str, Moment); 7] = [
    ("its directory", |name| run_dir(name).exists()),
    ("its lock", |name| run_dir(name).join("lock").exists()),
    ("its record", |name| run_dir(name).join("state.json").exists()),
    ("its first node", |name| !namespaces(name).is_empty()),
    ("its socket", |name| run_dir(name).join("stage.sock").exists()),
    ("its first pod", |name| run_dir(name).join("pods").exists()),
    ("a running stage", |name| {
        let ps = run(leno().args(["ps", "--name", name, "-o", "json"]));
        ps.stdout.matches("\"ready\": true").count() == 4
    }),
];

/// The signals that are sent, one directly after the other.
const SIGNALS: [&[Signal]; 3] =
    [&[Signal::SIGINT], &[Signal::SIGTERM, Signal::SIGTERM], &[Signal::SIGINT, Signal::SIGTERM, Signal::SIGINT]];

#[test]
fn signals_at_any_moment_leave_nothing() {
    if skip("signals_at_any_moment_leave_nothing", &[]) {
        return;
    }
    for (moment, reached) in MOMENTS {
        for signals in SIGNALS {
            let stage = Stage::prepare(&[("pods.yaml", PODS)]);
            let child = up(&stage);
            // Look every millisecond, because the moments are short.
            while !reached(stage.name()) {
                std::thread::sleep(Duration::from_millis(1));
            }
            for signal in signals {
                send(&child, *signal);
                std::thread::sleep(Duration::from_millis(5));
            }
            let output = child.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            let context = format!("{signals:?} at {moment}: {:?}: {said}", output.status);
            assert_eq!(output.status.code(), Some(130), "{context}");
            assert!(said.contains("stopping: ") && said.contains("stopped; nothing is left"), "{context}");
            assert_eq!(left_of(stage.name()), [""; 0], "{context}");
        }
    }
}

#[test]
fn signals_before_it_listens_leave_nothing() {
    if skip("signals_before_it_listens_leave_nothing", &[]) {
        return;
    }
    for pause in [0, 2, 5, 10, 20, 40] {
        let stage = Stage::prepare(&[("pods.yaml", PODS)]);
        let child = up(&stage);
        std::thread::sleep(Duration::from_millis(pause));
        // Not SIGINT: the background jobs of a shell ignore SIGINT until they install a handler.
        send(&child, Signal::SIGTERM);
        let output = child.wait_with_output().unwrap();
        // Before it listens there is nothing to remove, and the signal ends it as it ends any program.
        let by_signal = output.status.signal() == Some(Signal::SIGTERM as i32);
        assert!(by_signal || output.status.code() == Some(130), "after {pause} ms: {output:?}");
        assert_eq!(left_of(stage.name()), [""; 0], "after {pause} ms: {output:?}");
    }
}

#[test]
fn a_second_signal_during_shutdown_hurries_it_and_leaves_nothing() {
    if skip("a_second_signal_during_shutdown_hurries_it_and_leaves_nothing", &[]) {
        return;
    }
    let stage = Stage::prepare(&[("pods.yaml", PODS)]);
    let mut child = up(&stage);
    let mut said = std::io::BufRead::lines(std::io::BufReader::new(child.stderr.take().unwrap())).map(Result::unwrap);
    said.find(|line| line.starts_with("all ready")).expect("it gets ready");
    send(&child, Signal::SIGINT);
    said.find(|line| line.starts_with("stopping")).expect("it says that it stops");
    send(&child, Signal::SIGINT);
    said.find(|line| line.starts_with("still stopping")).expect("it says that it goes on");
    send(&child, Signal::SIGTERM);
    let rest: Vec<String> = said.collect();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(rest, ["stopped; nothing is left"]);
    assert_eq!(left_of(stage.name()), [""; 0]);
}

/// SIGKILL leaves no chance to clean up. `leno down` cleans up what there was at that moment.
#[test]
fn after_a_kill_at_any_moment_down_leaves_nothing() {
    if skip("after_a_kill_at_any_moment_down_leaves_nothing", &[]) {
        return;
    }
    for (moment, reached) in MOMENTS {
        let stage = Stage::prepare(&[("pods.yaml", PODS)]);
        let mut child = up(&stage);
        while !reached(stage.name()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        send(&child, Signal::SIGKILL);
        child.wait().unwrap();
        stage.down().ok();
        eventually("its processes to be gone", || {
            let left = left_of(stage.name());
            if left.is_empty() { Ok(()) } else { Err(format!("killed at {moment}: {left:?}")) }
        });
    }
}

#[test]
fn manifests_that_never_come_on_standard_input_can_be_given_up() {
    if skip("manifests_that_never_come_on_standard_input_can_be_given_up", &[]) {
        return;
    }
    let stage = Stage::prepare(&[]);
    let mut command = leno();
    command.args(["up", "--name", stage.name(), "-f", "-"]);
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Wait until it listens for signals: SIGINT is bit 2 of the caught signals (proc_pid_status(5)).
    eventually("it to listen", || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or_default().trim();
        let caught = u64::from_str_radix(caught, 16).unwrap_or_default();
        if caught & 0b10 != 0 && caught & 1 != 0 { Ok(()) } else { Err(status) }
    });
    send(&child, Signal::SIGINT);
    let mut child = child;
    // Keep standard input open meanwhile, so that nothing else ends the wait.
    let stdin = child.stdin.take();
    let output = child.wait_with_output().unwrap();
    drop(stdin);
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert_eq!(left_of(stage.name()), [""; 0]);
}
