//! Scenarios: pods, and loads between them, step by step.

mod application;
mod bookinfo;
mod emojivoto;
mod hop;
mod http;
mod pods;
mod size;
mod step;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

pub use application::{Application, Place};
pub(crate) use application::{WAYPOINT_OF_ISTIO, WAYPOINT_OF_LENO};
pub(crate) use hop::{clear_port, waypoint_of};
pub(crate) use pods::{CLIENT, FAR, HOP, HOP_SECOND, HOP_SERVER, NEAR};
pub use pods::{NAMESPACE, Pod};
pub use size::Size;
pub use step::{Hop, Placed, Step, Via};
pub(crate) use step::{RULE_HEADER, RULE_PATH, route_prefix};

use crate::Error;
use crate::churn::{Phase, Shape};
use crate::load::{Direction, HttpLoad, IdleLoad, Load, Pace, Reuse, ServerSpec, StreamLoad};
use pods::pod;

/// Nodes of every scenario.
pub const NODES: usize = 2;

/// A topology and the loads to put on it.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Its name on the command line.
    pub name: &'static str,
    /// Its description, in a sentence or two.
    pub about: &'static str,
    /// Pods in this scenario's first node beyond the three that every scenario has.
    pub crowd: usize,
    /// The generated mesh if a control plane is measured. Then there are no pods.
    pub mesh: Option<Shape>,
    /// Whether an API server tells of that mesh, to a control plane as it is shipped.
    pub has_api_server: bool,
    /// What runs besides the lab's own pods.
    pub application: Option<Application>,
    /// The steps, in order.
    pub steps: Vec<Step>,
}

/// All scenarios, in the order in which they are listed.
#[must_use]
pub fn all(size: Size) -> Vec<Scenario> {
    vec![
        throughput(),
        latency(),
        connections(size),
        mixed(size),
        of_application("http", http::ABOUT, Application::Http, http::steps(size)),
        voting(size),
        of_application("bookinfo", bookinfo::ABOUT, Application::Bookinfo { size }, bookinfo::steps(size)),
        churn(size),
        many_svc(size),
    ]
}

/// The scenario with a name.
///
/// # Errors
/// [`Error::Usage`] with all names.
pub fn find(name: &str, size: Size) -> Result<Scenario, Error> {
    let all = all(size);
    let names = all.iter().map(|scenario| scenario.name).collect::<Vec<_>>().join(", ");
    all.into_iter()
        .find(|scenario| scenario.name == name)
        .ok_or_else(|| Error::Usage(format!("there is no scenario {name:?}; there are {names}")))
}

/// A target whose address is not known yet.
fn port(port: u16) -> SocketAddr {
    (Ipv4Addr::UNSPECIFIED, port).into()
}

fn measured(to: &str, load: Load) -> Placed {
    Placed { from: CLIENT.to_owned(), to: to.to_owned(), measured: true, load }
}

fn http(connections: usize, pace: Pace, reuse: Reuse) -> HttpLoad {
    HttpLoad::new(port(ServerSpec::default().http), "/", connections, pace, reuse)
}

fn open(per_second: f64) -> Pace {
    Pace::Open { per_second }
}

fn throughput() -> Scenario {
    let mut steps = Vec::new();
    for (to, place) in [(FAR, "across-nodes"), (NEAR, "same-node")] {
        for streams in [1, 8] {
            for (direction, name) in [(Direction::Send, "send"), (Direction::Receive, "receive")] {
                let server = ServerSpec::default();
                let target = port(if direction == Direction::Send { server.sink } else { server.source });
                let load = Load::Stream(StreamLoad { target, streams, direction, read_limit: None });
                steps.push(Step {
                    name: format!("{place}/{streams}-stream{}/{name}", if streams == 1 { "" } else { "s" }),
                    about: "bulk bytes over TCP: bytes per second, and what a gigabyte costs",
                    loads: vec![measured(to, load)],
                    via: Via::Nodes,
                    published: match (streams, direction, to == FAR) {
                        (1, Direction::Send, true) => Some("iperf-across-nodes"),
                        (1, Direction::Send, false) => Some("iperf-same-node"),
                        _ => None,
                    },
                });
            }
        }
    }
    let about = "One and eight TCP streams, both ways, across nodes and on one: the iperf study. \
                 Closed loop: what limits it is processor time, so compare that too.";
    Scenario { name: "throughput", about, crowd: 0, mesh: None, has_api_server: false, application: None, steps }
}

