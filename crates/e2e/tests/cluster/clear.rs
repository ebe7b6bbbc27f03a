//! What passes the nodes' links is searched for words that pods send: of those in the mesh none is ever found.

use leno_e2e::{Capture, Namespace, Pod};

use crate::matrix::Server;
use crate::mesh::{AMBIENT, Stand};
use crate::stand::{self, comes_true};

/// A word that stands in requests.
pub(crate) const MARK: &str = "/e2e-clear-text-mark";

/// An address with that word in it.
pub(crate) fn marked(host: &str) -> String {
    format!("http://{host}:8080{MARK}")
}

/// What pods of the mesh ask one another, while a [`Watch`] looks for it on the links.
pub(crate) fn secret(host: &str) -> String {
    format!("{}-secret", marked(host))
}

/// Looks at all links of all nodes while something happens to the mesh: what pods ask by [`secret`] must not be readable there.
pub(crate) struct Watch<'a> {
    stand: &'a Stand,
    capture: Capture<'a>,
}

impl<'a> Watch<'a> {
    pub(crate) fn begin(stand: &'a Stand) -> Self {
        let nodes: Vec<_> = stand.hosts.nodes().iter().map(String::as_str).collect();
        Self { stand, capture: Capture::begin(&stand.hosts, &nodes).unwrap() }
    }

    /// Nobody could read it. Every node asks a pod outside the mesh, which must be found: else nothing would be.
    pub(crate) fn end(self) {
        let Self { stand, capture } = self;
        let control = |node: &str| {
            comes_true("a node reaches a pod outside the mesh", || {
                // A node that was rebooted has given its pods other addresses.
                let addresses = stand.outside.addresses(&format!("on-{node}")).unwrap();
                let host = addresses.first().map(|address| crate::matrix::in_url(address)).unwrap_or_default();
                stand.hosts.ask(node, &format!("{}-control", marked(&host))).is_ok()
            });
            Ok(())
        };
        stand.hosts.on_each(stand.hosts.nodes(), control).unwrap();
        capture.await_each(&format!("{MARK}-control")).unwrap();
        let found = capture.end(&[&format!("{MARK}-secret")]).unwrap();
        assert_eq!(found, [0], "what pods of the mesh ask one another can be read");
    }
}

/// The same questions within the mesh and outside of it, on one node and across nodes. While proxies are replaced, a [`Watch`]
/// looks (`upgrading`).
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
        for client in ["near", "far"] {
            server.await_known(&namespace, client, &urls);
            server.assert_answered(client, &namespace.ask(client, &urls).unwrap());
        }
    }
    // That the capture finds nothing of the mesh says something only if it finds the others, who came later.
    let others = capture.await_count(&format!("{MARK}-e2e-clear-out"), 4).unwrap();
    let mesh = capture.end(&[&format!("{MARK}-e2e-clear-in")]).unwrap()[0];
    eprintln!("requests that could be read on the nodes' links: {mesh} of the mesh, {others} of others");
    assert_eq!(mesh, 0, "requests within the mesh can be read");
}
