//! The stage with real namespaces and real programs. Needs root; says so and passes otherwise.

#![allow(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used, reason = "a test program")]

mod played;
mod support;

use std::time::{Duration, Instant};

use leno_capture::sniff::Sniffer;
use leno_local::addresses::NODE_LINK;
use leno_local::logs::{Wanted, print_logs};
use leno_local::{Stage, StageEvent, StageOptions, down};
use support::{Elsewhere, LIMIT, Playing, block_on, manifests, run_all, test, ztunnel_test};

fn main() {
    if leno_local::init::is_pod_init() {
        leno_local::init::pod_init();
    }
    if std::env::var_os("LENO_ROLE").is_some_and(|role| role == "node") {
        support::stand_in_proxy();
    }
    if let Some(dir) = std::env::var_os("LENO_TEST_UP") {
        support::play_elsewhere(&dir);
    }
    let tests = [
        test("pods_reach_each_other_by_name_and_address", || block_on(pods_reach_each_other())),
        test("a_service_without_endpoints_refuses_at_once", || block_on(no_endpoints())),
        test("udp_services_work", || block_on(udp())),
        test("a_pod_can_not_leave_the_mesh_or_see_the_stage", || block_on(confined())),
        test("nothing_is_left_behind", || block_on(nothing_left())),
        test("edits_take_effect_and_bad_ones_are_refused", || block_on(edits())),
        test("an_update_loses_no_request", || block_on(rolling())),
        test("scaling_up_and_down", || block_on(scaling())),
        test("containers_are_started_again", || block_on(restarts())),
        test("init_containers_run_one_after_the_other_before_the_containers", || block_on(played::steps())),
        test("an_init_container_that_fails_is_named", || block_on(played::broken_step())),
        test("config_maps_and_secrets_are_variables_and_files", || block_on(played::configured())),
        test("a_stateful_set_keeps_names_order_and_data", || block_on(played::stateful_set())),
        test("jobs_end_and_are_tried_again", || block_on(played::jobs())),
        test("a_job_that_fails_is_given_up", || block_on(played::failing_job())),
        test("without_a_proxy_an_enrolled_pod_waits", || block_on(waits_for_proxy())),
        test("commands_talk_to_a_supervisor", || block_on(commands())),
        test("a_killed_supervisor_leaves_nothing_that_down_cannot_remove", || block_on(killed())),
        test("an_ordinary_user_can_play", || block_on(unprivileged())),
        ztunnel_test("entering_and_leaving_the_mesh_loses_nothing", || block_on(lossless())),
        ztunnel_test("an_ordinary_user_can_play_a_mesh", || block_on(unprivileged_mesh())),
        ztunnel_test("a_real_ztunnel_carries_the_traffic", || block_on(through_ztunnel())),
    ];
    run_all(&tests);
}

const WEB: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        command: [python3, -u, -c]
        args:
        - |
          import http.server, socket, os
          class H(http.server.BaseHTTPRequestHandler):
              def do_GET(self):
                  body = (os.environ["POD"] + " " + self.client_address[0]).encode()
                  self.send_response(200)
                  self.send_header("content-length", str(len(body)))
                  self.end_headers()
                  self.wfile.write(body)
          class S(http.server.ThreadingHTTPServer):
              address_family = socket.AF_INET6
          S(("::", 8080), H).serve_forever()
        env:
        - {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
        ports: [{name: http, containerPort: 8080}]
        readinessProbe: {httpGet: {path: /, port: http}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {ipFamilyPolicy: PreferDualStack, selector: {app: web}, ports: [{name: www, port: 80, targetPort: http}]}
---
apiVersion: v1
kind: Service
metadata: {name: web-headless}
spec: {clusterIP: None, selector: {app: web}, ports: [{name: direct, port: 9, targetPort: http}]}
---
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, command: [sleep, "3600"]}]
"#;

/// Asks the resolver for SRV records (RFC 2782): ports and targets, sorted.
const SRV: &str = r#"
import socket, struct, sys
name = b"".join(bytes([len(l)]) + l.encode() for l in sys.argv[1].split(".")) + b"\0"
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(5)
server = [l.split()[1] for l in open("/etc/resolv.conf") if l.startswith("nameserver")][0]
s.sendto(struct.pack(">6H", 7, 256, 1, 0, 0, 0) + name + struct.pack(">2H", 33, 1), (server, 53))
m = s.recv(4096)
def read(at):
    labels = []
    while m[at]:
        if m[at] >= 192: at = (m[at] & 63) << 8 | m[at + 1]; continue
        labels.append(m[at + 1:at + 1 + m[at]].decode()); at += 1 + m[at]
    return ".".join(labels)
