//! What becomes of a Gateway or a GatewayClass, in the words of the Gateway API's status: conditions with their reasons,
//! addresses, and the listeners. Pure: whoever keeps objects writes it into them.

use std::collections::BTreeMap;

use leno_model::Name;
use leno_model::http::RouteKind;
use leno_objects::{GATEWAY_GROUP, Gateway, GatewayClass, HBONE, Kind, Listener, Object, ObjectStore, Pod, Service};

use crate::status::Condition;
use crate::translate::waypoint::GATEWAY_NAME;
use crate::translate::{Options, Translator};

/// The kinds of routes that a listener of a waypoint takes.
const ROUTE_KINDS: [(RouteKind, &str); 4] = [
    (RouteKind::Http, "HTTPRoute"),
    (RouteKind::Grpc, "GRPCRoute"),
    (RouteKind::Tls, "TLSRoute"),
    (RouteKind::Tcp, "TCPRoute"),
];

/// What a status is made from: the objects, and what the mesh makes of them.
#[derive(Debug)]
pub struct Known {
    options: Options,
    store: ObjectStore,
    attached: BTreeMap<(Name, RouteKind), usize>,
}

impl Known {
    /// What a translator knows now.
    pub fn of(translator: &Translator) -> Self {
        Self {
            options: translator.options().clone(),
            store: translator.store().clone(),
            attached: translator.attached_routes(),
        }
    }

    /// The objects.
    pub fn store(&self) -> &ObjectStore {
        &self.store
    }

    /// How many routes of a kind a Gateway is told of.
    fn attached(&self, gateway: &Gateway, kind: RouteKind) -> usize {
        let waypoint = format!("{}/{}", gateway.metadata.namespace, gateway.metadata.name);
        self.attached.get(&(waypoint.into(), kind)).copied().unwrap_or_default()
    }
}

/// The status of a GatewayClass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassStatus {
    /// Its conditions.
    pub conditions: Vec<Condition>,
}

/// The status of a Gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayStatus {
    /// Its conditions.
    pub conditions: Vec<Condition>,
    /// The host name of its Service; `None` while it has none.
    pub hostname: Option<String>,
    /// Its listeners.
    pub listeners: Vec<ListenerStatus>,
}

/// The status of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerStatus {
    /// Its name.
    pub name: String,
    /// The kinds of routes that it takes, of the group [`GATEWAY_GROUP`].
    pub supported_kinds: Vec<&'static str>,
    /// How many routes are in force at the waypoint: those of the services that use it.
    pub attached_routes: usize,
    /// Its conditions.
    pub conditions: Vec<Condition>,
}

impl GatewayStatus {
    /// Says that what the waypoint consists of can't be made.
    pub fn cannot_be_made(&mut self, why: &str) {
        let all = self.conditions.iter_mut().chain(self.listeners.iter_mut().flat_map(|it| &mut it.conditions));
        for condition in all.filter(|condition| condition.kind == "Programmed") {
            *condition = no("Programmed", "NoResources", why);
        }
    }
}

fn yes(kind: &'static str, message: &str) -> Condition {
    Condition::new(kind, true, kind, message)
}

fn no(kind: &'static str, reason: &'static str, message: impl Into<String>) -> Condition {
    Condition::new(kind, false, reason, message)
}

/// The status of a class; `None` if it is another controller's.
pub fn of_class(class: &GatewayClass) -> Option<ClassStatus> {
    if !class.is_of_waypoints() {
        return None;
    }
    let accepted = match &class.spec.parameters_ref {
        None => yes("Accepted", "Gateways of this class are waypoints of Leno"),
        Some(_) => no(
            "Accepted",
            "InvalidParameters",
            "spec.parametersRef is not supported; write spec.infrastructure and annotations on each Gateway",
        ),
    };
    Some(ClassStatus { conditions: vec![accepted] })
}

/// The status of a Gateway; `None` if it is another controller's.
pub fn of_gateway(known: &Known, gateway: &Gateway) -> Option<GatewayStatus> {
    let store = &known.store;
    let class = GatewayClass::get(store, "", &gateway.spec.gateway_class_name);
    if !gateway.is_waypoint(class) {
        return None;
    }
    let listeners: Vec<ListenerStatus> = gateway.spec.listeners.iter().map(|it| listener(known, gateway, it)).collect();
    let (namespace, name) = (&gateway.metadata.namespace, &gateway.metadata.name);
    let refusal = refusal(gateway, class);
    let service = Service::get(store, namespace, name);
    let running = Running::of(store, gateway);
    let programmed = match (&refusal, service) {
        (Some(refusal), _) => no("Programmed", "Invalid", refusal.message.clone()),
        (None, None) => no(
            "Programmed",
            "AddressNotAssigned",
            format!("there is no Service {namespace}/{name} yet, by which the waypoint is reached"),
        ),
        (None, Some(_)) if running.ready == 0 => no(
            "Programmed",
            "Pending",
            format!(
                "none of {} waypoint pods is ready; connections that must pass the waypoint are refused meanwhile",
                running.all
            ),
        ),
        (None, Some(_)) => yes("Programmed", &format!("{} of {} waypoint pods are ready", running.ready, running.all)),
    };
    let accepted = refusal.unwrap_or_else(|| yes("Accepted", "it is a waypoint of Leno"));
    let hostname = service.map(|_| format!("{name}.{namespace}.svc.{}", known.options.cluster_domain));
    let mut listeners = listeners;
    for listener in &mut listeners {
        let usable = listener.conditions.iter().all(|condition| condition.holds || condition.kind == "Conflicted");
        listener.conditions.push(match (usable, programmed.holds) {
            (true, true) => yes("Programmed", "it takes tunnels"),
            (true, false) => no("Programmed", "Pending", programmed.message.clone()),
            (false, _) => no("Programmed", "Invalid", "it is not accepted"),
        });
    }
    Some(GatewayStatus { conditions: vec![accepted, programmed], hostname, listeners })
}

