//! Waypoints: made out of a Gateway, passed by everything that must pass them, and replaced under load.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use leno_e2e::{Answer, Load, Namespace, Pod};
use leno_testkit::skips::skip;
use serde_json::Value;

use crate::mesh::{AMBIENT, SYSTEM, Stand};
use crate::stand::{self, comes_true};

/// What a Gateway made by `leno waypoint apply` is called.
const NAME: &str = "waypoint";
/// What the control plane makes for it.
const PARTS: &str = "deployments,services,serviceaccounts,poddisruptionbudgets,networkpolicies";
const WEB: &str = "http://web:8080/";

/// Half of all requests to each version, and those with the header to the second.
const ROUTE: &str = "apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web}
spec:
  parentRefs: [{group: '', kind: Service, name: web, port: 8080}]
  rules:
  - matches: [{headers: [{name: version, value: '2'}]}]
    backendRefs: [{name: v2, port: 8080}]
  - backendRefs: [{name: v1, port: 8080, weight: 1}, {name: v2, port: 8080, weight: 1}]
";

/// A Service for both versions.
const SERVICE: &str = "---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {tier: web}
  ports: [{name: http, port: 8080}, {name: grpc, port: 9001}]
";

/// Two versions of a server and a client, on two nodes, and a waypoint that all services of the namespace use.
struct Shop<'a> {
    stand: &'a Stand,
    namespace: Namespace,
}

impl<'a> Shop<'a> {
    fn open(stand: &'a Stand, test: &str) -> Self {
        let (here, there) = stand::two_nodes(&stand.cluster);
        let namespace = Namespace::new(&stand.cluster, test, &[AMBIENT]).unwrap();
        let [v1, v2] = [("v1", &here), ("v2", &there)].map(|(name, node)| Pod::new(name, node).label("tier", "web"));
        let services = [&*v1.service("v1", false), &v2.service("v2", false), &v1.service("v1-headless", true), SERVICE];
        namespace.apply(&services.concat()).unwrap();
        namespace.start(&[v1, v2, Pod::new("client", &there), Pod::new("near", &here)]).unwrap();
        let shop = Self { stand, namespace };
        shop.leno(&["waypoint", "apply", "--enroll-namespace", "--wait", "--timeout", "60s"]);
        // Whoever names no waypoint is reached as before.
        shop.await_all(WEB, "200 ");
        shop
    }

    fn leno(&self, arguments: &[&str]) -> String {
        self.stand.leno.run(&[arguments, &["-n", self.namespace.name()]].concat()).unwrap()
    }

    fn kubectl(&self, arguments: &[&str]) -> String {
        self.namespace.kubectl().run(&[arguments, &["--namespace", self.namespace.name()]].concat()).unwrap()
    }

    fn get(&self, kind: &str, name: &str) -> Value {
        self.namespace.kubectl().json(&["get", kind, name, "--namespace", self.namespace.name()]).unwrap()
    }

    fn ask(&self, headers: &[&str], url: &str) -> Result<String, String> {
        self.namespace.ask_with("client", headers, &[url.to_owned()]).unwrap().remove(0).outcome
    }

    /// Waits until the client gets this answer five times in a row.
    fn await_all(&self, url: &str, wanted: &str) {
        let urls = vec![url.to_owned(); 5];
        comes_true(&format!("{url} answers {wanted:?}"), || {
            let answers = self.namespace.ask("client", &urls).unwrap();
            answers.iter().all(|answer| answer.outcome.as_ref().is_ok_and(|said| said.starts_with(wanted)))
        });
    }

    /// The pods of the waypoint that are not on their way out, each with its node.
    fn pods(&self) -> Vec<(String, String)> {
        let selector = format!("gateway.networking.k8s.io/gateway-name={NAME}");
        let get = ["get", "pods", "--selector", &selector, "--namespace", self.namespace.name()];
        let pods = self.namespace.kubectl().json(&get).unwrap();
        let pods =
            pods["items"].as_array().unwrap().iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        pods.map(|pod| (text(&pod["metadata"]["name"]), text(&pod["spec"]["nodeName"]))).collect()
    }

