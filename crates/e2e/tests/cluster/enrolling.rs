//! Pods that run already enter and leave the mesh without a restart and without a failed request.

use std::time::{Duration, Instant};

use leno_e2e::{Load, Namespace, Pod, TOOLBOX_IMAGE};

use crate::losses;
use crate::matrix::Server;
use crate::mesh::Stand;
use crate::stand;

/// As many as a busy namespace has.
const PODS: usize = 50;
/// On a machine that does nothing else it takes less than five seconds.
const QUIET: Duration = Duration::from_secs(30);

pub(crate) fn fifty_pods(stand: &Stand) {
    let cluster = &stand.cluster;
    let (here, there) = stand::two_nodes(cluster);
    let namespace = Namespace::new(cluster, "e2e-enrol", &[]).unwrap();
    let server = Server::new(Pod::new("server", &here));
    namespace.apply(&server.services()).unwrap();
    namespace.apply(&others(PODS - 3)).unwrap();
    namespace.start(&[server.pod.clone(), Pod::new("near", &here), Pod::new("far", &there)]).unwrap();
    namespace.wait("condition=Available", &["deployment/others"]).unwrap();
    let urls = ["http://server:8080/".to_owned(), "http://others:8080/".to_owned()];
    let mut loads: Vec<Load> = Vec::new();
    for client in ["near", "far"] {
        server.await_known(&namespace, client, &urls);
        loads.push(
            namespace.load(client, Duration::from_millis(20), &["http://server:8080/", "http://others:8080/"]).unwrap(),
        );
    }
    for command in ["enrol", "unenrol", "enrol"] {
        for load in &mut loads {
            load.await_more(20).unwrap();
        }
        let begin = Instant::now();
        let said = stand.leno.run(&[command, namespace.name(), "--wait"]).unwrap();
        let took = begin.elapsed();
        eprintln!("{command} of {PODS} running pods: {:.1} s", took.as_secs_f64());
        assert!(said.contains(&format!("{PODS} pods")), "{said}");
        assert!(took < QUIET || !stand::is_measured(), "{command} took {took:?}");
    }
    for mut load in loads {
        load.await_more(50).unwrap();
        losses::assert_none("while pods entered and left the mesh", &load.stop().unwrap());
    }
    let pods = cluster.kubectl().json(&["get", "pods", "--namespace", namespace.name()]).unwrap();
    for pod in pods["items"].as_array().unwrap() {
        assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], 0, "{}", pod["metadata"]["name"]);
    }
}

/// Pods on all nodes behind one Service.
fn others(count: usize) -> String {
    format!(
        "---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: others}}
spec:
  replicas: {count}
  selector: {{matchLabels: {{app: others}}}}
  template:
    metadata: {{labels: {{app: others}}}}
    spec:
      terminationGracePeriodSeconds: 1
      automountServiceAccountToken: false
      containers:
      - name: toolbox
        image: {TOOLBOX_IMAGE}
        imagePullPolicy: IfNotPresent
        command: [/toolbox, serve, -http, \":8080\"]
---
apiVersion: v1
kind: Service
metadata: {{name: others}}
spec:
  selector: {{app: others}}
  ports: [{{name: http, port: 8080}}]
"
    )
}
