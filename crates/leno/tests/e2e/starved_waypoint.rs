//! A waypoint that may have little memory or few descriptors, and clients that want much. It refuses with a reason, nothing passes in
//! the clear, and it goes on by itself.

use std::process::Command;
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::clear::{CANARY, Watch};
use crate::control_groups::Group;
use crate::crowd::Crowd;
use crate::processes::{MOST_OF_A_PROCESSOR, TICKS_PER_SECOND, limit_descriptors, processor_ticks};
use crate::shop::SHOP;
use crate::stage::{Stage, eventually, run, skip};
use crate::topology::{self, ECHO};

const NEEDS: &[&str] = &["/usr/bin/python3", "socat", "curl", "pgrep"];
/// Where pods outside the mesh are answered.
const PLAIN: &str = "echo.plain:7000";

/// Two servers: one answers with a word, once or very often. The other one says back what it is told, and is not in the mesh, so that
/// each connection to it takes a descriptor of the waypoint.
const MESH: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: echo, namespace: shop}
spec: {selector: {app: echo}, ports: [{name: tcp, port: 7000}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec:
  nodeName: node-2
  containers:
  - name: web
    command:
    - bash
    - -c
    - |
      exec /usr/bin/python3 -c '
      import http.server
      class H(http.server.BaseHTTPRequestHandler):
          protocol_version = "HTTP/1.1"
          def log_message(self, *words): pass
          def do_GET(self):
              said = b"CANARY" * (1 if self.path == "/small" else 50_000)
              self.send_response(200); self.send_header("content-length", str(len(said))); self.end_headers()
              self.wfile.write(said)
      class S(http.server.ThreadingHTTPServer): request_queue_size = 512
      S(("", 8080), H).serve_forever()'
    readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: echo, namespace: shop, labels: {app: echo, istio.io/dataplane-mode: none}}
spec:
  nodeName: node-2
  containers: [{name: echo, command: [sh, -c, 'exec socat TCP-LISTEN:7000,reuseaddr,fork,backlog=512 EXEC:cat']}]
"#;

/// A stage with a waypoint, and a look at its links.
struct Scene {
    stage: Stage,
}

impl Scene {
    fn up() -> Self {
        let plain = topology::client("plain", "outsider", "node-1") + &ECHO.manifest("plain");
        let plain = format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: plain}}\n{plain}");
        let mesh = MESH.replace("CANARY", CANARY);
        Self {
            stage: Stage::up(&[("shop.yaml", SHOP), ("mesh.yaml", &mesh), ("plain.yaml", &plain)], &["--nodes", "2"]),
        }
    }

    /// Process ids of the first process of the waypoint's pod, and of the waypoint.
    fn waypoint(&self) -> (i32, i32) {
        self.stage.wait("the waypoint", |ps| {
            let is_waypoint = |pod: &&serde_json::Value| pod["waypoint"] == true && pod["ready"] == true;
            let first = ps["pods"].as_array()?.iter().find(is_waypoint)?["pid"].as_i64()?;
            let child = run(Command::new("pgrep").args(["-o", "-P", &first.to_string()])).stdout;
            Some((i32::try_from(first).ok()?, child.trim().parse().ok()?))
        })
    }

    /// Ends the waypoint, and waits for the next one.
    fn next_waypoint(&self) -> i32 {
        let (_, old) = self.waypoint();
        kill(Pid::from_raw(old), Signal::SIGKILL).unwrap();
        eventually("the next waypoint", || match self.waypoint() {
            (_, now) if now != old && self.ask().contains("200") => Ok(now),
            _ => Err(self.ask()),
        })
    }

    /// The status of a small answer and what it is.
    fn ask(&self) -> String {
        self.stage.sh("shop/client", "curl -sS -m 20 -w ' %{http_code}' http://web.shop/small 2>&1").stdout
    }

    fn is_served_again(&self) {
        let expected = format!("{CANARY} 200");
        eventually("an answer", || {
            Some(self.ask()).filter(|said| *said == expected).map(drop).ok_or_else(|| self.ask())
        });
    }
}

