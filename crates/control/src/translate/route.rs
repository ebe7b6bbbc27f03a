//! Translates HTTPRoute, GRPCRoute, TLSRoute and TCPRoute, and says of each parent whether the route is in force there.
//!
//! A route is followed to the letter or not at all: one unknown value in one rule, and the version before stays in force. A
//! backend that can't be used does not count as such; requests that would go there are answered with status 500, and
//! connections refused, as the Gateway API has it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::UNIX_EPOCH;

use leno_model::http::{BackendTarget, Parent, Route, RouteKind, RouteName, Rule};
use leno_model::{AppProtocol, Mesh, Name, ServiceName};
use leno_objects::{
    BackendReference, GRPCRoute, HTTPRoute, HTTPRouteRule, ObjectKey, ObjectMeta, ParentReference, RATE_LIMIT,
    ReferenceGrant, Service, ServiceType, SessionAffinity, TCPRoute, TLSRoute,
};
use leno_policy::http::RuleError;

use super::index::Known;
use super::rate;
use super::route_refs::is_service;
use super::route_rules::{Refs, connection_rule, grpc_rule, http_rule};
use super::service_name::service_name;
use super::waypoint::waypoints_of;
use crate::status::{Condition, ParentStatus};

const GATEWAY_API: &str = "gateway.networking.k8s.io";

/// What a route object is made of, whatever its kind.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    Http(&'a HTTPRoute),
    Grpc(&'a GRPCRoute),
    Tls(&'a TLSRoute),
    Tcp(&'a TCPRoute),
}

/// What becomes of a route object.
#[derive(Debug, Default)]
pub(super) struct Translated {
    /// The route; `None` if it is in force nowhere.
    pub(super) route: Option<Route>,
    /// Whether the last good version stays in force, because this one can't be followed.
    pub(super) keep_last: bool,
    pub(super) parents: Vec<ParentStatus>,
    pub(super) warnings: Vec<String>,
}

impl<'a> Source<'a> {
    /// The route with this key.
    pub(super) fn get(known: Known<'a>, key: &ObjectKey) -> Option<Self> {
        use leno_objects::Object;
        match &**known.store.get(key)? {
            Object::HTTPRoute(route) => Some(Self::Http(route)),
            Object::GRPCRoute(route) => Some(Self::Grpc(route)),
            Object::TLSRoute(route) => Some(Self::Tls(route)),
            Object::TCPRoute(route) => Some(Self::Tcp(route)),
            _ => None,
        }
    }

    fn kind(self) -> RouteKind {
        match self {
            Self::Http(_) => RouteKind::Http,
            Self::Grpc(_) => RouteKind::Grpc,
            Self::Tls(_) => RouteKind::Tls,
            Self::Tcp(_) => RouteKind::Tcp,
        }
    }

    fn metadata(self) -> &'a ObjectMeta {
        match self {
            Self::Http(route) => &route.metadata,
            Self::Grpc(route) => &route.metadata,
            Self::Tls(route) => &route.metadata,
            Self::Tcp(route) => &route.metadata,
        }
    }

    fn parent_refs(self) -> &'a [ParentReference] {
        match self {
            Self::Http(route) => &route.spec.parent_refs,
            Self::Grpc(route) => &route.spec.parent_refs,
            Self::Tls(route) => &route.spec.parent_refs,
            Self::Tcp(route) => &route.spec.parent_refs,
        }
    }

    fn not_understood(self) -> &'a [String] {
        match self {
            Self::Http(route) => &route.not_understood,
            Self::Grpc(route) => &route.not_understood,
            Self::Tls(route) => &route.not_understood,
            Self::Tcp(route) => &route.not_understood,
        }
    }

    /// The names of servers that it is for.
    fn server_names(self) -> Vec<Name> {
        match self {
            Self::Tls(route) => route.spec.hostnames.iter().map(|name| name.to_ascii_lowercase().into()).collect(),
            _ => Vec::new(),
        }
    }

    /// Whether it has host names that mean nothing.
    fn has_hostnames(self) -> bool {
        match self {
            Self::Http(route) => !route.spec.hostnames.is_empty(),
            Self::Grpc(route) => !route.spec.hostnames.is_empty(),
            Self::Tls(_) | Self::Tcp(_) => false,
        }
    }

    /// The rules, or what is wrong with each.
    fn rules(self, refs: &mut dyn Refs) -> Vec<Result<Rule, String>> {
        match self {
            Self::Http(route) => {
                // What the API's definition has as its default.
                let one = [HTTPRouteRule::default()];
                let rules = route.spec.rules.as_deref().unwrap_or(&one);
                rules.iter().map(|rule| http_rule(rule, refs)).collect()
            }
            Self::Grpc(route) => route.spec.rules.iter().map(|rule| grpc_rule(rule, refs)).collect(),
            Self::Tls(route) => route.spec.rules.iter().map(|rule| Ok(connection_rule(rule, refs))).collect(),
            Self::Tcp(route) => route.spec.rules.iter().map(|rule| Ok(connection_rule(rule, refs))).collect(),
        }
    }
}

