//! When something is missing or dies, nothing passes in the clear.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::stage::{Stage, eventually, skip};
use crate::topology::{self, ECHO};

const NEEDS: &[&str] = &["socat", "tcpdump", "nsenter", "curl"];
const CANARY: &str = "canary-6f1e0b";

/// Captures all traffic between the nodes.
struct Capture {
    child: std::process::Child,
    seen: Arc<Mutex<Vec<u8>>>,
    /// Kept open, because tcpdump ends when it writes to a closed pipe. Its last lines tell whether it dropped packets.
    stderr: std::process::ChildStderr,
    reader: std::thread::JoinHandle<()>,
}

impl Capture {
    fn start(stage: &Stage) -> Self {
        let netns = format!("--net=/run/netns/{}", stage.netns("fabric"));
        let mut child = Command::new("nsenter")
            // In immediate mode each packet has room for the longest one: with -s0 (256 KiB) the usual 2 MiB hold
            // eight, and what comes while tcpdump waits for a processor is dropped.
            .args([&netns, "tcpdump", "-i", "any", "--immediate-mode", "-U", "-s4096", "-B32768", "-w", "-"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // tcpdump says "listening on" once its socket is open.
        let mut said = String::new();
        let mut err = child.stderr.take().unwrap();
        let mut byte = [0];
        while !said.contains("listening") {
            assert_eq!(err.read(&mut byte).unwrap(), 1, "tcpdump: {said}");
            said.push(byte[0] as char);
        }
        let seen = Arc::new(Mutex::new(Vec::new()));
        let mut out = child.stdout.take().unwrap();
        let reader = std::thread::spawn({
            let seen = seen.clone();
            move || {
                let mut buffer = [0; 65536];
                while let Ok(n @ 1..) = out.read(&mut buffer) {
                    seen.lock().extend_from_slice(&buffer[..n]);
                }
            }
        });
        Self { child, seen, stderr: err, reader }
    }

    /// All bytes seen so far. A mark is sent in the clear after them: once it is seen, so were they, and the capture is
    /// known to see plaintext.
    fn stop(mut self, stage: &Stage) -> Vec<u8> {
        let mark = "mark-of-the-end";
        eventually("the mark in the capture", || {
            stage.sh("plain/outsider", &format!("echo {mark} | socat -t 3 - TCP:echo.plain:7000,connect-timeout=5"));
            if contains(&self.seen.lock(), mark) { Ok(()) } else { Err("not seen".to_owned()) }
        });
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
        let mut said = String::new();
        self.stderr.read_to_string(&mut said).unwrap();
        self.child.wait().unwrap();
        self.reader.join().unwrap();
        assert!(said.contains("\n0 packets dropped by kernel"), "{said}");
        std::mem::take(&mut self.seen.lock())
    }
}

fn contains(haystack: &[u8], needle: &str) -> bool {
    haystack.windows(needle.len()).any(|w| w == needle.as_bytes())
}

fn send_canary(stage: &Stage, client: &str, server: &str) -> bool {
    // The resolver waits five seconds by default before it repeats a DNS question that was lost with a proxy. That wait
    // would not measure how long the proxy was away.
    let line = format!("echo {CANARY} | RES_OPTIONS=timeout:1 socat -t 3 - TCP:{server}:7000,connect-timeout=5");
    stage.sh(client, &line).stdout.trim() == CANARY
}

#[test]
fn the_capture_sees_what_is_in_the_clear_and_not_what_is_encrypted() {
    if skip("the_capture_sees_what_is_in_the_clear_and_not_what_is_encrypted", NEEDS) {
        return;
    }
    let stage = topology::up(&[ECHO], &[]);
    let capture = Capture::start(&stage);
    assert!(send_canary(&stage, "plain/outsider", "echo.plain"));
    assert!(contains(&capture.stop(&stage), CANARY), "a capture that can't see plaintext proves nothing");
    let capture = Capture::start(&stage);
    assert!(send_canary(&stage, "mesh/far", "echo.mesh"));
    assert!(!contains(&capture.stop(&stage), CANARY));
}

#[test]
fn a_killed_proxy_leaks_nothing_and_is_back_within_a_second() {
    if skip("a_killed_proxy_leaks_nothing_and_is_back_within_a_second", NEEDS) {
        return;
    }
    let stage = topology::up(&[ECHO], &[]);
    assert!(send_canary(&stage, "mesh/far", "echo.mesh"));
    let capture = Capture::start(&stage);
    let mut outages = Vec::new();
    for node in ["node-1", "node-2", "node-1"] {
        let pid = proxy_pid(&stage, node);
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
        let killed = Instant::now();
        let mut lost = 0;
        eventually("traffic to be back", || {
            if send_canary(&stage, "mesh/far", "echo.mesh") {
                return Ok(());
            }
            lost += 1;
            Err("still refused".to_owned())
        });
        outages.push((node, killed.elapsed(), lost));
        assert_ne!(proxy_pid(&stage, node), pid);
    }
    assert!(!contains(&capture.stop(&stage), CANARY), "plaintext on the wire while a proxy was dead");
    for (node, outage, lost) in outages {
        // The proxy has to be back within one second. The rest is what `exec` and a shell take on a busy machine.
        assert!(outage < Duration::from_secs(3), "{node} took {outage:?}, {lost} connections refused");
        eprintln!("{node}: back after {outage:?}, {lost} connections refused meanwhile");
    }
}

fn proxy_pid(stage: &Stage, node: &str) -> i32 {
    stage.wait("the proxy's pid", |ps| {
        let found = ps["nodes"].as_array()?.iter().find(|n| n["name"] == node)?;
        i32::try_from(found["pid"].as_i64()?).ok().filter(|_| found["ready"] == true)
    })
}

/// A script that changes the environment and then becomes the node proxy.
fn wrapper(dir: &Path, change: &str) -> String {
    let path = dir.join("proxy");
    let text = format!("#!/bin/sh\n{change}\nexec {} node\n", env!("CARGO_BIN_EXE_leno"));
    std::fs::write(&path, text).unwrap();
    std::os::unix::fs::chown(&path, None, None).unwrap();
    let mut permissions = std::fs::metadata(&path).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o755);
    std::fs::set_permissions(&path, permissions).unwrap();
    path.display().to_string()
}

fn crippled(test: &str, change: &str) {
    if skip(test, NEEDS) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let stage = Stage::prepare(&[]);
    let mut text = topology::NAMESPACES.to_owned();
    text.push_str(&topology::client("mesh", "far", "node-1"));
    text.push_str(&topology::client("plain", "outsider", "node-1"));
    text.push_str(&ECHO.manifest("mesh"));
    text.push_str(&ECHO.manifest("plain"));
    stage.write("all.yaml", &text);
    let flag = format!("--node-proxy=node-1={}", wrapper(dir.path(), change));
    // `up` may report that a node's proxy is not ready. The stage goes on.
    let _ = crate::stage::run(stage.up_command(&[&flag]));
    stage.wait("pods to run", |ps| {
        let pods = ps["pods"].as_array()?;
        let ready =
            |ns: &str, name: &str| pods.iter().any(|p| p["namespace"] == ns && p["name"] == name && p["ready"] == true);
        (ready("mesh", "echo") && ready("plain", "outsider")).then_some(())
    });
    let capture = Capture::start(&stage);
    for server in ["echo.mesh", "echo.plain"] {
        let ran = stage.sh("mesh/far", &format!("echo {CANARY} | socat -t 3 - TCP:{server}:7000,connect-timeout=15"));
        assert_ne!(ran.stdout.trim(), CANARY, "a proxy that knows nothing let a connection pass");
    }
    assert!(!contains(&capture.stop(&stage), CANARY));
    assert!(send_canary(&stage, "plain/outsider", "echo.plain"), "pods outside the mesh are not concerned");
}

#[test]
fn what_must_pass_a_waypoint_is_refused_while_there_are_none() {
    if skip("what_must_pass_a_waypoint_is_refused_while_there_are_none", NEEDS) {
        return;
    }
    let stage = topology::up(&[ECHO], &[]);
    let service = |waypoint: &str| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: routed, namespace: mesh, labels: {{istio.io/use-waypoint: {waypoint}}}}}\n\
             spec: {{selector: {{app: echo}}, ports: [{{port: 7000}}]}}\n"
        )
    };
    stage.write("routed.yaml", &service("gate"));
    let said = eventually("a refusal", || {
        let said = stage.explain("mesh/far", "routed.mesh:7000");
        if said.contains("gate.mesh.svc.cluster.local") { Ok(said) } else { Err(said) }
    });
    assert!(said.contains("refused rather than sent around it"), "{said}");
    assert!(!send_canary(&stage, "mesh/far", "routed.mesh"));
    assert!(send_canary(&stage, "mesh/far", "echo.mesh"), "another service of the same pod is not concerned");
    stage.write("routed.yaml", &service("none"));
    eventually("no waypoint to be asked for", || {
        if send_canary(&stage, "mesh/far", "routed.mesh") { Ok(()) } else { Err("still refused".to_owned()) }
    });
}

#[test]
fn without_a_control_plane_nothing_passes() {
    crippled(
        "without_a_control_plane_nothing_passes",
        "export XDS_ADDRESS=https://127.0.0.1:1 CA_ADDRESS=https://127.0.0.1:1",
    );
}

#[test]
fn without_a_certificate_nothing_passes_to_the_mesh() {
    if skip("without_a_certificate_nothing_passes_to_the_mesh", NEEDS) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let flag = format!(
        "--node-proxy=node-1={}",
        wrapper(dir.path(), "export CA_ADDRESS=https://127.0.0.1:1 LENO_CERTIFICATE_TIMEOUT=2s")
    );
    let stage = topology::up(&[ECHO], &[&flag]);
    let capture = Capture::start(&stage);
    assert!(!send_canary(&stage, "mesh/far", "echo.mesh"));
    assert!(!contains(&capture.stop(&stage), CANARY));
    let log = stage.node_log("node-1");
    assert!(log.contains("certificate"), "the log must say why:\n{log}");
}
