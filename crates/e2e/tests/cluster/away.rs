//! No control plane for a while, and the node proxies start anew meanwhile.

use std::time::Duration;

use leno_e2e::{Namespace, Pod};

use crate::clear::{Watch, secret};
use crate::matrix::Server;
use crate::mesh::{AMBIENT, SYSTEM, Stand};
use crate::policies::STRICT;
use crate::stand::comes_true;
use crate::{losses, stand, without_agents};

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
    let secret_url = secret(&format!("server.{}", inside.name()));
    let watch = Watch::begin(stand);
    inside.apply(&Pod::new("asker", &there).asker(every, &[&asked[..], &[&secret_url]].concat())).unwrap();
    outside.apply(&Pod::new("asker", &there).asker(every, &asked)).unwrap();
    let counts = || [&inside, &outside].map(|namespace| namespace.answers("asker").unwrap_or_default().len());
    comes_true("the askers ask, and the member's is answered", || {
        let member = inside.answers("asker").unwrap_or_default();
        counts()[1] > urls.len()
            && member.len() > urls.len()
            && member.iter().rev().take(urls.len() + 1).all(|answer| answer.outcome.is_ok())
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
    watch.end();

    inside.apply(FREEZE).unwrap();
    scale(replicas.trim());
    let members = || inside.ask("far", &urls).unwrap().into_iter().filter(|answer| answer.outcome.is_ok()).count();
    comes_true("what was changed meanwhile counts once there is a control plane", || members() == 0);
    kubectl(stand, &["rollout", "status", CONTROL, "--timeout=300s"]);
}

/// Nobody tells of it. What it opens goes by its account, which other pods of its node have; whoever comes to it is refused, and `leno
/// check` says so. Once a control plane answers, it is a pod like others, without a restart.
pub(crate) fn a_pod_that_starts(stand: &Stand) {
    let (here, there) = stand::two_nodes(&stand.cluster);
    let inside = Namespace::new(&stand.cluster, "e2e-untold", &[AMBIENT]).unwrap();
    let server = Server::new(Pod::new("server", &here));
    inside.apply(&server.services()).unwrap();
    inside.start(&[server.pod.clone(), Pod::new("far", &there)]).unwrap();
    let url = [secret("server")];
    let watch = Watch::begin(stand);
    server.await_known(&inside, "far", &url);

    let replicas = kubectl(stand, &["get", CONTROL, "--output", "jsonpath={.spec.replicas}"]);
    kubectl(stand, &["scale", CONTROL, "--replicas", "0"]);
    let away = Away { stand, replicas };
    let gone = ["wait", "--for=delete", "pod", "--selector", "app.kubernetes.io/name=leno-control", "--timeout=120s"];
    kubectl(stand, &gone);
    let late = Server::new(Pod::new("late", &there));
    inside.start(std::slice::from_ref(&late.pod)).unwrap();
    server.await_known(&inside, "late", &url);
    let to_late = [format!("tcp://{}:9000", inside.addresses("late").unwrap().remove(0))];
    let reached = inside.ask("far", &to_late).unwrap();
    assert!(reached[0].outcome.is_err(), "somebody is let in although no policies are known: {reached:?}");
    let found = without_agents::findings(stand);
    let of =
        |check: &str| found.iter().find(|[name, ..]| name == check).unwrap_or_else(|| panic!("{check}: {found:?}"));
    let [_, untold, hint] = of("every proxy has been told of its pods");
    assert!(untold.contains(&format!("{}/late", inside.name())), "{untold}");
    assert!(hint.contains("bring the control plane back"), "{hint}");
    assert_eq!(of("leno-control runs")[1], "it is scaled to 0");

    drop(away);
    late.await_known(&inside, "far", &to_late);
    watch.end();
    comes_true("check finds nothing", || without_agents::findings(stand).is_empty());
}

/// No control plane, as long as this lives.
struct Away<'a> {
    stand: &'a Stand,
    replicas: String,
}

impl Drop for Away<'_> {
    fn drop(&mut self) {
        let kubectl = self.stand.cluster.kubectl();
        let back = ["scale", CONTROL, "--replicas", self.replicas.trim(), "--namespace", SYSTEM];
        let ready = ["rollout", "status", CONTROL, "--timeout=300s", "--namespace", SYSTEM];
        if let Err(error) = kubectl.run(&back).and_then(|_| kubectl.run(&ready)) {
            eprintln!("the control plane is not back: {error}");
        }
    }
}

fn kubectl(stand: &Stand, arguments: &[&str]) -> String {
    stand.cluster.kubectl().run(&[arguments, &["--namespace", SYSTEM]].concat()).unwrap()
}