/// The name of a route in the mesh.
pub(super) fn route_name(key: &ObjectKey) -> Option<RouteName> {
    let kind = match key.kind {
        leno_objects::Kind::HTTPRoute => RouteKind::Http,
        leno_objects::Kind::GRPCRoute => RouteKind::Grpc,
        leno_objects::Kind::TLSRoute => RouteKind::Tls,
        leno_objects::Kind::TCPRoute => RouteKind::Tcp,
        _ => return None,
    };
    Some(RouteName { kind, namespace: key.namespace.clone(), name: key.name.clone() })
}

/// What counts instead of a version that can't be followed. An earlier control plane may have known one that this one does not.
pub(super) fn instead(is_held: bool) -> &'static str {
    if is_held { "the version before stays in force" } else { "it has no effect, because no version before is known" }
}

/// The waypoints that the route's requests pass, as discovery knows them: `namespace/service account`.
pub(super) fn readers(mesh: &Mesh, route: &Route) -> BTreeSet<Name> {
    let services = route.parents.iter().filter_map(|parent| mesh.service(&parent.service));
    services.flat_map(|service| waypoints_of(service)).collect()
}

/// References of a route that could not be used, with the reason's word.
struct Resolving<'a> {
    known: Known<'a>,
    kind: RouteKind,
    namespace: &'a str,
    parents: Vec<&'a str>,
    problems: Vec<(&'static str, String)>,
}

impl Resolving<'_> {
    /// Whether a grant in `namespace` lets the route refer to the Service there. The parents' own namespace needs none: who
    /// sends requests there reaches it anyway.
    fn granted(&self, namespace: &str, name: &str) -> bool {
        if namespace == self.namespace || self.parents.iter().all(|parent| *parent == namespace) {
            return true;
        }
        let kind = self.kind.to_string();
        ReferenceGrant::list(self.known.store, namespace).any(|grant| {
            let from = |from: &leno_objects::ReferenceGrantFrom| {
                from.group == GATEWAY_API && from.kind == kind && from.namespace == self.namespace
            };
            let to = |to: &leno_objects::ReferenceGrantTo| {
                to.group.is_empty() && to.kind == "Service" && to.name.as_deref().is_none_or(|only| only == name)
            };
            grant.spec.from.iter().any(from) && grant.spec.to.iter().any(to)
        })
    }

    fn found(&self, to: &BackendReference) -> Result<BackendTarget, (&'static str, String)> {
        let kind = to.kind.as_deref().unwrap_or("Service");
        if kind != "Service" || !to.group.is_empty() {
            return Err(("InvalidKind", format!("backend {kind} {} is not a Service", to.name)));
        }
        let namespace = if to.namespace.is_empty() { self.namespace } else { &*to.namespace };
        let what = format!("Service {namespace}/{}", to.name);
        if !self.granted(namespace, &to.name) {
            return Err((
                "RefNotPermitted",
                format!(
                    "{what} is in another namespace, and no ReferenceGrant there permits this route to refer to it"
                ),
            ));
        }
        let Some(service) = Service::get(self.known.store, namespace, &to.name) else {
            return Err(("BackendNotFound", format!("{what} does not exist")));
        };
        if service.spec.kind == ServiceType::ExternalName {
            return Err(("InvalidKind", format!("{what} is an ExternalName, which is not part of the mesh")));
        }
        let Some(port) = to.port else {
            return Err(("BackendNotFound", format!("the reference to {what} names no port")));
        };
        if !service.spec.ports.iter().any(|one| one.port == port) {
            return Err(("BackendNotFound", format!("{what} has no port {port}")));
        }
        Ok(BackendTarget::Service { service: service_name(self.known.options, namespace, &to.name), port: port.0 })
    }
}

