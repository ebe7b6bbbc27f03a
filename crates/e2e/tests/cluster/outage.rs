//! The API server goes away, is slow, or sends everybody away: nobody in the mesh notices, and what was changed counts in the end.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use leno_e2e::{Answer, Hands, Namespace, Pod};
use leno_testkit::skips::skip;

use crate::clear::{Watch, secret};
use crate::losses;
use crate::matrix::Server;
use crate::mesh::{AMBIENT, SYSTEM, Stand};
use crate::stand::{self, comes_true};

/// Seconds for which there is no API server.
const AWAY: u64 = 8;

/// A server, a pod on another node that asks it all the time, which nobody can read, and the two policies by which a change is seen.
struct Mesh<'a> {
    namespace: Namespace,
    watch: Watch<'a>,
    server: Server,
    /// Answers that were looked at already.
    seen: usize,
    nodes: [String; 2],
}

impl<'a> Mesh<'a> {
    fn begin(stand: &'a Stand, test: &str) -> Self {
        let (here, there) = stand::two_nodes(&stand.cluster);
        let namespace = Namespace::new(&stand.cluster, test, &[AMBIENT]).unwrap();
        let server = Server::new(Pod::new("server", &here));
        namespace.apply(&server.services()).unwrap();
        namespace.start(&[server.pod.clone(), Pod::new("member", &there)]).unwrap();
        let watch = Watch::begin(stand);
        let every = Duration::from_millis(50);
        namespace.apply(&Pod::new("asker", &there).asker(every, &[&secret("server")])).unwrap();
        namespace.wait("condition=Ready", &["pod/asker"]).unwrap();
        server.await_known(&namespace, "member", &["tcp://server:9000".to_owned()]);
        let mut mesh = Self { namespace, watch, server, seen: 0, nodes: [here, there] };
        mesh.more(20);
        // What comes before DNS and the nodes' rules know the Service is no loss.
        mesh.seen = mesh.namespace.answers("asker").unwrap().len();
        mesh
    }

    /// What the asker was answered since the last look, at least so much.
    fn more(&mut self, count: usize) -> Vec<Answer> {
        let mut answers = Vec::new();
        comes_true("the pod goes on asking", || {
            answers = self.namespace.answers("asker").unwrap();
            answers.len() >= self.seen + count
        });
        let new = answers.split_off(self.seen);
        self.seen += new.len();
        new
    }

    fn assert_nothing_lost(&mut self, when: &str) {
        losses::assert_none(when, &self.more(20));
    }

    /// A policy that is written now counts, a pod that is made now is in the mesh, and the asker goes on.
    fn assert_follows(&self, round: &str) {
        let refused = || self.namespace.ask("member", &["tcp://server:9000".to_owned()]).unwrap()[0].outcome.is_err();
        self.namespace.apply(NO_LINES).unwrap();
        comes_true("a policy counts", refused);
        let policy = ["delete", "authorizationpolicy", "no-lines", "--namespace", self.namespace.name()];
        self.namespace.kubectl().run(&policy).unwrap();
        comes_true("a policy that is deleted counts no more", || !refused());
        let new = Pod::new(&format!("new-{round}"), &self.nodes[1]);
        self.namespace.start(std::slice::from_ref(&new)).unwrap();
        let captured = "jsonpath={.metadata.annotations.ambient\\.istio\\.io/redirection}=enabled";
        self.namespace.wait(captured, &[&format!("pod/{}", new.name)]).unwrap();
        self.server.await_known(&self.namespace, &new.name, &["http://server:8080/".to_owned()]);
    }
}

