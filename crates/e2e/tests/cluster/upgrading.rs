//! The node proxies are replaced under load: no new connection is lost, and old ones have until the drain deadline.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use leno_e2e::{Answer, Load, Namespace, Pod};
use serde_json::Value;

use crate::clear::{Watch, secret};
use crate::matrix::{Server, in_url};
use crate::mesh::{AMBIENT, SYSTEM, Stand};
use crate::{losses, stand};

const PROXIES: &str = "daemonset/leno-node";
/// Between two connections of one load.
const EVERY: Duration = Duration::from_millis(20);

/// New connections all the time, on one node and across nodes, by Service and by address: 100 a second, or 500 with `LENO_SOAK`.
/// Nobody can read what they say.
struct Storm<'a> {
    _namespace: Namespace,
    watch: Watch<'a>,
    loads: Vec<Load>,
}

impl<'a> Storm<'a> {
    fn begin(stand: &'a Stand, test: &str) -> Self {
        let (here, there) = stand::two_nodes(&stand.cluster);
        let namespace = Namespace::new(&stand.cluster, test, &[AMBIENT]).unwrap();
        let server = Server::new(Pod::new("server", &here));
        namespace.apply(&server.services()).unwrap();
        namespace.start(&[server.pod.clone(), Pod::new("near", &here), Pod::new("far", &there)]).unwrap();
        let watch = Watch::begin(stand);
        let address = namespace.addresses("server").unwrap().remove(0);
        let urls = [secret("server"), secret(&in_url(&address))];
        let each = if stand::is_measured() { 5 } else { 1 };
        let mut loads = Vec::new();
        for client in ["near", "far"] {
            server.await_known(&namespace, client, &urls);
            loads.extend(
                (0..each).map(|_| namespace.load(client, EVERY, &urls.each_ref().map(String::as_str)).unwrap()),
            );
        }
        let mut storm = Self { _namespace: namespace, watch, loads };
        storm.go_on(50);
        storm
    }

    fn go_on(&mut self, answers: usize) {
        self.loads.iter_mut().for_each(|load| load.await_more(answers).unwrap());
    }

    fn end(mut self) -> Vec<Answer> {
        self.go_on(50);
        let answers = self.loads.into_iter().flat_map(|load| load.stop().unwrap()).collect();
        self.watch.end();
        answers
    }
}

/// All nodes' proxies are replaced, twice: no new connection is lost. One that does not end has until the deadline.
pub(crate) fn nothing_new_is_lost(stand: &Stand) {
    let storm = Storm::begin(stand, "e2e-upgrade");
    long_connections_have_until_the_deadline(stand);
    losses::assert_none("while the proxies were replaced twice", &storm.end());
}

/// By one that can't start, which is taken back.
pub(crate) fn a_broken_one_is_taken_back(stand: &Stand) {
    let mut storm = Storm::begin(stand, "e2e-rollback");
    // Refused as a setting, so the process ends at once.
    let broken = r#"{"spec":{"template":{"spec":{"containers":[{"name":"node","env":[{"name":"LENO_MAX_UNPROVEN_PEERS","value":"0"}]}]}}}}"#;
    stand.cluster.kubectl().run(&["patch", PROXIES, "--namespace", SYSTEM, "--patch", broken]).unwrap();
    stand::comes_true("the new proxy crashes", || {
        proxies(stand).iter().any(|pod| pod["status"]["containerStatuses"][0]["restartCount"].as_u64() > Some(0))
    });
    storm.go_on(100);
    let status = stand.leno.call(&["status"]).unwrap();
    assert!(status.stdout.contains("leno-node"), "{}{}", status.stdout, status.stderr);
    stand.cluster.kubectl().run(&["rollout", "undo", PROXIES, "--namespace", SYSTEM]).unwrap();
    settled(stand);
    losses::assert_none("while a proxy that can't start was rolled out and taken back", &storm.end());
}

/// What a proxy that crashes has in hand is lost; what comes after waits for the next one.
pub(crate) fn a_crash_of_the_new_proxy_half_way(stand: &Stand) {
    let mut storm = Storm::begin(stand, "e2e-crash");
    let before = proxies(stand).iter().filter_map(name).collect::<Vec<_>>();
    restart(stand);
    let (loads, mut node) = (storm.loads.len(), None);
    stand::comes_true("a new proxy is ready", || {
        let pods = proxies(stand);
        let new = pods.iter().find(|pod| name(pod).is_some_and(|name| !before.contains(&name)) && is_ready(pod));
        node = new.and_then(|pod| Some(pod["spec"]["nodeName"].as_str()?.to_owned()));
        node.is_some()
    });
    let killed = Instant::now();
    stand.hosts.shell(&node.unwrap(), "pkill -KILL --newest --full '^/leno node'").unwrap();
    settled(stand);
    let away = killed.elapsed();
    storm.go_on(100);
    let answers = storm.end();
    let lost = losses::count("while a new proxy crashed after it had taken over", &answers).len();
    let most = losses::most(loads, away);
    assert!(lost <= most, "{lost} of {} requests failed, more than the {most} that a proxy had in hand", answers.len());
}

