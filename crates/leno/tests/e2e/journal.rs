//! `leno logs` without a pod: the stage's own log, also of a stage whose supervisor is dead.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::stage::{Ran, Stage, eventually, run, skip};

fn manifest(labels: &str, mark: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Namespace
metadata: {{name: shop, labels: {{{labels}}}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: web, namespace: shop}}
spec:
  replicas: 1
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{{name: main, command: [sh, -c, 'echo {mark}; exec sleep infinity']}}]
---
apiVersion: v1
kind: Pod
metadata: {{name: brief, namespace: shop}}
spec:
  restartPolicy: OnFailure
  containers: [{{name: main, command: [sh, -c, 'echo it burns; exit 3'], readinessProbe: {{tcpSocket: {{port: 9}}}}}}]
"
    )
}

#[test]
fn the_stages_log_tells_what_happened_and_outlives_it() {
    if skip("the_stages_log_tells_what_happened_and_outlives_it", &[]) {
        return;
    }
    let stage = Stage::prepare(&[("all.yaml", &manifest("", "one"))]);
    // One pod fails again and again. Its probe keeps it from being ready in between.
    let ran = run(stage.up_command(&["--timeout", "20s"]));
    assert_eq!(ran.code, 1, "{ran:?}");
    let logs = |args: &[&str]| run(stage.command("logs").args(args));
    let told = |words: &[&str]| {
        eventually(&format!("a line of the log with {words:?}"), || {
            let log = logs(&[]).ok().stdout;
            let found = log.lines().any(|line| words.iter().all(|word| line.contains(word)));
            if found { Ok(()) } else { Err(log.clone()) }
        });
    };
    told(&["stage ", " starts: leno "]);
    told(&["node node-1: proxy started (pid "]);
    told(&["node node-2: proxy ready"]);
    told(&["objects: added ", "Deployment shop/web"]);
    told(&["pod shop/web-", " made on node-", " for Deployment shop/web"]);
    told(&["pod shop/web-", ": started (pid "]);
    told(&["pod shop/web-", "ready, Running"]);
    told(&["pod shop/brief: ", "started again (restart 1)"]);
    told(&["pod shop/brief: ", "CrashLoopBackOff: ended with exit code 3: it burns"]);
    run(stage.command("scale").args(["shop/web", "2"])).ok();
    told(&["Deployment shop/web: scaled from 1 to 2 by `leno scale`"]);
    stage.write("all.yaml", &manifest("istio.io/dataplane-mode: ambient", "one"));
    told(&["objects: changed Namespace shop"]);
    told(&["pod shop/web-", "joined the mesh"]);
    stage.write("all.yaml", &manifest("", "two"));
    told(&["pod shop/web-", "left the mesh"]);
    told(&["Deployment shop/web: its template changed"]);
    told(&["pod shop/web-", ": gone"]);
    told(&["Deployment shop/web: rolled out"]);
    stage.write("all.yaml", "kind: [");
    told(&["the edit is refused"]);
    let proxy = stage.ps()["nodes"][0]["pid"].as_i64().unwrap();
    kill(Pid::from_raw(i32::try_from(proxy).unwrap()), Signal::SIGKILL).unwrap();
    told(&["node node-1: the proxy ended with signal 9"]);

    let all = logs(&[]).ok().stdout;
    for line in all.lines().filter(|line| !line.contains(" WARN ")) {
        let (time, _) = line.split_once(' ').unwrap();
        assert!(time.len() == 24 && time.starts_with("20") && time.ends_with('Z'), "{line}");
    }
    assert_eq!(logs(&["--tail", "2"]).ok().stdout.lines().count(), 2);
    assert_eq!(logs(&["--since", "0s", "--tail", "0"]).ok().stdout, "");
    assert!(logs(&["--since", "1h"]).ok().stdout.contains(" starts: leno "));
    let pod = |args: &[&str]| logs(&[&["shop/brief"], args].concat());
    assert!(pod(&[]).ok().stdout.starts_with("it burns\nit burns\n"));
    assert_eq!(pod(&["--tail", "1", "--since", "1h"]).ok().stdout, "it burns\n");

    let following = stage
        .command("logs")
        .args(["-f"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn();
    let supervisor = stage.ps()["supervisor"].as_i64().unwrap();
    kill(Pid::from_raw(i32::try_from(supervisor).unwrap()), Signal::SIGKILL).unwrap();
    let ended = following.unwrap().wait_with_output().unwrap();
    assert!(ended.status.success() && String::from_utf8_lossy(&ended.stdout).contains(" starts: leno "), "{ended:?}");
    let Ran { stdout, stderr, .. } = logs(&[]).ok();
    assert!(stdout.starts_with(&all), "{stdout}");
    assert!(stderr.contains(&format!("leno down --name {}", stage.name())), "{stderr}");
    assert!(logs(&["shop/brief", "--tail", "1"]).ok().stdout.contains("it burns"));
    assert!(logs(&["--node", "node-1"]).ok().stdout.contains("node-1"));
    stage.down().ok();
    let none = logs(&[]);
    assert!(none.code == 1 && none.stderr.contains("is not running"), "{none:?}");
}