fn latency() -> Scenario {
    let mut steps: Vec<Step> = [(50.0, "shulyak-50"), (450.0, "shulyak-450"), (3500.0, "shulyak-3500")]
        .into_iter()
        .map(|(rate, published)| Step {
            name: format!("open-loop/{rate}-per-second"),
            about: "requests at fixed times over 16 kept connections; latency counts from the time planned",
            loads: vec![measured(FAR, Load::Http(http(16, open(rate), Reuse::Kept)))],
            via: Via::Nodes,
            published: Some(published),
        })
        .collect();
    steps.push(Step {
        name: "closed-loop/64-connections".to_owned(),
        about: "the most requests that 64 kept connections get through; its latencies mean little",
        loads: vec![measured(FAR, Load::Http(http(64, Pace::Closed, Reuse::Kept)))],
        via: Via::Nodes,
        published: None,
    });
    let about = "HTTP requests across nodes over kept connections: the stages of the Shulyak/Savenko study in an open loop, \
                 corrected for coordinated omission by construction, and the closed-loop maximum.";
    Scenario { name: "latency", about, crowd: 0, mesh: None, has_api_server: false, application: None, steps }
}

fn connections(size: Size) -> Scenario {
    // Idle connections first: their cost is the difference to a fresh proxy.
    let counts: &[usize] = if size == Size::Full { &[1_000, 10_000] } else { &[1_000] };
    let idle = counts.iter().map(|&connections| Step {
        name: format!("idle/{connections}"),
        about: "connections on which nothing happens, each proved by a byte there and back: memory and descriptors",
        loads: vec![measured(FAR, Load::Idle(IdleLoad { target: port(ServerSpec::default().echo), connections }))],
        via: Via::Nodes,
        published: None,
    });
    let new = [
        Step {
            name: "per-request/closed-loop".to_owned(),
            about: "a new connection for each request, 32 at a time, as many as possible",
            loads: vec![measured(FAR, Load::Http(http(32, Pace::Closed, Reuse::PerRequest)))],
            via: Via::Nodes,
            published: Some("livewyer-c32"),
        },
        Step {
            name: "per-request/300-per-second".to_owned(),
            about: "a new connection for each request, at fixed times",
            loads: vec![measured(FAR, Load::Http(http(32, open(300.0), Reuse::PerRequest)))],
            via: Via::Nodes,
            published: None,
        },
    ];
    let steps = idle.chain(new).collect();
    let about = "Idle connections, and a new connection for each request (the condition of the LiveWyer study).";
    Scenario { name: "connections", about, crowd: 0, mesh: None, has_api_server: false, application: None, steps }
}

fn mixed(size: Size) -> Scenario {
    let sized = |bytes: usize, rate| {
        let load = HttpLoad { path: format!("/bytes/{bytes}"), ..http(16, open(rate), Reuse::Kept) };
        measured(FAR, Load::Http(load))
    };
    let small = || measured(FAR, Load::Http(http(16, open(450.0), Reuse::Kept)));
    let source = port(ServerSpec::default().source);
    let slow = StreamLoad { target: source, streams: 8, direction: Direction::Receive, read_limit: Some(64 * 1024) };
    let slow = Placed { measured: false, ..measured(FAR, Load::Stream(slow)) };
    let crowd = if size == Size::Full { 200 } else { 10 };
    let busy = (0..5)
        .map(|number| Placed {
            from: crowd_name(number * crowd / 5),
            ..measured(FAR, Load::Http(http(4, open(200.0), Reuse::Kept)))
        })
        .collect();
    let step =
        |name: &str, about, loads| Step { name: name.to_owned(), about, loads, via: Via::Nodes, published: None };
    let steps = vec![
        step("messages/64-KiB", "answers of 64 KiB, 500 per second over 16 connections", vec![sized(64 << 10, 500.0)]),
        step("messages/1-MiB", "answers of 1 MiB, 40 per second over 16 connections", vec![sized(1 << 20, 40.0)]),
        step("slow-reader/without", "450 small requests per second, alone", vec![small()]),
        step(
            "slow-reader/with",
            "the same beside eight readers that take 64 KiB/s each: the tail must not move",
            vec![small(), slow],
        ),
        step("crowd/5-busy", "five busy pods among many on a node: each must get its share and its tail", busy),
    ];
    let about = "Large messages, a slow reader, and a node with 200 pods of which five are busy: fairness and tail.";
    Scenario { name: "mixed", about, crowd, mesh: None, has_api_server: false, application: None, steps }
}

fn of_application(name: &'static str, about: &'static str, application: Application, steps: Vec<Step>) -> Scenario {
    Scenario { name, about, crowd: 0, mesh: None, has_api_server: false, application: Some(application), steps }
}

fn voting(size: Size) -> Scenario {
    let application = Application::Emojivoto { instances: emojivoto::instances(size) };
    of_application("emojivoto", emojivoto::ABOUT, application, emojivoto::steps(size))
}

