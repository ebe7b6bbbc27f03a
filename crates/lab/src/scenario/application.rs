//! What runs in a scenario besides the lab's pods: sample applications, their services, and the waypoints before them. The
//! objects are Kubernetes', for a stage and for a cluster alike.

use std::net::{IpAddr, Ipv4Addr};

use leno_objects::{WAYPOINT_NODE_SELECTOR, WAYPOINT_REPLICAS};
use serde_json::{Value, json};

use super::bookinfo::{self, applications};
use super::emojivoto;
use super::hop;
use super::http::{DIRECT, WAYPOINTED};
use super::pods::{FAR, HOP_SERVER, NAMESPACE};
use super::size::Size;
use super::step::Via;
use crate::load::ServerSpec;

/// An application of a scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Application {
    /// Services of the lab's own server: without a waypoint, and with one.
    Http,
    /// Emojivoto, so many times, and as many times again where a waypoint is measured.
    Emojivoto {
        /// Their number.
        instances: usize,
    },
    /// Bookinfo, as slow as the study's and fast.
    Bookinfo {
        /// The quick one has the fast application alone.
        size: Size,
    },
}

/// Where an application's objects go.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The program of every pod: `leno`.
    pub program: &'a str,
    /// The pods' image. Without one, the program is a file of this machine.
    pub image: Option<&'a str>,
    /// Names of the nodes, the client's first.
    pub nodes: [&'a str; 2],
    /// Whether the subject is a mesh.
    pub in_mesh: bool,
    /// The class of its waypoints.
    pub class: &'a str,
    /// Which ways through the mesh are measured.
    pub ways: [bool; 2],
    /// Whether a waypoint of the mesh is measured as a hop.
    pub hops: bool,
}

impl Place<'_> {
    fn has(&self, via: Via) -> bool {
        self.ways[usize::from(via == Via::Waypoint)]
    }
}

/// The class of Leno's waypoints, and the one of Istio's, which Leno takes for its own.
pub(crate) const WAYPOINT_OF_LENO: &str = "leno-waypoint";
pub(crate) const WAYPOINT_OF_ISTIO: &str = "istio-waypoint";
/// The name of every waypoint.
const WAYPOINT: &str = "waypoint";
/// The first address of services.
const ADDRESSES: [u8; 4] = [10, 96, 200, 1];
/// Where Emojivoto's instances have their waypoint, which is one for all.
const EMOJIVOTO_WAYPOINT: &str = "emojivoto-waypoint";

/// Objects so far.
#[derive(Debug, Default)]
struct Objects {
    all: Vec<Value>,
    /// Services, as `NAME.NAMESPACE`, in the order of their addresses.
    services: Vec<String>,
}

/// A pod with its service.
struct Part<'a> {
    name: &'a str,
    service: &'a str,
    /// Which of the nodes.
    node: usize,
    arguments: Vec<String>,
    /// The port's name, the service's port, and the pod's.
    port: (&'a str, u16, u16),
}

impl Objects {
    fn namespace(&mut self, name: &str, place: &Place<'_>, waypoint: Option<&str>) {
        let mode = if place.in_mesh { "ambient" } else { "none" };
        let mut labels = json!({ "istio.io/dataplane-mode": mode, "app.kubernetes.io/managed-by": "leno-lab" });
        if let Some(of) = waypoint.filter(|_| place.in_mesh) {
            labels["istio.io/use-waypoint"] = json!(WAYPOINT);
            if of != name {
                labels["istio.io/use-waypoint-namespace"] = json!(of);
            }
        }
        self.all
            .push(json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name, "labels": labels } }));
    }

    /// `from` says whose routes and services may use it.
    fn waypoint(&mut self, namespace: &str, place: &Place<'_>, from: &str) {
        if place.in_mesh {
            self.gateway(WAYPOINT, namespace, place, from, json!({}));
        }
    }

    fn gateway(&mut self, name: &str, namespace: &str, place: &Place<'_>, from: &str, annotations: Value) {
        self.all.push(json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "Gateway",
            "metadata": {
                "name": name, "namespace": namespace, "labels": { "istio.io/waypoint-for": "service" },
                "annotations": annotations,
            },
            "spec": {
                "gatewayClassName": place.class,
                "listeners": [{
                    "name": "mesh", "port": 15008, "protocol": "HBONE",
                    "allowedRoutes": { "namespaces": { "from": from } },
                }],
            },
        }));
    }

    fn service(&mut self, name: &str, namespace: &str, app: &str, ports: &[(&str, u16, u16)], waypoint: Option<&str>) {
        let number = u32::from(Ipv4Addr::from(ADDRESSES)) + self.services.len() as u32;
        self.services.push(format!("{name}.{namespace}"));
        let ports: Vec<Value> = ports
            .iter()
            .map(|(name, port, target)| json!({ "name": name, "port": port, "targetPort": target }))
            .collect();
        let labels = waypoint.map_or(json!({}), |name| json!({ "istio.io/use-waypoint": name }));
        self.all.push(json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": { "name": name, "namespace": namespace, "labels": labels },
            "spec": { "clusterIP": Ipv4Addr::from(number), "selector": { "app": app }, "ports": ports },
        }));
    }

    fn part(&mut self, namespace: &str, place: &Place<'_>, part: &Part<'_>) {
        let (_, _, port) = part.port;
        self.service(part.service, namespace, part.name, &[part.port], None);
        self.all.push(json!({
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": { "name": part.name, "namespace": namespace },
        }));
        // A `$` would be taken for a variable.
        let mut command: Vec<String> = vec![place.program.replace('$', "$$")];
        command.extend(part.arguments.iter().map(|word| word.replace('$', "$$")));
        let mut container = json!({
            "name": part.name,
            "readinessProbe": { "tcpSocket": { "port": port }, "periodSeconds": 1 },
        });
        match place.image {
            // The image knows its program.
            Some(image) => {
                container["image"] = json!(image);
                container["imagePullPolicy"] = json!("IfNotPresent");
                container["args"] = json!(command[1..]);
                container["securityContext"] =
                    json!({ "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } });
            }
            None => container["command"] = json!(command),
        }
        self.all.push(json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": part.name, "namespace": namespace, "labels": { "app": part.name } },
            "spec": {
                "nodeName": place.nodes[part.node],
                "serviceAccountName": part.name,
                "terminationGracePeriodSeconds": 0,
                "containers": [container],
            },
        }));
    }
}

fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).into()
}

impl Application {
    /// Everything that is applied before a measurement.
    pub(crate) fn objects(&self, place: &Place<'_>) -> Vec<Value> {
        self.made(place).all
    }

    /// The address of a service, `NAME.NAMESPACE`, on a stage.
    pub(crate) fn address(&self, place: &Place<'_>, service: &str) -> Option<IpAddr> {
        let index = self.made(place).services.iter().position(|known| known == service)?;
        Some(Ipv4Addr::from(u32::from(Ipv4Addr::from(ADDRESSES)) + index as u32).into())
    }

    /// Its services, as `NAME.NAMESPACE`.
    #[cfg(test)]
    pub(super) fn services(&self, place: &Place<'_>) -> Vec<String> {
        self.made(place).services
    }

    fn made(&self, place: &Place<'_>) -> Objects {
        let mut objects = Objects::default();
        match *self {
            Self::Http => services(place, &mut objects),
            Self::Emojivoto { instances } => {
                if place.has(Via::Waypoint) {
                    objects.namespace(EMOJIVOTO_WAYPOINT, place, None);
                    objects.waypoint(EMOJIVOTO_WAYPOINT, place, "All");
                }
                for via in [Via::Nodes, Via::Waypoint].into_iter().filter(|via| place.has(*via)) {
                    (0..instances).for_each(|number| voting(number, via, place, &mut objects));
                }
            }
            Self::Bookinfo { size } => {
                for (is_slow, via) in applications(size).filter(|(_, via)| place.has(*via)) {
                    book(is_slow, via, place, &mut objects);
                }
            }
        }
        objects
    }
}

fn services(place: &Place<'_>, objects: &mut Objects) {
    let ports = ServerSpec::default();
    let ports = [("http", ports.http, ports.http), ("grpc", ports.http2, ports.http2)];
    if place.hops {
        for (name, hop) in hop::SERVICES {
            // Also where no mesh asks for them: the kernel of a node that has services follows connections, and that costs every
            // proxy the same.
            let waypoint = hop::waypoint(name);
            objects.service(name, NAMESPACE, HOP_SERVER, &ports, Some(&*waypoint).filter(|_| place.in_mesh));
            if place.in_mesh {
                // Where the other proxies are, and like them only while it is measured.
                let annotations = json!({
                    WAYPOINT_NODE_SELECTOR: format!("kubernetes.io/hostname={}", place.nodes[0]),
                    WAYPOINT_REPLICAS: "0",
                });
                objects.gateway(&waypoint, NAMESPACE, place, "Same", annotations);
                objects.all.extend(hop::objects(name, hop, ports[0].1));
            }
        }
    }
    for (service, via) in [(DIRECT, Via::Nodes), (WAYPOINTED, Via::Waypoint)] {
        let name = service.split('.').next().unwrap_or_default();
        if place.has(via) {
            let waypoint = (via == Via::Waypoint && place.in_mesh).then_some(WAYPOINT);
            objects.service(name, NAMESPACE, FAR, &ports, waypoint);
        }
    }
    if place.has(Via::Waypoint) {
        objects.waypoint(NAMESPACE, place, "Same");
    }
}