at = 12 + len(name) + 4; out = []
for _ in range(struct.unpack(">H", m[6:8])[0]):
    while m[at] and m[at] < 192: at += 1 + m[at]
    at += 2 if m[at] else 1
    length = struct.unpack(">H", m[at + 8:at + 10])[0]; data = at + 10
    out.append("%d %s" % (struct.unpack(">H", m[data + 4:data + 6])[0], read(data + 6))); at = data + length
print("\n".join(sorted(out)))
"#;

async fn pods_reach_each_other() {
    let dir = manifests(&[("web.yaml", WEB)]);
    let stage = Playing::start("names", dir.path(), 2).await;
    let listing = stage.listing();
    let web: Vec<_> = listing.pods.iter().filter(|pod| pod.name.starts_with("web-")).collect();
    assert_eq!(web.len(), 2);
    assert_ne!(web[0].node, web[1].node, "replicas are spread over nodes");

    let mut answered = std::collections::BTreeSet::new();
    for _ in 0..40 {
        let body = stage.exec("default", "client", "curl -sS --max-time 5 http://web/").await;
        answered.insert(body.split_whitespace().next().unwrap_or_default().to_owned());
    }
    assert_eq!(answered, web.iter().map(|pod| pod.name.clone()).collect());
    for host in ["web.default.svc.cluster.local", "web.default", "web-headless:8080"] {
        let body = stage.exec("default", "client", &format!("curl -sS --max-time 5 http://{host}/")).await;
        assert!(body.starts_with("web-"), "{host}: {body}");
    }
    let client = listing.pods.iter().find(|pod| pod.name == "client").unwrap();
    for pod in &web {
        for ip in &pod.ips {
            let host = if ip.is_ipv6() { format!("[{ip}]") } else { ip.to_string() };
            let body = stage.exec("default", "client", &format!("curl -sS --max-time 5 http://{host}:8080/")).await;
            let (name, from) = body.split_once(' ').unwrap_or_default();
            assert_eq!(name, pod.name);
            let from = from.trim_start_matches("::ffff:");
            assert!(client.ips.iter().any(|ip| ip.to_string() == from), "the client's address is kept: {from}");
        }
    }
    // A pod reaches itself through its service too.
    for _ in 0..6 {
        let body = stage.exec("default", &web[0].name, "curl -sS --max-time 5 http://web/").await;
        assert!(body.starts_with("web-"), "{body}");
    }
    let v6 = stage.exec("default", "client", "curl -6 -sS --max-time 5 http://web/").await;
    assert!(v6.starts_with("web-"), "{v6}");
    let srv = async |name: &str| {
        let ask = format!("python3 -c '{SRV}' {name}.default.svc.cluster.local");
        stage.exec("default", "client", &ask).await.trim().to_owned()
    };
    assert_eq!(srv("_www._tcp.web").await, "80 web.default.svc.cluster.local");
    let mut each: Vec<_> =
        web.iter().map(|pod| format!("8080 {}.web-headless.default.svc.cluster.local", pod.name)).collect();
    each.sort();
    assert_eq!(srv("_direct._tcp.web-headless").await, each.join("\n"));
    assert_eq!(srv("_www._udp.web").await, "");
    let environment = stage.exec("default", &web[0].name, "echo $POD $HOSTNAME $(hostname) $$").await;
    let words: Vec<_> = environment.split_whitespace().collect();
    assert_eq!(words[..3], [&web[0].name, &web[0].name, &web[0].name]);
    stage.stop().await;
}

async fn no_endpoints() {
    let text = WEB.replace("replicas: 2", "replicas: 0");
    let dir = manifests(&[("web.yaml", &text)]);
    let stage = Playing::start("empty", dir.path(), 1).await;
    // It would wait for longer than anybody does if nothing came back.
    let out = stage.exec("default", "client", "curl -sS --connect-timeout 600 http://web/; echo code $?").await;
    assert!(out.contains("code 7"), "connection refused expected: {out}");
    stage.stop().await;
}

const ECHO: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: echo, labels: {app: echo}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    command: [python3, -u, -c]
    args:
    - |
      import socket
      s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
      s.bind(("0.0.0.0", 9000))
      while True:
          data, peer = s.recvfrom(2048)
          s.sendto(b"echo " + data, peer)
    readinessProbe: {exec: {command: [python3, -c, "open('/proc/net/udp').read().index('2328')"]}}