/// Denies the port of lines.
const NO_LINES: &str = "apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: no-lines}
spec: {action: DENY, selector: {matchLabels: {app: server}}, rules: [{to: [{operation: {ports: [\"9000\"]}}]}]}
";

pub(crate) fn an_api_server_that_is_restarted(stand: &Stand) {
    let Some(hands) = hands(stand, "the API server is restarted") else { return };
    let mut mesh = Mesh::begin(stand, "e2e-restarted");
    let mut watching = Watching::begin(stand);
    hands.restart("kube-apiserver", AWAY).unwrap();
    mesh.assert_nothing_lost("while there was no API server");
    mesh.assert_follows("restarted");
    mesh.assert_nothing_lost("after the API server's restart");
    let said = watching.end();
    assert!(said.contains("it is looked for again") && said.contains("answers again"), "leno observe -f said: {said}");
    mesh.watch.end();
}

/// For a while every question of Leno's own accounts is answered with 429, also the first ones after a restart, with which
/// they would read everything anew.
pub(crate) fn an_api_server_that_sends_everybody_away(stand: &Stand) {
    let Some(hands) = hands(stand, "the API server sends everybody away") else { return };
    let mut mesh = Mesh::begin(stand, "e2e-throttled");
    let kubectl = stand.cluster.kubectl();
    kubectl.apply(&THROTTLE.replace("SYSTEM", SYSTEM)).unwrap();
    let throttle = Throttle(stand);
    comes_true("Leno's accounts are sent away", || {
        let who = format!("system:serviceaccount:{SYSTEM}:leno-agent");
        let asked = kubectl.output(&["get", "--raw", "/api/v1/namespaces?limit=1", "--as", &who, "-v=6"]).unwrap();
        String::from_utf8_lossy(&asked.stderr).contains("429")
    });
    hands.restart("kube-apiserver", 0).unwrap();
    mesh.assert_nothing_lost("while Leno was sent away");
    // What it does not hear of yet: it must not be lost, either.
    mesh.namespace.apply(NO_LINES).unwrap();
    drop(throttle);
    let refused = || mesh.namespace.ask("member", &["tcp://server:9000".to_owned()]).unwrap()[0].outcome.is_err();
    comes_true("a policy of that time counts afterwards", refused);
    mesh.namespace.kubectl().run(&["delete", "authorizationpolicy", "no-lines", "-n", mesh.namespace.name()]).unwrap();
    comes_true("and not for ever", || !refused());
    mesh.assert_follows("throttled");
    mesh.assert_nothing_lost("after Leno was sent away");
    mesh.watch.end();
}

/// Everything between the nodes and the API server takes half a second longer.
pub(crate) fn an_api_server_that_is_slow(stand: &Stand) {
    let Some(hands) = hands(stand, "the API server is slow") else { return };
    let mut mesh = Mesh::begin(stand, "e2e-slow");
    let slow = Slow::begin(Duration::from_millis(250));
    // So that everybody connects anew, through the delay.
    hands.restart("kube-apiserver", 0).unwrap();
    mesh.assert_follows("slow");
    mesh.assert_nothing_lost("while the API server was slow");
    assert!(slow.carried() > 0, "nobody came to the API server by the slow way");
    drop(slow);
    hands.restart("kube-apiserver", 0).unwrap();
    mesh.assert_follows("fast");
    mesh.watch.end();
    stand.leno.run(&["check"]).unwrap();
}

fn hands(stand: &Stand, test: &str) -> Option<Hands> {
    let hands = Hands::find(&stand.cluster);
    if hands.is_none() {
        skip(test, "this cluster is not this machine's, so its API server can't be restarted from here");
    }
    hands
}

/// `leno observe -f`, as a user leaves it running.
struct Watching(std::process::Child);

impl Watching {
    fn begin(stand: &Stand) -> Self {
        let kubeconfig = stand.cluster.kubectl().kubeconfig().to_str().unwrap().to_owned();
        let mut command = stand.leno.command(&["observe", "-f", "--kubeconfig", &kubeconfig]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // Its heading comes once it has heard from all nodes.
        let mut first = [0];
        child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
        let mut rest = child.stdout.take().unwrap();
        std::thread::spawn(move || io::copy(&mut rest, &mut io::sink()));
        Self(child)
    }

    /// What it said beside. It has not ended by itself.
    fn end(&mut self) -> String {
        assert!(self.0.try_wait().unwrap().is_none(), "leno observe -f has ended");
        self.0.kill().unwrap();
        let mut said = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        said
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const THROTTLE: &str = "apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: PriorityLevelConfiguration
metadata: {name: e2e-nobody}
spec: {type: Limited, limited: {nominalConcurrencyShares: 0, lendablePercent: 0, borrowingLimitPercent: 0, limitResponse: {type: Reject}}}
---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata: {name: e2e-nobody}
spec:
  matchingPrecedence: 2
  priorityLevelConfiguration: {name: e2e-nobody}
  rules:
  - subjects:
    - {kind: ServiceAccount, serviceAccount: {name: leno-agent, namespace: SYSTEM}}
    - {kind: ServiceAccount, serviceAccount: {name: leno-control, namespace: SYSTEM}}
    resourceRules: [{verbs: [\"*\"], apiGroups: [\"*\"], resources: [\"*\"], namespaces: [\"*\"], clusterScope: true}]
    nonResourceRules: [{verbs: [\"*\"], nonResourceURLs: [\"*\"]}]
";

/// As long as it lives, the API server sends Leno away.
struct Throttle<'a>(&'a Stand);

impl Drop for Throttle<'_> {
    fn drop(&mut self) {
        let kubectl = self.0.cluster.kubectl();
        for kind in ["flowschema", "prioritylevelconfiguration"] {
            if let Err(error) = kubectl.run(&["delete", kind, "e2e-nobody", "--ignore-not-found"]) {
                eprintln!("the throttle stays: {error}");
            }
        }
    }
}

/// A way from the nodes to the API server on this machine that takes its time in both directions.
struct Slow {
    carried: std::sync::Arc<std::sync::atomic::AtomicUsize>,
}

const API_SERVER: u16 = 6443;
const TABLE: &str = "leno-e2e-slow";

impl Slow {
    fn begin(delay: Duration) -> Self {
        let listener = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let carried = std::sync::Arc::<std::sync::atomic::AtomicUsize>::default();
        let count = carried.clone();
        std::thread::spawn(move || {
            // It ends with the test's process.
            for client in listener.incoming().map_while(Result::ok) {
                count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                if let Ok(server) = TcpStream::connect(("127.0.0.1", API_SERVER)) {
                    for (from, to) in [(&client, &server), (&server, &client)] {
                        let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                        std::thread::spawn(move || pass(from, to, delay));
                    }
                }
            }
        });
        let rules = format!(
            "table ip {TABLE} {{\nchain prerouting {{\ntype nat hook prerouting priority -110;\n\
             iifname \"lcbr0\" tcp dport {API_SERVER} redirect to :{port}\n}}\n}}\n"
        );
        nft(&rules);
        Self { carried }
    }

    fn carried(&self) -> usize {
        self.carried.load(std::sync::atomic::Ordering::Relaxed)
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        nft(&format!("delete table ip {TABLE}"));
    }
}

fn nft(rules: &str) {
    let mut child = Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(rules.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "nft refuses {rules}");
}

/// What comes is passed on later. Each piece waits by itself, as on a long line.
fn pass(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    let (later, pieces) = std::sync::mpsc::channel::<(std::time::Instant, Vec<u8>)>();
    let passing = std::thread::spawn(move || {
        for (due, piece) in pieces {
            std::thread::sleep(due.saturating_duration_since(std::time::Instant::now()));
            if to.write_all(&piece).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    });
    let mut piece = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut piece) {
        if later.send((std::time::Instant::now() + delay, piece[..count].to_vec())).is_err() {
            break;
        }
    }
    drop(later);
    let _ = passing.join();
}
