//! One request and its response.

use std::convert::Infallible;
use std::sync::Arc;

use http::request::Parts;
use http::{Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use leno_model::http::Timeouts;
use leno_policy::{Route, WaypointTarget};
use leno_tunnel::timers;
use tokio::time::Instant;

use crate::balance::Seat;
use crate::body::client::ClientBody;
use crate::body::upstream::{self, RequestBody};
use crate::phases::ext_authz;
use crate::phases::fault;
use crate::phases::jwt::{self, Callers};
use crate::phases::mirror;
use crate::phases::retry::{Again, To, Whose, kind, late, send_again};
use crate::phases::route::{self, Instead};
use crate::phases::session;
use crate::pipeline::upgrade::{self, Admitted, Upgrade};
use crate::pool::Leased;
use crate::request::client::{Client, View};
use crate::request::consent::Consent;
use crate::request::forwarded_headers;
use crate::request::head::{self, Asks};
use crate::request::record::Exchange;
use crate::request::refusal::{Flag, Refusal};
use crate::request::response_body::{Body, Passing};
use crate::request::trace_context;
use crate::request::websocket;

/// Answers a request: with what an endpoint says, or with why none could be asked.
pub(crate) async fn forward(client: Arc<Client>, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let mut view = client.view();
    let (mut head, body) = request.into_parts();
    let mut body = ClientBody::new(body);
    let mut exchange = Exchange::new(&client, &view, &head);
    let default = || default_host(&view.target).and_then(|host| host.parse().ok());
    let mut asks = match head::prepare(&mut head, default) {
        Ok(asks) => asks,
        Err(refusal) => return Ok(refuse(exchange, &refusal, false)),
    };
    exchange.asks(&asks);
    if !client.gate.has_room() {
        return Ok(refuse(exchange, &Refusal::overload(), asks.grpc));
    }
    let own_identity = client.gate.config.forward_client_cert.then(|| view.own.identity()).flatten();
    forwarded_headers::client_cert(&mut head.headers, client.identity(), own_identity.as_ref());
    forwarded_headers::forwarded_proto(&mut head.headers);
    exchange.request_id = forwarded_headers::request_id(&mut head.headers);
    exchange.traced(trace_context::follow(&mut head.headers, client.gate.trace_share()));
    let permitted = Box::pin(permit(&client, &mut view, (&mut head, &mut asks, &mut body), &mut exchange)).await;
    let mut upgrade = match permitted {
        Ok(upgrade) => upgrade,
        Err(refusal) => return Ok(refuse(exchange, &refusal, asks.grpc)),
    };
    let mut routed = match route::follow(&view, &mut exchange, &mut head, &mut asks) {
        Ok(routed) => routed,
        Err(Instead::Refusal(refusal)) => return Ok(refuse(exchange, &refusal, asks.grpc)),
        Err(Instead::Answer(answer)) => return Ok(route::answer(answer, exchange)),
    };
    if let Some(routed) = &routed {
        exchange.aimed(&routed.target);
        let backend = (&routed.target, &mut exchange, upgrade.as_mut());
        if let Err(refusal) =
            Box::pin(permit_at_backend(&client, &view, (&mut head, &mut asks, &mut body), backend)).await
        {
            return Ok(refuse(exchange, &refusal, asks.grpc));
        }
    }
    let defaults = view.defaults.as_deref().filter(|_| routed.is_none());
    if let Some(failure) = defaults.and_then(fault::abort) {
        return Ok(refuse(exchange, &failure, asks.grpc));
    }
    let has_body = !body.is_end_stream();
    let mirrors = routed.as_mut().map(|routed| std::mem::take(&mut routed.mirrors)).unwrap_or_default();
    let copies = mirror::begin(&client, &view, (&head, &asks), mirrors, has_body);
    let target = routed.as_ref().map_or(&view.target, |routed| &routed.target);
    let kind = kind(target.protocol(), &head, &asks);
    head::aim(&mut head, &asks, kind);
    let body = match has_body {
        true => RequestBody::Passing(Box::new(upstream::Passing::new(body, exchange.receives(), copies))),
        false => RequestBody::Empty,
    };
    let seat = Seat::default();
    let limits = match (&routed, defaults) {
        (Some(routed), _) => routed.forward.timeouts(),
        (None, Some(defaults)) => Timeouts { request: defaults.timeout, backend_request: defaults.attempt_timeout },
        (None, None) => Timeouts::default(),
    };
    // A client of gRPC says how long it waits, and the endpoint is told, too: the header stays.
    let patience = if asks.grpc { head::grpc_timeout(&head.headers) } else { None };
    let whose = routed.as_ref().map_or(Whose::VirtualService, |routed| Whose::Rule(routed.chosen.label()));
    let limit = limits.request.filter(|limit| !limit.is_zero()).map(|limit| (limit, whose));
    let limit =
        [limit, patience.map(|limit| (limit, Whose::Client))].into_iter().flatten().min_by_key(|(limit, _)| *limit);
    let deadline = limit.map(|(limit, whose)| (Instant::now() + limit, limit, whose));
    let of_route = routed.as_ref().and_then(|routed| routed.forward.retry());
    let retry = of_route.or(defaults.and_then(|defaults| defaults.retry.as_ref()));
    let retry = retry.filter(|retry| !retry.codes.is_empty());
    let held = routed.as_ref().and_then(|routed| routed.held.as_ref()).map(|held| held.endpoint);
    let to = To { view: &view, target, seat: &seat, again: retry.is_some(), repeatable: false, held };
    let request = Request::from_parts(head, body);
    let mut told = |route: &Route| exchange.attempt(route);
    let of_attempt = limits.backend_request.filter(|limit| !limit.is_zero()).map(|limit| (limit, whose));
    let again = Again { retry, limit: of_attempt };
    let sending = Box::pin(send_again(&client, &to, request, kind, &mut told, again));
    let sent = match deadline {
        None => sending.await,
        Some((deadline, limit, whose)) => {
            tokio::select! {
                sent = sending => sent,
                () = timers::sleep_until(deadline) => {
                    seat.gave_up();
                    Err(late(limit, whose))
                }
            }
        }
    };
    let (mut response, leased, own_deadline) = match sent {
        Ok(sent) => sent,
        Err(refusal) => return Ok(refuse(exchange, &refusal, asks.grpc)),
    };
    let ends = [deadline.map(|(deadline, ..)| deadline), own_deadline].into_iter().flatten().min();
    if let Some(routed) = &routed {
        routed.forward.change_response(response.headers_mut());
        if let Some(endpoint) = exchange.endpoint_id() {
            let at = (&routed.forward.to, endpoint);
            session::tell(routed.held.as_ref(), &routed.chosen, at, response.headers_mut());
        }
    }
    Ok(pass_back(&view, response, (leased, ends), exchange, upgrade))
}

/// Gives the request its one form, asks external authorisers whether it may pass, looks whose token it carries, and asks the policies whether it may pass. They see it as its
/// program will, so a header that only a token may fill is never the client's. A request that fails on purpose may wait here; what
/// the mesh is like afterwards is in `view` then. Returns the request's upgrade, if it asks for one.
async fn permit(
    client: &Arc<Client>,
    view: &mut Arc<View>,
    (head, asks, body): (&mut Parts, &mut Asks, &mut ClientBody),
    exchange: &mut Exchange,
) -> Result<Option<Upgrade>, Refusal> {
    route::normalise(asks)?;
    if view.guards().any(|guard| guard.finds_tokens_in(asks.path.query())) {
        exchange.hide_query();
    }
    let mut asked = Consent::default();
    if ext_authz::asks_somebody(view.guards()) {
        let asking = (view.guards(), &view.target);
        Box::pin(ext_authz::ask(client, view, asking, (head, asks, Some(&mut *body)), &mut asked)).await?;
    }
    let now = jwt::now();
    let callers = Callers::of(client, view, (head, asks), &Callers::default(), now).await;
    let mut callers = callers.map_err(|error| Refusal::token(&error))?;
    if let Some(wait) = view.defaults.as_deref().and_then(fault::delay) {
        // Whoever is refused learns of no delay, and holds nothing for as long as one lasts.
        let (mut told, mut told_asks) = (head.clone(), asks.clone());
        callers.tell(&mut told, &mut told_asks)?;
        ask_policies(client, view, (&told, &told_asks), &callers, exchange)?;
        Box::pin(timers::sleep(wait)).await;
        // Policies and routes count as they are now.
        *view = client.view();
        if ext_authz::asks_somebody(view.guards()) {
            let asking = (view.guards(), &view.target);
            Box::pin(ext_authz::ask(client, view, asking, (head, asks, Some(&mut *body)), &mut asked)).await?;
        }
        let again = Callers::of(client, view, (head, asks), &callers, now).await;
        callers = again.map_err(|error| Refusal::token(&error))?;
    }
    let upgrade = Upgrade::of(head, asks, &callers, &asked, now);
    exchange.authorized(asked);
    callers.tell(head, asks)?;
    ask_policies(client, view, (head, asks), &callers, exchange)?;
    Ok(upgrade)
}

/// Asks the policies of a backend that a route has chosen, about the request as its program will see it.
async fn permit_at_backend(
    client: &Arc<Client>,
    view: &View,
    (head, asks, body): (&mut Parts, &mut Asks, &mut ClientBody),
    (backend, exchange, upgrade): (&WaypointTarget, &mut Exchange, Option<&mut Upgrade>),
) -> Result<(), Refusal> {
    let guard = client.gate.guards.of_backend(&view.mesh, &view.own, &view.target, backend);
    if guard.is_none() && upgrade.is_none() {
        // As most requests are: nothing is prepared for them.
        return Ok(());
    }
    let (mut asked, mut callers, now) = (Consent::default(), Callers::default(), jwt::now());
    if let Some(guard) = &guard {
        if guard.finds_tokens_in(asks.path.query()) {
            exchange.hide_query();
        }
        if !guard.asks_nobody() {
            let asking = (std::iter::once(guard), backend);
            Box::pin(ext_authz::ask(client, view, asking, (head, asks, Some(&mut *body)), &mut asked)).await?;
        }
        let found = Box::pin(Callers::among([guard], client, (head, asks), &callers, now)).await;
        callers = found.map_err(|error| Refusal::token(&error))?;
    }
    if let Some(upgrade) = upgrade {
        // Also if it has no policies yet.
        upgrade.goes_to(backend, Admitted::new((head, asks), &callers, &asked, now));
    }
    exchange.authorized(asked);
    callers.tell(head, asks)?;
    let judged = upgrade::judge(client, (guard.iter(), backend), (head, asks), &callers, |note| exchange.note(note));
    judged.map_err(|denied| Refusal::denied(&denied))
}

fn ask_policies(
    client: &Client,
    view: &View,
    request: (&Parts, &Asks),
    callers: &Callers,
    exchange: &mut Exchange,
) -> Result<(), Refusal> {
    let asked = upgrade::judge(client, (view.guards(), &view.target), request, callers, |note| exchange.note(note));
    asked.map_err(|denied| Refusal::denied(&denied))
}

fn refuse(mut exchange: Exchange, refusal: &Refusal, grpc: bool) -> Response<Body> {
    exchange.refused(refusal);
    let mut response = refusal.response(grpc);
    if refusal.flag == Flag::ProtocolError && !exchange.is_http2() {
        // What comes next on this connection may be meant in another way than it is read.
        response.headers_mut().insert(http::header::CONNECTION, http::HeaderValue::from_static("close"));
    }
    exchange.responded(response.status(), response.headers());
    exchange.finished();
    response
}

/// The response as the client gets it.
fn pass_back(
    view: &View,
    response: Response<Incoming>,
    (leased, deadline): (Leased, Option<Instant>),
    mut exchange: Exchange,
    upgrade: Option<Upgrade>,
) -> Response<Body> {
    let (mut head, body) = response.into_parts();
    exchange.responded(head.status, &head.headers);
    exchange.change_response(&mut head.headers);
    if head.status == StatusCode::SWITCHING_PROTOCOLS {
        let on_endpoint = head.extensions.remove::<OnUpgrade>();
        let (Some(upgrade), Some(on_endpoint)) = (upgrade, on_endpoint) else {
            let refusal = Refusal::new(
                StatusCode::BAD_GATEWAY,
                Flag::UpstreamTermination,
                "the endpoint changed to another protocol unasked",
            );
            drop(leased.take_out());
            return refuse(exchange, &refusal, false);
        };
        let counted = leased.take_out();
        head::strip(&mut head.headers, !upgrade.is_extended());
        head.version = Version::HTTP_11;
        if upgrade.is_extended() {
            head.status = websocket::consent(&mut head.headers);
        }
        upgrade.carry(on_endpoint, counted, exchange);
        return Response::from_parts(head, Body::Empty);
    }
    if upgrade.is_some_and(|upgrade| upgrade.is_extended()) && head.status.is_success() {
        // To its client, that would be consent.
        let reason = format!("the endpoint answered {} where a WebSocket was asked for", head.status);
        let refusal = Refusal::new(StatusCode::BAD_GATEWAY, Flag::UpstreamTermination, reason);
        return refuse(exchange, &refusal, false);
    }
    head::strip(&mut head.headers, false);
    head.version = Version::HTTP_11;
    if view.left {
        // The client's next connection goes where its service is now.
        head.headers.insert(http::header::CONNECTION, http::HeaderValue::from_static("close"));
    }
    let unread = exchange.client().unread.clone();
    let body = Body::Response(Box::new(Passing::new(body, leased, exchange, (deadline, unread))));
    Response::from_parts(head, body)
}

fn default_host(target: &WaypointTarget) -> Option<String> {
    match target {
        WaypointTarget::Service { service, port, .. } => Some(format!("{}:{port}", service.id.hostname)),
        WaypointTarget::Pod { address, .. } => Some(address.to_string()),
    }
}
