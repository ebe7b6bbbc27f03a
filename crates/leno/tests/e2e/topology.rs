//! The stage that most tests use: two nodes, servers and clients inside and outside the mesh.

use crate::stage::Stage;

/// Namespaces: `mesh` is enrolled, `plain` is not.
pub(crate) const NAMESPACES: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: mesh, labels: {istio.io/dataplane-mode: ambient}}
---
apiVersion: v1
kind: Namespace
metadata: {name: plain}
";

/// A pod without a server, in which tests run commands.
pub(crate) fn client(namespace: &str, name: &str, node: &str) -> String {
    format!(
        "---
apiVersion: v1
kind: ServiceAccount
metadata: {{name: {name}, namespace: {namespace}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: {namespace}, labels: {{app: {name}}}}}
spec:
  serviceAccountName: {name}
  nodeName: {node}
  containers:
  - {{name: wait, command: [sleep, infinity]}}
"
    )
}

/// One server: its command, and a named port.
pub(crate) struct Server<'a> {
    pub(crate) name: &'a str,
    pub(crate) node: &'a str,
    pub(crate) port: u16,
    pub(crate) readiness: Readiness,
    pub(crate) command: &'a str,
}

/// Answers with what it is told, over both families.
pub(crate) const ECHO: Server<'static> = Server {
    name: "echo",
    node: "node-2",
    port: 7000,
    readiness: Readiness::Accepts,
    command: "exec socat TCP6-LISTEN:7000,ipv6only=0,reuseaddr,fork EXEC:cat",
};

/// How a server's readiness is found out, once a second as long as it runs.
#[derive(Clone, Copy)]
pub(crate) enum Readiness {
    /// It accepts a connection.
    Accepts,
    /// It listens. For iperf3, which takes a probe's connection for a test. After a test it closes its listener and opens
    /// another, which resets clients that wait at the first.
    Listens,
}

impl Server<'_> {
    /// A pod and a dual-stack Service of the same name.
    pub(crate) fn manifest(&self, namespace: &str) -> String {
        let Server { name, node, port, readiness, command } = self;
        let probe = match readiness {
            Readiness::Accepts => format!("tcpSocket: {{port: {port}}}"),
            Readiness::Listens => {
                format!(r#"exec: {{command: [sh, -c, "ss -Htln sport = :{port} | grep -q ."]}}"#)
            }
        };
        let command = serde_json::to_string(command).unwrap();
        format!(
            "---
apiVersion: v1
kind: ServiceAccount
metadata: {{name: {name}, namespace: {namespace}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: {namespace}, labels: {{app: {name}}}}}
spec:
  serviceAccountName: {name}
  nodeName: {node}
  terminationGracePeriodSeconds: 1
  containers:
  - name: server
    command: [sh, -c, {command}]
    readinessProbe: {{{probe}, periodSeconds: 1, failureThreshold: 60}}
---
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  selector: {{app: {name}}}
  ipFamilyPolicy: PreferDualStack
  ports: [{{name: tcp, port: {port}}}]
"
        )
    }
}

/// Clients on both nodes in the mesh, one outside; `servers` in both namespaces.
pub(crate) fn up(servers: &[Server<'_>], args: &[&str]) -> Stage {
    Stage::up(&[("all.yaml", &text(servers))], args)
}

/// The manifests of this.
pub(crate) fn text(servers: &[Server<'_>]) -> String {
    let mut text = NAMESPACES.to_owned();
    text.push_str(&client("mesh", "near", "node-2"));
    text.push_str(&client("mesh", "far", "node-1"));
    text.push_str(&client("plain", "outsider", "node-1"));
    for server in servers {
        text.push_str(&server.manifest("mesh"));
        text.push_str(&server.manifest("plain"));
    }
    text
}

/// Who talks to whom: (client pod, namespace of the server). Across nodes and within one; with both, only the client or
/// only the server in the mesh.
pub(crate) const PAIRS: [(&str, &str); 5] = [
    ("mesh/far", "mesh"),
    ("mesh/near", "mesh"),
    ("mesh/far", "plain"),
    ("plain/outsider", "mesh"),
    ("plain/outsider", "plain"),
];
