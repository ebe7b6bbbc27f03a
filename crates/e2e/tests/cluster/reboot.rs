//! A node loses its power and boots again: no pod of it slips out of the mesh, and nothing goes in the clear.

use std::time::Duration;

use leno_e2e::{Capture, Hands, Namespace, Pod};
use leno_testkit::skips::skip;

use crate::clear::marked;
use crate::matrix::Server;
use crate::mesh::{AMBIENT, SYSTEM, Stand};
use crate::policies::STRICT;
use crate::stand::{self, comes_true};

pub(crate) fn a_node(stand: &Stand) {
    let Some(hands) = Hands::find(&stand.cluster) else {
        return skip(
            "a node is rebooted",
            "this cluster is not this machine's, so its nodes can't be rebooted from here",
        );
    };
    let (here, there) = stand::two_nodes(&stand.cluster);
    let inside = Namespace::new(&stand.cluster, "e2e-reboot", &[AMBIENT]).unwrap();
    let outside = Namespace::new(&stand.cluster, "e2e-reboot-stranger", &[]).unwrap();
    inside.apply(STRICT).unwrap();
    let (stays, goes) = (Server::new(Pod::new("stays", &here)), Server::new(Pod::new("goes", &there)));
    inside.apply(&(stays.services() + &goes.services())).unwrap();
    inside.start(&[stays.pod.clone(), goes.pod.clone()]).unwrap();
    let address = inside.addresses("stays").unwrap().remove(0);
    // By its address: on a node that boots, nobody answers for names at first.
    let to_stays = format!("{}-member", marked(&address));
    let every = Duration::from_millis(50);
    inside.apply(&Pod::new("asker", &there).asker(every, &[&to_stays])).unwrap();
    let to_goes = format!("{}-stranger", marked(&format!("goes.{}", inside.name())));
    outside.apply(&Pod::new("stranger", &here).asker(every, &[&to_goes])).unwrap();
    inside.wait("condition=Ready", &["pod/asker"]).unwrap();
    outside.wait("condition=Ready", &["pod/stranger"]).unwrap();
    stays.await_known(&inside, "goes", std::slice::from_ref(&to_stays));
    goes.await_known(&inside, "stays", &[format!("http://goes.{}:8080/", inside.name())]);

    let capture = Capture::begin(&stand.hosts, &[&here]).unwrap();
    let restarts = |pod: &str| {
        let pod = inside.kubectl().json(&["get", "pod", pod, "--namespace", inside.name()]).unwrap();
        let status = &pod["status"]["containerStatuses"][0];
        (status["restartCount"].as_u64().unwrap_or_default(), status["ready"] == true)
    };
    let before = ["asker", "goes"].map(|pod| restarts(pod).0);
    hands.reboot(&there).unwrap();
    for (pod, before) in ["asker", "goes"].into_iter().zip(before) {
        comes_true("a pod of the node runs again", || restarts(pod).0 > before && restarts(pod).1);
    }
    // Its first words after the boot are answered, though the server takes nothing but mutual TLS.
    let mut answers = Vec::new();
    comes_true("the pod asks again", || {
        answers = inside.answers("asker").unwrap_or_default();
        answers.len() >= 20
    });
    let failed: Vec<_> = answers.iter().filter_map(|answer| answer.outcome.clone().err()).collect();
    eprintln!("of {} requests of a pod since its node booted, {} failed", answers.len(), failed.len());
    assert!(failed.is_empty(), "a pod was not in the mesh from its first moment: {failed:#?}");
    goes.await_known(&inside, "stays", &[format!("http://goes.{}:8080/", inside.name())]);

    // That the capture finds nothing of the member says something only if it finds the stranger, who asks on the same links.
    capture.await_count("-stranger", 1).unwrap();
    let let_in = outside.answers("stranger").unwrap().into_iter().filter(|answer| answer.outcome.is_ok()).count();
    assert_eq!(let_in, 0, "a stranger was let in while the node booted");
    assert_eq!(capture.end(&["-member"]).unwrap(), [0], "a member spoke in the clear");
    // Other chapters look at the node, too.
    comes_true("the node can be looked at", || stand.hosts.shell(&there, "true").is_ok());
    for workload in ["daemonset/leno-agent", "daemonset/leno-node", "deployment/leno-control"] {
        let settled = ["rollout", "status", workload, "--namespace", SYSTEM, "--timeout=240s"];
        stand.cluster.kubectl().run(&settled).unwrap();
    }
    comes_true("check finds nothing", || stand.leno.call(&["check"]).unwrap().code == 0);
}