---
apiVersion: v1
kind: Service
metadata: {name: echo}
spec: {selector: {app: echo}, ports: [{port: 9, targetPort: 9000, protocol: UDP}]}
---
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  nodeName: node-2
  terminationGracePeriodSeconds: 1
  containers: [{name: main, command: [sleep, "3600"]}]
"#;

async fn udp() {
    let dir = manifests(&[("echo.yaml", ECHO)]);
    let stage = Playing::start("udp", dir.path(), 2).await;
    let ask = "python3 -c 'import socket; s=socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(5); \
               s.sendto(b\"hi\", (\"echo\", 9)); print(s.recvfrom(99)[0].decode())'";
    assert_eq!(stage.exec("default", "client", ask).await.trim(), "echo hi");
    stage.stop().await;
}

/// Prints every forbidden action that succeeds and every permitted action that fails.
const ESCAPES: &str = r#"
import ctypes, os, socket, sys
run, gateway = sys.argv[1:]
def must_fail(what, act):
    try: act()
    except OSError: return
    print("could", what)
mark = lambda: socket.socket().setsockopt(socket.SOL_SOCKET, socket.SO_MARK if hasattr(socket, "SO_MARK") else 36, 0x539)
must_fail("mark a socket", mark)
must_fail("open a raw socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP))
must_fail("open a packet socket", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
must_fail("borrow an address", lambda: socket.socket().setsockopt(socket.SOL_IP, 19, 1))
for path in ["node-1/token", "stage.sock", "lock", "node-1/ztunnel.sock"]:
    must_fail("see " + path, lambda: os.stat(os.path.join(run, path)))
must_fail("write beside its own directory", lambda: open(os.path.join(run, "x"), "w"))
must_fail("write a setting", lambda: open("/proc/sys/net/ipv4/ip_forward", "w").write("1"))
must_fail("look into the first process", lambda: os.readlink("/proc/1/fd/3"))
must_fail("read the first process", lambda: open("/proc/1/mem", "rb"))
libc = ctypes.CDLL(None, use_errno=True)
for what, call in [("unmount", lambda: libc.umount2(os.path.dirname(run).encode(), 2)),
                   ("unmount its own", lambda: libc.umount2(run.encode(), 2)),
                   ("trace the first process", lambda: libc.ptrace(0x4206, 1, 0, 0)),
                   ("mount", lambda: libc.mount(b"t", b"/mnt", b"tmpfs", 0, None)),
                   ("get its rights back", lambda: libc.prctl(47, 2, 12, 0, 0))]:
    if call() == 0: print("could", what)
bounds = [line.split()[1] for line in open("/proc/self/status") if line.startswith("CapBnd")]
if bounds != ["00000000a80405fb"]: print("keeps", bounds)
open("mine", "w").write("x"); os.chown("mine", 0, 0)
ping = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP); ping.settimeout(5)
ping.sendto(b"\x08\0\0\0\0\0\0\1", (gateway, 0)); ping.recv(99)
socket.socket().bind(("0.0.0.0", 80))
print("tried")
"#;

async fn confined() {
    let dir = manifests(&[("web.yaml", WEB)]);
    let stage = Playing::start("confined", dir.path(), 1).await;
    // Without the file, that the pod cannot see it would prove nothing.
    assert!(stage.run_dir().join("node-1/token").exists());
    let run_dir = stage.run_dir().display().to_string();
    let gateway = stage.exec("default", "client", "ip route | sed -n 's/default via \\([^ ]*\\).*/\\1/p'").await;
    let argv = ["python3", "-c", ESCAPES, &run_dir, gateway.trim()].map(str::to_owned).to_vec();
    let (code, text) = stage.stage().output("default", "client", argv).await.unwrap();
    assert_eq!((code, text.as_str()), (0, "tried\n"));
    // The manifest's own program has no more capabilities than what `exec` runs.
    let bounds = stage.exec("default", "client", "grep -h CapBnd /proc/[0-9]*/status | sort -u").await;
    assert_eq!(bounds.trim(), "CapBnd:\t00000000a80405fb");
    stage.stop().await;
}

async fn nothing_left() {
    let dir = manifests(&[("web.yaml", WEB)]);
    let stage = Playing::start("clean", dir.path(), 2).await;
    let pids: Vec<i32> = stage.listing().pods.iter().filter_map(|pod| pod.pid).collect();
    assert_eq!(pids.len(), 3);
    let run_dir = stage.run_dir().to_owned();
    assert!(support::namespaces("clean").len() >= 6);
    stage.stop().await;
    assert_eq!(support::namespaces("clean"), Vec::<String>::new());
    assert!(!run_dir.exists());
    for pid in pids {
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "process {pid} is left");
    }
}

