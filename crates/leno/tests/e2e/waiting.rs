//! A pod that never gets ready: `leno up` says what it waits for and why, and ends in time.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::ended::left_of;
use crate::stage::{Ran, Stage, leno, run, skip};

/// One pod whose probe fails for ever, and one that gets ready.
const NEVER: &str = "
apiVersion: v1
kind: Pod
metadata: {name: never}
spec:
  containers:
  - name: main
    command: [sleep, infinity]
    readinessProbe: {exec: {command: [sh, -c, 'echo the door is shut; exit 1']}, periodSeconds: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: fine}
spec: {containers: [{name: main, command: [sleep, infinity]}]}
";

/// Long enough for a stage to come up on a busy machine and to report the reason.
const LIMIT: &str = "15s";

fn spawn(command: &mut std::process::Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn wait(child: Child) -> Ran {
    let output = child.wait_with_output().unwrap();
    Ran {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

#[test]
fn a_stage_that_is_not_ready_in_time_says_why_and_stays_or_goes() {
    if skip("a_stage_that_is_not_ready_in_time_says_why_and_stays_or_goes", &[]) {
        return;
    }
    let [kept, stopped, watched] = [0; 3].map(|_| Stage::prepare(&[("never.yaml", NEVER)]));
    let mut foreground = leno();
    foreground.args(["up", "--name", watched.name(), "--timeout", LIMIT, "-f"]).arg(watched.dir.path());
    let running = [
        spawn(kept.up_command(&["--timeout", LIMIT])),
        spawn(stopped.up_command(&["--timeout", LIMIT, "--on-timeout", "stop"])),
        spawn(&mut foreground),
    ];
    let [kept_ran, stopped_ran, watched_ran] = running.map(wait);
    for ran in [&kept_ran, &stopped_ran, &watched_ran] {
        assert_eq!(ran.code, 1, "{ran:?}");
        let why = "pod default/never is Running: readiness probe: ";
        assert!(ran.stderr.contains(&format!("waiting: {why}")), "{ran:?}");
        assert!(ran.stderr.contains("after 15s not all is ready: ") && ran.stderr.contains(why), "{ran:?}");
        assert!(!ran.stderr.contains("default/fine"), "{ran:?}");
    }
    assert!(kept_ran.stderr.contains(&format!("leno down --name {}", kept.name())), "{kept_ran:?}");
    assert_eq!(kept.pod("default", "fine")["ready"], true);
    for gone in [&stopped, &watched] {
        assert_eq!(left_of(gone.name()), [""; 0]);
        assert_eq!(run(&mut gone.command("ps")).code, 1);
    }
}

#[test]
fn interrupted_while_it_waits_it_leaves_nothing() {
    if skip("interrupted_while_it_waits_it_leaves_nothing", &[]) {
        return;
    }
    let stage = Stage::prepare(&[("never.yaml", NEVER)]);
    let mut child = spawn(stage.up_command(&["--timeout", "0"]));
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let line = said.find(|line| line.starts_with("waiting: ")).expect("it waits");
    assert!(line.contains("default/never"), "{line}");
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGINT).unwrap();
    let rest: Vec<String> = said.collect();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{rest:?}");
    assert!(rest.iter().any(|line| line.starts_with("stopping")), "{rest:?}");
    assert_eq!(left_of(stage.name()), [""; 0]);
}
