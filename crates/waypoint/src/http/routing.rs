//! The route that a request follows.

use std::net::Ipv4Addr;

use http::request::Parts;
use http::uri::{Authority, PathAndQuery};
use http::{Response, StatusCode};
use leno_policy::WaypointTarget;
use leno_policy::http::{Answer, Destination, Forward, Outcome, Request, host, path};

use super::body::Body;
use super::client::View;
use super::exchange::Exchange;
use super::head::Asks;
use super::refusal::{Flag, Refusal};

/// What a route makes of a request.
pub(crate) struct Routed {
    pub(crate) forward: Box<Forward>,
    /// Where it goes.
    pub(crate) target: WaypointTarget,
    /// Where copies of it go.
    pub(crate) mirrors: Vec<WaypointTarget>,
}

/// What a client gets instead of an endpoint's response.
pub(crate) enum Instead {
    Answer(Answer),
    Refusal(Refusal),
}

impl From<Refusal> for Instead {
    fn from(refusal: Refusal) -> Self {
        Self::Refusal(refusal)
    }
}

/// Finds the route of a request and changes the request as it says; `None` if its service has no routes. From then on the
/// request has the path and the host that the route has seen, in their one form.
pub(crate) fn follow(
    view: &View,
    exchange: &mut Exchange,
    head: &mut Parts,
    asks: &mut Asks,
) -> Result<Option<Routed>, Instead> {
    let Some(table) = &view.table else { return Ok(None) };
    let malformed = |reason: String| Refusal::new(StatusCode::BAD_REQUEST, Flag::ProtocolError, reason);
    let named = asks.authority.clone();
    let named = host::normalise(named.as_str().as_bytes()).map_err(|error| malformed(error.to_string()))?;
    let came = asks.path.clone();
    let normal = match came.path() {
        "*" => std::borrow::Cow::Borrowed("*"),
        text => path::normalise(text.as_bytes()).map_err(|error| malformed(error.to_string()))?,
    };
    let client = exchange.identity().clone();
    let request = Request {
        method: head.method.as_str(),
        host: &named.name,
        host_port: named.port,
        path: &normal,
        query: came.query(),
        headers: &head.headers,
        source_namespace: Some(client.namespace()),
    };
    let decision = table.decide(&request, &mut rand::random::<u64>);
    let label = decision.chosen.as_ref().map(|chosen| chosen.label().clone()).unwrap_or_default();
    if decision.chosen.is_some() {
        exchange.routed(&label);
    }
    let forward = match decision.outcome {
        Outcome::Unrouted => return Ok(None),
        Outcome::Answer(answer) => return Err(Instead::Answer(answer)),
        Outcome::Refuse(refusal) => {
            let status = StatusCode::from_u16(refusal.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            return Err(Refusal::new(status, Flag::Routes(refusal.flag()), refusal.to_string()).into());
        }
        Outcome::Forward(forward) => forward,
    };
    if forward.session().is_some() {
        // Half of what the route says would be worse than none of it.
        let reason = format!("{label} asks for sessions that stay at one endpoint, which this version does not keep");
        return Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, Flag::NoRoute, reason).into());
    }
    let text = forward.path.as_deref().unwrap_or(&normal);
    let text = match came.query() {
        Some(query) => format!("{text}?{query}"),
        None => text.to_owned(),
    };
    asks.path = PathAndQuery::try_from(text).map_err(|error| malformed(error.to_string()))?;
    if let Some(host) = &forward.host {
        asks.authority =
            Authority::try_from(host.as_bytes()).map_err(|error| malformed(format!("the route's host: {error}")))?;
    }
    let mirrors = match asks.upgrade {
        // Nobody could answer for the copy in the other protocol.
        true => Vec::new(),
        false => forward.mirrors.iter().filter_map(|to| target(view, to, &label).ok()).collect(),
    };
    let target = target(view, &forward.to, &label)?;
    forward.change_request(&mut head.headers);
    Ok(Some(Routed { forward, target, mirrors }))
}

/// The backend. One that is the service which was asked for stays as it was asked for.
fn target(view: &View, to: &Destination, label: &str) -> Result<WaypointTarget, Refusal> {
    let same = matches!(&view.target, WaypointTarget::Service { service, port, .. }
        if service.id == to.service && *port == to.port);
    if same {
        return Ok(view.target.clone());
    }
    let Some(service) = view.mesh.service(&to.service) else {
        let reason = format!("{label} sends this request to service {}, which the mesh does not know", to.service);
        return Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, Flag::NoRoute, reason));
    };
    let address = service.addresses.first().map_or(Ipv4Addr::UNSPECIFIED.into(), |own| own.address);
    Ok(WaypointTarget::Service { service: service.clone(), port: to.port, address })
}

/// An answer that a route gives.
pub(crate) fn answer(answer: Answer, mut exchange: Exchange) -> Response<Body> {
    let mut response = Response::new(Body::Empty);
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    *response.headers_mut() = answer.headers;
    exchange.status = response.status();
    exchange.finished();
    response
}
