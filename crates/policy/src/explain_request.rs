//! Why does, or doesn't, a request pass a waypoint? Which policies decide, which rule of a route it follows, and which endpoints
//! it may reach. Calls the functions that the waypoint decides with, so the words are the same.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};
use leno_model::http::{BackendTarget, PolicyAction, TokenKeys};
use leno_model::{AppProtocol, HBONE_PORT, Mesh, Service, Workload};
use serde::{Deserialize, Serialize};

use crate::at_waypoint::policies_at;
use crate::authorization::{Connection, authorize_selected};
use crate::endpoints::{self, Purpose};
use crate::explain_endpoint::{
    EndpointExplanation, Outcome, Party, address_of, closest_first, no_endpoint, of_endpoint, of_endpoints, party,
};
use crate::http::token::{Token, TokenError};
use crate::http::{Chosen, Denied, Guard, Judgement, Keys, Request, Subject, Table, host, path};
use crate::routing::{self, Way};
use crate::waypoint_target::{WaypointTarget, waypoint_target};

/// A request that somebody asks about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// The method.
    pub method: String,
    /// The path, with a query or without.
    pub path: String,
    /// Headers, in order. One called `host` names the host.
    pub headers: Vec<(String, String)>,
}

/// What a waypoint makes of a connection, and of a request if one was asked about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AtWaypoint {
    /// One of the waypoint's pods; the others decide alike.
    pub waypoint: Party,
    /// The request in the form that policies and routes see; `None` if none was asked about, or none is read there.
    pub request: Option<Line>,
    /// Why the waypoint refuses it whatever its policies say, with the status that a client gets.
    pub refused: Option<Refused>,
    /// What the policies decide, in the words of the access log; `None` if they are not asked.
    pub verdict: Option<String>,
    /// Whether that is a refusal.
    #[serde(skip)]
    pub denied: bool,
    /// The policies that are asked.
    pub policies: Vec<PolicyAsked>,
    /// What policies say that are only logged.
    pub logged: Vec<String>,
    /// The rule of a route that it follows; `None` if it follows none.
    pub rule: Option<RuleFollowed>,
    /// What the route answers instead of an endpoint.
    pub answer: Option<Answered>,
    /// Where it may go.
    pub backends: Vec<Backend>,
    /// Other facts for the reader.
    pub notes: Vec<String>,
}

/// A request in its one form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Line {
    pub method: String,
    pub host: String,
    pub path: String,
}

/// A refusal that is no policy's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refused {
    /// The status; `None` if the connection is refused.
    pub status: Option<u16>,
    /// Why.
    pub reason: String,
}

/// A policy that is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PolicyAsked {
    /// `namespace/name`.
    pub policy: String,
    /// `ALLOW`, `DENY` or `AUDIT`.
    pub action: &'static str,
    /// The rule that matches, counted from 1.
    pub rule: Option<usize>,
    /// Whether it is a dry run.
    pub dry_run: bool,
}

/// A rule that is followed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RuleFollowed {
    /// Kind, namespace and name of the route.
    pub route: String,
    /// The rule, as the access log names it.
    pub rule: String,
    /// Which of its matches, counted from 1.
    pub matched: usize,
}

/// What a route answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Answered {
    /// Status.
    pub status: u16,
    /// Headers.
    pub headers: Vec<(String, String)>,
}

/// A backend that may be chosen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Backend {
    /// The service and port, or the pod.
    pub to: String,
    /// Its weight, and the sum of all.
    pub share: (u64, u64),
    /// Path and host that the endpoint is sent, if they are others than the request's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    #[allow(missing_docs, reason = "as for the path")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Why it can't be used, with the status that a client gets.
    pub refused: Option<Refused>,
    /// Each endpoint that may be chosen, the preferred one first.
    pub endpoints: Vec<EndpointExplanation>,
}

