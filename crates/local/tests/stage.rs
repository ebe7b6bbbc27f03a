//! The stage with real namespaces and real programs. Needs root; says so and passes otherwise.

#![allow(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used, reason = "a test program")]

mod support;

use std::time::{Duration, Instant};

use leno_capture::sniff::Sniffer;
use leno_local::addresses::NODE_LINK;
use support::{LIMIT, Playing, block_on, manifests, run_all, test, ztunnel_test};

fn main() {
    if leno_local::init::is_pod_init() {
        leno_local::init::pod_init();
    }
    if std::env::var_os("LENO_ROLE").is_some_and(|role| role == "node") {
        support::stand_in_proxy();
    }
    let tests = [
        test("pods_reach_each_other_by_name_and_address", || block_on(pods_reach_each_other())),
        test("a_service_without_endpoints_refuses_at_once", || block_on(no_endpoints())),
        test("udp_services_work", || block_on(udp())),
        test("nothing_is_left_behind", || block_on(nothing_left())),
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
spec: {selector: {app: web}, ports: [{port: 80, targetPort: http}]}
---
apiVersion: v1
kind: Service
metadata: {name: web-headless}
spec: {clusterIP: None, selector: {app: web}, ports: [{port: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, command: [sleep, "3600"]}]
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
    let environment = stage.exec("default", &web[0].name, "echo $POD $HOSTNAME $(hostname) $$").await;
    let words: Vec<_> = environment.split_whitespace().collect();
    assert_eq!(words[..3], [&web[0].name, &web[0].name, &web[0].name]);
    stage.stop().await;
}

async fn no_endpoints() {
    let text = WEB.replace("replicas: 2", "replicas: 0");
    let dir = manifests(&[("web.yaml", &text)]);
    let stage = Playing::start("empty", dir.path(), 1).await;
    let begun = Instant::now();
    let out = stage.exec("default", "client", "curl -sS --max-time 5 http://web/; echo code $?").await;
    assert!(out.contains("code 7"), "connection refused expected: {out}");
    assert!(begun.elapsed() < Duration::from_secs(3));
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
    let text = format!("{WEB}---\napiVersion: v1\nkind: Pod\nmetadata: {{name: far}}\nspec:\n  nodeName: node-2\n  \
                        terminationGracePeriodSeconds: 1\n  containers: [{{name: main, command: [sleep, \"3600\"]}}]\n");
    let text = text.replace("metadata: {name: client}\nspec:", "metadata: {name: client}\nspec:\n  nodeName: node-1")
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
    stage.stage().wait_for(LIMIT, |listing| listing.is_ready() && listing.pods.iter().all(|pod| pod.in_mesh)).await.unwrap();
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
    stage.stage().wait_for(LIMIT, |listing| listing.is_ready() && listing.pods.iter().all(|pod| !pod.in_mesh)).await.unwrap();
    let body = stage.exec("default", "client", fetch).await;
    assert!(body.starts_with("web-"), "{body}");
    stage.stop().await;
}