async fn through_ztunnel() {
    let text = format!(
        "{WEB}---\napiVersion: v1\nkind: Pod\nmetadata: {{name: far}}\nspec:\n  nodeName: node-2\n  \
                        terminationGracePeriodSeconds: 1\n  containers: [{{name: main, command: [sleep, \"3600\"]}}]\n"
    );
    let text = text
        .replace("metadata: {name: client}\nspec:", "metadata: {name: client}\nspec:\n  nodeName: node-1")
        .replace("replicas: 2", "replicas: 1");
    let dir = manifests(&[("web.yaml", &text)]);
    let stage = Playing::start_with("zt", dir.path(), 2, support::ztunnel()).await;
    let sniffer = |stage: &Playing| {
        let node = stage.stage().node_namespace("node-1").unwrap();
        Sniffer::start(&node, Some(NODE_LINK), b"canary-5731").unwrap()
    };
    let fetch = "curl -sS --max-time 5 -d canary-5731 -X GET http://web/";
    let plain = sniffer(&stage);
    for client in ["client", "far"] {
        let body = stage.exec("default", client, fetch).await;
        assert!(body.starts_with("web-"), "{body}");
    }
    let seen = plain.stop().unwrap();
    assert!(seen.canaries > 0 && seen.tunnel_packets == 0, "{seen:?}");
    let before: Vec<_> = stage.listing().pods.iter().map(|pod| (pod.name.clone(), pod.pid)).collect();

    stage.stage().set_label("default", "istio.io/dataplane-mode", Some("ambient")).await.unwrap();
    stage
        .stage()
        .wait_for(LIMIT, |listing| listing.is_ready() && listing.pods.iter().all(|pod| pod.in_mesh))
        .await
        .unwrap();
    let after: Vec<_> = stage.listing().pods.iter().map(|pod| (pod.name.clone(), pod.pid)).collect();
    assert_eq!(before, after, "no process was restarted");
    let sealed = sniffer(&stage);
    for client in ["client", "far"] {
        for _ in 0..5 {
            let body = stage.exec("default", client, fetch).await;
            assert!(body.starts_with("web-"), "{client}: {body}");
        }
    }
    let seen = sealed.stop().unwrap();
    assert!(seen.canaries == 0 && seen.tunnel_packets > 0, "{seen:?}");

    // A replacement of a killed proxy serves again, and nothing passes in the clear meanwhile.
    let killed = stage.listing().nodes[0].pid.unwrap();
    let sealed = sniffer(&stage);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(killed), nix::sys::signal::Signal::SIGKILL).unwrap();
    let begun = Instant::now();
    stage.stage().wait_for(LIMIT, |listing| listing.nodes[0].restarts == 1 && listing.is_ready()).await.unwrap();
    println!("back after {:?}", begun.elapsed());
    for client in ["client", "far"] {
        let body = stage.exec("default", client, fetch).await;
        assert!(body.starts_with("web-"), "{client}: {body}");
    }
    let seen = sealed.stop().unwrap();
    assert!(seen.canaries == 0, "{seen:?}");

    stage.stage().set_label("default", "istio.io/dataplane-mode", None).await.unwrap();
    stage
        .stage()
        .wait_for(LIMIT, |listing| listing.is_ready() && listing.pods.iter().all(|pod| !pod.in_mesh))
        .await
        .unwrap();
    let body = stage.exec("default", "client", fetch).await;
    assert!(body.starts_with("web-"), "{body}");
    stage.stop().await;
}

