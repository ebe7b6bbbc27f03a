//! Each part in the version of the previous release, beside the others in this one's. `LENO_PREVIOUS_IMAGE` names that release's
//! image, an OCI archive as `cargo xtask image` writes it.

use std::time::Duration;

use leno_e2e::{Namespace, Pod};
use leno_testkit::skips::skip;

use crate::interop::{on_nodes, program};
use crate::matrix::Server;
use crate::mesh::{AMBIENT, SYSTEM, Stand};
use crate::{losses, policies, stand, traffic};

const TEST: &str = "each part works beside the others' next version";

/// Workload and container of each part.
const PARTS: [(&str, &str); 3] =
    [("daemonset/leno-node", "node"), ("daemonset/leno-agent", "agent"), ("deployment/leno-control", "control")];

pub(crate) fn each_part_beside_the_next_version_of_the_others(stand: &Stand) {
    let Some(archive) = program(
        "LENO_PREVIOUS_IMAGE",
        TEST,
        "set LENO_PREVIOUS_IMAGE=PATH to the previous release's image (an OCI archive)",
    ) else {
        return;
    };
    let Some(directory) = on_nodes(stand, "previous", &[&archive]) else {
        return skip(TEST, "the nodes don't see this machine's files");
    };
    let kubectl = stand.cluster.kubectl();
    let image = ["get", PARTS[0].0, "-n", SYSTEM, "-o", "jsonpath={.spec.template.spec.containers[0].image}"];
    let current = kubectl.run(&image).unwrap().trim().to_owned();
    let previous = "localhost/leno:e2e-previous";
    // Its own name may be this version's.
    let archive = directory.join(archive.file_name().unwrap());
    let script = format!(
        "ctr() {{ PATH=$PATH:/run/leno-cluster/bin command ctr -n k8s.io \"$@\"; }}
         ctr images tag --force {current} localhost/leno:e2e-current &&
         name=$(ctr images import --local {} | sed -n 's/^unpacking \\([^ ]*\\) .*/\\1/p' | head -n 1) && [ -n \"$name\" ] &&
         ctr images tag --force \"$name\" {previous} &&
         ctr images tag --force localhost/leno:e2e-current {current}",
        archive.display()
    );
    for node in stand.hosts.nodes() {
        stand.hosts.shell(node, &script).unwrap();
    }
    let (here, there) = stand::two_nodes(&stand.cluster);
    let namespace = Namespace::new(&stand.cluster, "e2e-skew", &[AMBIENT]).unwrap();
    let server = Server::new(Pod::new("server", &here));
    namespace.apply(&server.services()).unwrap();
    namespace.start(&[server.pod.clone(), Pod::new("far", &there)]).unwrap();
    server.await_known(&namespace, "far", &["http://server:8080/".to_owned()]);
    for (workload, container) in PARTS {
        let mut load = namespace.load("far", Duration::from_millis(20), &["http://server:8080/"]).unwrap();
        load.await_more(20).unwrap();
        let undo = Undo { stand, workload };
        kubectl.run(&["set", "image", workload, &format!("{container}={previous}"), "-n", SYSTEM]).unwrap();
        settled(stand, workload);
        load.await_more(50).unwrap();
        traffic::in_and_out(stand);
        policies::decide(stand);
        drop(undo);
        load.await_more(50).unwrap();
        losses::assert_none(&format!("while {workload} went to the previous version and back"), &load.stop().unwrap());
    }
}

/// The part in this version again.
struct Undo<'a> {
    stand: &'a Stand,
    workload: &'static str,
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        let undo = ["rollout", "undo", self.workload, "-n", SYSTEM];
        match self.stand.cluster.kubectl().run(&undo) {
            Ok(_) if !std::thread::panicking() => settled(self.stand, self.workload),
            Ok(_) => {}
            Err(error) => eprintln!("{} stays in the previous version: {error}", self.workload),
        }
    }
}

fn settled(stand: &Stand, workload: &str) {
    stand.cluster.kubectl().run(&["rollout", "status", workload, "-n", SYSTEM, "--timeout=240s"]).unwrap();
}