fn voting(number: usize, via: Via, place: &Place<'_>, objects: &mut Objects) {
    let namespace = emojivoto::namespace(number, via);
    objects.namespace(&namespace, place, (via == Via::Waypoint).then_some(EMOJIVOTO_WAYPOINT));
    let web = words(["sample", "web", "--port", "8080", "--emoji"]).into_iter().chain([
        format!("emoji-svc.{namespace}:8080"),
        "--voting".to_owned(),
        format!("voting-svc.{namespace}:8080"),
    ]);
    let grpc = ("grpc", 8080, 8080);
    for part in [
        Part { name: "web", service: "web-svc", node: 1, arguments: web.collect(), port: ("http", 80, 8080) },
        Part { name: "emoji", service: "emoji-svc", node: 0, arguments: words(["sample", "emoji"]), port: grpc },
        Part { name: "voting", service: "voting-svc", node: 0, arguments: words(["sample", "voting"]), port: grpc },
    ] {
        objects.part(&namespace, place, &part);
    }
}

fn book(is_slow: bool, via: Via, place: &Place<'_>, objects: &mut Objects) {
    let namespace = bookinfo::namespace(is_slow, via);
    objects.namespace(&namespace, place, (via == Via::Waypoint).then_some(&*namespace));
    if via == Via::Waypoint {
        objects.waypoint(&namespace, place, "Same");
        if place.in_mesh {
            objects.all.push(json!({
                "apiVersion": "security.istio.io/v1",
                "kind": "AuthorizationPolicy",
                "metadata": { "name": "productpage-by-path", "namespace": namespace },
                "spec": {
                    "targetRefs": [{ "kind": "Service", "group": "", "name": "productpage" }],
                    "action": "ALLOW",
                    "rules": [{ "to": [{ "operation": { "methods": ["GET"], "paths": ["/productpage*"] } }] }],
                },
            }));
        }
    }
    let port = ("http", 9080, 9080);
    let work = if is_slow { SLOW_MICROS } else { "0" };
    for (name, node, more) in [
        ("productpage", 1, words(["--work-micros", work])),
        ("details", 0, Vec::new()),
        ("reviews", 0, Vec::new()),
        ("ratings", 1, Vec::new()),
    ] {
        let mut arguments = words(["sample", "bookinfo", name, "--namespace"]);
        arguments.push(namespace.clone());
        arguments.extend(more);
        objects.part(&namespace, place, &Part { name, service: name, node, arguments, port });
    }
}

/// What a page takes of a core: the study's application ended at about 157 requests a second, all on one core.
const SLOW_MICROS: &str = "6300";

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const PLACE: Place<'_> = Place {
        program: "/a $b/leno",
        image: None,
        nodes: ["node-1", "node-2"],
        in_mesh: true,
        class: WAYPOINT_OF_LENO,
        ways: [true, true],
        hops: true,
    };

    #[test]
    fn services_have_addresses_of_their_own() {
        for application in
            [Application::Http, Application::Emojivoto { instances: 10 }, Application::Bookinfo { size: Size::Full }]
        {
            let objects = application.objects(&PLACE);
            let services = objects.iter().filter(|object| object["kind"] == "Service");
            let mut seen = BTreeSet::new();
            for service in services {
                let name =
                    format!("{}.{}", service["metadata"]["name"], service["metadata"]["namespace"]).replace('"', "");
                let address = application.address(&PLACE, &name).unwrap();
                assert_eq!(service["spec"]["clusterIP"], address.to_string());
                assert!(seen.insert(address), "{name}");
            }
            assert!(!seen.is_empty());
            assert_eq!(application.address(&PLACE, "nobody.nowhere"), None);
        }
    }

    /// What is not measured does not run, and without a mesh nothing of one is asked for.
    #[test]
    fn only_what_is_measured() {
        let application = Application::Emojivoto { instances: 3 };
        let kinds = |place: &Place<'_>, kind: &str| {
            application.objects(place).iter().filter(|object| object["kind"] == kind).count()
        };
        assert_eq!((kinds(&PLACE, "Pod"), kinds(&PLACE, "Gateway")), (18, 1));
        let l4 = Place { ways: [true, false], ..PLACE };
        assert_eq!((kinds(&l4, "Pod"), kinds(&l4, "Gateway")), (9, 0));
        let none = Place { in_mesh: false, ..PLACE };
        assert_eq!((kinds(&none, "Pod"), kinds(&none, "Gateway")), (18, 0));
        let text = serde_json::to_string(&application.objects(&none)).unwrap();
        assert!(!text.contains("ambient") && !text.contains("use-waypoint") && text.contains("/a $$b/leno"), "{text}");
    }
}
