//! Pods in the mesh and out of it reach one another, on one node and across nodes, by every way.

use leno_e2e::{Namespace, Pod};

use crate::matrix::Server;
use crate::mesh::{AMBIENT, Stand};
use crate::stand;

/// How often each is asked after it is known.
const ROUNDS: usize = 3;

pub(crate) fn in_and_out(stand: &Stand) {
    let cluster = &stand.cluster;
    let (here, there) = stand::two_nodes(cluster);
    let namespace = Namespace::new(cluster, "e2e-traffic", &[]).unwrap();
    let mut pods = Vec::new();
    for (captured, prefix) in [(true, "in"), (false, "out")] {
        for (place, node) in [("server", &here), ("near", &here), ("far", &there)] {
            let pod = Pod::new(&format!("{prefix}-{place}"), node);
            pods.push(if captured { pod.label(AMBIENT.0, AMBIENT.1) } else { pod });
        }
    }
    let servers: Vec<_> = pods.iter().filter(|pod| pod.name.ends_with("server")).cloned().map(Server::new).collect();
    namespace.apply(&servers.iter().map(Server::services).collect::<String>()).unwrap();
    namespace.start(&pods).unwrap();
    for server in &servers {
        let urls = server.urls(&namespace);
        for client in ["in-near", "in-far", "out-near", "out-far"] {
            server.await_known(&namespace, client, &urls);
            for _ in 0..ROUNDS {
                server.assert_answered(client, &namespace.ask(client, &urls).unwrap());
            }
        }
    }
}