/// Explains what the waypoint `own` makes of a connection of `source` that asks for `authority`.
pub(crate) fn explain(
    mesh: &Mesh,
    source: &Workload,
    own: &Arc<Workload>,
    tunnel: SocketAddr,
    authority: &str,
    asked: Option<&Asked>,
) -> AtWaypoint {
    let mut out = AtWaypoint {
        waypoint: party(own),
        request: None,
        refused: None,
        verdict: None,
        denied: false,
        policies: Vec::new(),
        logged: Vec::new(),
        rule: None,
        answer: None,
        backends: Vec::new(),
        notes: Vec::new(),
    };
    let identity = source.identity();
    let source_ip = address_of(source, tunnel.ip());
    let connection =
        Connection { source: identity.as_ref(), source_ip, destination: SocketAddr::new(tunnel.ip(), HBONE_PORT) };
    let own_decision = authorize_selected(mesh, own, &connection);
    if !own_decision.is_allowed() {
        let reason = format!("by the policies that select the waypoint's own pods: {own_decision}");
        out.refused = Some(Refused { status: None, reason });
        return out;
    }
    let target = match waypoint_target(mesh, own, authority) {
        Ok(target) => target,
        Err(error) => {
            out.refused = Some(Refused { status: None, reason: error.to_string() });
            return out;
        }
    };
    let connection = Connection { destination: target.seen_by_policies(), ..connection };
    let policies = policies_at(mesh, own, target.service().map(|service| &service.id));
    // One that is attached to several targets counts once.
    let policies: std::collections::BTreeMap<_, _> =
        policies.into_iter().flat_map(|all| all.values()).map(|policy| (&policy.id, &**policy)).collect();
    let guard = Guard::new(policies.into_values());
    let unread = matches!(target.protocol(), AppProtocol::Tcp | AppProtocol::Tls);
    if unread {
        let says = if asked.is_some() { ", so what was asked about a request plays no part" } else { "" };
        out.notes.push(format!("the Service declares that its port is not HTTP{says}: connections pass unread"));
        judged(&guard, &Subject::new(connection, None), &mut out);
        if out.is_allowed() {
            unrouted(mesh, own, &target, &mut out);
        }
        return out;
    }
    let Some(asked) = asked else {
        not_asked(&guard, mesh, &target, &connection, &mut out);
        return out;
    };
    let headers = match headers(asked) {
        Ok(headers) => headers,
        Err(reason) => return malformed(reason, out),
    };
    let named = asked.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("host")).map(|(_, value)| &**value);
    let default = default_host(&target);
    let named = named.unwrap_or(&default);
    let (raw, query) = match asked.path.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (&*asked.path, None),
    };
    let path = if raw == "*" { Ok("*".into()) } else { path::normalise(raw.as_bytes()) };
    let (path, host) = match (path, host::normalise(named.as_bytes())) {
        (Ok(path), Ok(host)) => (path, host),
        (Err(error), _) => return malformed(error.to_string(), out),
        (_, Err(error)) => return malformed(error.to_string(), out),
    };
    let request = Request {
        method: &asked.method,
        host: &host.name,
        host_port: host.port,
        path: &path,
        query,
        headers: &headers,
        source_namespace: identity.as_ref().map(|identity| &**identity.namespace()),
    };
    out.request = Some(Line { method: asked.method.clone(), host: host.name.to_string(), path: path.to_string() });
    let subject = Subject::new(connection, Some(&request));
    match guard.authenticate(&request, &NotHere, 0) {
        // It has none, which is known.
        Ok(caller) => judged(&guard, &subject.by(&caller), &mut out),
        Err(_) => {
            let note = "its token is not verified here: the waypoint refuses it with status 401 if it is not accepted, and what \
                        policies ask of it is taken not to be so by ALLOW rules, and to be so by DENY rules";
            out.notes.push(note.to_owned());
            judged(&guard, &subject, &mut out);
        }
    }
    if out.is_allowed() {
        follow(mesh, own, &target, &request, &mut out);
    }
    out
}

/// Keys that only waypoints have.
struct NotHere;

impl Keys for NotHere {
    fn made(&self, _: &TokenKeys, _: &Token<'_>) -> Result<bool, TokenError> {
        Err(TokenError::NoKeys("only a waypoint reads them".to_owned()))
    }
}

impl AtWaypoint {
    fn is_allowed(&self) -> bool {
        self.refused.is_none() && !self.denied
    }

    /// What it comes to.
    pub(crate) fn outcome(&self) -> Outcome {
        if self.refused.is_some() {
            return Outcome::Refused;
        }
        if !self.is_allowed() {
            return Outcome::Denied;
        }
        if self.answer.is_some() {
            return Outcome::AnsweredByRoute;
        }
        let mut all = self.backends.iter().map(|backend| match backend.refused {
            Some(_) => Outcome::Refused,
            None => of_endpoints(&backend.endpoints),
        });
        let Some(first) = all.next() else { return Outcome::AtWaypoint };
        if all.all(|other| other == first) { first } else { Outcome::Mixed }
    }
}

fn malformed(reason: String, mut out: AtWaypoint) -> AtWaypoint {
    out.refused = Some(Refused { status: Some(400), reason });
    out
}

