//! Nodes without an agent: pods in the mesh go on, one that joins meanwhile is found by `leno check` and joins when the agent is
//! back, and what is missing is named with the fix.

use std::time::Duration;

use leno_e2e::{Namespace, Pod};
use serde_json::Value;

use crate::clear::{Watch, secret};
use crate::matrix::Server;
use crate::mesh::{AMBIENT, SYSTEM, Stand};
use crate::stand::comes_true;
use crate::{losses, policies, stand};

const AGENTS: &str = "daemonset/leno-agent";

/// No node has this label.
const NOWHERE: &str = r#"{"spec":{"template":{"spec":{"nodeSelector":{"e2e.leno.mesh/agents":"nowhere"}}}}}"#;
const EVERYWHERE: &str = r#"{"spec":{"template":{"spec":{"nodeSelector":{"e2e.leno.mesh/agents":null}}}}}"#;

/// A load from a pod of the mesh on another node, and its server, which takes nothing but mutual TLS.
struct Members {
    namespace: Namespace,
    server: Server,
    load: leno_e2e::Load,
    nodes: [String; 2],
}

impl Members {
    fn begin(stand: &Stand, test: &str, strict: bool) -> Self {
        let (here, there) = stand::two_nodes(&stand.cluster);
        let namespace = Namespace::new(&stand.cluster, test, &[AMBIENT]).unwrap();
        let server = Server::new(Pod::new("server", &here));
        namespace.apply(&server.services()).unwrap();
        namespace.start(&[server.pod.clone(), Pod::new("member", &there)]).unwrap();
        server.await_known(&namespace, "member", &["http://server:8080/".to_owned()]);
        if strict {
            namespace.apply(policies::STRICT).unwrap();
        }
        let mut load = namespace.load("member", Duration::from_millis(20), &[&secret("server")]).unwrap();
        load.await_more(20).unwrap();
        Self { namespace, server, load, nodes: [here, there] }
    }

    fn end(mut self, when: &str) {
        self.load.await_more(50).unwrap();
        losses::assert_none(when, &self.load.stop().unwrap());
    }
}

/// What `leno check` found of what is not well: the check, how it is, and what to do.
pub(crate) fn findings(stand: &Stand) -> Vec<[String; 3]> {
    let ran = stand.leno.call(&["check", "-o", "json"]).unwrap();
    let told: Value = serde_json::from_str(&ran.stdout).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let checks = told["checks"].as_array().unwrap().iter();
    let bad: Vec<_> = checks
        .filter(|check| check["outcome"] == "failed")
        .map(|check| [text(&check["check"]), text(&check["found"]), text(&check["hint"])])
        .collect();
    assert_eq!(ran.code, i32::from(!bad.is_empty()), "{told}");
    bad
}

fn is_captured(namespace: &Namespace, pod: &str) -> bool {
    let pod = namespace.kubectl().json(&["get", "pod", pod, "--namespace", namespace.name()]).unwrap();
    pod["metadata"]["annotations"]["ambient.istio.io/redirection"] == "enabled"
}

fn agents(stand: &Stand) -> usize {
    let agents = ["get", "pods", "-n", SYSTEM, "-l", "app.kubernetes.io/name=leno-agent", "-o", "name"];
    stand.cluster.kubectl().run(&agents).unwrap().lines().count()
}

