//! No control plane for a while, and the node proxies start anew meanwhile.

use std::time::{Duration, Instant};

use leno_e2e::{Namespace, Pod};

use crate::matrix::Server;
use crate::mesh::{AMBIENT, SYSTEM, Stand};
use crate::policies::STRICT;
use crate::stand::{self, comes_true};

const CONTROL: &str = "deployment/leno-control";
const PROXIES: &str = "daemonset/leno-node";

/// Lets nobody in.
const FREEZE: &str = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: freeze}\nspec: {action: DENY, rules: [{}]}\n";

pub(crate) fn proxies_that_start_go_on_with_what_was_known(stand: &Stand) {
    let (here, there) = stand::two_nodes(&stand.cluster);
    let inside = Namespace::new(&stand.cluster, "e2e-away", &[AMBIENT]).unwrap();
    let outside = Namespace::new(&stand.cluster, "e2e-away-stranger", &[]).unwrap();
    let server = Server::new(Pod::new("server", &here));
    inside.apply(&server.services()).unwrap();
    inside.start(&[server.pod.clone(), Pod::new("near", &here), Pod::new("far", &there)]).unwrap();
    outside.start(&[Pod::new("stranger", &there)]).unwrap();
    let urls = server.urls(&inside);
    for client in ["near", "far"] {
        server.await_known(&inside, client, &urls);
    }
    inside.apply(STRICT).unwrap();
    let strangers =
        || outside.ask("stranger", &urls).unwrap().into_iter().filter(|answer| answer.outcome.is_ok()).count();
    comes_true("a stranger is refused under STRICT", || strangers() == 0);

    let replicas = kubectl(stand, &["get", CONTROL, "--output", "jsonpath={.spec.replicas}"]);
    let scale = |replicas: &str| kubectl(stand, &["scale", CONTROL, "--replicas", replicas]);
    scale("0");
    kubectl(
        stand,
        &["wait", "--for=delete", "pod", "--selector", "app.kubernetes.io/name=leno-control", "--timeout=120s"],
    );
    // Each becomes ready, which a proxy without a mesh does not.
    kubectl(stand, &["rollout", "restart", PROXIES]);
    kubectl(stand, &["rollout", "status", PROXIES, "--timeout=300s"]);
    for client in ["near", "far"] {
        server.assert_answered(client, &inside.ask(client, &urls).unwrap());
    }
    assert_eq!(strangers(), 0, "policies count as before");

    // Ten minutes are what the documentation promises and more; the project's own run has seconds for it.
    let seconds = std::env::var("LENO_E2E_AWAY_SECONDS").ok().map_or(5, |seconds| seconds.parse().unwrap());
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut asked = 0;
    while Instant::now() < end {
        for client in ["near", "far"] {
            server.assert_answered(client, &inside.ask(client, &urls).unwrap());
            asked += urls.len();
        }
        assert_eq!(strangers(), 0, "policies count as before");
    }
    eprintln!("without a control plane for {seconds} s more: {asked} requests, none lost");
    // Once more, when the state is old.
    kubectl(stand, &["rollout", "restart", PROXIES]);
    kubectl(stand, &["rollout", "status", PROXIES, "--timeout=300s"]);
    for client in ["near", "far"] {
        server.assert_answered(client, &inside.ask(client, &urls).unwrap());
    }
    assert_eq!(strangers(), 0, "policies count as before");

    inside.apply(FREEZE).unwrap();
    scale(replicas.trim());
    let members = || inside.ask("far", &urls).unwrap().into_iter().filter(|answer| answer.outcome.is_ok()).count();
    comes_true("what was changed meanwhile counts once there is a control plane", || members() == 0);
    kubectl(stand, &["rollout", "status", CONTROL, "--timeout=300s"]);
}

fn kubectl(stand: &Stand, arguments: &[&str]) -> String {
    stand.cluster.kubectl().run(&[arguments, &["--namespace", SYSTEM]].concat()).unwrap()
}