/// The host of a client that uses the Service's name.
fn default_host(target: &WaypointTarget) -> String {
    match target {
        WaypointTarget::Service { service, port: 80, .. } => service.id.hostname.to_string(),
        WaypointTarget::Service { service, port, .. } => format!("{}:{port}", service.id.hostname),
        WaypointTarget::Pod { address, .. } => address.to_string(),
    }
}

fn headers(asked: &Asked) -> Result<HeaderMap, String> {
    let mut out = HeaderMap::new();
    for (name, value) in asked.headers.iter().filter(|(name, _)| !name.eq_ignore_ascii_case("host")) {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| format!("{name:?} is no header's name"))?;
        let value = HeaderValue::from_str(value).map_err(|_| format!("{value:?} is no header's value"))?;
        out.append(name, value);
    }
    Ok(out)
}

/// Asks the policies.
fn judged(guard: &Guard, subject: &Subject<'_>, out: &mut AtWaypoint) {
    if guard.is_empty() {
        out.verdict = Some("allowed: no policy with targetRefs is about it".to_owned());
        return;
    }
    let Judgement { verdict, notes } = guard.judge(subject);
    out.verdict = Some(match &verdict {
        Ok(Some(by)) => format!("allowed by rule {} of policy {}", by.rule + 1, by.policy),
        Ok(None) => "allowed: no ALLOW policy is attached and no DENY policy matches".to_owned(),
        Err(denied) => denied.to_string(),
    });
    out.denied = verdict.is_err();
    if out.denied && subject.has_request() {
        out.notes.push(format!("its client gets status 403 and the body {:?}", Denied::TEXT));
    }
    out.logged = notes.iter().map(|note| format!("policy {} {}", note.policy, note.says)).collect();
    let asked = guard.examine(subject).map(|(action, policy, dry_run, rule)| PolicyAsked {
        policy: policy.to_string(),
        action: action_name(action),
        rule: rule.map(|rule| rule + 1),
        dry_run,
    });
    out.policies = asked.collect();
}

fn action_name(action: PolicyAction) -> &'static str {
    match action {
        PolicyAction::Allow => "ALLOW",
        PolicyAction::Deny => "DENY",
        PolicyAction::Audit => "AUDIT",
        PolicyAction::Authenticate => "AUTHENTICATE",
    }
}

/// No request was asked about: what there is that looks at requests.
fn not_asked(guard: &Guard, mesh: &Mesh, target: &WaypointTarget, connection: &Connection<'_>, out: &mut AtWaypoint) {
    // Which policies there are is all that counts here; whether they match depends on the request.
    let subject = Subject::new(*connection, None);
    let names: Vec<String> =
        guard.examine(&subject).map(|(action, policy, ..)| format!("{} {policy}", action_name(action))).collect();
    let routes = target.routes(mesh).map_or(0, |routes| routes.len());
    out.notes.push(match (&names[..], routes) {
        ([], 0) => "no policy with targetRefs and no route is about it: every request goes to the Service's endpoints"
            .to_owned(),
        ([], routes) => format!("requests follow {routes} route(s); --method and --path say which rule one follows"),
        (names, _) => format!(
            "each request is asked {}; --method, --path and --header say which of them matches it",
            names.join(", ")
        ),
    });
}

/// What the routes make of a request.
fn follow(mesh: &Mesh, own: &Arc<Workload>, target: &WaypointTarget, request: &Request<'_>, out: &mut AtWaypoint) {
    let table = target.routed().zip(target.routes(mesh));
    let table = table.map(|((id, port), routes)| Table::new(id, port, routes.values().map(|route| &**route)));
    let Some(table) = table.filter(|table| !table.is_empty()) else { return unrouted(mesh, own, target, out) };
    let decision = table.decide(request, &mut || 0);
    out.rule = decision.chosen.as_ref().map(followed);
    match decision.outcome {
        crate::http::Outcome::Unrouted => unrouted(mesh, own, target, out),
        crate::http::Outcome::Answer(answer) => {
            let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
            let headers = answer.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
            out.answer = Some(Answered { status: answer.status, headers });
        }
        // One backend of several can't be used; the others are told of, too.
        crate::http::Outcome::Refuse(refusal @ crate::http::Refusal::Backend { .. }) => match &decision.chosen {
            Some(chosen) => to_backends(mesh, own, chosen, None, out),
            None => out.refused = Some(Refused { status: Some(refusal.status()), reason: refusal.to_string() }),
        },
        crate::http::Outcome::Refuse(refusal) => {
            out.refused = Some(Refused { status: Some(refusal.status()), reason: refusal.to_string() });
        }
        crate::http::Outcome::Forward(forward) => {
            for mirror in &forward.mirrors {
                out.notes.push(format!("a copy of some requests goes to {}:{}", mirror.service, mirror.port));
            }
            if let Some(chosen) = &decision.chosen {
                let host = forward.host.as_ref().and_then(|host| host.to_str().ok()).map(str::to_owned);
                to_backends(mesh, own, chosen, Some((forward.path.clone(), host)), out);
            }
        }
    }
}

