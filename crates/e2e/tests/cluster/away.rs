//! No control plane for a while, and the node proxies start anew meanwhile.

use std::time::Duration;

use leno_e2e::{Namespace, Pod};

use crate::matrix::Server;
use crate::mesh::{AMBIENT, SYSTEM, Stand};
use crate::policies::STRICT;
use crate::stand::comes_true;
use crate::{losses, stand};

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

    // They go on by themselves: an exec of ten minutes is more than a test should ask of the API server.
    let every = Duration::from_millis(100);
    let asked: Vec<_> = urls.iter().map(String::as_str).collect();
    inside.apply(&Pod::new("asker", &there).asker(every, &asked)).unwrap();
    outside.apply(&Pod::new("asker", &there).asker(every, &asked)).unwrap();
    let counts = || [&inside, &outside].map(|namespace| namespace.answers("asker").unwrap_or_default().len());
    comes_true("the askers ask, and the member's is answered", || {
        let member = inside.answers("asker").unwrap_or_default();
        counts()[1] > urls.len()
            && member.len() > urls.len()
            && member.iter().rev().take(urls.len()).all(|answer| answer.outcome.is_ok())
    });
    let seen = counts();

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
    // Nothing can be awaited but the time itself: that nothing happens is what is looked for.
    std::thread::sleep(Duration::from_secs(seconds));
    // Once more, when the state is old.
    kubectl(stand, &["rollout", "restart", PROXIES]);
    kubectl(stand, &["rollout", "status", PROXIES, "--timeout=300s"]);
    for client in ["near", "far"] {
        server.assert_answered(client, &inside.ask(client, &urls).unwrap());
    }
    assert_eq!(strangers(), 0, "policies count as before");

    let answers = inside.answers("asker").unwrap().split_off(seen[0]);
    losses::assert_none(&format!("without a control plane, for {seconds} s and two rollouts of the proxies"), &answers);
    let let_in: Vec<_> = outside.answers("asker").unwrap().split_off(seen[1]);
    let let_in: Vec<_> = let_in.into_iter().filter(|answer| answer.outcome.is_ok()).collect();
    assert!(let_in.is_empty(), "a stranger was let in: {let_in:?}");

    inside.apply(FREEZE).unwrap();
    scale(replicas.trim());
    let members = || inside.ask("far", &urls).unwrap().into_iter().filter(|answer| answer.outcome.is_ok()).count();
    comes_true("what was changed meanwhile counts once there is a control plane", || members() == 0);
    kubectl(stand, &["rollout", "status", CONTROL, "--timeout=300s"]);
}

fn kubectl(stand: &Stand, arguments: &[&str]) -> String {
    stand.cluster.kubectl().run(&[arguments, &["--namespace", SYSTEM]].concat()).unwrap()
}