impl Refs for Resolving<'_> {
    fn target(&mut self, to: &BackendReference) -> BackendTarget {
        self.found(to).unwrap_or_else(|(reason, message)| {
            self.problems.push((reason, message.clone()));
            BackendTarget::Invalid(message.into())
        })
    }

    fn keeps_clients(&self, to: &BackendReference) -> bool {
        let namespace = if to.namespace.is_empty() { self.namespace } else { &*to.namespace };
        let service = Service::get(self.known.store, namespace, &to.name);
        service.is_some_and(|service| service.spec.session_affinity == SessionAffinity::ClientIP)
    }
}

/// Translates a route.
pub(super) fn route(known: Known<'_>, mesh: &Mesh, source: Source<'_>) -> Translated {
    let metadata = source.metadata();
    let namespace = &*metadata.namespace;
    let mut out = Translated::default();
    // The group's default is the Gateway API's own, so leaving it out is the usual slip.
    for parent in source.parent_refs().iter().filter(|it| it.kind.as_deref() == Some("Service") && !is_service(it)) {
        let named = parent.group.as_deref().unwrap_or(GATEWAY_API);
        out.warnings.push(format!(
            "parent Service {}: its group is {named}, which has no Services, so the route has NO effect there; write group: \"\"",
            parent.name
        ));
    }
    let ours: Vec<&ParentReference> = source
        .parent_refs()
        .iter()
        .filter(|parent| is_service(parent) || parent.kind.as_deref() == Some("ServiceEntry"))
        .collect();
    if ours.is_empty() {
        // It is for somebody's gateways.
        return out;
    }
    let in_namespace = |parent: &'_ ParentReference| {
        if parent.namespace.is_empty() { namespace.to_owned() } else { parent.namespace.clone() }
    };
    let namespaces: Vec<String> = ours.iter().map(|parent| in_namespace(parent)).collect();
    let mut refs = Resolving {
        known,
        kind: source.kind(),
        namespace,
        parents: namespaces.iter().map(String::as_str).collect(),
        problems: Vec::new(),
    };
    let created = metadata.creation_timestamp.and_then(|at| at.0.duration_since(UNIX_EPOCH).ok());
    let mut route = Route {
        id: RouteName { kind: source.kind(), namespace: metadata.namespace.clone(), name: metadata.name.clone() },
        created: created.map(|since| since.as_secs()).unwrap_or_default(),
        parents: Vec::new(),
        hostnames: source.server_names(),
        rules: Vec::new(),
        not_understood: None,
    };
    let rate = rate::of(metadata);
    if !source.kind().is_of_requests() && !matches!(rate, Ok(None)) {
        out.warnings.push(format!("annotation {RATE_LIMIT} has no effect on a {}: it counts requests", source.kind()));
    }
    // Mistakes by the rule that they are in, and the places of the rules that were understood.
    let (mut problems, mut places) = (BTreeMap::new(), Vec::new());
    for (index, rule) in source.rules(&mut refs).into_iter().enumerate() {
        match rule {
            Ok(rule) => {
                route.rules.push(Rule { rate: rate.as_ref().ok().copied().flatten(), ..rule });
                places.push(index);
            }
            Err(problem) => {
                problems.insert(index, vec![problem]);
            }
        }
    }
    let (mut reason, count) = ("UnsupportedValue", places.len() + problems.len());
    if source.not_understood().is_empty()
        && let Err(unfit) = leno_policy::http::check(&route)
    {
        if problems.is_empty() {
            reason = reason_for(&unfit);
        }
        for (index, error) in unfit {
            problems.entry(places.get(index).copied().unwrap_or(index)).or_default().push(error.to_string());
        }
    }
    let mut texts = Vec::new();
    let bad_rate = rate.err().filter(|_| source.kind().is_of_requests());
    // Whether some of its rules could be followed, if others can't.
    let partly = match source.not_understood() {
        [] => !problems.is_empty() && problems.len() < count && bad_rate.is_none(),
        missing => {
            texts.push(format!("not understood by this version of Leno: {}", missing.join("; ")));
            false
        }
    };
    if let Some(problem) = bad_rate {
        reason = "UnsupportedValue";
        texts.push(problem);
    }
    for (index, problems) in problems {
        texts.extend(problems.into_iter().map(|problem| format!("spec.rules[{index}]: {problem}")));
    }
    let refused = (!texts.is_empty()).then(|| (reason, texts.join("; ")));
    let resolved = match refs.problems.split_first() {
        None => Condition::new("ResolvedRefs", true, "ResolvedRefs", "all references lead to something"),
        Some(((reason, first), rest)) => {
            let all = std::iter::once(first).chain(rest.iter().map(|(_, problem)| problem));
            let all = all.map(String::as_str).collect::<Vec<_>>().join("; ");
            let then = match source.kind().is_of_requests() {
                _ if refused.is_some() => "",
                true => ": requests that would go there get status 500",
                false => ": connections that would go there are refused",
            };
            Condition::new("ResolvedRefs", false, reason, format!("{all}{then}"))
        }
    };
    for reference in ours {
        let attached = match &refused {
            Some((reason, problem)) => {
                out.keep_last = true;
                let then = instead(mesh.route(&route.id).is_some());
                let besides = attach(known, mesh, source, reference).err();
                let besides = besides.map(|(_, why)| format!(". Besides, {why}")).unwrap_or_default();
                Err((*reason, format!("{problem}; the route is not followed, not even in part, and {then}{besides}")))
            }
            None => attach(known, mesh, source, reference),
        };
        let accepted = match attached {
            Ok((parent, mut message)) => {
                let guarded = mesh.service(&parent.service).is_some_and(|service| service.waypoint.is_some());
                if !guarded {
                    message = format!(
                        "no waypoint stands before Service {}, so the route has no effect there until the Service or its \
                         Namespace has the label istio.io/use-waypoint",
                        parent.service
                    );
                    out.warnings.push(message.clone());
                }
                if !route.parents.contains(&parent) {
                    route.parents.push(parent);
                }
                Condition::new("Accepted", true, "Accepted", message)
            }
            Err((reason, message)) => Condition::new("Accepted", false, reason, message),
        };
        let mut conditions = vec![accepted, resolved.clone()];
        if let Some((_, problem)) = refused.as_ref().filter(|_| partly) {
            // The Gateway API wants these words at the beginning.
            let message = format!("Fall Back to the version before, if there is one: {problem}");
            conditions.push(Condition::new("PartiallyInvalid", true, "UnsupportedValue", message));
        }
        out.parents.push(ParentStatus { parent: reference.clone(), conditions });
    }
    for parent in &out.parents {
        let port = parent.parent.port.map(|port| format!(":{port}")).unwrap_or_default();
        let name = format!("parent {} {}{port}", parent.parent.kind.as_deref().unwrap_or_default(), parent.parent.name);
        for condition in parent.conditions.iter().filter(|condition| !condition.holds) {
            let finding = format!("{name}: {} is False ({}): {}", condition.kind, condition.reason, condition.message);
            out.warnings.push(finding);
        }
    }
    if source.has_hostnames() {
        out.warnings.push(
            "spec.hostnames has no effect where the parent is a Service (Gateway API, GEP-1294); match on the header Host"
                .to_owned(),
        );
    }
    out.route = (!route.parents.is_empty() && refused.is_none()).then_some(route);
    out
}