fn followed(chosen: &Chosen) -> RuleFollowed {
    RuleFollowed {
        route: chosen.route().to_string(),
        rule: chosen.label().to_string(),
        matched: chosen.match_index() + 1,
    }
}

fn to_backends(
    mesh: &Mesh,
    own: &Arc<Workload>,
    chosen: &Chosen,
    changed: Option<(Option<String>, Option<String>)>,
    out: &mut AtWaypoint,
) {
    let total = chosen.backends().map(|(weight, _)| u64::from(weight)).sum();
    let (path, host) = changed.unwrap_or_default();
    for (weight, target) in chosen.backends().filter(|(weight, _)| *weight > 0) {
        let mut backend = Backend {
            to: String::new(),
            share: (weight.into(), total),
            path: path.clone(),
            host: host.clone(),
            refused: None,
            endpoints: Vec::new(),
        };
        match target {
            BackendTarget::Invalid(problem) => {
                backend.to = "a backend that can't be used".to_owned();
                backend.refused = Some(Refused { status: Some(500), reason: problem.to_string() });
            }
            BackendTarget::Service { service: id, port } => {
                backend.to = format!("{id}:{port}");
                match mesh.service(id) {
                    Some(service) => of_service(mesh, own, service, *port, None, &mut backend),
                    None => {
                        let reason = format!("the mesh does not know service {id}");
                        backend.refused = Some(Refused { status: Some(500), reason });
                    }
                }
            }
        }
        out.backends.push(backend);
    }
}

/// Where what follows no route goes.
fn unrouted(mesh: &Mesh, own: &Arc<Workload>, target: &WaypointTarget, out: &mut AtWaypoint) {
    let mut backend =
        Backend { to: String::new(), share: (1, 1), path: None, host: None, refused: None, endpoints: Vec::new() };
    match target {
        WaypointTarget::Service { service, port, address } => {
            backend.to = format!("{}:{port}", service.id);
            of_service(mesh, own, service, *port, Some(*address), &mut backend);
        }
        WaypointTarget::Pod { workload, address, .. } => {
            backend.to = format!("pod {}/{} at {address}", workload.namespace, workload.name);
            match routing::way(mesh, own, *address, &mut || 0) {
                Ok(Way::Workload(workload)) => {
                    let route = routing::to_candidate(None, &routing::direct(workload, *address));
                    add(mesh, own, route, &mut backend);
                }
                Ok(_) => {
                    let reason = "the address is no longer the pod's".to_owned();
                    backend.refused = Some(Refused { status: Some(503), reason });
                }
                Err(error) => backend.refused = Some(Refused { status: Some(503), reason: error.to_string() }),
            }
        }
    }
    out.backends.push(backend);
}

fn of_service(
    mesh: &Mesh,
    own: &Arc<Workload>,
    service: &Arc<Service>,
    port: u16,
    address: Option<std::net::IpAddr>,
    backend: &mut Backend,
) {
    let like = address.or_else(|| service.addresses.first().map(|own| own.address));
    let like = like.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
    let (candidates, counts) = endpoints::candidates(mesh, own, service, port, Purpose::Service, like);
    if candidates.is_empty() || service.not_understood.is_some() {
        backend.refused = Some(Refused { status: Some(503), reason: no_endpoint(service, port, counts).to_string() });
        return;
    }
    for candidate in closest_first(candidates) {
        add(mesh, own, routing::to_candidate(Some(service), &candidate), backend);
    }
}

fn add(mesh: &Mesh, own: &Arc<Workload>, route: Result<routing::Route, routing::RouteError>, backend: &mut Backend) {
    match route {
        Ok(route) => backend.endpoints.push(of_endpoint(mesh, own, route)),
        Err(error) => backend.refused = Some(Refused { status: Some(503), reason: error.to_string() }),
    }
}

#[cfg(test)]
#[path = "explain_request_tests.rs"]
mod tests;
