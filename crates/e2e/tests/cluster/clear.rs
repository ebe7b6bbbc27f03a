//! What passes the nodes' links is searched for words that pods send: of those in the mesh none is ever found.

use leno_e2e::{Capture, Namespace, Pod};

use crate::matrix::Server;
use crate::mesh::{AMBIENT, SYSTEM, Stand};
use crate::stand;

/// A word that stands in requests.
pub(crate) const MARK: &str = "/e2e-clear-text-mark";

/// An address with that word in it.
pub(crate) fn marked(host: &str) -> String {
    format!("http://{host}:8080{MARK}")
}

/// The same questions within the mesh and outside of it, on one node and across nodes, also while the proxies are replaced.
pub(crate) fn nothing_of_the_mesh_is_readable(stand: &Stand) {
    let (here, there) = stand::two_nodes(&stand.cluster);
    let capture = Capture::begin(&stand.hosts, &[&here, &there]).unwrap();
    for (name, labels) in [("e2e-clear-in", &[AMBIENT][..]), ("e2e-clear-out", &[])] {
        let namespace = Namespace::new(&stand.cluster, name, labels).unwrap();
        let server = Server::new(Pod::new("server", &here));
        namespace.apply(&server.services()).unwrap();
        namespace.start(&[server.pod.clone(), Pod::new("near", &here), Pod::new("far", &there)]).unwrap();
        let hosts = [format!("server.{name}-{}", std::process::id()), namespace.addresses("server").unwrap().remove(0)];
        // Which of the two it was stands behind the mark.
        let urls = hosts.map(|host| format!("{}-{name}", marked(&host)));
        let ask = || {
            for client in ["near", "far"] {
                server.await_known(&namespace, client, &urls);
                server.assert_answered(client, &namespace.ask(client, &urls).unwrap());
            }
        };
        ask();
        if !labels.is_empty() {
            let proxies = "daemonset/leno-node";
            let kubectl = stand.cluster.kubectl();
            kubectl.run(&["rollout", "restart", proxies, "--namespace", SYSTEM]).unwrap();
            ask();
            kubectl.run(&["rollout", "status", proxies, "--namespace", SYSTEM, "--timeout=240s"]).unwrap();
            ask();
        }
    }
    // That the capture finds nothing of the mesh says something only if it finds the others, who came later.
    let others = capture.await_count(&format!("{MARK}-e2e-clear-out"), 4).unwrap();
    let mesh = capture.count(&format!("{MARK}-e2e-clear-in")).unwrap();
    eprintln!("requests that could be read on the nodes' links: {mesh} of the mesh, {others} of others");
    assert_eq!(mesh, 0, "requests within the mesh can be read");
}