async fn edits() {
    let dir = manifests(&[("web.yaml", WEB)]);
    let stage = Playing::start("edits", dir.path(), 1).await;
    let mut events = stage.stage().events();
    let file = dir.path().join("web.yaml");
    let mut next = async || loop {
        let event = tokio::time::timeout(LIMIT, events.recv()).await.unwrap().unwrap();
        if matches!(event, StageEvent::Refused(_) | StageEvent::Loaded { .. }) {
            return event;
        }
    };

    std::fs::write(&file, WEB.replace("replicas: 2", "replica: 3")).unwrap();
    let StageEvent::Refused(reason) = next().await else { panic!("must be refused") };
    assert!(reason.starts_with(&format!("{}:6:", file.display())), "{reason}");
    assert!(reason.contains("did you mean replicas?"), "{reason}");
    stage.stage().wait_for(LIMIT, |now| now.refused == reason).await.unwrap();
    assert_eq!(stage.listing().pods.len(), 3);

    // Editors replace a file by renaming a new one over it.
    std::fs::write(dir.path().join(".web.yaml.tmp"), WEB.replace("replicas: 2", "replicas: 3")).unwrap();
    std::fs::rename(dir.path().join(".web.yaml.tmp"), &file).unwrap();
    assert!(matches!(next().await, StageEvent::Loaded { .. }));
    stage.stage().wait_for(LIMIT, |now| now.pods.len() == 4 && now.is_ready()).await.unwrap();
    assert_eq!(stage.listing().refused, "");

    let other = dir.path().join("more.yaml");
    std::fs::write(
        &other,
        "apiVersion: v1\nkind: Pod\nmetadata: {name: more}\nspec: {terminationGracePeriodSeconds: 0, \
                            containers: [{name: c, command: [sleep, '99']}]}\n",
    )
    .unwrap();
    stage.stage().wait_for(LIMIT, |now| now.pods.iter().any(|pod| pod.name == "more" && pod.ready)).await.unwrap();
    std::fs::remove_file(&other).unwrap();
    stage.stage().wait_for(LIMIT, |now| now.pods.iter().all(|pod| pod.name != "more")).await.unwrap();
    stage.stop().await;
}

async fn rolling() {
    let dir = manifests(&[("web.yaml", WEB)]);
    let stage = Playing::start("rolling", dir.path(), 2).await;
    let old: Vec<_> = stage.listing().pods.iter().map(|pod| pod.name.clone()).collect();
    let scratch = tempfile::tempdir().unwrap();
    let stop = scratch.path().join("stop");
    let load = format!(
        "n=0; bad=0; while [ ! -e {} ]; do n=$((n+1)); curl -sS --max-time 5 http://web/ >/dev/null || bad=$((bad+1)); \
         done; echo requests $n bad $bad",
        stop.display()
    );
    let handle = stage.stage().handle();
    let argv = vec!["sh".to_owned(), "-c".to_owned(), load];
    let loaded = tokio::spawn(async move { handle.output("default", "client", argv).await.unwrap() });
    let newer = WEB
        .replace("fieldPath: metadata.name}}}\n", "fieldPath: metadata.name}}}\n        - {name: NEWER, value: '1'}\n");
    assert_ne!(newer, WEB);
    std::fs::write(dir.path().join("web.yaml"), newer).unwrap();
    let replaced = |now: &leno_local::Listing| {
        now.pods.len() == 3 && now.is_ready() && now.pods.iter().filter(|pod| old.contains(&pod.name)).count() == 1
    };
    stage.stage().wait_for(LIMIT, replaced).await.unwrap();
    std::fs::write(&stop, "").unwrap();
    let (_, text) = loaded.await.unwrap();
    println!("{}", text.trim());
    assert!(text.trim().ends_with("bad 0"), "{text}");
    stage.stop().await;
}

async fn scaling() {
    let dir = manifests(&[("web.yaml", WEB)]);
    let stage = Playing::start("scaling", dir.path(), 2).await;
    for replicas in [4, 1, 0, 2] {
        stage.stage().scale("default", "web", replicas).await.unwrap();
        let wanted = usize::try_from(replicas).unwrap() + 1;
        stage.stage().wait_for(LIMIT, |now| now.pods.len() == wanted && now.is_ready()).await.unwrap();
    }
    let unknown = stage.stage().scale("default", "wbe", 1).await.unwrap_err().to_string();
    assert!(unknown.contains("default/web"), "{unknown}");
    stage.stop().await;
}

