//! The cluster itself, without a mesh: what the other tests take for granted.

use leno_e2e::{Namespace, Pod};

use crate::matrix::Server;
use crate::{probes, stand};

#[test]
fn pods_reach_one_another_by_every_way() {
    let Some((cluster, _shared)) = stand::cluster("pods_reach_one_another_by_every_way") else { return };
    let (here, there) = stand::two_nodes(&cluster);
    let namespace = Namespace::new(&cluster, "e2e-bare", &[]).unwrap();
    let server = Server::new(Pod::new("server", &here));
    let pods = [server.pod.clone(), Pod::new("near", &here), Pod::new("far", &there)];
    namespace.apply(&server.services()).unwrap();
    namespace.start(&pods).unwrap();
    let urls = server.urls(&namespace);
    assert!(urls.len() >= 9, "{urls:?}");
    for client in ["near", "far"] {
        server.await_known(&namespace, client, &urls);
        let answers = namespace.ask(client, &urls).unwrap();
        server.assert_answered(client, &answers);
    }
}

/// A server without a mesh sees its caller's own address, on the same node and from another one.
#[test]
fn servers_see_their_callers_addresses() {
    let Some((cluster, _shared)) = stand::cluster("servers_see_their_callers_addresses") else { return };
    let (here, there) = stand::two_nodes(&cluster);
    let namespace = Namespace::new(&cluster, "e2e-source", &[]).unwrap();
    let server = Server::new(Pod::new("server", &here));
    namespace.apply(&server.services()).unwrap();
    namespace.start(&[server.pod.clone(), Pod::new("near", &here), Pod::new("far", &there)]).unwrap();
    for client in ["near", "far"] {
        let address = namespace.addresses(client).unwrap().remove(0);
        let urls = ["http://server:8080/".to_owned()];
        server.await_known(&namespace, client, &urls);
        let answers = namespace.ask(client, &urls).unwrap();
        let said = answers[0].outcome.clone().unwrap();
        assert!(said.contains(&format!("sees {address}:")), "{client} has {address}: {said}");
    }
}

#[test]
fn the_kubelet_reaches_pods_by_every_kind_of_probe() {
    let Some((cluster, _shared)) = stand::cluster("the_kubelet_reaches_pods_by_every_kind_of_probe") else { return };
    probes::succeed(&Namespace::new(&cluster, "e2e-probes", &[]).unwrap());
}