fn churn(size: Size) -> Scenario {
    let steps = Phase::CHURN.into_iter().map(phase_step).collect();
    let about = "A control plane by itself, fed with a generated mesh, and proxies as real delta clients over TLS: the size of \
                 the many-svc study (500 services of 100 pods), 1000 proxies, one change a second.";
    let mesh = Some(if size == Size::Full { Shape::FULL } else { Shape::QUICK });
    Scenario { name: "churn", about, crowd: 0, mesh, has_api_server: false, application: None, steps }
}

fn many_svc(size: Size) -> Scenario {
    let steps = Phase::MANY_SVC.into_iter().map(phase_step).collect();
    let about = "The many-svc study: control planes as they are shipped beside an API server that plays a cluster of 500 \
                 services of 100 pods on 1000 nodes, with a proxy on each; every second one service is rescaled to 85 to 114 \
                 pods, every minute a namespace gets another label.";
    let mesh = Some(if size == Size::Full { Shape::FULL } else { Shape::QUICK });
    Scenario { name: "many-svc", about, crowd: 0, mesh, has_api_server: true, application: None, steps }
}

fn phase_step(phase: Phase) -> Step {
    Step { name: phase.name().to_owned(), about: phase.about(), loads: Vec::new(), via: Via::Nodes, published: None }
}

fn crowd_name(number: usize) -> String {
    format!("crowd-{number}")
}

impl Scenario {
    /// The pods that run the lab's server.
    #[must_use]
    pub fn pods(&self) -> Vec<Pod> {
        let mut pods = vec![pod(CLIENT, "node-1"), pod(NEAR, "node-1"), pod(FAR, "node-2")];
        pods.extend((0..self.crowd).map(|number| pod(crowd_name(number), "node-1")));
        if self.steps.iter().any(|step| step.hop().is_some()) {
            pods.extend(pods::of_hops());
        }
        pods
    }

    /// The manifests of the pods, each running the lab's server, and of an application, as far as `steps` need it.
    ///
    /// # Errors
    /// If the program's path is not valid UTF-8.
    pub fn manifests(&self, program: &Path, in_mesh: bool, steps: &[&Step]) -> Result<String, Error> {
        let place = stage_place(program, in_mesh, steps)?;
        let program = place.program;
        let label = if in_mesh { "ambient" } else { "none" };
        let mut text = format!(
            "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {NAMESPACE}\n  labels:\n    \
             istio.io/dataplane-mode: {label}\n"
        );
        let spec =
            serde_json::to_string(&ServerSpec::default()).map_err(|source| Error::Spec { what: "server", source })?;
        // JSON strings are YAML strings. A `$` would be taken for a variable.
        let command = [program, "lab-server", &spec].map(|word| serde_json::json!(word.replace('$', "$$")).to_string());
        for Pod { name: pod, node, can_join } in self.pods() {
            let mode = if can_join { "" } else { "    istio.io/dataplane-mode: none\n" };
            text.push_str(&format!(
                "---\napiVersion: v1\nkind: ServiceAccount\nmetadata:\n  name: {pod}\n  namespace: {NAMESPACE}\n\
                 ---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: {pod}\n  namespace: {NAMESPACE}\n  labels:\n    app: {pod}\n{mode}\
                 spec:\n  nodeName: {node}\n  serviceAccountName: {pod}\n  terminationGracePeriodSeconds: 0\n  containers:\n  \
                 - name: server\n    command: [{}]\n    readinessProbe:\n      tcpSocket:\n        port: {}\n",
                command.join(", "),
                ServerSpec::default().http,
            ));
        }
        for object in self.application.iter().flat_map(|application| application.objects(&place)) {
            // JSON is YAML.
            text.push_str(&format!("---\n{object}\n"));
        }
        Ok(text)
    }

    /// The address of a service of its application on a stage with the [`Self::manifests`] of the same arguments.
    #[must_use]
    pub fn service_address(&self, program: &Path, in_mesh: bool, steps: &[&Step], name: &str) -> Option<IpAddr> {
        let place = stage_place(program, in_mesh, steps).ok()?;
        self.application?.address(&place, name)
    }
}

fn stage_place<'a>(program: &'a Path, in_mesh: bool, steps: &[&Step]) -> Result<Place<'a>, Error> {
    let program =
        program.to_str().ok_or_else(|| Error::Usage(format!("the path {} is not valid UTF-8", program.display())))?;
    Ok(Place {
        program,
        image: None,
        nodes: ["node-1", "node-2"],
        in_mesh,
        class: WAYPOINT_OF_LENO,
        ways: ways(steps),
        hops: steps.iter().any(|step| step.hop().is_some()),
    })
}