const RESTARTING: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: crashing}
spec: {containers: [{name: c, command: [sh, -c, "echo cannot go on >&2; exit 3"]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: done}
spec: {restartPolicy: Never, containers: [{name: c, command: [echo, all done]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: killed}
spec: {containers: [{name: c, command: [sleep, "999"]}]}
"#;

async fn restarts() {
    let dir = manifests(&[("a.yaml", RESTARTING)]);
    let mut options = StageOptions::new(support::name("restarts"));
    options.nodes = 1;
    options.manifests = vec![dir.path().to_owned()];
    let stage = Stage::start(options).await.unwrap();
    let status = |now: &leno_local::Listing, name: &str| {
        now.pods.iter().find(|pod| pod.name == name).map(|pod| (pod.status.clone(), pod.message.clone(), pod.restarts))
    };
    stage
        .wait_for(LIMIT, |now| {
            status(now, "crashing").is_some_and(|(status, _, restarts)| status == "CrashLoopBackOff" && restarts > 0)
        })
        .await
        .unwrap();
    let (_, message, _) = status(&stage.listing(), "crashing").unwrap();
    assert_eq!(message, "ended with exit code 3: cannot go on");
    stage.wait_for(LIMIT, |now| status(now, "done").is_some_and(|(status, ..)| status == "Completed")).await.unwrap();
    let of = |now: &leno_local::Listing| now.pods.iter().find(|pod| pod.name == "killed").and_then(|pod| pod.pid);
    stage.wait_for(LIMIT, |now| of(now).is_some()).await.unwrap();
    let first = of(&stage.listing()).unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(first), nix::sys::signal::Signal::SIGKILL).unwrap();
    stage.wait_for(LIMIT, |now| of(now).is_some_and(|pid| pid != first)).await.unwrap();
    stage.shutdown().await;
}

async fn waits_for_proxy() {
    let scratch = tempfile::tempdir().unwrap();
    let marker = scratch.path().join("started");
    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: a, labels: {{istio.io/dataplane-mode: ambient}}}}\nspec: \
         {{containers: [{{name: c, command: [touch, {}]}}]}}\n",
        marker.display()
    );
    let dir = manifests(&[("a.yaml", &text)]);
    let mut options = StageOptions::new(support::name("waits"));
    options.nodes = 1;
    options.manifests = vec![dir.path().to_owned()];
    let stage = Stage::start(options).await.unwrap();
    stage.wait_for(LIMIT, |now| now.pods.iter().any(|pod| pod.status == "WaitingForProxy")).await.unwrap();
    let listing = stage.listing();
    assert!(listing.pods[0].message.contains("no node proxy is connected"), "{:?}", listing.pods[0]);
    assert!(!listing.pods[0].in_mesh && !listing.is_ready());
    assert!(!marker.exists(), "a process ran before its traffic was captured");
    stage.shutdown().await;
}

const PAIR: &str = "
apiVersion: v1
kind: Pod
metadata: {name: pair}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: one, command: [sh, -c, 'echo first; exec sleep 3600']}
  - {name: two, command: [sh, -c, 'echo second; echo > up; exec sleep 3600'], readinessProbe: {exec: {command: [test, -e, up]}}}
";

async fn commands() {
    let dir = manifests(&[("web.yaml", WEB), ("pair.yaml", PAIR)]);
    let mut elsewhere = Elsewhere::start("commands", dir.path(), None);
    let listing = elsewhere.ready().await;
    let web = &listing.pods.iter().find(|pod| pod.name.starts_with("web-")).unwrap().name;
    let sh = |command: &str| ["sh", "-c", command].map(str::to_owned).to_vec();
    assert_eq!(elsewhere.client().await.exec("default", "client", None, sh("exit 7")).await.unwrap(), 7);
    assert_eq!(elsewhere.client().await.exec("default", "web", None, sh("kill -9 $$")).await.unwrap(), 137);
    let error = elsewhere.client().await.exec("default", "nobody", None, sh("true")).await.unwrap_err();
    assert!(error.to_string().contains("default/client"), "{error}");
    let error = elsewhere.client().await.exec("default", "client", None, vec!["no-such".to_owned()]).await.unwrap_err();
    assert!(error.to_string().contains("no program \"no-such\""), "{error}");
    let code = |error: leno_local::Error| match error {
        leno_local::Error::NotStarted { code, .. } => code,
        other => panic!("{other}"),
    };
    assert_eq!(code(error), 127);
    for (program, expected) in [("/no/such", 127), ("/etc/passwd", 126), ("/etc", 126)] {
        let error = elsewhere.client().await.exec("default", "client", None, vec![program.to_owned()]).await;
        assert_eq!(code(error.unwrap_err()), expected, "{program}");
    }

    assert_eq!(
        elsewhere.client().await.exec("default", "client", None, sh("curl -s http://web/ >/dev/null")).await.unwrap(),
        0
    );
    let files = elsewhere.client().await.logs("default", web, None).await.unwrap();
    let mut printed = Vec::new();
    print_logs(&elsewhere.name, &files, Wanted::default(), &mut printed).await.unwrap();
    assert!(String::from_utf8_lossy(&printed).contains("GET / HTTP/1.1"), "{}", String::from_utf8_lossy(&printed));

    for (container, wanted) in [(None, "[one] first\n[two] second\n"), (Some("two"), "second\n")] {
        let files = elsewhere.client().await.logs("default", "pair", container).await.unwrap();
        let mut printed = Vec::new();
        let begun = Instant::now();
        // Output takes a moment to reach the log.
        while String::from_utf8_lossy(&printed) != wanted {
            assert!(begun.elapsed() < LIMIT, "{}", String::from_utf8_lossy(&printed));
            printed.clear();
            print_logs(&elsewhere.name, &files, Wanted::default(), &mut printed).await.unwrap();
        }
    }
    let error = elsewhere.client().await.logs("default", "pair", Some("three")).await.unwrap_err().to_string();
    assert!(error.contains("it has: one, two"), "{error}");

    let explained = elsewhere.client().await.explain("default/client", "default/web:80", None).await.unwrap();
    assert!(explained.text.contains("web"), "{}", explained.text);
    elsewhere.client().await.scale("default", "web", 1).await.unwrap();

    let mut again = StageOptions::new(support::name("commands"));
    again.nodes = 1;
    let refused = Stage::start(again).await.err().unwrap().to_string();
    assert!(refused.contains("already running") && refused.contains("leno down"), "{refused}");

    assert_eq!(down::run(&elsewhere.name).await.unwrap(), down::Outcome::Stopped);
    assert!(elsewhere.child.wait().unwrap().success());
    assert_eq!(support::namespaces("commands"), Vec::<String>::new());
    let gone = leno_local::client::Client::connect(&elsewhere.name).await.err().unwrap().to_string();
    assert!(gone.contains("not running"), "{gone}");
    assert_eq!(down::run(&elsewhere.name).await.unwrap(), down::Outcome::Nothing);
}