    fn scale(&self, replicas: usize) {
        self.kubectl(&["scale", "deployment", NAME, "--replicas", &replicas.to_string()]);
        self.settled();
        comes_true("surplus pods are told to end", || self.pods().len() == replicas);
    }

    fn settled(&self) {
        self.kubectl(&["rollout", "status", "deployment", NAME, "--timeout=120s"]);
    }
}

/// The condition of an object's or a parent's status: its status and reason, if it is about the latest version.
fn condition(object: &Value, status: &Value, kind: &str) -> Option<(String, String)> {
    let all = status["conditions"].as_array()?;
    let found = all.iter().find(|condition| condition["type"] == kind)?;
    assert_eq!(found["observedGeneration"], object["metadata"]["generation"], "{found}");
    Some((found["status"].as_str()?.to_owned(), found["reason"].as_str()?.to_owned()))
}

fn holds(object: &Value, status: &Value, kind: &str) -> bool {
    condition(object, status, kind).is_some_and(|(status, _)| status == "True")
}

pub(crate) fn are_passed(stand: &Stand) {
    let shop = Shop::open(stand, "e2e-waypoint");
    let kubectl = stand.cluster.kubectl();
    let class = kubectl.json(&["get", "gatewayclass", "leno-waypoint"]).unwrap();
    assert!(holds(&class, &class["status"], "Accepted"), "{class}");
    let gateway = shop.get("gateway", NAME);
    for kind in ["Accepted", "Programmed"] {
        assert!(holds(&gateway, &gateway["status"], kind), "{gateway}");
        assert!(holds(&gateway, &gateway["status"]["listeners"][0], kind), "{gateway}");
    }
    assert!(holds(&gateway, &gateway["status"]["listeners"][0], "ResolvedRefs"), "{gateway}");
    assert_eq!(gateway["status"]["listeners"][0]["attachedRoutes"], 0);

    routes_are_followed(&shop);
    nothing_goes_around(&shop);
    callers_are_told(&shop);
    commands_show_them(&shop);

    // A waypoint that is dead lets nobody through, and everybody says why.
    shop.kubectl(&["scale", "deployment", NAME, "--replicas=0"]);
    comes_true("without a waypoint, requests are refused", || shop.ask(&[], WEB).is_err());
    comes_true("the Gateway says so", || {
        let gateway = shop.get("gateway", NAME);
        condition(&gateway, &gateway["status"], "Programmed") == Some(("False".to_owned(), "Pending".to_owned()))
    });
    assert_refused(&shop, &format!("{NAME}.{}.svc.cluster.local", shop.namespace.name()), "can't be used");
    let status = stand.leno.call(&["waypoint", "status", "-n", shop.namespace.name()]).unwrap();
    assert!(status.code == 1 && status.stdout.contains("refused meanwhile"), "{}{}", status.stdout, status.stderr);
    let check = stand.leno.call(&["check"]).unwrap();
    assert!(check.code != 0 && check.stdout.contains("none of 0 waypoint pods"), "{}", check.stdout);
    shop.kubectl(&["scale", "deployment", NAME, "--replicas=1"]);
    shop.await_all(WEB, "200 ");

    // With the Gateway goes all that was made for it, and what names it is refused.
    shop.leno(&["waypoint", "delete", NAME]);
    comes_true("what the Gateway owned is gone", || {
        let left = shop.kubectl(&["get", PARTS, "--output=name"]);
        !left.lines().any(|line| line.ends_with(&format!("/{NAME}")))
    });
    assert!(shop.ask(&[], WEB).is_err(), "the label still names the waypoint");
    shop.kubectl(&["delete", "httproute", "web"]);
    kubectl.run(&["label", "namespace", shop.namespace.name(), "istio.io/use-waypoint-"]).unwrap();
    shop.await_all(WEB, "200 ");
}

