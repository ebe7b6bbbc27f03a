//! The kubelet asks a pod whether it lives, in each of the four ways there are.

use leno_e2e::{Namespace, TOOLBOX_IMAGE};

/// Starts a pod for each way, and asserts that all become ready and none is restarted.
pub(crate) fn succeed(namespace: &Namespace) {
    let kinds = [
        ("http", "httpGet: {path: /, port: 8080}"),
        ("tcp", "tcpSocket: {port: 9000}"),
        ("grpc", "grpc: {port: 9001}"),
        ("exec", "exec: {command: [/toolbox, ask, \"http://127.0.0.1:8080/\"]}"),
    ];
    let manifests: String = kinds.iter().map(|(name, probe)| pod(name, probe)).collect();
    namespace.apply(&manifests).unwrap();
    let pods = kinds.map(|(name, _)| format!("pod/{name}"));
    namespace.wait("condition=Ready", &pods.each_ref().map(String::as_str)).unwrap();
    for (name, _) in kinds {
        let pod = namespace.kubectl().json(&["get", "pod", name, "--namespace", namespace.name()]).unwrap();
        assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], 0, "{name}: its liveness probe failed");
    }
}

/// Becomes ready only after its startup probe, by the same way as its liveness probe, has succeeded.
fn pod(name: &str, probe: &str) -> String {
    format!(
        "---
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: toolbox
    image: {TOOLBOX_IMAGE}
    imagePullPolicy: IfNotPresent
    command: [/toolbox, serve, -http, \":8080\", -tcp, \":9000\", -grpc, \":9001\"]
    startupProbe: {{{probe}, periodSeconds: 1, failureThreshold: 60, timeoutSeconds: 5}}
    livenessProbe: {{{probe}, periodSeconds: 1, timeoutSeconds: 5}}
    readinessProbe: {{{probe}, periodSeconds: 1, timeoutSeconds: 5}}
"
    )
}