async fn killed() {
    let dir = manifests(&[("web.yaml", WEB)]);
    let pids = async |elsewhere: &mut Elsewhere| -> Vec<i32> {
        let listing = elsewhere.ready().await;
        listing.pods.iter().filter_map(|pod| pod.pid).chain(listing.nodes.iter().filter_map(|node| node.pid)).collect()
    };
    let mut elsewhere = Elsewhere::start("killed", dir.path(), None);
    let first = pids(&mut elsewhere).await;
    assert_eq!(first.len(), 4);
    elsewhere.child.kill().unwrap();
    elsewhere.child.wait().unwrap();
    // The next `leno up` cleans up by itself.
    let mut elsewhere = Elsewhere::start("killed", dir.path(), None);
    let second = pids(&mut elsewhere).await;
    elsewhere.child.kill().unwrap();
    elsewhere.child.wait().unwrap();
    assert_eq!(down::run(&elsewhere.name).await.unwrap(), down::Outcome::Cleaned);
    assert_eq!(support::namespaces("killed"), Vec::<String>::new());
    assert!(!elsewhere.name.run_dir().exists());
    for pid in first.into_iter().chain(second) {
        assert!(!std::path::Path::new(&format!("/proc/{pid}/exe")).exists(), "process {pid} is left");
    }
}

async fn unprivileged() {
    let dir = manifests(&[("web.yaml", WEB)]);
    as_nobody("user", dir.path(), |_| {}).await;
    // Root in a user namespace only, which may write neither /run/leno nor /run/netns.
    as_nobody("user-root", dir.path(), |_| {}).await;
}

