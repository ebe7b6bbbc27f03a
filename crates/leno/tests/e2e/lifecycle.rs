//! Pods start, end, join and leave the mesh without a restart of others and without lost requests.

use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;

use crate::clear::{CANARY, Watch};
use crate::stage::{eventually, leno, run, script, skip};
use crate::topology::{self, Readiness, Server};

const NEEDS: &[&str] = &["curl", "socat", "nsenter", "/usr/bin/python3"];
const WEB: Server<'static> = Server {
    name: "web",
    node: "node-2",
    port: 8080,
    readiness: Readiness::Accepts,
    command: r#"exec /usr/bin/python3 -c '
import http.server, socket
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.send_response(200); self.send_header("content-length", "3"); self.end_headers(); self.wfile.write(b"hi\n")
    def log_message(self, *a): pass
class S(http.server.ThreadingHTTPServer):
    request_queue_size = 512
    address_family = socket.AF_INET6
S(("::", 8080), H).serve_forever()'"#,
};

/// Where pods outside the mesh are answered.
const PLAIN: &str = "web.plain:8080";
/// A request with a word that nobody must be able to read.
const ASK: [&str; 7] = ["curl", "-sS", "-m", "60", "-A", CANARY, "http://web.mesh:8080/"];

const STEADY: &str = "
import urllib.request, time, sys
bad = n = 0
end = time.time() + float(sys.argv[2])
while time.time() < end:
    n += 1
    try:
        assert urllib.request.urlopen(sys.argv[1], timeout=5).read() == b'hi\\n'
    except Exception as e:
        bad += 1; print(n, repr(e), file=sys.stderr)
    time.sleep(0.005)
print(n, bad)";

#[test]
fn joining_and_leaving_the_mesh_loses_no_request_and_restarts_nothing() {
    if skip("joining_and_leaving_the_mesh_loses_no_request_and_restarts_nothing", NEEDS) {
        return;
    }
    let stage = topology::up(&[WEB], &[]);
    let started = |name: &str| stage.pod("plain", name)["restarts"].clone();
    let before = (started("web"), started("outsider"));
    let watch = Watch::begin(&stage, PLAIN);
    let client = stage.spawn("plain/outsider", &["/usr/bin/python3", "-c", STEADY, "http://web.plain:8080/", "12"]);
    let in_mesh = |wanted: bool| {
        stage.wait("all pods of plain to change sides", |ps| {
            ps["pods"]
                .as_array()?
                .iter()
                .filter(|p| p["namespace"] == "plain")
                .all(|p| p["in_mesh"] == wanted)
                .then_some(())
        });
    };
    let text = std::fs::read_to_string(stage.dir.path().join("all.yaml")).unwrap();
    let joined =
        text.replace("metadata: {name: plain}", "metadata: {name: plain, labels: {istio.io/dataplane-mode: ambient}}");
    for round in 0..2 {
        stage.write("all.yaml", &joined);
        in_mesh(true);
        eventually("encrypted traffic", || {
            let metrics = stage.node_get("node-2", 15020, "/metrics");
            let seen = metrics.lines().any(|l| {
                l.starts_with("istio_tcp_connections_opened_total")
                    && l.contains("ns/plain/sa/outsider")
                    && l.contains("mutual_tls")
            });
            if seen { Ok(()) } else { Err(format!("round {round}")) }
        });
        stage.exec("plain/outsider", &ASK).ok();
        stage.exec("mesh/far", &ASK).ok();
        stage.write("all.yaml", &text);
        in_mesh(false);
    }
    let out = client.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    let [requests, failed] = said.split_whitespace().map(|n| n.parse::<u32>().unwrap()).collect::<Vec<_>>()[..] else {
        panic!("{said} {}", String::from_utf8_lossy(&out.stderr));
    };
    assert!(requests > 100 && failed == 0, "{failed} of {requests} failed: {}", String::from_utf8_lossy(&out.stderr));
    assert_eq!((started("web"), started("outsider")), before);
    watch.end(&stage);
}