/// Why a Gateway can't be a waypoint as it is written; `None` if it can.
pub fn refusal(gateway: &Gateway, class: Option<&GatewayClass>) -> Option<Condition> {
    let refused = |reason, message: String| Some(no("Accepted", reason, message));
    if let Some(address) = gateway.spec.addresses.first() {
        return refused(
            "UnsupportedAddress",
            format!("spec.addresses asks for {:?}: a waypoint is reached at its Service's name only", address.value),
        );
    }
    if gateway.spec.infrastructure.parameters_ref.is_some() || class.is_some_and(|it| it.spec.parameters_ref.is_some())
    {
        return refused(
            "InvalidParameters",
            "parametersRef is not supported; see the annotations leno.mesh/waypoint-replicas and others".to_owned(),
        );
    }
    if gateway.hbone_listener().is_none() {
        return refused(
            "ListenersNotValid",
            format!("no listener has protocol {HBONE} and port {}", leno_model::HBONE_PORT),
        );
    }
    None
}

fn listener(known: &Known, gateway: &Gateway, listener: &Listener) -> ListenerStatus {
    let accepted = if listener.is_hbone() {
        yes("Accepted", "it is the mesh's way to this waypoint")
    } else {
        no(
            "Accepted",
            "UnsupportedProtocol",
            format!("a waypoint listens with protocol {HBONE} on port {} only", leno_model::HBONE_PORT),
        )
    };
    let asked = &listener.allowed_routes.kinds;
    let takes = |kind: &str| asked.is_empty() || asked.iter().any(|it| it.group == GATEWAY_GROUP && it.kind == kind);
    let supported_kinds = ROUTE_KINDS.into_iter().map(|(_, name)| name).filter(|name| takes(name)).collect();
    let is_known = |kind: &str| ROUTE_KINDS.iter().any(|(_, name)| *name == kind);
    let strange = asked.iter().find(|it| it.group != GATEWAY_GROUP || !is_known(&it.kind));
    let resolved = match strange {
        None => yes("ResolvedRefs", "all that it names is known"),
        Some(kind) => no(
            "ResolvedRefs",
            "InvalidRouteKinds",
            format!("allowedRoutes.kinds names {}, which a waypoint does not take", kind.kind),
        ),
    };
    let conflicted = no("Conflicted", "NoConflicts", "no other listener is in its way");
    // Requests come by this listener and by no other. What it is asked to take does not matter to routes of Services.
    let kinds = ROUTE_KINDS.iter().filter(|_| listener.is_hbone());
    let attached_routes = kinds.map(|(kind, _)| known.attached(gateway, *kind)).sum();
    ListenerStatus {
        name: listener.name.clone(),
        supported_kinds,
        attached_routes,
        conditions: vec![accepted, resolved, conflicted],
    }
}

/// The pods of a waypoint.
struct Running {
    all: usize,
    ready: usize,
}

impl Running {
    fn of(store: &ObjectStore, gateway: &Gateway) -> Self {
        let own = |pod: &&Pod| {
            pod.metadata.label(GATEWAY_NAME) == Some(&*gateway.metadata.name)
                && pod.metadata.deletion_timestamp.is_none()
        };
        let pods = Pod::list(store, &gateway.metadata.namespace).filter(own);
        pods.fold(Self { all: 0, ready: 0 }, |sum, pod| Self {
            all: sum.all + 1,
            ready: sum.ready + usize::from(pod.status.is_ready()),
        })
    }
}

/// The status of an object that has one of these.
pub fn of_object(known: &Known, object: &Object) -> Option<Status> {
    match object {
        Object::Gateway(gateway) => of_gateway(known, gateway).map(Status::Gateway),
        Object::GatewayClass(class) => of_class(class).map(Status::Class),
        _ => None,
    }
}

/// The kinds of objects of which [`of_object`] has a status.
pub const KINDS: [Kind; 2] = [Kind::GatewayClass, Kind::Gateway];

/// A status of one of the [`KINDS`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status {
    /// Of a Gateway.
    Gateway(GatewayStatus),
    /// Of a GatewayClass.
    Class(ClassStatus),
}

#[cfg(test)]
#[path = "gateway_status_tests.rs"]
mod tests;
