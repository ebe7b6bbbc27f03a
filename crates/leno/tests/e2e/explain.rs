//! `leno explain`: every way to name a source and a destination, and everything that the answer must say.

use crate::stage::{Stage, run, skip};
use crate::topology::{NAMESPACES, client};

const B: &str = r#"
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: many, namespace: mesh}
spec:
  replicas: 3
  selector: {matchLabels: {app: b}}
  template:
    metadata: {labels: {app: b}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: main, command: [sleep, infinity]}]
---
apiVersion: v1
kind: Service
metadata: {name: b, namespace: mesh}
spec:
  selector: {app: b}
  ports: [{name: http, port: 80, targetPort: 8080}, {name: syslog, port: 514, protocol: UDP}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: only-get, namespace: mesh}
spec:
  selector: {matchLabels: {app: b}}
  rules: [{to: [{operation: {methods: [GET]}}]}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny-all, namespace: mesh}
spec: {podSelector: {matchLabels: {app: b}}}
"#;

#[test]
fn explain_takes_what_people_type_and_says_what_they_must_know() {
    if skip("explain_takes_what_people_type_and_says_what_they_must_know", &["nft"]) {
        return;
    }
    let text = format!("{NAMESPACES}{}{B}", client("mesh", "a", "node-1"));
    let stage = Stage::up(&[("all.yaml", &text)], &[]);
    let tcp = stage.explain("mesh/a", "mesh/b:80");
    assert!(tcp.lines().next().is_some_and(|line| line.ends_with(": denied")), "{tcp}");
    assert!(tcp.contains("\n  the same at mesh/many-") && tcp.matches("\nendpoint ").count() == 1, "{tcp}");
    assert!(tcp.contains("this alternative is dropped, so it allows nothing"), "{tcp}");
    assert!(tcp.contains("\nnot in force for mesh/many-") && tcp.contains("NetworkPolicy mesh/deny-all ("), "{tcp}");
    assert!(!tcp.contains('\x1b'), "no colours in a pipe: {tcp}");
    for same in ["mesh/b:http", "b.mesh.svc.cluster.local:80", "b.mesh:http", "b:80"] {
        assert_eq!(stage.explain("mesh/a", same), tcp, "{same}");
    }
    let udp = stage.explain("mesh/a", "b.mesh.svc.cluster.local:syslog/udp");
    assert!(
        udp.lines().next().is_some_and(|line| line.ends_with(":514/udp: passes by, unencrypted; no policy is asked")),
        "{udp}"
    );
    assert!(udp.contains("these policies do NOT restrict it: mesh/only-get"), "{udp}");
    // A Deployment stands for its pods, as source and as destination.
    let direct = stage.explain("mesh/many", "mesh/many:8080");
    assert!(direct.starts_with("mesh/many-") && direct.contains("\nthe same to "), "{direct}");
    let wrong = run(stage.command("explain").args(["mesh/a", "mesh/b:https"]));
    assert_eq!(wrong.code, 1, "{}", wrong.stderr);
    assert!(wrong.stderr.contains("there is no port called https; there are http"), "{}", wrong.stderr);
    let json = run(stage.command("explain").args(["mesh/a", "mesh/b:80", "-o", "json"])).ok().stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["explanations"][0]["endpoints"].as_array().map(Vec::len), Some(3), "programs are told all: {json}");
    assert_eq!(json["passed_over"][0]["object"], "NetworkPolicy mesh/deny-all", "{json}");
}