/// An HTTPRoute that splits by weight and by a header, and its status; one that is wrong.
fn routes_are_followed(shop: &Shop<'_>) {
    shop.namespace.apply(ROUTE).unwrap();
    let urls = vec![WEB.to_owned(); 40];
    let ask = |headers: &[&str]| shop.namespace.ask_with("client", headers, &urls).unwrap();
    let of = |answers: &[Answer], name: &str| {
        let named =
            |answer: &&Answer| answer.outcome.as_ref().is_ok_and(|said| said.starts_with(&format!("200 {name} ")));
        answers.iter().filter(named).count()
    };
    comes_true("the header decides", || of(&ask(&["version: 2"]), "v2") == urls.len());
    let split = ask(&[]);
    let (first, second) = (of(&split, "v1"), of(&split, "v2"));
    // By chance, fewer than five of forty are once in ten million runs.
    assert!(first + second == urls.len() && first >= 5 && second >= 5, "{first} and {second} of {}", urls.len());
    comes_true("the route's status says that it is in force", || {
        let route = shop.get("httproute", "web");
        let parent = &route["status"]["parents"][0];
        parent["controllerName"] == "leno.mesh/waypoint-controller"
            && ["Accepted", "ResolvedRefs"].iter().all(|kind| holds(&route, parent, kind))
    });
    comes_true("the Gateway counts it", || shop.get("gateway", NAME)["status"]["listeners"][0]["attachedRoutes"] == 1);

    // A backend that is not there gets its share of the requests answered with 500.
    shop.namespace.apply(&ROUTE.replace("name: v2, port: 8080}]", "name: gone, port: 8080}]")).unwrap();
    comes_true("a backend that is missing is told", || {
        let route = shop.get("httproute", "web");
        let told = condition(&route, &route["status"]["parents"][0], "ResolvedRefs");
        told == Some(("False".to_owned(), "BackendNotFound".to_owned()))
    });
    comes_true("its requests get 500", || shop.ask(&["version: 2"], WEB).is_ok_and(|said| said.starts_with("500 ")));
    shop.namespace.apply(ROUTE).unwrap();
    comes_true("it is mended", || of(&ask(&["version: 2"]), "v2") == urls.len());
}

/// Neither by a pod's own address, nor by a headless Service: members are sent through the waypoint, others are refused.
fn nothing_goes_around(shop: &Shop<'_>) {
    let outside = Namespace::new(&shop.stand.cluster, "e2e-waypoint-stranger", &[]).unwrap();
    let (here, _) = stand::two_nodes(&shop.stand.cluster);
    outside.start(&[Pod::new("stranger", &here)]).unwrap();
    let addresses = shop.namespace.addresses("v1").unwrap();
    let host = |address: &String| if address.contains(':') { format!("[{address}]") } else { address.clone() };
    let mut around: Vec<_> = addresses.iter().map(|address| format!("http://{}:8080/", host(address))).collect();
    around.push(format!("http://v1-headless.{}:8080/", shop.namespace.name()));
    let waypoint = shop.namespace.addresses(&shop.pods()[0].0).unwrap();
    for pod in ["client", "near"] {
        comes_true(&format!("{pod} does not get around the waypoint"), || {
            let passed = |said: &String| waypoint.iter().any(|address| said.contains(&host(address)));
            let answers = shop.namespace.ask(pod, &around).unwrap();
            answers.iter().all(|answer| answer.outcome.as_ref().is_ok_and(passed))
        });
    }
    comes_true("a stranger does not reach what is behind the waypoint", || {
        outside.ask("stranger", &around).unwrap().iter().all(|answer| answer.outcome.is_err())
    });
    assert_refused(shop, "its waypoint must be passed", "Service's name");
    // gRPC goes through it as well.
    comes_true("gRPC passes it", || shop.ask(&[], "grpc://web:9001").is_ok_and(|said| said == "SERVING"));
}