fn reason_for(problems: &[(usize, RuleError)]) -> &'static str {
    if problems.iter().all(|(_, error)| matches!(error, RuleError::TwoTargets)) {
        "IncompatibleFilters"
    } else {
        "UnsupportedValue"
    }
}

/// The parent in the mesh, and a message; or the reason why the route can't belong to it.
fn attach(
    known: Known<'_>,
    mesh: &Mesh,
    source: Source<'_>,
    reference: &ParentReference,
) -> Result<(Parent, String), (&'static str, String)> {
    if !is_service(reference) {
        let kind = reference.kind.as_deref().unwrap_or("Gateway");
        return Err(("InvalidKind", format!("a route can't belong to a {kind}, only to a Service")));
    }
    let own = &*source.metadata().namespace;
    let namespace = if reference.namespace.is_empty() { own } else { &*reference.namespace };
    let what = format!("Service {namespace}/{}", reference.name);
    let none = |message: String| Err(("NoMatchingParent", message));
    let Some(service) = Service::get(known.store, namespace, &reference.name) else {
        return none(format!("{what} does not exist"));
    };
    if service.spec.kind == ServiceType::ExternalName {
        return none(format!("{what} is an ExternalName, which is not part of the mesh"));
    }
    let mut ports = service.spec.ports.iter();
    let port = match (reference.port, reference.section_name.as_deref().filter(|name| !name.is_empty())) {
        (None, None) => None,
        (wanted, section) => {
            let fits = |one: &&leno_objects::ServicePort| {
                wanted.is_none_or(|port| one.port == port) && section.is_none_or(|name| one.name == name)
            };
            match ports.find(fits) {
                Some(found) => Some(found.port.0),
                None => return none(format!("{what} has no such port")),
            }
        }
    };
    if let Some(other) = before_it(known, source.kind(), namespace, (&reference.name, port), own) {
        return Err(("Conflicted", format!("{other} belongs to the same port of {what}, and goes before this route")));
    }
    let service = service_name(known.options, namespace, &reference.name);
    if !source.kind().is_of_requests() && only_requests(mesh, &service, port) {
        return none(format!(
            "{what} declares that its port is HTTP, and requests follow HTTPRoutes; appProtocol: tcp on the port would \
             let its connections pass unread"
        ));
    }
    let things = if source.kind().is_of_requests() { "requests" } else { "connections" };
    let consumer = (namespace != own).then(|| Name::from(own));
    let message = match &consumer {
        None => format!("in force for all {things} to {what}"),
        Some(own) => format!("in force for {things} from namespace {own} to {what}"),
    };
    Ok((Parent { service, port, consumer }, message))
}