/// A pod joins by its own label, in a namespace where none is in the mesh: nobody on the node can know that it is to be captured.
pub(crate) fn a_pod_that_joins_meanwhile(stand: &Stand) {
    let watch = Watch::begin(stand);
    let mut members = Members::begin(stand, "e2e-no-agent", true);
    let plain = Namespace::new(&stand.cluster, "e2e-late", &[]).unwrap();
    let kubectl = stand.cluster.kubectl();
    let patch = |what: &str| kubectl.run(&["patch", AGENTS, "-n", SYSTEM, "--type=merge", "-p", what]).unwrap();
    patch(NOWHERE);
    let agents_are_back = AgentsBack(stand);
    comes_true("no node has an agent", || agents(stand) == 0);
    members.load.await_more(20).unwrap();

    let late = Pod::new("late", &members.nodes[1]).label(AMBIENT.0, AMBIENT.1);
    plain.start(std::slice::from_ref(&late)).unwrap();
    assert!(!is_captured(&plain, "late"));
    // It has no identity, so those that ask for one refuse it.
    let url = [format!("http://server.{}:8080/", members.namespace.name())];
    assert!(plain.ask("late", &url).unwrap()[0].outcome.is_err(), "a pod outside the mesh was let in under STRICT");
    let found = findings(stand);
    let of =
        |check: &str| found.iter().find(|[name, ..]| name == check).unwrap_or_else(|| panic!("{check}: {found:?}"));
    let [_, left, hint] = of("every pod that is enrolled is in the mesh");
    assert!(left.contains(&format!("{}/late", plain.name())), "{left}");
    assert!(hint.contains("leno-agent on its node"), "{hint}");
    let [_, missing, hint] = of("every Linux node has an agent and a proxy");
    for node in stand.cluster.nodes() {
        assert!(missing.contains(&format!("{node} has no leno-agent")), "{missing}");
    }
    assert!(hint.contains("agent.nodeSelector"), "{hint}");

    drop(agents_are_back);
    comes_true("the pod is in the mesh", || is_captured(&plain, "late"));
    members.server.await_known(&plain, "late", &url);
    comes_true("check finds nothing", || findings(stand).is_empty());
    members.end("while no node had an agent");
    watch.end();
}

/// Lets the agents run everywhere again.
struct AgentsBack<'a>(&'a Stand);

impl Drop for AgentsBack<'_> {
    fn drop(&mut self) {
        let kubectl = self.0.cluster.kubectl();
        let back = kubectl.run(&["patch", AGENTS, "-n", SYSTEM, "--type=merge", "-p", EVERYWHERE]);
        let ready = kubectl.run(&["rollout", "status", AGENTS, "-n", SYSTEM, "--timeout=240s"]);
        if let Err(error) = back.and(ready) {
            eprintln!("the agents are not back: {error}");
        }
    }
}

/// Somebody deletes the agents' DaemonSet. The agents take their pods out of the mesh, in order, as for an uninstallation: nothing that
/// is under way or new is lost by it, and it goes in the clear from then on. The proxies go on, and an upgrade brings all of it back, without a restart of a pod.
pub(crate) fn their_daemonset_is_deleted(stand: &Stand) {
    let mut members = Members::begin(stand, "e2e-deleted", false);
    let kubectl = stand.cluster.kubectl();
    let restarts = || {
        let pods = kubectl.json(&["get", "pods", "-n", members.namespace.name()]).unwrap();
        let pods = pods["items"].as_array().unwrap().iter();
        pods.map(|pod| (pod["metadata"]["uid"].clone(), pod["status"]["containerStatuses"][0]["restartCount"].clone()))
            .collect::<Vec<_>>()
    };
    let before = restarts();
    kubectl.run(&["delete", AGENTS, "-n", SYSTEM, "--timeout=120s"]).unwrap();
    comes_true("no node has an agent", || agents(stand) == 0);
    members.load.await_more(50).unwrap();
    let found = findings(stand);
    let fix = found.iter().find(|[check, ..]| check == "leno-agent runs").map(|[_, found, hint]| (&**found, &**hint));
    assert_eq!(fix, Some(("it is missing", "`leno upgrade` restores it")), "{found:?}");
    assert!(!found.iter().any(|[check, ..]| check == "leno-node runs"), "{found:?}");

    stand.leno.run(&["upgrade", "--wait", "--timeout", "3m"]).unwrap();
    comes_true("the pods are in the mesh", || {
        is_captured(&members.namespace, "server") && is_captured(&members.namespace, "member")
    });
    comes_true("check finds nothing", || findings(stand).is_empty());
    assert_eq!(restarts(), before);
    members.end("while the agents' DaemonSet was gone and came again");
}