#[test]
fn a_killed_stage_leaves_nothing_that_the_next_up_or_down_cannot_clean() {
    if skip("a_killed_stage_leaves_nothing_that_the_next_up_or_down_cannot_clean", NEEDS) {
        return;
    }
    let stage = topology::up(&[WEB], &[]);
    let namespaces = || {
        let prefix = format!("leno-{}.", stage.name());
        std::fs::read_dir("/run/netns")
            .unwrap()
            .filter(|e| e.as_ref().unwrap().file_name().to_string_lossy().starts_with(&prefix))
            .count()
    };
    let pid = stage.ps()["supervisor"].as_i64().expect("ps tells the supervisor's pid");
    let kill = |pid: i64| {
        nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(i32::try_from(pid).unwrap()),
            nix::sys::signal::Signal::SIGKILL,
        )
        .unwrap();
    };
    kill(pid);
    run(stage.up_command(&[])).ok();
    stage.wait("pods to be ready again", |ps| ps["pods"].as_array()?.iter().all(|p| p["ready"] == true).then_some(()));
    let watch = Watch::begin(&stage, PLAIN);
    stage.exec("mesh/far", &ASK).ok();
    watch.end(&stage);
    kill(stage.ps()["supervisor"].as_i64().unwrap());
    stage.down().ok();
    assert_eq!(namespaces(), 0);
    let left = run(std::process::Command::new("pgrep").args(["-a", "-f", "--", &format!("--name {} ", stage.name())]));
    // Exit code 1: no stage runs.
    assert_eq!((left.code, left.stdout.as_str()), (1, ""), "processes left behind");
}

/// A script that starts the proxy as a child instead of replacing itself with it, and starts other processes, too.
#[test]
fn processes_that_a_nodes_proxy_started_end_with_it() {
    if skip("processes_that_a_nodes_proxy_started_end_with_it", &["curl", "socat", "setsid", "/usr/bin/python3"]) {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    // The pipe stays open as long as one of its processes lives. The daemons have a pipe of their own.
    let [all, daemons] = ["all", "daemons"].map(|name| scratch.path().join(name));
    let open = |path: &std::path::Path| {
        nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::fs::File::options().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path).unwrap()
    };
    let [mut alive, mut daemon] = [&all, &daemons].map(|path| open(path));
    let program = scratch.path().join("proxy");
    let text = format!(
        "exec 8>{} 9>{}\nsetsid sleep 600 8>&- &\nexec 9>&-\nsleep 600 &\n{}\nexit 3",
        all.display(),
        daemons.display(),
        env!("CARGO_BIN_EXE_leno"),
    );
    script(&program, &text);
    let stage = topology::up(&[WEB], &["--node-proxy", &format!("node-2={}", program.display())]);
    let watch = Watch::begin(&stage, PLAIN);
    let ask = || ["mesh/near", "mesh/far"].map(|client| stage.exec(client, &ASK).ok());
    ask();
    let proxy = || {
        let ps = stage.ps();
        ps["nodes"].as_array().unwrap().iter().find(|node| node["name"] == "node-2").unwrap().clone()
    };
    let first = proxy()["pid"].as_i64().unwrap();
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(i32::try_from(first).unwrap()),
        nix::sys::signal::Signal::SIGKILL,
    )
    .unwrap();
    eventually("the end of what it had started", || {
        let left = in_group(first);
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
    stage.wait("the next proxy", |_| {
        let now = proxy();
        (now["ready"] == true && now["pid"].as_i64().is_some_and(|pid| pid != first)).then_some(())
    });
    ask();
    watch.end(&stage);
    let closed = |pipe: &mut std::fs::File| pipe.read(&mut [0]).is_ok_and(|count| count == 0);
    assert!(!closed(&mut alive) && !closed(&mut daemon));
    stage.down().ok();
    assert!(closed(&mut alive), "processes of the proxy's group are left");
    assert!(closed(&mut daemon), "daemons are left");
}

/// The processes of a process group, without zombies.
fn in_group(group: i64) -> Vec<String> {
    let stats = std::fs::read_dir("/proc").unwrap().flatten();
    stats
        .filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok())
        .filter(|stat| {
            // The fields after the name: state, parent, group (proc_pid_stat(5)).
            let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
            fields.first() != Some(&"Z") && fields.get(2).and_then(|field| field.parse().ok()) == Some(group)
        })
        .collect()
}

