//! What real manifests contain beyond what concerns the mesh: init containers, and objects that are not enforced.

use crate::stage::{Stage, run, skip};
use crate::topology::{NAMESPACES, client};

/// A server that starts late. Only the pod whose init container waits for it may connect to it.
const LATE: &str = r#"
---
apiVersion: v1
kind: Pod
metadata: {name: late, namespace: mesh, labels: {app: late}}
spec:
  nodeName: node-2
  terminationGracePeriodSeconds: 1
  containers:
  - name: server
    command: [sh, -c, "sleep 1; exec python3 -m http.server 8080 --bind ::"]
    workingDir: /usr/share/doc
    readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1, failureThreshold: 60}
---
apiVersion: v1
kind: Service
metadata: {name: late, namespace: mesh}
spec: {selector: {app: late}, ipFamilyPolicy: PreferDualStack, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: only-waits, namespace: mesh}
spec:
  selector: {matchLabels: {app: late}}
  rules: [{from: [{source: {principals: [cluster.local/ns/mesh/sa/waits]}}]}]
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: waits, namespace: mesh}
---
apiVersion: v1
kind: Pod
metadata: {name: waits, namespace: mesh}
spec:
  serviceAccountName: waits
  nodeName: node-1
  terminationGracePeriodSeconds: 1
  initContainers:
  - name: four
    command: [sh, -c, "until curl -4 -sf -m 10 -o /dev/null http://late/; do echo not yet; sleep 0.1; done"]
  - name: six
    command: [sh, -c, "until curl -6 -sf -m 10 -o /dev/null http://late/; do echo not yet; sleep 0.1; done"]
  containers:
  - {name: main, command: [sleep, infinity]}
"#;

#[test]
fn init_containers_are_in_the_mesh() {
    if skip("init_containers_are_in_the_mesh", &["nft", "curl", "python3"]) {
        return;
    }
    let text = format!("{NAMESPACES}{}{LATE}", client("mesh", "other", "node-1"));
    let stage = Stage::up(&[("all.yaml", &text)], &[]);
    // The policy lets in this pod's identity only, so the init container's request went through the mesh.
    let other = stage.sh("mesh/other", "curl -s -m 10 -o /dev/null http://late/");
    assert_ne!(other.code, 0, "another identity is turned away");
    stage.sh("mesh/waits", "curl -sf -m 10 -o /dev/null http://late/").ok();
}

const NOT_IN_FORCE: &str = r#"
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny-all, namespace: mesh}
spec: {podSelector: {matchLabels: {app: b}}, policyTypes: [Ingress]}
---
apiVersion: v1
kind: Pod
metadata: {name: probed, namespace: mesh, labels: {app: b}}
spec:
  containers:
  - {name: main, command: [sleep, infinity], livenessProbe: {tcpSocket: {port: 1}}}
"#;

#[test]
fn what_is_not_enforced_is_reported() {
    if skip("what_is_not_enforced_is_reported", &["nft"]) {
        return;
    }
    let text = format!("{NAMESPACES}{}{NOT_IN_FORCE}", client("mesh", "a", "node-1"));
    let stage = Stage::prepare(&[("all.yaml", &text)]);
    let ran = run(stage.up_command(&[])).ok();
    let unrestricted = "traffic is NOT restricted by it; write an AuthorizationPolicy to restrict it";
    let hangs = "a container that hangs is NOT started again";
    for told in [
        format!(": NetworkPolicy mesh/deny-all is passed over: {unrestricted}"),
        format!(": Pod mesh/probed: spec.containers[0].livenessProbe has no effect: {hangs}"),
    ] {
        assert!(
            ran.stderr.lines().any(|line| line.starts_with("warning: ") && line.ends_with(&told)),
            "{}",
            ran.stderr
        );
    }
    let ps = run(&mut stage.command("ps")).ok().stdout;
    let at = ps.find("\nIn the manifests, but not in force:\n").unwrap_or_else(|| panic!("{ps}"));
    assert!(ps[at..].contains("  NetworkPolicy mesh/deny-all (") && ps[at..].contains(unrestricted), "{ps}");
    assert!(ps[at..].contains(&format!("\n  livenessProbe of Pod mesh/probed: {hangs}")), "{ps}");
    let listed = &stage.ps()["passed_over"];
    assert_eq!(listed[0]["pods"], serde_json::json!(["mesh/probed"]), "{listed}");
}