/// Plays a directory as a user without any privilege, and inspects the stage from outside.
async fn as_nobody(test: &str, dir: &std::path::Path, check: impl Fn(&leno_local::Listing)) {
    const NOBODY: u32 = 65534;
    let run = tempfile::tempdir().unwrap();
    for path in [dir, run.path()] {
        std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let name = support::name(test).in_dir(run.path());
    let mut elsewhere = Elsewhere::start(test, dir, Some((name, run.path(), NOBODY)));
    let listing = elsewhere.ready().await;
    assert!(listing.pods.iter().all(|pod| pod.ready));
    check(&listing);
    let argv = ["sh", "-c", "curl -sS --max-time 5 http://web/ | grep -q ^web-"].map(str::to_owned).to_vec();
    assert_eq!(elsewhere.client().await.exec("default", "client", None, argv).await.unwrap(), 0);
    let missing = elsewhere.client().await.exec("default", "client", None, vec!["no-such".to_owned()]).await;
    assert!(matches!(missing, Err(leno_local::Error::NotStarted { code: 127, .. })), "{missing:?}");
    assert_eq!(support::namespaces(test), Vec::<String>::new(), "the machine sees none of it");
    assert_eq!(down::run(&elsewhere.name).await.unwrap(), down::Outcome::Stopped);
    assert!(elsewhere.child.wait().unwrap().success());
    assert_eq!(std::fs::read_dir(run.path()).unwrap().count(), 0);
}

const STREAM: &str = r#"
---
apiVersion: v1
kind: Pod
metadata: {name: echo, labels: {app: echo}}
spec:
  nodeName: node-2
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    command: [python3, -u, -c]
    args:
    - |
      import socketserver
      class H(socketserver.BaseRequestHandler):
          def handle(self):
              while data := self.request.recv(4096):
                  self.request.sendall(data)
      class S(socketserver.ThreadingTCPServer):
          allow_reuse_address = True
      S(("0.0.0.0", 7777), H).serve_forever()
    readinessProbe: {tcpSocket: {port: 7777}}
---
apiVersion: v1
kind: Service
metadata: {name: echo}
spec: {selector: {app: echo}, ports: [{port: 7, targetPort: 7777}]}
"#;

/// Sends requests one after the other and keeps one connection open, while pods join the mesh, are replaced, and
/// leave it.
async fn lossless() {
    let dir = manifests(&[("web.yaml", &format!("{WEB}{STREAM}"))]);
    let stage = Playing::start_with("lossless", dir.path(), 2, support::ztunnel()).await;
    let scratch = tempfile::tempdir().unwrap();
    let (stop, go) = (scratch.path().join("stop"), scratch.path().join("go"));
    let requests = format!(
        "n=0; bad=0; while [ ! -e {} ]; do n=$((n+1)); curl -sS --max-time 5 http://web/ >/dev/null || {{ bad=$((bad+1)); \
         date +%T.%N; }}; done; echo requests $n bad $bad",
        stop.display()
    );
    let stream = format!(
        "import socket, os, time\ns = socket.create_connection((\"echo\", 7)); s.settimeout(5); n = 0\nwhile not \
         os.path.exists({stop:?}):\n  if n == 9: open({go:?}, \"w\")\n  s.sendall(b\"x\" * 999); got = 0\n  while got < 999:\n    got += len(s.recv(4096)) or 1/0\n  \
         n += 1; time.sleep(0.01)\nprint(\"exchanges\", n)"
    );
    let run = |argv: Vec<String>| {
        let handle = stage.stage().handle();
        tokio::spawn(async move { handle.output("default", "client", argv).await.unwrap() })
    };
    let requests = run(vec!["sh".into(), "-c".into(), requests]);
    let stream = run(vec!["python3".into(), "-c".into(), stream]);
    let whole = |in_mesh: bool| {
        move |now: &leno_local::Listing| {
            now.is_ready() && now.pods.len() == 4 && now.pods.iter().all(|pod| pod.in_mesh == in_mesh)
        }
    };
    let label = async |value: Option<&str>| {
        stage.stage().set_label("default", "istio.io/dataplane-mode", value).await.unwrap();
        stage.stage().wait_for(LIMIT, whole(value.is_some())).await.unwrap();
        println!("in mesh: {}", value.is_some());
        // Let some requests be made in this state.
        tokio::time::sleep(Duration::from_millis(500)).await;
    };
    let begun = Instant::now();
    while !go.exists() {
        assert!(begun.elapsed() < LIMIT, "the connection was never made");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    label(Some("ambient")).await;
    let old: Vec<_> = stage.listing().pods.iter().map(|pod| pod.name.clone()).collect();
    let newer = WEB
        .replace("fieldPath: metadata.name}}}\n", "fieldPath: metadata.name}}}\n        - {name: NEWER, value: '1'}\n");
    std::fs::write(dir.path().join("web.yaml"), format!("{newer}{STREAM}")).unwrap();
    let replaced = |now: &leno_local::Listing| {
        whole(true)(now) && now.pods.iter().filter(|pod| old.contains(&pod.name)).count() == 2
    };
    stage.stage().wait_for(LIMIT, replaced).await.unwrap();
    println!("replaced");
    label(None).await;
    label(Some("ambient")).await;
    label(None).await;
    std::fs::write(&stop, "").unwrap();
    let (requests, stream) = (requests.await.unwrap().1, stream.await.unwrap().1);
    println!("{}\n{}", requests.trim(), stream.trim());
    assert!(requests.trim().ends_with("bad 0"), "{requests}");
    assert!(stream.starts_with("exchanges"), "{stream}");
    stage.stop().await;
}

async fn unprivileged_mesh() {
    let dir = manifests(&[
        ("web.yaml", WEB),
        (
            "ns.yaml",
            "apiVersion: v1\nkind: Namespace\nmetadata: {name: default, labels: {istio.io/dataplane-mode: ambient}}\n",
        ),
    ]);
    as_nobody("usermesh", dir.path(), |listing| assert!(listing.pods.iter().all(|pod| pod.in_mesh))).await;
}
