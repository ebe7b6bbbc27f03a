//! Pods come and go, many at a time and while others use them.

use std::time::{Duration, Instant};

use leno_e2e::{Namespace, Pod, TOOLBOX_IMAGE};

use crate::matrix::Server;
use crate::mesh::{AMBIENT, Stand};
use crate::stand::{self, comes_true};
use crate::{losses, policies};

/// A Deployment and its Service. Its pods go on to serve for a while after they are told to end, as they have to wherever
/// endpoints are told by the API server, with or without a mesh.
pub(crate) fn deployment(name: &str, replicas: usize, patient: bool) -> String {
    let (hook, grace) = if patient { ("\n        lifecycle: {preStop: {sleep: {seconds: 4}}}", 10) } else { ("", 1) };
    format!(
        "---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      terminationGracePeriodSeconds: {grace}
      automountServiceAccountToken: false
      containers:
      - name: toolbox
        image: {TOOLBOX_IMAGE}
        imagePullPolicy: IfNotPresent
        command: [/toolbox, serve, -http, \":8080\"]
        readinessProbe: {{httpGet: {{path: /, port: 8080}}, periodSeconds: 1}}{hook}
---
apiVersion: v1
kind: Service
metadata: {{name: {name}}}
spec:
  selector: {{app: {name}}}
  ports: [{{name: http, port: 8080}}]
"
    )
}

/// Pods that are made at the same time all get into the mesh, and nothing of them is left on the nodes.
pub(crate) fn many_pods(stand: &Stand) {
    const PODS: usize = 60;
    let namespace = Namespace::new(&stand.cluster, "e2e-burst", &[AMBIENT]).unwrap();
    let begin = Instant::now();
    namespace.apply(&deployment("many", PODS, false)).unwrap();
    namespace.wait("condition=Available", &["deployment/many"]).unwrap();
    eprintln!("{PODS} pods of the mesh were ready after {:.1} s", begin.elapsed().as_secs_f64());
    comes_true("all of them are in the mesh", || pods(&namespace) == (PODS, PODS));
    let begin = Instant::now();
    namespace.kubectl().run(&["delete", "deployment", "many", "--namespace", namespace.name()]).unwrap();
    comes_true("none of them is left", || pods(&namespace) == (0, 0));
    eprintln!("{PODS} pods were gone after {:.1} s", begin.elapsed().as_secs_f64());
    stand.leno.run(&["check"]).unwrap();
}

/// How many pods a namespace has, and how many of them an agent calls captured.
fn pods(namespace: &Namespace) -> (usize, usize) {
    let list = namespace.kubectl().json(&["get", "pods", "--namespace", namespace.name()]).unwrap();
    let pods = list["items"].as_array().unwrap();
    let captured =
        |pod: &&serde_json::Value| pod["metadata"]["annotations"]["ambient.istio.io/redirection"] == "enabled";
    (pods.len(), pods.iter().filter(captured).count())
}

/// An application is replaced pod by pod, and then its node is drained, while others ask it.
pub(crate) fn an_update_and_a_drained_node(stand: &Stand) {
    let (here, there) = stand::two_nodes(&stand.cluster);
    let namespace = Namespace::new(&stand.cluster, "e2e-drain", &[AMBIENT]).unwrap();
    namespace.apply(policies::STRICT).unwrap();
    namespace.apply(&deployment("web", 3, true)).unwrap();
    namespace.apply(BUDGET).unwrap();
    let client = Server::new(Pod::new("client", &here));
    namespace.start(std::slice::from_ref(&client.pod)).unwrap();
    namespace.wait("condition=Available", &["deployment/web"]).unwrap();
    client.await_known(&namespace, "client", &["http://web:8080/".to_owned()]);
    let mut load = namespace.load("client", Duration::from_millis(10), &["http://web:8080/"]).unwrap();
    load.await_more(50).unwrap();
    let kubectl = stand.cluster.kubectl();
    let settled = ["rollout", "status", "deployment/web", "--timeout=180s", "--namespace", namespace.name()];
    kubectl.run(&["rollout", "restart", "deployment/web", "--namespace", namespace.name()]).unwrap();
    kubectl.run(&settled).unwrap();
    load.await_more(50).unwrap();
    // Pods of other namespaces that nobody would start again stay.
    let drain = [
        "drain",
        &there,
        "--ignore-daemonsets",
        "--delete-emptydir-data",
        "--timeout=120s",
        "--pod-selector",
        "app=web",
    ];
    let drained = kubectl.run(&drain);
    let back = kubectl.run(&["uncordon", &there]);
    drained.unwrap();
    back.unwrap();
    kubectl.run(&settled).unwrap();
    load.await_more(50).unwrap();
    losses::assert_none("while an application was updated and its node drained", &load.stop().unwrap());
}

const BUDGET: &str = "apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec: {maxUnavailable: 1, selector: {matchLabels: {app: web}}}
";

/// A namespace goes while others ask its pods; they get errors from it and from nobody else, and it can come again.
pub(crate) fn a_namespace_that_is_deleted(stand: &Stand) {
    let (here, there) = stand::two_nodes(&stand.cluster);
    let stays = Namespace::new(&stand.cluster, "e2e-stays", &[AMBIENT]).unwrap();
    let server = Server::new(Pod::new("server", &there));
    stays.apply(&server.services()).unwrap();
    stays.start(&[server.pod.clone(), Pod::new("client", &here)]).unwrap();
    let doomed = Server::new(Pod::new("doomed", &there));
    let begin = |namespace: &Namespace| {
        namespace.apply(&doomed.services()).unwrap();
        namespace.start(std::slice::from_ref(&doomed.pod)).unwrap();
        let url = format!("http://doomed.{}:8080/", namespace.name());
        doomed.await_known(&stays, "client", std::slice::from_ref(&url));
        url
    };
    let goes = Namespace::new(&stand.cluster, "e2e-goes", &[AMBIENT]).unwrap();
    let url = begin(&goes);
    server.await_known(&stays, "client", &["http://server:8080/".to_owned()]);
    let mut to_it = stays.load("client", Duration::from_millis(20), &[&url]).unwrap();
    let mut to_others = stays.load("client", Duration::from_millis(20), &["http://server:8080/"]).unwrap();
    to_it.await_more(20).unwrap();
    stand.cluster.kubectl().run(&["delete", "namespace", goes.name(), "--timeout=120s"]).unwrap();
    to_others.await_more(50).unwrap();
    losses::assert_none("while another namespace was deleted", &to_others.stop().unwrap());
    to_it.stop().unwrap();
    stand.leno.run(&["check"]).unwrap();
    drop(goes);
    begin(&Namespace::new(&stand.cluster, "e2e-goes", &[AMBIENT]).unwrap());
}