/// Who calls reaches the program, where the Gateway asks for that; what a client says of itself does not.
fn callers_are_told(shop: &Shop<'_>) {
    let url = format!("{WEB}?show=x-forwarded-client-cert");
    let forged = ["x-forwarded-client-cert: URI=spiffe://cluster.local/ns/x/sa/admin"];
    let said = shop.ask(&forged, &url).unwrap();
    assert!(said.contains("x-forwarded-client-cert=[]"), "{said}");
    shop.kubectl(&["annotate", "gateway", NAME, "leno.mesh/waypoint-forward-client-cert=true"]);
    let namespace = shop.namespace.name();
    let uri = format!(
        "By=spiffe://cluster.local/ns/{namespace}/sa/{NAME};URI=spiffe://cluster.local/ns/{namespace}/sa/default"
    );
    comes_true("the program is told who calls", || {
        shop.ask(&forged, &url).is_ok_and(|said| said.contains(&format!("x-forwarded-client-cert=[\"{uri}\"]")))
    });
    shop.settled();
}

fn commands_show_them(shop: &Shop<'_>) {
    let namespace = shop.namespace.name();
    let shown = shop.leno(&["waypoint", "list"]);
    assert!(shown.lines().any(|line| line.starts_with(namespace) && line.contains("yes")), "{shown}");
    shop.leno(&["waypoint", "status", NAME, "--wait"]);
    let ours = |status: &Value| {
        let gateways = status["waypoints"]["gateways"].as_array().unwrap().clone();
        gateways.into_iter().find(|gateway| gateway["namespace"] == namespace).unwrap()
    };
    comes_true("status shows the waypoint in sync", || {
        let waypoint = ours(&shop.stand.leno.json(&["status"]).unwrap());
        let pods = waypoint["pods"].as_array().unwrap();
        !pods.is_empty() && pods.iter().all(|pod| pod["ready"] == true && pod["proxy"]["in_sync"] == true)
    });
    let status = shop.stand.leno.run(&["status"]).unwrap();
    assert!(status.contains(&format!("\n{namespace}/{NAME} ")), "{status}");
    comes_true("check finds nothing", || shop.stand.leno.call(&["check"]).unwrap().code == 0);
}

/// Waits until a node's proxy has refused something for this reason.
fn assert_refused(shop: &Shop<'_>, reason: &str, more: &str) {
    let selector = "app.kubernetes.io/name=leno-node";
    let logs = ["logs", "--namespace", SYSTEM, "--selector", selector, "--tail=400", "--max-log-requests=20"];
    comes_true(&format!("a proxy says: {reason}"), || {
        let logs = shop.namespace.kubectl().run(&logs).unwrap();
        logs.lines().any(|line| line.contains(reason) && line.contains(more))
    });
}

/// Requests all the time, from both nodes.
struct Rush {
    loads: Vec<Load>,
}

impl Rush {
    fn begin(shop: &Shop<'_>) -> Self {
        let load = |pod: &str| shop.namespace.load(pod, Duration::from_millis(20), &[WEB]).unwrap();
        let mut rush = Self { loads: vec![load("client"), load("near")] };
        rush.go_on(50);
        rush
    }

    fn go_on(&mut self, answers: usize) {
        self.loads.iter_mut().for_each(|load| load.await_more(answers).unwrap());
    }

    /// How many came, and what was said by those that are not an application's answer.
    fn end(mut self, when: &str) -> Vec<String> {
        self.go_on(50);
        let answers: Vec<_> = self.loads.into_iter().flat_map(|load| load.stop().unwrap()).collect();
        let fault = |answer: &Answer| match &answer.outcome {
            Ok(said) if said.starts_with("200 v") => None,
            Ok(said) | Err(said) => Some(said.clone()),
        };
        let failed: Vec<_> = answers.iter().filter_map(fault).collect();
        eprintln!("{when}: {} of {} requests failed", failed.len(), answers.len());
        failed
    }
}

