//! The mesh's own parts end, by force or for an upgrade, while pods talk. That of the proxies is in `upgrading`.

use std::time::{Duration, Instant};

use leno_e2e::{Cluster, Load, Namespace, Pod};

use crate::clear::{Watch, secret};
use crate::matrix::Server;
use crate::mesh::{AMBIENT, SYSTEM, Stand};
use crate::{losses, stand};

/// New connections on one node and across nodes, all the time, which nobody can read.
struct Talk<'a> {
    namespace: Namespace,
    watch: Watch<'a>,
    loads: Vec<Load>,
    nodes: [String; 2],
}

impl<'a> Talk<'a> {
    fn begin(stand: &'a Stand, test: &str) -> Self {
        let (here, there) = stand::two_nodes(&stand.cluster);
        let namespace = Namespace::new(&stand.cluster, test, &[AMBIENT]).unwrap();
        let server = Server::new(Pod::new("server", &here));
        namespace.apply(&server.services()).unwrap();
        namespace.start(&[server.pod.clone(), Pod::new("near", &here), Pod::new("far", &there)]).unwrap();
        let watch = Watch::begin(stand);
        let mut loads = Vec::new();
        for client in ["near", "far"] {
            server.await_known(&namespace, client, &["http://server:8080/".to_owned()]);
            loads.push(namespace.load(client, Duration::from_millis(20), &[&secret("server")]).unwrap());
        }
        let mut talk = Self { namespace, watch, loads, nodes: [here, there] };
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
        let answers = self.loads.into_iter().flat_map(|load| load.stop().unwrap()).collect();
        self.watch.end();
        answers
    }
}

pub(crate) fn a_killed_agent(stand: &Stand) {
    killed(stand, "e2e-kill-agent", &["/leno", "agent"], "daemonset/leno-agent");
}

pub(crate) fn a_killed_control_plane(stand: &Stand) {
    killed(stand, "e2e-kill-control", &["/leno", "control"], "deployment/leno-control");
}

/// Whatever comes to pass, nothing goes in the clear: what the proxy had in hand is lost, and none is answered that did not come
/// through it.
pub(crate) fn a_killed_proxy(stand: &Stand) {
    let mut talk = Talk::begin(stand, "e2e-kill-proxy");
    talk.namespace.apply(crate::policies::STRICT).unwrap();
    talk.go_on(50);
    let (loads, killed) = (talk.loads.len(), Instant::now());
    assert!(stand.hosts.kill(&talk.nodes[0], &["/leno", "node"]).unwrap(), "no proxy runs");
    settled(&stand.cluster, "daemonset/leno-node");
    let away = killed.elapsed();
    talk.go_on(50);
    let answers = talk.end();
    let lost = losses::count("while a node's proxy was killed", &answers).len();
    let most = losses::most(loads, away);
    assert!(lost <= most, "{lost} of {} requests failed, more than the {most} that a proxy had in hand", answers.len());
    let late = answers.iter().rev().take(40).filter(|answer| answer.outcome.is_err()).count();
    assert_eq!(late, 0, "the proxy is back, and requests still fail");
}

fn killed(stand: &Stand, test: &str, words: &[&str], workload: &str) {
    let mut talk = Talk::begin(stand, test);
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

pub(crate) fn a_rolling_update_of_the_agents(stand: &Stand) {
    rolled(stand, "e2e-roll-agent", "daemonset/leno-agent");
}

pub(crate) fn a_rolling_update_of_the_control_plane(stand: &Stand) {
    rolled(stand, "e2e-roll-control", "deployment/leno-control");
}

fn rolled(stand: &Stand, test: &str, workload: &str) {
    let talk = Talk::begin(stand, test);
    stand.cluster.kubectl().run(&["rollout", "restart", workload, "--namespace", SYSTEM]).unwrap();
    settled(&stand.cluster, workload);
    losses::assert_none(&format!("while {workload} was updated"), &talk.end());
}

fn settled(cluster: &Cluster, workload: &str) {
    cluster.kubectl().run(&["rollout", "status", workload, "--namespace", SYSTEM, "--timeout=240s"]).unwrap();
}
