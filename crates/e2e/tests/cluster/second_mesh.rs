//! Another mesh is there already: it is named before anything is changed, and what it does already is refused.

use leno_e2e::{Cluster, Leno, Namespace};

/// The parts of Istio that do what Leno's agent and proxies do, by the labels of its charts. None of them runs.
const ISTIO: &str = "---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: ztunnel, labels: {app: ztunnel}}
spec:
  selector: {matchLabels: {app: ztunnel}}
  template:
    metadata: {labels: {app: ztunnel}}
    spec: {nodeSelector: {e2e: nowhere}, containers: [{name: istio-proxy, image: nowhere/ztunnel}]}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: istio-cni-node, labels: {k8s-app: istio-cni-node}}
spec:
  selector: {matchLabels: {k8s-app: istio-cni-node}}
  template:
    metadata: {labels: {k8s-app: istio-cni-node}}
    spec: {nodeSelector: {e2e: nowhere}, containers: [{name: install-cni, image: nowhere/install-cni}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: istiod, labels: {app: istiod}}
spec:
  replicas: 0
  selector: {matchLabels: {app: istiod}}
  template:
    metadata: {labels: {app: istiod}}
    spec: {containers: [{name: discovery, image: nowhere/pilot}]}
";

pub(crate) fn is_named_and_not_doubled(cluster: &Cluster, leno: &Leno) {
    let istio = Namespace::new(cluster, "e2e-istio", &[]).unwrap();
    istio.apply(ISTIO).unwrap();
    let found = leno.call(&["check", "--pre"]).unwrap().stdout;
    for part in ["Istio's ztunnel", "Istio's CNI agent", "istiod"] {
        assert!(found.contains(&format!("{part} runs in {}", istio.name())), "{found}");
    }
    let refused = |sets: &[&str], part: &str, instead: &str| {
        let ran = leno.call(&[&["install"], sets].concat()).unwrap();
        assert!(ran.code != 0 && ran.stderr.contains(part) && ran.stderr.contains(instead), "{}", ran.stderr);
        // Nothing of it is there.
        let ours = ["get", "namespace,clusterrole", "-l", "app.kubernetes.io/part-of=leno", "-o", "name"];
        assert_eq!(cluster.kubectl().run(&ours).unwrap().trim(), "");
    };
    refused(&[], "Istio's ztunnel", "node.enabled=false");
    refused(&["--set", "node.enabled=false"], "Istio's CNI agent", "agent.enabled=false");
    cluster.kubectl().run(&["delete", "namespace", istio.name(), "--timeout=120s"]).unwrap();
}