/// The value of `LENO_WAYPOINT_CLEAR_LISTENERS` by which a waypoint can be a hop on a stage.
pub(crate) fn clear_listeners() -> String {
    let place = Place {
        program: "",
        image: None,
        nodes: ["node-1", "node-2"],
        in_mesh: true,
        class: WAYPOINT_OF_LENO,
        ways: [false, false],
        hops: true,
    };
    let ports = ServerSpec::default();
    let listeners = hop::SERVICES.into_iter().flat_map(|(name, hop)| {
        let service = Application::Http.address(&place, &format!("{name}.{NAMESPACE}"));
        [(false, ports.http), (true, ports.http2)].into_iter().filter_map(move |(is_http2, port)| {
            Some(format!("0.0.0.0:{}={}", clear_port(hop, is_http2), SocketAddr::from((service?, port))))
        })
    });
    listeners.collect::<Vec<_>>().join(",")
}

/// Whether any of the steps goes through the nodes' proxies alone, and whether any goes through a waypoint.
pub(crate) fn ways(steps: &[&Step]) -> [bool; 2] {
    [Via::Nodes, Via::Waypoint].map(|via| steps.iter().any(|step| step.via == via))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_load_has_its_pods() {
        for size in [Size::Full, Size::Quick] {
            for scenario in all(size).into_iter().filter(|scenario| scenario.mesh.is_none()) {
                let mut pods: BTreeSet<_> = scenario.pods().into_iter().map(|pod| pod.name).collect();
                let steps: Vec<&Step> = scenario.steps.iter().collect();
                let place = stage_place(Path::new("/leno"), true, &steps).unwrap();
                let services = scenario.application.iter().flat_map(|application| application.services(&place));
                pods.extend(services);
                let mut names = BTreeSet::new();
                for step in &scenario.steps {
                    assert!(names.insert(&step.name), "{} twice", step.name);
                    assert!(step.loads.iter().any(|placed| placed.measured), "{}", step.name);
                    let froms: BTreeSet<_> = step.loads.iter().map(|placed| &placed.from).collect();
                    assert!(froms.iter().all(|from| pods.contains(*from)), "{}", step.name);
                    assert!(step.loads.iter().all(|placed| pods.contains(&placed.to)), "{}", step.name);
                }
            }
        }
    }

    #[test]
    fn steps_are_called_by_whole_words() {
        let called = |scenario: &str, text: &str| -> Vec<String> {
            let steps = find(scenario, Size::Full).unwrap().steps.into_iter();
            steps.filter(|step| step.is_called(text)).map(|step| step.name).collect()
        };
        assert_eq!(called("mixed", "slow-reader/with"), ["slow-reader/with"]);
        assert_eq!(called("mixed", "slow-reader"), ["slow-reader/without", "slow-reader/with"]);
        assert_eq!(called("connections", "idle/1000"), ["idle/1000"]);
        assert_eq!(called("connections", "idle").len(), 2);
        assert_eq!(called("connections", "per-request/closed"), ["per-request/closed-loop"]);
        assert_eq!(called("latency", "open-loop/3500"), ["open-loop/3500-per-second"]);
        assert_eq!(called("latency", "50"), ["open-loop/50-per-second"]);
        assert_eq!(called("latency", "closed-loop"), ["closed-loop/64-connections"]);
        assert_eq!(called("throughput", "1-stream/send"), ["across-nodes/1-stream/send", "same-node/1-stream/send"]);
        assert_eq!(called("throughput", "across-nodes/").len(), 4);
        assert_eq!(called("throughput", "").len(), 8);
        assert_eq!(called("throughput", "cross-nodes"), [""; 0]);
    }

    #[test]
    fn names() {
        assert_eq!(find("latency", Size::Full).unwrap().name, "latency");
        let error = find("lateny", Size::Full).unwrap_err().to_string();
        assert!(
            error.contains("throughput, latency, connections, mixed, http, emojivoto, bookinfo, churn, many-svc"),
            "{error}"
        );
    }

    #[test]
    fn manifests_are_readable() {
        let scenario = find("mixed", Size::Quick).unwrap();
        let text = scenario.manifests(Path::new("/opt/a $b/leno"), true, &[]).unwrap();
        let manifests = leno_local::files::parse("lab", &text).unwrap();
        assert_eq!(manifests.warnings, Vec::<String>::new());
        assert_eq!(manifests.objects.len(), 1 + 2 * (3 + 10));
        assert!(text.contains("/opt/a $$b/leno") && text.contains("istio.io/dataplane-mode: ambient"));
        let target = scenario.steps[0].loads[0].aimed_at("10.1.2.3".parse().unwrap(), |_| None).unwrap();
        assert!(matches!(target, Load::Http(load) if load.target == "10.1.2.3:8080".parse().unwrap()));
    }
}
