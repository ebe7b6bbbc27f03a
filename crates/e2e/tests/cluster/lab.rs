//! `leno lab run --cluster`, with pods of its own and no mesh, and what becomes of a run that is ended or killed.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use leno_e2e::Cluster;
use serde_json::Value;

use crate::stand;

/// One step of half a second.
const STEP: [&str; 8] = [
    "lab",
    "run",
    "throughput",
    "--cluster",
    "--rounds=1",
    "--subject=none",
    "--step=across-nodes/1-stream/send",
    "--output=json",
];

/// The program of `LENO_PROGRAM`, else the one that `cargo xtask image` puts beside its archive.
fn program(test: &str) -> Option<PathBuf> {
    let named = std::env::var_os("LENO_PROGRAM").filter(|path| !path.is_empty()).map(PathBuf::from);
    let program = named.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/image/leno"));
    if program.exists() {
        return Some(program);
    }
    let why = "there is no program; `cargo xtask image` makes it, and `cargo xtask cluster load` takes its image into the cluster";
    leno_testkit::skips::skip(test, why);
    None
}

fn lab(program: &Path, cluster: &Cluster, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).env("KUBECONFIG", cluster.kubectl().kubeconfig());
    if let Some(image) = std::env::var_os("LENO_IMAGE").filter(|_| arguments.contains(&"run")) {
        command.arg("--image").arg(image);
    }
    command
}

fn is_gone(cluster: &Cluster) -> bool {
    let left = cluster.kubectl().run(&["get", "namespace", "leno-lab", "--ignore-not-found", "--output=name"]).unwrap();
    left.trim().is_empty()
}

/// A run that takes ten minutes, under way.
fn long_run(program: &Path, cluster: &Cluster) -> Child {
    let mut command = lab(program, cluster, &[&STEP[..], &["--duration=600s"]].concat());
    let mut run = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let phase =
        ["get", "pod", "load-1-1", "--namespace=leno-lab", "--ignore-not-found", "--output=jsonpath={.status.phase}"];
    let deadline = Instant::now() + Duration::from_secs(180);
    // Each look asks the cluster, which paces this.
    while !cluster.kubectl().run(&phase).is_ok_and(|phase| phase.trim() == "Running") {
        if Instant::now() > deadline {
            run.kill().unwrap();
            run.wait().unwrap();
            panic!("its load does not run");
        }
    }
    run
}

/// In one test, because there is one lab at a time in a cluster.
#[test]
fn the_lab_measures_on_a_cluster_and_leaves_nothing_there() {
    let test = "the_lab_measures_on_a_cluster_and_leaves_nothing_there";
    let Some((cluster, _shared)) = stand::cluster(test) else { return };
    let Some(program) = program(test) else { return };
    if cluster.nodes().len() < 2 {
        leno_testkit::skips::skip(test, "the lab needs two nodes");
        return;
    }

    let output = lab(&program, &cluster, &[&STEP[..], &["--duration=500ms"]].concat()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let load = &report["results"][0]["loads"][0]["outcome"];
    assert!(load["bytes"][0].as_f64().unwrap() > 1e6, "{load}");
    let nodes = &report["cluster"]["nodes"];
    assert_ne!(nodes[0]["name"], nodes[1]["name"]);
    assert!(said.contains("across-nodes/1-stream/send: throughput"), "{said}");
    assert!(is_gone(&cluster));

    let unknown = [&STEP[..], &["--duration=500ms", "--image=localhost/nobody-has-this:1"]].concat();
    let output =
        Command::new(&program).args(unknown).env("KUBECONFIG", cluster.kubectl().kubeconfig()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("can't have the image localhost/nobody-has-this:1") && said.contains("--image"), "{said}");
    assert_eq!(output.status.code(), Some(1));
    assert!(is_gone(&cluster));

    let mut run = long_run(&program, &cluster);
    let output = lab(&program, &cluster, &STEP).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("another lab is at work in this cluster"), "{said}");
    let interrupted = Command::new("kill").args(["-INT", &run.id().to_string()]).status().unwrap();
    assert!(interrupted.success());
    assert_eq!(run.wait().unwrap().code(), Some(130));
    assert!(is_gone(&cluster));

    let mut run = long_run(&program, &cluster);
    run.kill().unwrap();
    run.wait().unwrap();
    assert!(!is_gone(&cluster), "nobody could remove it");
    let output = lab(&program, &cluster, &["lab", "clean"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "what labs left in the cluster is removed\n");
    assert!(is_gone(&cluster));
}
