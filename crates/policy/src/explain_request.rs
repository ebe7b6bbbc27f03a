//! Why does, or doesn't, a request pass a waypoint? Which policies decide, which rule of a route it follows, and which endpoints
//! it may reach. Calls the functions that the waypoint decides with, so the words are the same.

use std::net::SocketAddr;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};
use leno_model::http::{BackendTarget, CheckedBody, PolicyAction};
use leno_model::{AppProtocol, HBONE_PORT, Mesh, Service, Workload};
use serde::{Deserialize, Serialize};

use crate::at_waypoint::{policies_at, policies_of_backend};
use crate::authorization::{Connection, authorize_selected};
use crate::connections::{Connections, Group};
use crate::endpoints::{self, Purpose};
use crate::explain_endpoint::{
    EndpointExplanation, Outcome, Party, address_of, closest_first, no_endpoint, of_endpoint, of_endpoints, party,
};
use crate::http::authorizer::service;
use crate::http::{Caller, Chosen, Denied, Guard, Judgement, Request, Subject, Table, host, path};
use crate::routing::{self, Way};
use crate::server_name::ServerName;
use crate::waypoint::{addressed, any_address, beyond};
use crate::waypoint_target::{WaypointTarget, waypoint_target};
use crate::{explain_defaults, explain_endpoint_policy, explain_token};

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
    /// Whether external authorisers decide before all policies. They are not asked here.
    pub asks_authorizers: bool,
    /// The issuer of the request's token, which is not verified here; `None` if it has none, or nobody looks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unverified_token_of: Option<String>,
    /// The policies that are asked.
    pub policies: Vec<PolicyAsked>,
    /// The policies that each request is asked, as `namespace/name`, where no request was asked about.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub of_requests: Vec<String>,
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
    /// `ALLOW`, `DENY`, `CUSTOM` or `AUDIT`.
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
    /// Its own policies, which are asked, too, where the waypoint serves it beside the service that was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<PolicyAsked>,
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
        waypoint: party(mesh, own),
        request: None,
        refused: None,
        verdict: None,
        denied: false,
        asks_authorizers: false,
        unverified_token_of: None,
        policies: Vec::new(),
        of_requests: Vec::new(),
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
    let connections = connections(mesh, &target);
    let namespace = identity.as_ref().map(|identity| &**identity.namespace());
    let routed = connections.as_ref().and_then(|all| all.group(namespace));
    let why = match target.protocol() {
        AppProtocol::Tcp | AppProtocol::Tls => Some("the Service declares that its port is not HTTP"),
        AppProtocol::Unknown if routed.is_some() && table(mesh, &target).is_none() => {
            Some("routes for connections are about the port, and none for requests")
        }
        _ => None,
    };
    if let Some(why) = why {
        let says = match asked {
            None => "",
            Some(_) if routed.is_some_and(Group::needs_name) || guard.needs_server_name() => {
                ", so of what was asked about a request only the host plays a part, as the server name of a TLS client"
            }
            Some(_) => ", so what was asked about a request plays no part",
        };
        out.notes.push(format!("{why}{says}: connections pass unread"));
        let named = asked.map_or(ServerName::Unknown, |asked| ServerName::Known(host_of(asked).map(str::to_owned)));
        if named == ServerName::Unknown && guard.needs_server_name() {
            let note = "policies ask for the server name that a TLS client names, and none was asked about: --header host=NAME";
            out.notes.push(note.to_owned());
        }
        judged(&guard, &named.subject(connection), Vec::new(), &mut out, |denied| {
            named.denied(denied, &guard).to_string()
        });
        match routed {
            _ if !out.is_allowed() => {}
            Some(group) => {
                let at = At { mesh, own, target: &target, connection, named: &named };
                follow_connection(&at, group, &mut out);
            }
            None => unrouted(mesh, own, &target, &mut out),
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
    let named = host_of(asked);
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
    let at = At { mesh, own, target: &target, connection, named: &ServerName::Unknown };
    let asking = Subject::new(connection, Some(&request));
    let Authorizers { asked, passed_over, refused } = authorizers(mesh, own, &guard, &asking);
    if refused.is_some() {
        out.refused = refused;
        return out;
    }
    out.notes.extend(passed_over);
    let caller = match explain_token::taken(&guard, &request) {
        Ok(caller) => caller,
        Err(error) if asked.is_empty() => {
            out.refused = Some(Refused { status: Some(401), reason: error.to_string() });
            return out;
        }
        Err(error) => {
            let note = format!(
                "its client gets status 401, unless an authoriser puts another token in the place of its own: {error}"
            );
            out.notes.push(note);
            judged(&guard, &asking.authorized(), asked, &mut out, |denied| denied.to_string());
            if out.is_allowed() {
                follow(&at, &request, &mut out);
            }
            return out;
        }
    };
    // What only a token may say is not the client's, and the token may be the waypoint's alone.
    let mut told = headers.clone();
    let query = match guard.tell(&caller, query, &mut told).query {
        Some(rest) => Some(rest).filter(|rest| !rest.is_empty()),
        None => query.map(str::to_owned),
    };
    let request = Request { headers: &told, query: query.as_deref(), ..request };
    let subject = Subject::new(connection, Some(&request)).authorized().by(&caller);
    judged(&guard, &subject, asked, &mut out, |denied| denied.to_string());
    if let Some(issuer) = explain_token::issuer(&caller) {
        out.by_token(issuer);
    }
    if out.is_allowed() {
        follow(&at, &request, &mut out);
    }
    out
}

impl AtWaypoint {
    fn is_allowed(&self) -> bool {
        self.refused.is_none() && !self.denied
    }

    /// It carries a token of `issuer`, and the verdict is that about an accepted one.
    fn by_token(&mut self, issuer: String) {
        if self.denied {
            self.notes.push(format!(
                "its token, of issuer {issuer}, is not verified here: without an accepted one it gets status 401"
            ));
            return;
        }
        self.verdict = self.verdict.take().map(|verdict| explain_token::depends(&issuer, &verdict));
        self.unverified_token_of = Some(issuer);
    }

    /// What it comes to.
    pub(crate) fn outcome(&self) -> Outcome {
        if self.refused.is_some() {
            return Outcome::Refused;
        }
        if !self.is_allowed() {
            return Outcome::Denied;
        }
        if self.asks_authorizers || self.unverified_token_of.is_some() {
            return match self.by_backends() {
                refused @ (Outcome::Denied | Outcome::Refused) => refused,
                _ => Outcome::AtWaypoint,
            };
        }
        self.by_backends()
    }

    /// What it comes to, if every authoriser allows it and its token is accepted.
    fn by_backends(&self) -> Outcome {
        if self.answer.is_some() {
            return Outcome::AnsweredByRoute;
        }
        let mut all = self.backends.iter().map(|backend| match backend.refused {
            Some(_) => Outcome::Refused,
            None if backend.endpoints.iter().any(EndpointExplanation::is_waypoint) => Outcome::AtWaypoint,
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

/// Asks the policies. `asked` is what is said of authorisers, `words` of a denial.
fn judged(
    guard: &Guard,
    subject: &Subject<'_>,
    asked: Vec<String>,
    out: &mut AtWaypoint,
    words: impl FnOnce(Denied) -> String,
) {
    if guard.is_empty() {
        out.verdict = Some("allowed: no policy with targetRefs is about it".to_owned());
        return;
    }
    let Judgement { verdict, notes } = guard.judge(subject);
    out.denied = verdict.is_err();
    out.verdict = Some(match verdict {
        Ok(Some(by)) => format!("allowed by rule {} of policy {}", by.rule + 1, by.policy),
        Ok(None) => "allowed: no ALLOW policy is attached and no DENY policy matches".to_owned(),
        Err(denied) => words(denied),
    });
    if !asked.is_empty() && !out.denied {
        out.verdict = out.verdict.take().map(|verdict| format!("{verdict}, if every authoriser allows it"));
    }
    out.asks_authorizers = !asked.is_empty();
    out.notes.extend(asked);
    if out.denied && subject.has_request() {
        out.notes.push(format!("its client gets status 403 and the body {:?}", Denied::TEXT));
    }
    out.logged = notes.iter().map(|note| format!("policy {} {}", note.policy, note.says)).collect();
    out.policies = examined(guard, subject);
}

fn examined(guard: &Guard, subject: &Subject<'_>) -> Vec<PolicyAsked> {
    let asked = guard.examine(subject).map(|(action, policy, dry_run, rule)| PolicyAsked {
        policy: policy.to_string(),
        action: action_name(action),
        rule: rule.map(|rule| rule + 1),
        dry_run,
    });
    asked.collect()
}

/// What is known of the authorisers that a waypoint asks about a request. They are not asked here.
struct Authorizers {
    /// What is said of each that is asked.
    asked: Vec<String>,
    /// What is said of each that can't be asked, without whose answer the request passes.
    passed_over: Vec<String>,
    /// If one can't be asked, and the request does not pass without.
    refused: Option<Refused>,
}

fn authorizers(mesh: &Mesh, own: &Workload, guard: &Guard, subject: &Subject<'_>) -> Authorizers {
    let mut out = Authorizers { asked: Vec::new(), passed_over: Vec::new(), refused: None };
    for (policy, it) in guard.to_ask(subject) {
        if let Err(why) = service(mesh, &own.namespace, it) {
            let reason = format!("the authoriser {:?} of policy {policy} can't be asked: {why}", it.provider);
            if it.fail_open {
                out.passed_over.push(format!("{reason}. The request passes without it (failOpen)"));
            } else {
                out.refused.get_or_insert(Refused { status: Some(it.status_on_error), reason });
            }
            continue;
        }
        let without = match it.fail_open {
            true => "passes (failOpen)".to_owned(),
            false => format!("gets status {}", it.status_on_error),
        };
        let body = match it.body {
            None => String::new(),
            Some(CheckedBody { most, partial: true, .. }) => {
                format!(". It is told the first {most} bytes of its body, and whether there are more")
            }
            Some(CheckedBody { most, .. }) => {
                format!(". It is told up to {most} bytes of its body; a longer one gets status 413")
            }
        };
        let (over, path) = match &it.http {
            None => (" over gRPC", String::new()),
            Some(how) if how.path_prefix.is_empty() => (" over HTTP", String::new()),
            Some(how) => (" over HTTP", format!(", with {} before its path", how.path_prefix)),
        };
        out.asked.push(format!(
            "before all other policies the waypoint asks the authoriser {:?} ({}:{}){over}{path} whether it may pass, as policy {policy} \
             says; it is not asked here{body}. Without an answer within {:?} the request {without}",
            it.provider, it.hostname, it.port, it.timeout
        ));
    }
    out
}

fn action_name(action: PolicyAction) -> &'static str {
    match action {
        PolicyAction::Allow => "ALLOW",
        PolicyAction::Deny => "DENY",
        PolicyAction::Audit => "AUDIT",
        PolicyAction::Authenticate => "AUTHENTICATE",
        PolicyAction::Custom => "CUSTOM",
    }
}

/// The host that is asked about: of a connection that passes unread, the server name that its client asks for.
fn host_of(asked: &Asked) -> Option<&str> {
    asked.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("host")).map(|(_, value)| &**value)
}

/// No request was asked about: what there is that looks at requests.
fn not_asked(guard: &Guard, mesh: &Mesh, target: &WaypointTarget, connection: &Connection<'_>, out: &mut AtWaypoint) {
    // Which policies there are is all that counts here; whether they match depends on the request.
    let subject = Subject::new(*connection, None);
    let names: Vec<String> =
        guard.examine(&subject).map(|(action, policy, ..)| format!("{} {policy}", action_name(action))).collect();
    out.of_requests = guard.examine(&subject).map(|(_, policy, ..)| policy.to_string()).collect();
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

/// What was asked for, of whom, and how.
struct At<'a> {
    mesh: &'a Mesh,
    own: &'a Arc<Workload>,
    target: &'a WaypointTarget,
    connection: Connection<'a>,
    /// The server name that the client of a connection asks for, as far as it is known.
    named: &'a ServerName,
}

/// The routes of requests to the port; `None` if there are none.
fn table(mesh: &Mesh, target: &WaypointTarget) -> Option<Table> {
    let ((id, port), routes) = target.routed().zip(target.routes(mesh))?;
    Some(Table::new(id, port, routes.values().map(|route| &**route))).filter(|table| !table.is_empty())
}

/// The routes of connections to the port; `None` if there are none.
fn connections(mesh: &Mesh, target: &WaypointTarget) -> Option<Connections> {
    let ((id, port), routes) = target.routed().zip(target.routes(mesh))?;
    Some(Connections::new(id, port, routes.values().map(|route| &**route))).filter(|all| !all.is_empty())
}

/// What the routes make of a connection. The server that a client of TLS asks for is given as the header `host`.
fn follow_connection(at: &At<'_>, group: &Group, out: &mut AtWaypoint) {
    let name = at.named.name();
    if group.needs_name() && name.is_none() {
        let routes = group.routes().iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        out.notes.push(format!(
            "the server name that a TLS client asks for decides ({routes}); --method GET --path / --header host=NAME says which \
             rule it follows"
        ));
        return;
    }
    match group.find(name) {
        Ok(rule) => {
            out.rule =
                Some(RuleFollowed { route: rule.route().to_string(), rule: rule.label().to_string(), matched: 1 });
            to_backends(at, rule.backends().collect(), None, (None, None, None), out);
            if out.backends.is_empty() {
                let reason = crate::connections::Unrouted::NoBackend(rule.label().clone()).to_string();
                out.refused = Some(Refused { status: None, reason });
            }
        }
        Err(error) => out.refused = Some(Refused { status: None, reason: error.to_string() }),
    }
}

/// What the routes make of a request.
fn follow(at: &At<'_>, request: &Request<'_>, out: &mut AtWaypoint) {
    let At { mesh, own, target, .. } = *at;
    let Some(table) = table(mesh, target) else { return by_defaults(at, out) };
    let decision = table.decide(request, &mut || 0);
    out.rule = decision.chosen.as_ref().map(followed);
    if let Some(rate) = decision.chosen.as_ref().and_then(Chosen::rate) {
        out.notes.push(format!("{}; whatever is more gets status 429", crate::http::rate::said(rate)));
    }
    match decision.outcome {
        crate::http::Outcome::Unrouted => unrouted(mesh, own, target, out),
        crate::http::Outcome::Answer(answer) => {
            let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
            let headers = answer.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
            out.answer = Some(Answered { status: answer.status, headers });
        }
        // One backend of several can't be used; the others are told of, too.
        crate::http::Outcome::Refuse(refusal @ crate::http::Refusal::Backend { .. }) => match &decision.chosen {
            Some(chosen) => to_backends(at, chosen.backends().collect(), Some(request), (Some(500), None, None), out),
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
                if let Some(sessions) = chosen.sessions() {
                    out.notes.push(format!(
                        "a session stays at its endpoint: {} says at which, and counts for more than weights",
                        sessions.carrier()
                    ));
                }
                let host = forward.host.as_ref().and_then(|host| host.to_str().ok()).map(str::to_owned);
                let mut headers = request.headers.clone();
                forward.change_request(&mut headers);
                let named = host.as_deref().and_then(|host| host::normalise(host.as_bytes()).ok());
                let changed = Request {
                    path: forward.path.as_deref().unwrap_or(request.path),
                    host: named.as_ref().map_or(request.host, |named| &named.name),
                    host_port: named.as_ref().map_or(request.host_port, |named| named.port),
                    headers: &headers,
                    ..*request
                };
                let says = (Some(500), forward.path.clone(), host.clone());
                to_backends(at, chosen.backends().collect(), Some(&changed), says, out);
            }
        }
    }
}

/// A request to a port without routes: a VirtualService may have its say.
fn by_defaults(at: &At<'_>, out: &mut AtWaypoint) {
    let service = at.target.service().map(|service| &service.id);
    if let Some(defaults) = service.and_then(|service| at.mesh.request_defaults_of(service)) {
        out.notes.extend(explain_defaults::said(defaults));
        if let Some((status, reason)) = explain_defaults::always_fails(defaults) {
            out.refused = Some(Refused { status: Some(status), reason });
            return;
        }
    }
    unrouted(at.mesh, at.own, at.target, out);
}

fn followed(chosen: &Chosen) -> RuleFollowed {
    RuleFollowed {
        route: chosen.route().to_string(),
        rule: chosen.label().to_string(),
        matched: chosen.match_index() + 1,
    }
}

/// Where something may go, each by its weight. `status` is what a client gets from a backend that can't be used; the others are
/// what its path and host become.
/// `request` is what policies of a backend are asked about.
fn to_backends(
    at: &At<'_>,
    backends: Vec<(u32, &BackendTarget)>,
    request: Option<&Request<'_>>,
    (status, path, host): (Option<u16>, Option<String>, Option<String>),
    out: &mut AtWaypoint,
) {
    let At { mesh, own, .. } = *at;
    let total = backends.iter().map(|(weight, _)| u64::from(*weight)).sum();
    for (weight, target) in backends.into_iter().filter(|(weight, _)| *weight > 0) {
        let mut backend = Backend {
            to: String::new(),
            share: (weight.into(), total),
            path: path.clone(),
            host: host.clone(),
            refused: None,
            policies: Vec::new(),
            endpoints: Vec::new(),
        };
        match target {
            BackendTarget::Invalid(problem) => {
                backend.to = "a backend that can't be used".to_owned();
                backend.refused = Some(Refused { status, reason: problem.to_string() });
            }
            BackendTarget::Service { service: id, port } => {
                backend.to = format!("{id}:{port}");
                match mesh.service(id) {
                    Some(service) if beyond(mesh, own, service) => {
                        through_its_waypoint(mesh, own, service, *port, &mut backend);
                        out.notes.push(format!(
                            "{id} is behind another waypoint, which is passed, too: its policies see this one as the client"
                        ));
                    }
                    Some(service) => {
                        of_service(mesh, own, service, *port, None, &mut backend);
                        told_of_endpoints(mesh, service, *port, out);
                        let refused = refused_by_backend(at, service, *port, request, out, &mut backend.policies);
                        backend.refused = refused.or(backend.refused);
                    }
                    None => {
                        let reason = format!("the mesh does not know service {id}");
                        backend.refused = Some(Refused { status, reason });
                    }
                }
            }
        }
        out.backends.push(backend);
    }
}

/// What the policies of a backend say, where the waypoint serves it, too.
fn refused_by_backend(
    at: &At<'_>,
    service: &Arc<Service>,
    port: u16,
    request: Option<&Request<'_>>,
    out: &mut AtWaypoint,
    asked: &mut Vec<PolicyAsked>,
) -> Option<Refused> {
    let address = any_address(service);
    let backend = WaypointTarget::Service { service: service.clone(), port, address };
    let policies = policies_of_backend(at.mesh, at.own, at.target, &backend)?;
    let guard = Guard::new(policies.values().map(|policy| &**policy));
    let connection = Connection { destination: backend.seen_by_policies(), ..at.connection };
    let Some(request) = request else {
        let subject = at.named.subject(connection);
        *asked = examined(&guard, &subject);
        let denied = guard.judge(&subject).verdict.err()?;
        return Some(Refused { status: None, reason: by_policies_of(service, &at.named.denied(denied, &guard)) });
    };
    let asking = Subject::new(connection, Some(request));
    let Authorizers { asked: authorizers, passed_over, refused } = authorizers(at.mesh, at.own, &guard, &asking);
    if refused.is_some() {
        return refused;
    }
    out.notes.extend(passed_over.into_iter().map(|said| format!("for {}: {said}", service.id)));
    let caller = match explain_token::taken(&guard, request) {
        Ok(caller) => caller,
        // An authoriser may put another in its place.
        Err(_) if !authorizers.is_empty() => Caller::default(),
        Err(error) => {
            return Some(Refused { status: Some(401), reason: by_policies_of(service, &error) });
        }
    };
    out.asks_authorizers |= !authorizers.is_empty();
    out.notes.extend(authorizers.into_iter().map(|said| format!("for {}: {said}", service.id)));
    let mut told = request.headers.clone();
    let query = guard.tell(&caller, request.query, &mut told).query;
    let request = Request { headers: &told, query: query.as_deref().or(request.query), ..*request };
    let subject = Subject::new(connection, Some(&request)).authorized().by(&caller);
    let refused = denied_by_backend(&guard, &subject, service, asked);
    if let Some(issuer) = explain_token::issuer(&caller).filter(|_| refused.is_none()) {
        out.notes.push(format!("the policies of {}: {}", service.id, explain_token::depends(&issuer, "allowed")));
        out.unverified_token_of = Some(issuer);
    }
    refused
}

fn denied_by_backend(
    guard: &Guard,
    subject: &Subject<'_>,
    service: &Service,
    asked: &mut Vec<PolicyAsked>,
) -> Option<Refused> {
    *asked = examined(guard, subject);
    let denied = guard.judge(subject).verdict.err()?;
    Some(Refused { status: Some(403), reason: by_policies_of(service, &denied) })
}

fn by_policies_of(service: &Service, why: &dyn std::fmt::Display) -> String {
    format!("by the policies of {}: {why}", service.id)
}

/// Where what follows no route goes.
fn unrouted(mesh: &Mesh, own: &Arc<Workload>, target: &WaypointTarget, out: &mut AtWaypoint) {
    let mut backend = Backend {
        to: String::new(),
        share: (1, 1),
        path: None,
        host: None,
        refused: None,
        policies: Vec::new(),
        endpoints: Vec::new(),
    };
    match target {
        WaypointTarget::Service { service, port, address } => {
            backend.to = format!("{}:{port}", service.id);
            of_service(mesh, own, service, *port, Some(*address), &mut backend);
            told_of_endpoints(mesh, service, *port, out);
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

/// What a DestinationRule does to a service's endpoints.
fn told_of_endpoints(mesh: &Mesh, service: &Service, port: u16, out: &mut AtWaypoint) {
    let said = mesh
        .endpoint_policy_of(&service.id)
        .and_then(|policy| explain_endpoint_policy::said(policy, &service.id, port));
    // A route may name one service several times.
    if let Some(said) = said.filter(|said| !out.notes.contains(said)) {
        out.notes.push(said);
    }
}

/// As a client's connection: to the service's own address, or to a pod's if it has none.
fn through_its_waypoint(mesh: &Mesh, own: &Arc<Workload>, service: &Arc<Service>, port: u16, backend: &mut Backend) {
    let like = SocketAddr::new(any_address(service), port);
    let address = addressed(own, service, like).or_else(|| {
        let (candidates, _) = endpoints::candidates(mesh, own, service, port, Purpose::Service, like.ip());
        closest_first(candidates).first().map(|candidate| candidate.target)
    });
    let found = address.map(|address| routing::route(mesh, own, address, &mut || 0));
    match found {
        Some(Ok(plan)) => {
            plan.attempts().first().into_iter().for_each(|route| add(mesh, own, Ok(route.clone()), backend));
        }
        Some(Err(error)) => add(mesh, own, Err(error), backend),
        None => of_service(mesh, own, service, port, None, backend),
    }
}

fn of_service(
    mesh: &Mesh,
    own: &Arc<Workload>,
    service: &Arc<Service>,
    port: u16,
    address: Option<std::net::IpAddr>,
    backend: &mut Backend,
) {
    let like = address.unwrap_or_else(|| any_address(service));
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
