//! The route that a request follows.

use std::borrow::Cow;

use http::request::Parts;
use http::uri::{Authority, PathAndQuery};
use http::{Response, StatusCode};
use leno_model::Identity;
use leno_policy::WaypointTarget;
use leno_policy::http::{Answer, Chosen, Destination, Forward, Outcome, Request, host, path};

use crate::connection::target::backend;
use crate::phases::session::{self, Held};
use crate::request::client::View;
use crate::request::head::Asks;
use crate::request::record::Exchange;
use crate::request::refusal::{Flag, Refusal};
use crate::request::response_body::Body;

/// What a route makes of a request.
pub(crate) struct Routed {
    pub(crate) forward: Box<Forward>,
    /// Where it goes.
    pub(crate) target: WaypointTarget,
    /// Where copies of it go.
    pub(crate) mirrors: Vec<WaypointTarget>,
    /// The rule.
    pub(crate) chosen: Chosen,
    /// Where its session is, if it belongs to one that goes on.
    pub(crate) held: Option<Held>,
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

/// Gives a request's path and host their one form, which policies and routes compare and which the program is sent.
pub(crate) fn normalise(asks: &mut Asks) -> Result<(), Refusal> {
    let malformed = |reason: String| Refusal::new(StatusCode::BAD_REQUEST, Flag::ProtocolError, reason);
    let came = asks.path.clone();
    if came.path() != "*"
        && let Cow::Owned(normal) =
            path::normalise(came.path().as_bytes()).map_err(|error| malformed(error.to_string()))?
    {
        asks.path = with_query(normal, &came).map_err(malformed)?;
    }
    let named = asks.authority.clone();
    let host = host::normalise(named.as_str().as_bytes()).map_err(|error| malformed(error.to_string()))?;
    let text = match host.port {
        Some(port) => format!("{}:{port}", host.name),
        None => host.name.into_owned(),
    };
    if text != named.as_str() {
        asks.authority = Authority::try_from(text).map_err(|error| malformed(error.to_string()))?;
    }
    Ok(())
}

fn with_query(path: String, came: &PathAndQuery) -> Result<PathAndQuery, String> {
    let text = match came.query() {
        Some(query) => format!("{path}?{query}"),
        None => path,
    };
    PathAndQuery::try_from(text).map_err(|error| error.to_string())
}

/// The request as policies and routes see it.
pub(crate) fn seen<'r>(client: &'r Identity, head: &'r Parts, asks: &'r Asks) -> Request<'r> {
    let authority = &asks.authority;
    Request {
        method: head.method.as_str(),
        host: authority.host(),
        host_port: authority.port_u16(),
        path: asks.path.path(),
        query: asks.path.query(),
        headers: &head.headers,
        source_namespace: Some(client.namespace()),
    }
}

/// Finds the route of a request, which has its one form, and changes the request as it says; `None` if its service has no
/// routes.
pub(crate) fn follow(
    view: &View,
    exchange: &mut Exchange,
    head: &mut Parts,
    asks: &mut Asks,
) -> Result<Option<Routed>, Instead> {
    let Some(table) = &view.table else { return Ok(None) };
    let malformed = |reason: String| Refusal::new(StatusCode::BAD_REQUEST, Flag::ProtocolError, reason);
    let client = exchange.identity().clone();
    let mut held = None;
    let decision =
        table.decide_within(&seen(&client, head, asks), &mut rand::random::<u64>, &mut |chosen, sessions| {
            held = session::find(exchange.client(), view, &head.headers, chosen, sessions);
            held.as_ref().map(|held| held.backend)
        });
    let label = decision.chosen.as_ref().map(|chosen| chosen.label().clone()).unwrap_or_default();
    if decision.chosen.is_some() {
        exchange.routed(&label);
    }
    if let Some(limit) = decision.chosen.as_ref().and_then(Chosen::rate)
        && let Some(chosen) = &decision.chosen
        && let Err(wait) = exchange.gate().rates.admit(chosen.route(), limit)
    {
        return Err(Refusal::too_many(chosen.route(), limit, wait).into());
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
    let Some(chosen) = decision.chosen else { return Ok(None) };
    if let Some(path) = &forward.path {
        asks.path = with_query(path.clone(), &asks.path).map_err(malformed)?;
    }
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
    Ok(Some(Routed { forward, target, mirrors, chosen, held }))
}

/// The backend.
fn target(view: &View, to: &Destination, label: &str) -> Result<WaypointTarget, Refusal> {
    backend(&view.mesh, &view.target, to).ok_or_else(|| {
        let reason = format!("{label} sends this request to service {}, which the mesh does not know", to.service);
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, Flag::NoRoute, reason)
    })
}

/// An answer that a route gives.
pub(crate) fn answer(answer: Answer, mut exchange: Exchange) -> Response<Body> {
    let mut response = Response::new(Body::Empty);
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    *response.headers_mut() = answer.headers;
    exchange.change_response(response.headers_mut());
    exchange.status = response.status();
    exchange.finished();
    response
}