#[test]
fn a_waypoint_learns_its_memory_limit_and_refuses_requests_before_it_is_reached() {
    let test = "a_waypoint_learns_its_memory_limit_and_refuses_requests_before_it_is_reached";
    if skip(test, NEEDS) {
        return;
    }
    let Some(group) = Group::new(test, "memory") else { return };
    let scene = Scene::up();
    let watch = Watch::begin(&scene.stage, PLAIN);
    scene.is_served_again();
    group.take(scene.waypoint().0);
    group.give_memory(MEMORY);
    let pid = scene.next_waypoint();

    let mut hoarders = scene.stage.spawn("shop/client", &["/usr/bin/python3", "-c", HOARD]);
    eventually("a refusal", || {
        let said = scene.ask();
        if said.contains("LENO_MAX_MEMORY") { Ok(()) } else { Err(said) }
    });
    let _ = hoarders.kill();
    let _ = hoarders.wait();
    scene.is_served_again();
    assert_eq!((group.killed_for_memory(), scene.waypoint().1), (0, pid), "it lives");
    watch.end(&scene.stage);
}

/// What the waypoint and what else is in its pod may have, bytes.
const MEMORY: u64 = 20 << 20;

/// Asks for much again and again, on many connections, and reads nothing.
const HOARD: &str = r#"
import socket, time
held = []
while True:
    try:
        s = socket.create_connection(("web.shop", 80), timeout=5)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.sendall(b"GET /large HTTP/1.1\r\nhost: web.shop\r\n\r\n"); held.append(s)
    except OSError: pass
    time.sleep(0.02)"#;

#[test]
fn a_waypoint_with_few_descriptors_goes_on_when_the_crowd_has_gone() {
    if skip("a_waypoint_with_few_descriptors_goes_on_when_the_crowd_has_gone", &[NEEDS, &["prlimit"]].concat()) {
        return;
    }
    let scene = Scene::up();
    let watch = Watch::begin(&scene.stage, PLAIN);
    scene.is_served_again();
    limit_descriptors(scene.waypoint().0, DESCRIPTORS, DESCRIPTORS);
    let pid = scene.next_waypoint();

    let (begun, ticks) = (Instant::now(), processor_ticks(pid));
    let mut crowd = Crowd::come(&scene.stage, "shop/client", "echo.shop", 2 * DESCRIPTORS, "no secret");
    // Those that come by a new tunnel wait until it is accepted. Of those that come by one that stands, some are refused.
    crowd.wait("a refusal", |state| state.refused > 0);
    let said = "can't accept connections; those that come wait";
    scene.stage.told(&["logs", "shop/gate"], |log| log.lines().filter(|line| line.contains(said)).count() >= 2);
    let told = crowd.state();
    assert!(told.served > 0 && told.ended == 0, "{told:?}");
    scene.stage.told(&["logs", "shop/gate"], |log| log.contains("(os error 24)"));
    let share = (processor_ticks(pid) - ticks) as f64 / TICKS_PER_SECOND / begun.elapsed().as_secs_f64();
    assert!(share < MOST_OF_A_PROCESSOR, "{share} of a processor");

    drop(crowd);
    scene.is_served_again();
    assert_eq!(scene.waypoint().1, pid, "it lives");
    let page = "curl -sS -m 20 http://127.0.0.1:15020/metrics";
    let metrics = scene.stage.sh("shop/gate", page).ok().stdout;
    let pauses = metrics.lines().find_map(|line| line.strip_prefix("leno_accept_pauses_total ")?.parse::<u64>().ok());
    assert!(pauses > Some(0), "{metrics}");
    watch.end(&scene.stage);
}

/// More than a waypoint has open that carries nothing, and fewer than a crowd wants.
const DESCRIPTORS: usize = 80;