#[test]
fn scaling_and_service_endpoints_follow() {
    if skip("scaling_and_service_endpoints_follow", NEEDS) {
        return;
    }
    let text = format!(
        "{}{}---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: who, namespace: mesh}}
spec:
  replicas: 2
  selector: {{matchLabels: {{app: who}}}}
  template:
    metadata: {{labels: {{app: who}}}}
    spec:
      containers:
      - name: who
        command: [sh, -c, 'exec socat TCP6-LISTEN:7000,ipv6only=0,reuseaddr,fork SYSTEM:\"read said && echo $said $ME\"']
        env: [{{name: ME, valueFrom: {{fieldRef: {{fieldPath: metadata.name}}}}}}]
        readinessProbe: {{tcpSocket: {{port: 7000}}, periodSeconds: 1}}
---
apiVersion: v1
kind: Service
metadata: {{name: who, namespace: mesh}}
spec: {{selector: {{app: who}}, ports: [{{name: tcp, port: 80, targetPort: 7000}}]}}
---
apiVersion: v1
kind: Service
metadata: {{name: who-headless, namespace: mesh}}
spec: {{selector: {{app: who}}, clusterIP: None, ports: [{{name: tcp, port: 7000}}]}}
",
        topology::NAMESPACES,
        topology::client("mesh", "far", "node-1")
            + &topology::client("plain", "outsider", "node-1")
            + &topology::ECHO.manifest("plain"),
    );
    let stage = crate::stage::Stage::up(&[("all.yaml", &text)], &[]);
    let watch = Watch::begin(&stage, "echo.plain:7000");
    let answers = |n: usize| {
        eventually(&format!("{n} different pods to answer"), || {
            let asking = "for i in $(seq 30); do echo WORD | socat -t 3 - TCP:who:80,connect-timeout=5; done | sort -u";
            let ran = stage.sh("mesh/far", &asking.replace("WORD", CANARY));
            let seen = ran.stdout.lines().count();
            if seen == n { Ok(()) } else { Err(format!("{seen}: {} {}", ran.stdout, ran.stderr)) }
        });
    };
    answers(2);
    let headless = stage.sh("mesh/far", "getent ahostsv4 who-headless | awk '{print $1}' | sort -u | wc -l").ok();
    assert_eq!(headless.stdout.trim(), "2");
    stage.sh("mesh/far", &format!("echo {CANARY} | socat -t 3 - TCP:who-headless:7000 | grep -q who-")).ok();
    run(stage.command("scale").args(["mesh/who", "4"])).ok();
    answers(4);
    run(stage.command("scale").args(["mesh/who", "1"])).ok();
    answers(1);
    watch.end(&stage);
}

#[test]
fn a_second_up_of_the_same_name_is_refused_with_the_way_out() {
    if skip("a_second_up_of_the_same_name_is_refused_with_the_way_out", NEEDS) {
        return;
    }
    let stage = topology::up(&[], &[]);
    let again = run(stage.up_command(&[]));
    assert_ne!(again.code, 0);
    assert!(again.stderr.contains("leno down"), "{}", again.stderr);
    let ran = run(leno().args(["ps", "--name", "no-such-stage"]));
    assert_ne!(ran.code, 0);
    assert!(ran.stderr.contains("leno up"), "{}", ran.stderr);
}

/// Tells each caller whether a connection back to its port 8000 works.
const CALLER: Server<'static> = Server {
    name: "caller",
    node: "node-1",
    port: 7000,
    readiness: Readiness::Accepts,
    command: r#"exec /usr/bin/python3 -c '
import socket, threading
def serve(s, peer):
    try:
        back = socket.create_connection((peer[0], 8000), timeout=10); back.sendall(b"WORD")
        said = b"called back" if back.recv(99) == b"WORD" else b"hung up"
    except OSError as e: said = repr(e).encode()
    s.sendall(said); s.close()
l = socket.create_server(("::", 7000), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128)
while True: threading.Thread(target=serve, args=l.accept()).start()'"#,
};