/// Prints what proxies and waypoints say of connections that failed.
fn tell_faults(shop: &Shop<'_>, failed: &[String]) {
    if failed.is_empty() {
        return;
    }
    let of_gateway = format!("gateway.networking.k8s.io/gateway-name={NAME}");
    for (namespace, selector) in [(SYSTEM, "app.kubernetes.io/name=leno-node"), (shop.namespace.name(), &*of_gateway)] {
        let logs = ["logs", "--namespace", namespace, "--selector", selector, "--prefix", "--tail=4000"];
        let logs = shop.namespace.kubectl().run(&[&logs[..], &["--max-log-requests=20"]].concat()).unwrap_or_default();
        let faults: Vec<_> = logs.lines().filter(|line| line.contains("error") || line.contains("WARN")).collect();
        for line in faults.iter().rev().take(20) {
            eprintln!("{line}");
        }
    }
}

/// The two pods of a waypoint, on two nodes; one is made to go where the other is not. `None` if there is only one node.
fn on_two_nodes(shop: &Shop<'_>) -> Option<Vec<(String, String)>> {
    let pods = shop.pods();
    let (node, nodes) = (&pods[0].1, shop.stand.cluster.nodes());
    if pods[1].1 != *node {
        return Some(pods);
    }
    if nodes.len() < 2 {
        return None;
    }
    let kubectl = shop.stand.cluster.kubectl();
    kubectl.run(&["cordon", node]).unwrap();
    let moved = kubectl.run(&["delete", "pod", &pods[1].0, "--namespace", shop.namespace.name()]);
    let mut placed = Vec::new();
    let there = || {
        placed = shop.pods();
        placed.len() == 2 && placed.iter().all(|(_, on)| !on.is_empty()) && placed[0].1 != placed[1].1
    };
    let found =
        moved.is_ok() && std::panic::catch_unwind(AssertUnwindSafe(|| comes_true("it is elsewhere", there))).is_ok();
    // Also if it has failed: other chapters need the node.
    kubectl.run(&["uncordon", node]).unwrap();
    assert!(found, "both pods stay on {node}: {moved:?}");
    for (pod, _) in &placed {
        shop.namespace.wait("condition=Ready", &[&format!("pod/{pod}")]).unwrap();
    }
    Some(placed)
}

pub(crate) fn change_under_load(stand: &Stand) {
    let shop = Shop::open(stand, "e2e-waypoint-load");
    shop.namespace.apply(ROUTE).unwrap();

    let mut rush = Rush::begin(&shop);
    shop.scale(3);
    rush.go_on(50);
    shop.scale(1);
    rush.go_on(100);
    let failed = rush.end("while a waypoint grew to three pods and shrank to one");
    tell_faults(&shop, &failed);
    assert!(failed.is_empty(), "{failed:#?}");

    let mut rush = Rush::begin(&shop);
    shop.kubectl(&["rollout", "restart", "deployment", NAME]);
    shop.settled();
    rush.go_on(100);
    let failed = rush.end("while a waypoint was updated");
    tell_faults(&shop, &failed);
    assert!(failed.is_empty(), "{failed:#?}");

    shop.scale(2);
    let Some(pods) = on_two_nodes(&shop) else {
        return skip("one of two pods of a waypoint is killed", "killing is by node, and this cluster has only one");
    };
    let mut rush = Rush::begin(&shop);
    assert!(stand.hosts.kill(&pods[0].1, &["/leno", "waypoint"]).unwrap(), "no waypoint runs on {}", pods[0].1);
    rush.go_on(100);
    let loads = rush.loads.len();
    let failed = rush.end("while one of two pods of a waypoint was killed");
    tell_faults(&shop, &failed);
    // What was in its hand may fail: one request of each load.
    assert!(failed.len() <= loads, "{failed:#?}");
}
