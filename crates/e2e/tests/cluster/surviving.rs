//! The mesh's own parts end, by force or for an upgrade, while pods talk.

use std::time::Duration;

use leno_e2e::{Cluster, Load, Namespace, Pod};

use crate::matrix::Server;
use crate::mesh::{AMBIENT, SYSTEM, Stand};
use crate::{losses, stand};

/// New connections on one node and across nodes, all the time.
struct Talk {
    namespace: Namespace,
    loads: Vec<Load>,
    nodes: [String; 2],
}

impl Talk {
    fn begin(cluster: &Cluster, test: &str) -> Self {
        let (here, there) = stand::two_nodes(cluster);
        let namespace = Namespace::new(cluster, test, &[AMBIENT]).unwrap();
        let server = Server::new(Pod::new("server", &here));
        namespace.apply(&server.services()).unwrap();
        namespace.start(&[server.pod.clone(), Pod::new("near", &here), Pod::new("far", &there)]).unwrap();
        let mut loads = Vec::new();
        for client in ["near", "far"] {
            server.await_known(&namespace, client, &["http://server:8080/".to_owned()]);
            loads.push(namespace.load(client, Duration::from_millis(20), &["http://server:8080/"]).unwrap());
        }
        let mut talk = Self { namespace, loads, nodes: [here, there] };
        talk.go_on(20);
        talk
    }

    fn go_on(&mut self, answers: usize) {
        for load in &mut self.loads {
            load.await_more(answers).unwrap();
        }
    }

    fn end(mut self) -> Vec<leno_e2e::Answer> {
        self.go_on(50);
        std::mem::take(&mut self.loads).into_iter().flat_map(|load| load.stop().unwrap()).collect()
    }
}

pub(crate) fn a_killed_agent(stand: &Stand) {
    killed(stand, "e2e-kill-agent", &["/leno", "agent"], "daemonset/leno-agent");
}

pub(crate) fn a_killed_control_plane(stand: &Stand) {
    killed(stand, "e2e-kill-control", &["/leno", "control"], "deployment/leno-control");
}

/// Whatever comes to pass, nothing goes in the clear: requests may fail until the proxy is back, and none is answered that
/// did not come through it.
pub(crate) fn a_killed_proxy(stand: &Stand) {
    let mut talk = Talk::begin(&stand.cluster, "e2e-kill-proxy");
    talk.namespace.apply(crate::policies::STRICT).unwrap();
    talk.go_on(50);
    assert!(stand.hosts.kill(&talk.nodes[0], &["/leno", "node"]).unwrap(), "no proxy runs");
    settled(&stand.cluster, "daemonset/leno-node");
    talk.go_on(50);
    let answers = talk.end();
    let lost = losses::count("while a node's proxy was killed", &answers).len();
    assert!(answers.len() > lost, "no answer came");
    let late = answers.iter().rev().take(40).filter(|answer| answer.outcome.is_err()).count();
    assert_eq!(late, 0, "the proxy is back, and requests still fail");
}

fn killed(stand: &Stand, test: &str, words: &[&str], workload: &str) {
    let mut talk = Talk::begin(&stand.cluster, test);
    let mut any = false;
    for node in stand.hosts.nodes() {
        // A node may have none of it.
        any |= stand.hosts.kill(node, words).unwrap();
        talk.go_on(20);
    }
    assert!(any, "no process is called {words:?}");
    settled(&stand.cluster, workload);
    losses::assert_none(&format!("while {} was killed", words.join(" ")), &talk.end());
}

pub(crate) fn a_rolling_update_of_the_proxies(stand: &Stand) {
    rolled(stand, "e2e-roll-proxy", "daemonset/leno-node");
}

pub(crate) fn a_rolling_update_of_the_agents(stand: &Stand) {
    rolled(stand, "e2e-roll-agent", "daemonset/leno-agent");
}

pub(crate) fn a_rolling_update_of_the_control_plane(stand: &Stand) {
    rolled(stand, "e2e-roll-control", "deployment/leno-control");
}

fn rolled(stand: &Stand, test: &str, workload: &str) {
    let talk = Talk::begin(&stand.cluster, test);
    stand.cluster.kubectl().run(&["rollout", "restart", workload, "--namespace", SYSTEM]).unwrap();
    settled(&stand.cluster, workload);
    losses::assert_none(&format!("while {workload} was updated"), &talk.end());
}

fn settled(cluster: &Cluster, workload: &str) {
    cluster.kubectl().run(&["rollout", "status", workload, "--namespace", SYSTEM, "--timeout=240s"]).unwrap();
}