/// A connection that does not end is not cut before the deadline that the operator has set, and `leno status` counts the
/// proxy that waits for it.
///
/// The deadline is a setting of the proxies, so each change of it replaces them all: the first brings proxies with this one, the
/// second lets them drain.
fn long_connections_have_until_the_deadline(stand: &Stand) {
    const DEADLINE: Duration = Duration::from_secs(15);
    let set = |seconds: u64| {
        stand.leno.run(&["upgrade", "--set", &format!("node.drainSeconds={seconds}")]).unwrap();
    };
    set(DEADLINE.as_secs());
    settled(stand);
    let (here, there) = stand::two_nodes(&stand.cluster);
    let namespace = Namespace::new(&stand.cluster, "e2e-deadline", &[AMBIENT]).unwrap();
    let server = Server::new(Pod::new("server", &there));
    namespace.apply(&server.services()).unwrap();
    namespace.start(&[server.pod.clone(), Pod::new("client", &here)]).unwrap();
    server.await_known(&namespace, "client", &["tcp://server:9000".to_owned()]);
    let mut held = Held::begin(&namespace, "client", "server:9000");

    // The drain of the first proxy that has the connection begins between two looks.
    let (mut before, mut seen) = (Instant::now(), Instant::now());
    set(25);
    stand::comes_true("`leno status` counts the connection that a proxy waits for", || {
        let look = Instant::now();
        let nodes = stand.leno.json(&["status"]).unwrap()["nodes"].clone();
        let draining = [&here, &there].into_iter().any(|node| {
            let told = &nodes[node];
            told["draining"].as_u64() >= Some(1) && told["proxy"]["draining_connections"].as_u64() >= Some(1)
        });
        seen = Instant::now();
        if !draining {
            before = look;
        }
        draining
    });
    let said = held.end();
    let (least, most) = (seen.elapsed(), before.elapsed());
    eprintln!(
        "a connection that does not end was cut {:.1} to {:.1} s after its proxy had begun to drain",
        least.as_secs_f64(),
        most.as_secs_f64()
    );
    assert!(most >= DEADLINE, "the connection was cut after {most:?} at most: {said}");
    let late = least > DEADLINE + Duration::from_secs(10);
    assert!(!late || !stand::is_measured(), "the connection was cut after {least:?} at least: {said}");
    settled(stand);
}

/// A connection that a pod keeps open.
struct Held {
    child: Child,
}

impl Held {
    fn begin(namespace: &Namespace, pod: &str, address: &str) -> Self {
        let hold =
            ["exec", "--stdin", "--namespace", namespace.name(), pod, "--", "/toolbox", "hold", "-until-eof", address];
        let mut command = namespace.kubectl().command(&hold);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("connected"), "{line}");
        Self { child }
    }

    /// Waits until it ends, and returns what is said of that. kubectl ends with the program in the pod.
    fn end(&mut self) -> String {
        let mut said = String::new();
        let errors = BufReader::new(self.child.stderr.take().unwrap());
        errors.lines().map_while(Result::ok).for_each(|line| said.push_str(&line));
        let _ = self.child.wait();
        said
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn restart(stand: &Stand) {
    stand.cluster.kubectl().run(&["rollout", "restart", PROXIES, "--namespace", SYSTEM]).unwrap();
}

fn settled(stand: &Stand) {
    stand.cluster.kubectl().run(&["rollout", "status", PROXIES, "--namespace", SYSTEM, "--timeout=300s"]).unwrap();
}

fn proxies(stand: &Stand) -> Vec<Value> {
    let get = ["get", "pods", "--namespace", SYSTEM, "--selector", "app.kubernetes.io/name=leno-node"];
    let pods = stand.cluster.kubectl().json(&get).unwrap();
    pods["items"].as_array().unwrap().clone()
}

fn name(pod: &Value) -> Option<String> {
    Some(pod["metadata"]["name"].as_str()?.to_owned())
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}
