//! Leno on the cluster. A cluster has one mesh, so this is one test: it installs Leno, runs its chapters one after the other,
//! names each that fails, removes Leno and looks whether anything is left.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use leno_e2e::{Cluster, Hosts, Leno, Namespace, Pod, Snapshot};

use crate::{
    addresses, away, churn, clear, day_two, enrolling, interop, istio_cni, kinds, outage, policies, probes, quickstart,
    reboot, second_mesh, skew, stand, starting, surviving, traffic, upgrading, waypoint_features, waypoints,
    without_agents,
};

/// The label by which pods and namespaces enter the mesh.
pub(crate) const AMBIENT: (&str, &str) = ("istio.io/dataplane-mode", "ambient");
/// Where Leno itself runs.
pub(crate) const SYSTEM: &str = "leno-system";

/// What a chapter has to do with.
pub(crate) struct Stand {
    pub(crate) cluster: Cluster,
    pub(crate) leno: Leno,
    pub(crate) hosts: Hosts,
    /// A pod outside the mesh on each node, `on-` and the node's name.
    pub(crate) outside: Namespace,
}

type Chapter = (&'static str, fn(&Stand));

/// In this order. None relies on another. Those that stand together run at the same time, each in namespaces of its own: they change
/// nothing that another one looks at, and what they count is their own.
const CHAPTERS: [&[Chapter]; 32] = [
    &[("traffic in and out of the mesh", traffic::in_and_out), ("policies", policies::decide)],
    &[
        ("a user's commands", day_two::commands_tell_how_things_are),
        ("accounts are refused what they do not need", day_two::accounts_are_refused_the_rest),
    ],
    &[
        ("waypoints are passed by all that must pass them", waypoints::are_passed),
        ("probes of pods that take nothing but mutual TLS", probes_under_strict),
    ],
    &[
        ("waypoints ask, limit and remember", waypoint_features::work),
        ("pods of every kind", kinds::talk_from_their_first_moment),
    ],
    &[("waypoints change under load", waypoints::change_under_load)],
    &[("pods of the mesh start as fast as others", starting::beside_others)],
    &[("fifty pods that run enter and leave", enrolling::fifty_pods)],
    &[("sixty pods at once", churn::many_pods)],
    &[("an application is updated, and its node drained", churn::an_update_and_a_drained_node)],
    &[("a namespace is deleted while it is used", churn::a_namespace_that_is_deleted)],
    &[("an address goes from one pod to the next", addresses::an_address_that_is_given_away)],
    &[("a pod joins while its agent is down", without_agents::a_pod_that_joins_meanwhile)],
    &[("the agents' DaemonSet is deleted", without_agents::their_daemonset_is_deleted)],
    &[("the agents are killed", surviving::a_killed_agent)],
    &[("the control plane is killed", surviving::a_killed_control_plane)],
    &[("a node's proxy is killed", surviving::a_killed_proxy)],
    &[("the agents are updated", surviving::a_rolling_update_of_the_agents)],
    &[("the control plane is updated", surviving::a_rolling_update_of_the_control_plane)],
    &[(
        "proxies are upgraded under load, and long connections have until the drain deadline",
        upgrading::nothing_new_is_lost,
    )],
    &[("a proxy that can't start is rolled out and rolled back under load", upgrading::a_broken_one_is_taken_back)],
    &[("a new proxy crashes half-way", upgrading::a_crash_of_the_new_proxy_half_way)],
    &[("a pod starts without a control plane", away::a_pod_that_starts)],
    &[("proxies start without a control plane", away::proxies_that_start_go_on_with_what_was_known)],
    &[("nothing of the mesh can be read on the nodes' links", clear::nothing_of_the_mesh_is_readable)],
    &[("the API server is restarted", outage::an_api_server_that_is_restarted)],
    &[("the API server sends everybody away", outage::an_api_server_that_sends_everybody_away)],
    &[("the API server is slow", outage::an_api_server_that_is_slow)],
    &[("a node is rebooted", reboot::a_node)],
    &[("a ztunnel carries the pods of Leno's agent", interop::a_ztunnel_carries)],
    &[("Istio's CNI agent hands pods to Leno's proxies", istio_cni::hands_over)],
    &[("each part works beside the others' next version", skew::each_part_beside_the_next_version_of_the_others)],
    &[("an istiod drives Leno's agents and proxies", interop::an_istiod_drives)],
];

#[test]
fn leno_in_the_cluster() {
    let Some((cluster, leno, _alone)) = stand::cluster_and_leno("leno_in_the_cluster") else { return };
    assert_ne!(leno.call(&["status"]).unwrap().code, 0, "Leno is installed already; `leno uninstall` removes it");
    nobody_is_left(&cluster);
    let hosts = Hosts::new(&cluster).unwrap();
    // Its pods run before, with and after the mesh.
    let [witness, outside] = ["e2e-witness", "e2e-outside"].map(|name| Namespace::new(&cluster, name, &[]).unwrap());
    let pods: Vec<_> = cluster.nodes().iter().map(|node| Pod::new(&format!("on-{node}"), node)).collect();
    for namespace in [&witness, &outside] {
        namespace.start(&pods).unwrap();
    }
    let before = Snapshot::take(&cluster, &hosts).unwrap();

    let stand = Stand { cluster, leno, hosts, outside };
    // README's session installs it and removes it, so what that leaves is left by what follows, too.
    let quickstart = catch_unwind(AssertUnwindSafe(|| quickstart::readme(&stand.cluster, &stand.leno)));
    let second = catch_unwind(AssertUnwindSafe(|| second_mesh::is_named_and_not_doubled(&stand.cluster, &stand.leno)));
    let beside = catch_unwind(AssertUnwindSafe(|| second_mesh::what_istio_has_defined_is_left_alone(&stand)));
    let installation = Installation::new(&stand);
    stand.leno.run(&["enrol", witness.name(), "--wait"]).unwrap();
    let only = std::env::var("LENO_E2E_CHAPTER").unwrap_or_default();
    let mut failed: Vec<_> = CHAPTERS
        .into_iter()
        .map(|turn| turn.iter().filter(|(name, _)| only.split(',').any(|word| name.contains(word))))
        .flat_map(|turn| run_at_once(&stand, turn))
        .collect();
    failed.extend(beside.is_err().then_some("Istio's definitions and its CNI entry are left alone"));
    failed.extend(second.is_err().then_some("a second mesh is named and refused"));
    failed.extend(quickstart.is_err().then_some("README's session on a cluster"));
    if !failed.is_empty() {
        tell_logs(&stand.cluster);
    }

    nobody_is_left(&stand.cluster);
    installation.remove();
    let changes = before.changes(&Snapshot::take(&stand.cluster, &stand.hosts).unwrap());
    if !changes.is_empty() {
        eprintln!("left behind: {changes:#?}");
        failed.push("nothing is left of an installation that was removed");
    }
    assert!(failed.is_empty(), "failed, see above: {failed:?}");
}

/// Runs chapters at the same time, tells of each how long it took, and names those that failed.
fn run_at_once<'a>(stand: &Stand, chapters: impl Iterator<Item = &'a Chapter>) -> Vec<&'static str> {
    let run = |(name, chapter): &Chapter| {
        let begin = Instant::now();
        let failed = catch_unwind(AssertUnwindSafe(|| chapter(stand))).is_err();
        eprintln!(
            "chapter: {name}: {} after {:.1} s",
            if failed { "FAILED" } else { "ok" },
            begin.elapsed().as_secs_f64()
        );
        failed.then_some(*name)
    };
    std::thread::scope(|scope| {
        // The words of a panic begin with the thread's name.
        let start = |chapter: &'a Chapter| {
            std::thread::Builder::new().name(chapter.0.to_owned()).spawn_scoped(scope, || run(chapter)).unwrap()
        };
        let running: Vec<_> = chapters.map(start).collect();
        running.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
    })
}