#[test]
fn a_new_pods_first_connections_are_encrypted_both_ways() {
    if skip("a_new_pods_first_connections_are_encrypted_both_ways", &["/usr/bin/python3", "perl", "socat"]) {
        return;
    }
    // Policies refuse plaintext, so a peer that still takes the new pod for one outside the mesh fails.
    let strict = "---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: strict, namespace: mesh}
spec: {mtls: {mode: STRICT}}
";
    let command = CALLER.command.replace("WORD", CANARY);
    let stage = topology::up(&[Server { command: &command, ..CALLER }, topology::ECHO], &[]);
    stage.write("strict.yaml", strict);
    let watch = Watch::begin(&stage, "echo.plain:7000");
    // Perl, because it starts within milliseconds.
    let eager = r#"use IO::Socket::INET; $| = 1;
my $l = IO::Socket::INET->new(LocalPort => 8000, Listen => 9, ReuseAddr => 1);
if (!fork) { while (my $s = $l->accept) { sysread $s, my $x, 99; syswrite $s, $x } }
my $s = IO::Socket::INET->new("caller.mesh:7000") or print "cannot call: $!\n";
sysread $s, my $said, 999; print "$said\n"; sleep 9999"#;
    let pods = 8;
    let eager = serde_json::to_string(eager).unwrap();
    stage.write(
        "eager.yaml",
        &format!(
            "
apiVersion: apps/v1
kind: Deployment
metadata: {{name: eager, namespace: mesh}}
spec:
  replicas: {pods}
  selector: {{matchLabels: {{app: eager}}}}
  template:
    metadata: {{labels: {{app: eager}}}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{{name: c, command: [perl, -e, {eager}]}}]
"
        ),
    );
    let eager = || {
        stage.wait("the new pods", |ps| {
            let all = ps["pods"].as_array()?.iter().filter(|p| p["name"].as_str().unwrap().starts_with("eager-"));
            let ready: Vec<_> = all.filter(|p| p["ready"] == true && p["in_mesh"] == true).cloned().collect();
            (ready.len() == pods).then_some(ready)
        })
    };
    let said = |name: &str, times: usize| {
        let log = eventually("the pod to speak", || {
            let log = run(stage.command("logs").arg(format!("mesh/{name}"))).stdout;
            if log.lines().count() >= times { Ok(log) } else { Err(log) }
        });
        assert_eq!(log, "called back\n".repeat(times), "{name}");
    };
    for pod in eager() {
        said(pod["name"].as_str().unwrap(), 1);
    }
    // When all processes of a pod are killed, it starts again in the same place.
    let pod = &eager()[0];
    let pid = nix::unistd::Pid::from_raw(i32::try_from(pod["pid"].as_i64().unwrap()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
    said(pod["name"].as_str().unwrap(), 2);
    watch.end(&stage);
}

#[test]
fn a_new_pod_starts_when_every_proxy_knows_it() {
    if skip("a_new_pod_starts_when_every_proxy_knows_it", NEEDS) {
        return;
    }
    let stage = topology::up(&[WEB], &[]);
    let watch = Watch::begin(&stage, PLAIN);
    let ps = stage.ps();
    let proxy = ps["nodes"].as_array().unwrap().iter().find(|node| node["name"] == "node-1").unwrap();
    let proxy = nix::unistd::Pid::from_raw(i32::try_from(proxy["pid"].as_i64().unwrap()).unwrap());
    nix::sys::signal::kill(proxy, nix::sys::signal::Signal::SIGSTOP).unwrap();
    let asking = stage.spawn("mesh/far", &ASK);
    let marker = stage.dir.path().join("started");
    let late = topology::client("mesh", "late", "node-2");
    let command = format!("command: [sh, -c, 'echo > {}; exec sleep infinity']", marker.display());
    stage.write("late.yaml", &late.replace("command: [sleep, infinity]", &command));
    eventually("its own node to carry it", || {
        let log = stage.node_log("node-2");
        if log.contains("carrying traffic of pod pod=mesh/late") { Ok(()) } else { Err(log) }
    });
    // There is no event for "nothing happens". A process starts in a few milliseconds.
    std::thread::sleep(std::time::Duration::from_millis(200));
    let early = marker.exists();
    nix::sys::signal::kill(proxy, nix::sys::signal::Signal::SIGCONT).unwrap();
    assert!(!early, "it ran before node-1 knew that it is in the mesh");
    eventually("its process", || if marker.exists() { Ok(()) } else { Err("no marker".to_owned()) });
    stage.exec("mesh/late", &ASK).ok();
    let asked = asking.wait_with_output().unwrap();
    assert!(asked.status.success(), "{asked:?}");
    watch.end(&stage);
}
