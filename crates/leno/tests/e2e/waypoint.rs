//! A waypoint on a stage, with real programs: client pod, node, waypoint, node, server pod.

use crate::clear::{CANARY, Watch};
use crate::shop::{GATE, NAMESPACE};
use crate::stage::{Stage, eventually, run, skip};
use crate::topology::{self, ECHO};

const MESH: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}, {name: banner, port: 7000}, {name: any, port: 81, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: headless, namespace: shop}
spec: {clusterIP: None, selector: {app: web}, ports: [{name: http, port: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: grpc, namespace: shop}
spec: {selector: {app: grpc}, ports: [{name: grpc, port: 9000}]}
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: shop}
spec: {nodeName: node-1, serviceAccountName: client, containers: [{name: c, command: [sleep, infinity]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec:
  nodeName: node-2
  serviceAccountName: web
  containers:
  - name: nginx
    command:
    - bash
    - -c
    - |
      d=$(mktemp -d); head -c 1048576 /dev/zero > $d/blob
      cat > $d/conf <<'EOF'
      user root; worker_processes 1; error_log stderr; pid nginx.pid; events {}
      http { access_log off; server { listen 8080; root .; location = /hello { return 200 "hello $http_traceparent\n"; } } }
      EOF
      exec nginx -e stderr -p $d -c $d/conf -g 'daemon off;'
  - name: banner
    command: [bash, -c, "exec socat TCP-LISTEN:7000,reuseaddr,fork SYSTEM:'echo ready; exec cat'"]
---
apiVersion: v1
kind: Pod
metadata: {name: grpc, namespace: shop, labels: {app: grpc}}
spec:
  nodeName: node-2
  containers:
  - name: c
    command:
    - bash
    - -c
    - |
      exec /usr/bin/python3 -c '
      import grpc, concurrent.futures as f
      class H(grpc.GenericRpcHandler):
          def service(self, d):
              def stream(it, ctx):
                  for m in it: yield str(len(m)).encode()
              return grpc.stream_stream_rpc_method_handler(stream)
      s = grpc.server(f.ThreadPoolExecutor(16)); s.add_generic_rpc_handlers((H(),))
      assert s.add_insecure_port("0.0.0.0:9000"); s.start(); s.wait_for_termination()'
"#;

const GRPC_CLIENT: &str = r#"
import grpc
c = grpc.insecure_channel("grpc.shop:9000")
sizes = [1, 100, 65536, 1 << 20, 0, 7] * 5
got = [int(m) for m in c.stream_stream("/t.T/S")(iter([b"x" * n for n in sizes]), timeout=60)]
assert got == sizes, got
print("ok")"#;

#[test]
fn requests_pass_a_waypoint_and_nothing_goes_around_it() {
    let programs = ["nginx", "curl", "socat", "/usr/bin/python3", "/usr/lib/python3/dist-packages/grpc/__init__.py"];
    if skip("requests_pass_a_waypoint_and_nothing_goes_around_it", &programs) {
        return;
    }
    let plain = topology::client("plain", "outsider", "node-1") + &ECHO.manifest("plain");
    let plain = format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: plain}}\n{plain}");
    let files = [("namespace.yaml", NAMESPACE), ("gate.yaml", GATE), ("mesh.yaml", MESH), ("plain.yaml", &plain)];
    let stage = Stage::up(&files, &["--nodes", "2"]);
    let curl = |what: &str| stage.sh("shop/client", &format!("curl -sS -m 20 -A {CANARY} {what}"));
    let web = stage.pod("shop", "web")["ips"][0].as_str().unwrap().to_owned();

    let hello = curl("-i http://web.shop/hello").ok().stdout;
    assert!(hello.contains("200 OK") && hello.contains("hello 00-"), "{hello}");
    let size = curl("-o /dev/null -w '%{http_code} %{size_download}' http://web.shop/blob").ok().stdout;
    assert_eq!(size, "200 1048576");
    // By the port's name or by what is said, by a headless name and by the pod's own address.
    for host in ["web.shop:81", "headless.shop:8080", &format!("{web}:8080")] {
        assert!(curl(&format!("http://{host}/hello")).ok().stdout.starts_with("hello 00-"), "{host}");
    }
    let banner = stage.sh("shop/client", "(sleep 1; echo hi) | timeout 10 socat -t 2 - TCP:web.shop:7000").ok().stdout;
    assert_eq!(banner, "ready\nhi\n");
    let grpc = format!("/usr/bin/python3 -c '{GRPC_CLIENT}'");
    assert_eq!(stage.sh("shop/client", &grpc).ok().stdout, "ok\n");

    // The destination sees the waypoint, and the waypoint has seen the client.
    let waypoints = r#"src.identity="spiffe://cluster.local/ns/shop/sa/gate""#;
    stage.told(&["logs", "--node", "node-2"], |log| log.contains(waypoints));
    for part in ["request complete", r#"path="/hello""#, r#"src.identity="spiffe://cluster.local/ns/shop/sa/client""#] {
        stage.told(&["logs", "shop/gate"], |log| log.contains(part));
    }

    // Killed: refused until it is back, never sent around it.
    let watch = Watch::begin(&stage, "echo.plain:7000");
    let gate = || {
        stage.ps()["pods"]
            .as_array()
            .unwrap()
            .iter()
            .find(|pod| pod["name"].as_str().unwrap().starts_with("gate-"))
            .cloned()
            .unwrap()
    };
    let before = gate()["restarts"].as_u64().unwrap();
    stage.sh(&format!("shop/{}", gate()["name"].as_str().unwrap()), "kill -9 $(pidof -s leno || pgrep -o leno)");
    eventually("the waypoint is back", || {
        let ran = curl("http://web.shop/hello");
        if ran.code == 0 { Ok(()) } else { Err(ran.stderr) }
    });
    assert!(gate()["restarts"].as_u64().unwrap() > before, "who answered was not the next one");
    let at_node = stage.node_log("node-2");
    let around = at_node.lines().find(|line| line.contains(r#"dst.workload="web""#) && line.contains("/sa/client"));
    assert_eq!(around, None, "a connection went around the waypoint");

    // Without its Gateway there is none, and what must pass it is refused.
    stage.remove("gate.yaml");
    stage.wait("the waypoint is gone", |ps| {
        let pods = ps["pods"].as_array()?;
        pods.iter().all(|pod| !pod["name"].as_str().unwrap_or_default().starts_with("gate-")).then_some(())
    });
    assert_ne!(curl("http://web.shop/hello").code, 0);
    eventually("the reason is told", || {
        let log = stage.node_log("node-1");
        if log.contains("rather than sent around it") { Ok(()) } else { Err(log) }
    });
    watch.end(&stage);
}

#[test]
fn the_number_of_a_waypoints_pods_follows_its_gateway() {
    if skip("the_number_of_a_waypoints_pods_follows_its_gateway", &[]) {
        return;
    }
    let gateway = |replicas: &str| {
        let spec = "spec: {gatewayClassName: leno-waypoint, listeners: [{name: mesh, port: 15008, protocol: HBONE}]}";
        let annotations = format!("annotations: {{leno.mesh/waypoint-replicas: '{replicas}'}}");
        let metadata = format!("metadata: {{name: gate, namespace: shop, {annotations}}}");
        format!("apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\n{metadata}\n{spec}\n")
    };
    let stage = Stage::up(&[("gate.yaml", &gateway("2"))], &["--nodes", "2"]);
    let has = |count: usize| {
        stage.wait(&format!("{count} pods of the waypoint"), |ps| {
            let pods = ps["pods"].as_array()?;
            (pods.len() == count && pods.iter().all(|pod| pod["ready"] == true)).then_some(())
        });
    };
    has(2);
    stage.write("gate.yaml", &gateway("3"));
    has(3);
    let scaled = run(stage.command("scale").args(["shop/gate", "1"])).ok().stdout;
    assert_eq!(scaled, "shop/gate scaled from 3 to 1 pod\n");
    has(1);
    stage.write("gate.yaml", &gateway("many"));
    let refused = "annotation leno.mesh/waypoint-replicas=many is no number of pods";
    stage.wait("the edit is refused", |ps| ps.to_string().contains(refused).then_some(()));
    stage.write("gate.yaml", &gateway("2"));
    has(2);
    stage.down().ok();
}