/// Exists as long as this value, also if a test fails.
struct Installation<'a>(&'a Stand);

impl<'a> Installation<'a> {
    fn new(stand: &'a Stand) -> Self {
        let this = Self(stand);
        stand.leno.run(&["check", "--pre"]).unwrap();
        let begin = Instant::now();
        let image = stand.leno.image();
        let mut arguments = vec!["install", "--wait", "--timeout", "3m"];
        arguments.extend(image.iter().map(String::as_str));
        stand.leno.run(&arguments).unwrap();
        eprintln!("installed after {:.1} s", begin.elapsed().as_secs_f64());
        stand.leno.run(&["check"]).unwrap();
        this
    }

    fn remove(self) {
        let begin = Instant::now();
        self.0.leno.run(&["uninstall"]).unwrap();
        eprintln!("removed after {:.1} s", begin.elapsed().as_secs_f64());
    }
}

impl Drop for Installation<'_> {
    fn drop(&mut self) {
        // Once more does nothing.
        let _ = self.0.leno.call(&["uninstall"]);
    }
}

/// Returns when the namespaces of earlier tests and chapters are gone: what they hold would be taken for left behind.
fn nobody_is_left(cluster: &Cluster) {
    let deadline = Instant::now() + Duration::from_secs(180);
    loop {
        let ending = cluster
            .kubectl()
            .run(&["get", "namespaces", "--output", "jsonpath={.items[?(@.metadata.deletionTimestamp)].metadata.name}"])
            .unwrap();
        if !ending.contains("e2e-") {
            return;
        }
        assert!(Instant::now() < deadline, "these namespaces don't end: {ending}");
    }
}

fn tell_logs(cluster: &Cluster) {
    for role in ["leno-control", "leno-agent", "leno-node"] {
        let role = format!("app.kubernetes.io/name={role}");
        let logs =
            ["logs", "--namespace", SYSTEM, "--selector", &role, "--prefix", "--tail=400", "--max-log-requests=20"];
        let logs = cluster.kubectl().run(&logs).unwrap_or_else(|error| error.to_string());
        // One for each connection.
        for line in logs.lines().filter(|line| !line.contains("\tinfo\taccess\t")) {
            eprintln!("{line}");
        }
    }
}

fn probes_under_strict(stand: &Stand) {
    let namespace = Namespace::new(&stand.cluster, "e2e-strict-probes", &[AMBIENT]).unwrap();
    namespace.apply(policies::STRICT).unwrap();
    probes::succeed(&namespace);
}