/// Whether HTTP is declared for the port, or for all ports of the service if there is none.
fn only_requests(mesh: &Mesh, service: &ServiceName, port: Option<u16>) -> bool {
    let Some(service) = mesh.service(service) else { return false };
    let is_http =
        |protocol: AppProtocol| matches!(protocol, AppProtocol::Http11 | AppProtocol::Http2 | AppProtocol::Grpc);
    let mut ports = service.tcp_ports().filter(|one| port.is_none_or(|port| one.service_port == port)).peekable();
    ports.peek().is_some() && ports.all(|one| is_http(one.app_protocol))
}

/// A route of a kind that goes before `kind`, and that belongs to a port of the service for the same requests or connections.
fn before_it(
    known: Known<'_>,
    kind: RouteKind,
    namespace: &str,
    (service, port): (&str, Option<u16>),
    own: &str,
) -> Option<String> {
    let first = match kind {
        RouteKind::Http => RouteKind::Grpc,
        RouteKind::Tcp => RouteKind::Tls,
        RouteKind::Grpc | RouteKind::Tls => return None,
    };
    known.index.routes_of(namespace, service).find_map(|key| {
        let other = Source::get(known, key).filter(|other| other.kind() == first)?;
        let of_other = &*other.metadata().namespace;
        // A producer's route is for other requests than a consumer's.
        let same_requests = of_other == own;
        let here = |parent: &ParentReference| {
            let there = if parent.namespace.is_empty() { of_other } else { &*parent.namespace };
            let overlaps = port.is_none() || parent.port.is_none_or(|other| Some(other.0) == port);
            is_service(parent) && there == namespace && parent.name == service && overlaps
        };
        let conflicts = same_requests && other.not_understood().is_empty() && other.parent_refs().iter().any(here);
        conflicts.then(|| format!("{first} {of_other}/{}", other.metadata().name))
    })
}
