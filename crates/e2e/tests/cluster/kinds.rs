//! Pods of every kind talk through the mesh from their first moment. The server takes nothing but mutual TLS, and nobody asks it
//! twice: a pod whose first packet left in the clear would fail.

use leno_e2e::{Namespace, Pod, TOOLBOX_IMAGE};

use crate::matrix::Server;
use crate::mesh::{AMBIENT, Stand};
use crate::{policies, stand};

pub(crate) fn talk_from_their_first_moment(stand: &Stand) {
    let (here, _) = stand::two_nodes(&stand.cluster);
    let namespace = Namespace::new(&stand.cluster, "e2e-kinds", &[AMBIENT]).unwrap();
    namespace.apply(policies::STRICT).unwrap();
    let server = Server::new(Pod::new("server", &here));
    namespace.apply(&server.services()).unwrap();
    namespace.start(&[server.pod.clone(), Pod::new("near", &here)]).unwrap();
    server.await_known(&namespace, "near", &server.urls(&namespace));

    let manifests: String = [
        job("job", "", &container("ask", ASK, ""), ""),
        // Native sidecars run beside the container, and end after it.
        job(
            "sidecar",
            &container(
                "serve",
                "[/toolbox, serve, -http, \":8081\"]",
                "restartPolicy: Always, startupProbe: {httpGet: {path: /, port: 8081}, periodSeconds: 1}",
            ),
            &container("ask", "[/toolbox, ask, \"http://127.0.0.1:8081/\", \"http://server:8080/\"]", ""),
            "",
        ),
        job("init", &container("first", ASK, ""), &container("then", ASK, ""), ""),
        job("several", "", &(container("one", ASK, "") + &container("two", ASK, "")), ""),
        // Istio's proxies run as this user, and rules that let it pass would let such pods out of the mesh. Leno's run as 0.
        job("proxys-user", "", &container("ask", ASK, ""), "securityContext: {runAsUser: 1337, runAsGroup: 1337}"),
        job("roots-user", "", &container("ask", ASK, ""), "securityContext: {runAsUser: 0, runAsGroup: 1337}"),
        STATEFUL_SET.replace("IMAGE", TOOLBOX_IMAGE),
        ON_THE_HOST.replace("IMAGE", TOOLBOX_IMAGE),
    ]
    .concat();
    namespace.apply(&manifests).unwrap();
    let jobs = ["job", "sidecar", "init", "several", "proxys-user", "roots-user"].map(|job| format!("job/{job}"));
    if let Err(error) = namespace.wait("condition=Complete", &jobs.each_ref().map(String::as_str)) {
        let logs = jobs.each_ref().map(|job| {
            let logs = ["logs", "--namespace", namespace.name(), job, "--all-containers", "--prefix"];
            namespace.kubectl().run(&logs).unwrap_or_else(|error| error.to_string())
        });
        panic!("{error}: {logs:#?}");
    }

    namespace
        .kubectl()
        .run(&["rollout", "status", "statefulset/web", "--namespace", namespace.name(), "--timeout=180s"])
        .unwrap();
    let urls = ["web-0", "web-1"].map(|name| format!("http://{name}.web:8080/")).to_vec();
    server.await_known(&namespace, "near", &urls);
    for (answer, pod) in namespace.ask("near", &urls).unwrap().iter().zip(["web-0", "web-1"]) {
        assert!(answer.outcome.as_ref().is_ok_and(|said| said.contains(pod)), "{answer:?}");
    }

    // A pod in its node's network can't be in the mesh, so what takes only mutual TLS refuses it.
    namespace.wait("condition=Ready", &["pod/on-the-host"]).unwrap();
    let pod = namespace.kubectl().json(&["get", "pod", "on-the-host", "--namespace", namespace.name()]).unwrap();
    assert!(pod["metadata"]["annotations"]["ambient.istio.io/redirection"].is_null(), "{pod}");
    let address = namespace.addresses("server").unwrap().remove(0);
    let answers = namespace.ask("on-the-host", &[format!("tcp://{address}:9000")]).unwrap();
    assert!(answers[0].outcome.is_err(), "{answers:?}");
}

const ASK: &str = "[/toolbox, ask, \"http://server:8080/\", \"tcp://server:9000\", \"grpc://server-headless:9001\"]";

fn container(name: &str, command: &str, more: &str) -> String {
    let more = if more.is_empty() { String::new() } else { format!(", {more}") };
    format!(
        "      - {{name: {name}, image: \"{TOOLBOX_IMAGE}\", imagePullPolicy: IfNotPresent, command: {command}{more}}}\n"
    )
}

/// It ends when its containers do, and nothing of it is tried twice.
fn job(name: &str, before: &str, containers: &str, more: &str) -> String {
    let before = if before.is_empty() { String::new() } else { format!("      initContainers:\n{before}") };
    format!(
        "---
apiVersion: batch/v1
kind: Job
metadata: {{name: {name}}}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 1
{before}      containers:
{containers}      {more}
"
    )
}

const STATEFUL_SET: &str = "---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: None, selector: {app: web}, ports: [{name: http, port: 8080}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: web}
spec:
  serviceName: web
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: toolbox
        image: IMAGE
        imagePullPolicy: IfNotPresent
        command: [/toolbox, serve, -http, \":8080\"]
        readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
";

const ON_THE_HOST: &str = "---
apiVersion: v1
kind: Pod
metadata: {name: on-the-host}
spec:
  hostNetwork: true
  # On the server's own node, root in the node's network is taken for the kubelet.
  securityContext: {runAsUser: 1000}
  terminationGracePeriodSeconds: 1
  containers:
  - {name: toolbox, image: \"IMAGE\", imagePullPolicy: IfNotPresent, command: [/toolbox, sleep]}
";
