//! `leno demo`: all its claims hold, and it leaves nothing behind, however it ends.

use std::path::Path;
use std::process::{Command, Stdio};

use leno_testkit::page_text::matches;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::stage::{eventually, leno, run, skip};

fn demo(name: &str) -> Command {
    let mut command = leno();
    command.args(["demo", "--name", name, "--duration", "4", "-o", "json"]);
    command
}

fn name(test: &str) -> String {
    format!("{test}{}", std::process::id())
}

fn leftovers(name: &str) -> Vec<String> {
    let prefix = format!("leno-{name}.");
    let names = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    names.map(|entry| entry.file_name().to_string_lossy().into_owned()).filter(|n| n.starts_with(&prefix)).collect()
}

fn failed_claims(report: &Value) -> Vec<&Value> {
    report["claims"].as_array().unwrap().iter().filter(|claim| claim["held"] != true).collect()
}

#[test]
fn demo_proves_its_claims() {
    if skip("demo_proves_its_claims", &[]) {
        return;
    }
    let name = name("proof");
    let ran = run(&mut demo(&name));
    let report: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|e| panic!("{e}: {ran:?}"));
    assert!(failed_claims(&report).is_empty() && ran.code == 0 && report["ok"] == true, "{report:#}\n{}", ran.stderr);
    let phases = report["phases"].as_array().unwrap();
    let names: Vec<_> = phases.iter().map(|phase| phase["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["outside", "enroll", "mesh", "deny"]);
    for phase in phases {
        for field in ["requests", "errors", "p50_ms", "p99_ms", "plaintext_canary_hits", "mtls_connections", "denied"] {
            assert!(phase[field].is_number(), "{field} in {phase:#}");
        }
    }
    assert_eq!(leftovers(&name), [""; 0]);
}

/// README shows an excerpt: each of its lines is printed, in this order.
#[test]
fn demo_prints_what_readme_shows() {
    if skip("demo_prints_what_readme_shows", &[]) {
        return;
    }
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let readme = std::fs::read_to_string(readme).unwrap();
    let (_, block) = readme.split_once("An excerpt:\n\n```text\n").expect("README shows an excerpt");
    let (excerpt, _) = block.split_once("```").unwrap();
    let between = || "...".to_owned();
    let shown: Vec<_> = excerpt.lines().flat_map(|line| [between(), line.to_owned()]).chain([between()]).collect();
    assert!(shown.len() > 10, "{excerpt}");
    let mut command = leno();
    command.args(["demo", "--name", &name("shown"), "--duration", "4"]);
    let ran = run(&mut command).ok();
    assert!(matches(&shown, &ran.stdout), "README shows\n{excerpt}\nand the demo prints\n{}", ran.stdout);
}

#[test]
fn demo_kept_outlives_its_command() {
    if skip("demo_kept_outlives_its_command", &[]) {
        return;
    }
    let name = name("kept");
    let ran = run(demo(&name).arg("--keep"));
    let report: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|e| panic!("{e}: {ran:?}"));
    assert!(failed_claims(&report).is_empty() && ran.code == 0, "{report:#}\n{}", ran.stderr);
    let ps = run(leno().args(["ps", "--name", &name, "-o", "json"])).ok();
    let ps: Value = serde_json::from_str(&ps.stdout).unwrap();
    assert!(ps["pods"].as_array().is_some_and(|pods| pods.len() == 5 && pods.iter().all(|pod| pod["in_mesh"] == true)));
    run(leno().args(["down", "--name", &name])).ok();
    assert_eq!(leftovers(&name), [""; 0]);
}

#[test]
fn demo_interrupted_cleans_up() {
    if skip("demo_interrupted_cleans_up", &[]) {
        return;
    }
    let name = name("stopped");
    let child = demo(&name).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let socket = Path::new("/run/leno").join(&name).join("stage.sock");
    eventually("the demo's stage to run", || socket.exists().then_some(()).ok_or_else(|| "no socket yet".to_owned()));
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGINT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(output.stdout.is_empty() && String::from_utf8_lossy(&output.stderr).contains("interrupted"), "{output:?}");
    assert_eq!(leftovers(&name), [""; 0]);
    assert!(!socket.exists());
}

#[test]
fn demo_killed_leaves_nothing_that_down_cannot_clean() {
    if skip("demo_killed_leaves_nothing_that_down_cannot_clean", &[]) {
        return;
    }
    let name = name("killed");
    // Files outside its stage's directory would never be removed.
    let elsewhere = tempfile::tempdir().unwrap();
    let mut child = demo(&name).env("TMPDIR", elsewhere.path()).stdout(Stdio::null()).spawn().unwrap();
    let run_dir = Path::new("/run/leno").join(&name);
    let manifests = run_dir.join("manifests");
    eventually("the demo's stage to run", || {
        let ready = run_dir.join("stage.sock").exists() && manifests.join("web.yaml").exists();
        if ready { Ok(()) } else { Err("not yet".to_owned()) }
    });
    child.kill().unwrap();
    child.wait().unwrap();
    assert_ne!(leftovers(&name), [""; 0], "otherwise there is nothing to clean");
    run(leno().args(["down", "--name", &name])).ok();
    assert_eq!(leftovers(&name), [""; 0]);
    assert!(!run_dir.exists());
    assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0);
}
