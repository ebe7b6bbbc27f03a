//! One request and its response.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{Method, Request, Response, StatusCode, Version};
use hyper::body::{Body as _, Incoming};
use hyper::upgrade::OnUpgrade;
use leno_model::AppProtocol;
use leno_model::http::Retry;
use leno_policy::{Route, WaypointTarget};
use leno_tunnel::timers;
use tokio::time::Instant;

use super::body::{Body, Passing};
use super::client::{Client, View};
use super::exchange::Exchange;
use super::head::{self, Asks};
use super::refusal::{Flag, Refusal};
use super::routing::{self, Instead};
use super::{identity, trace, upgrade};
use crate::asked::protocol;
use crate::failure::Failure;
use crate::http_pool::{HandshakeError, Kind, Leased, RequestBody, UpstreamKey};
use crate::upstream::{self, Caller};

/// Answers a request: with what an endpoint says, or with why none could be asked.
pub(crate) async fn forward(client: Arc<Client>, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let view = client.view();
    let (mut head, body) = request.into_parts();
    let mut exchange = Exchange::new(&client, &view, &head);
    let default = || default_host(&view.target).and_then(|host| host.parse().ok());
    let mut asks = match head::prepare(&mut head, default) {
        Ok(asks) => asks,
        Err(refusal) => return Ok(refuse(exchange, &refusal, false)),
    };
    exchange.asks(&asks);
    let on_client = asks.upgrade.then(|| head.extensions.remove::<OnUpgrade>()).flatten();
    let own_identity = client.gate.config.forward_client_cert.then(|| view.own.identity()).flatten();
    identity::client_cert(&mut head.headers, client.identity(), own_identity.as_ref());
    identity::forwarded_proto(&mut head.headers);
    exchange.request_id = identity::request_id(&mut head.headers);
    exchange.traced(trace::follow(&mut head.headers, client.gate.trace_share()));
    let routed = match routing::follow(&view, &mut exchange, &mut head, &mut asks) {
        Ok(routed) => routed,
        Err(Instead::Refusal(refusal)) => return Ok(refuse(exchange, &refusal, asks.grpc)),
        Err(Instead::Answer(answer)) => return Ok(routing::answer(answer, exchange)),
    };
    let target = routed.as_ref().map_or(&view.target, |routed| &routed.target);
    if let Some(routed) = &routed {
        exchange.aimed(&routed.target);
    }
    let kind = kind(protocol(target), &head, &asks);
    head::aim(&mut head, &asks, kind);
    let body = if body.is_end_stream() {
        RequestBody::Empty
    } else {
        let (flow, messages) = exchange.receives();
        RequestBody::Passing(body, flow, messages)
    };
    let to = To { view: &view, target };
    let limits = routed.as_ref().map(|routed| routed.forward.timeouts()).unwrap_or_default();
    let deadline = [limits.request, limits.backend_request]
        .into_iter()
        .flatten()
        .filter(|limit| !limit.is_zero())
        .min()
        .map(|limit| (Instant::now() + limit, limit));
    let retry = routed.as_ref().and_then(|routed| routed.forward.retry()).filter(|retry| !retry.codes.is_empty());
    let request = Request::from_parts(head, body);
    let sending = Box::pin(send_again(&client, &to, request, kind, &mut exchange, retry));
    let sent = match deadline {
        None => sending.await,
        Some((deadline, limit)) => {
            tokio::select! {
                sent = sending => sent,
                () = timers::sleep_until(deadline) => Err(late(limit)),
            }
        }
    };
    let (mut response, leased) = match sent {
        Ok(sent) => sent,
        Err(refusal) => return Ok(refuse(exchange, &refusal, asks.grpc)),
    };
    if let Some(routed) = &routed {
        routed.forward.change_response(response.headers_mut());
    }
    Ok(pass_back(&view, response, (leased, deadline.map(|(deadline, _)| deadline)), exchange, on_client))
}

fn refuse(mut exchange: Exchange, refusal: &Refusal, grpc: bool) -> Response<Body> {
    exchange.refused(refusal);
    let mut response = refusal.response(grpc);
    if refusal.flag == Flag::ProtocolError && !exchange.is_http2() {
        // What comes next on this connection may be meant in another way than it is read.
        response.headers_mut().insert(http::header::CONNECTION, http::HeaderValue::from_static("close"));
    }
    exchange.status = response.status();
    exchange.finished();
    response
}

/// The response as the client gets it.
fn pass_back(
    view: &View,
    response: Response<Incoming>,
    (leased, deadline): (Leased, Option<Instant>),
    mut exchange: Exchange,
    on_client: Option<OnUpgrade>,
) -> Response<Body> {
    let (mut head, body) = response.into_parts();
    exchange.responded(head.status, &head.headers);
    if head.status == StatusCode::SWITCHING_PROTOCOLS {
        let on_endpoint = head.extensions.remove::<OnUpgrade>();
        let (Some(on_client), Some(on_endpoint)) = (on_client, on_endpoint) else {
            let refusal = Refusal::new(
                StatusCode::BAD_GATEWAY,
                Flag::UpstreamTermination,
                "the endpoint changed to another protocol unasked",
            );
            leased.take_out();
            return refuse(exchange, &refusal, false);
        };
        leased.take_out();
        head::strip(&mut head.headers, true);
        head.version = Version::HTTP_11;
        upgrade::carry(on_client, on_endpoint, exchange);
        return Response::from_parts(head, Body::Empty);
    }
    head::strip(&mut head.headers, false);
    head.version = Version::HTTP_11;
    if view.left {
        // The client's next connection goes where its service is now.
        head.headers.insert(http::header::CONNECTION, http::HeaderValue::from_static("close"));
    }
    let body = Body::Response(Box::new(Passing::new(body, leased, exchange, deadline)));
    Response::from_parts(head, body)
}

/// The HTTP version for the endpoint: what its port declares, or else what the client speaks.
fn kind(declared: AppProtocol, head: &Parts, asks: &Asks) -> Kind {
    if asks.upgrade {
        return Kind::Http1;
    }
    match declared {
        AppProtocol::Http2 | AppProtocol::Grpc => Kind::Http2,
        _ if head.version == Version::HTTP_2 => Kind::Http2,
        _ => Kind::Http1,
    }
}

fn default_host(target: &WaypointTarget) -> Option<String> {
    match target {
        WaypointTarget::Service { service, port, .. } => Some(format!("{}:{port}", service.id.hostname)),
        WaypointTarget::Pod { address, .. } => Some(address.to_string()),
    }
}

fn late(limit: Duration) -> Refusal {
    let reason = format!("no response came within {limit:?}, the timeout of the route");
    Refusal::new(StatusCode::GATEWAY_TIMEOUT, Flag::Timeout, reason)
}

/// Where a request goes.
struct To<'a> {
    view: &'a View,
    /// What its connection was asked for, or what a route says instead.
    target: &'a WaypointTarget,
}

/// Why a connection could not be had.
enum Lack {
    Failure(Failure),
    Handshake(HandshakeError),
}

impl From<HandshakeError> for Lack {
    fn from(error: HandshakeError) -> Self {
        Self::Handshake(error)
    }
}

/// Attempts after the first, where a route names none.
const RETRIES: u32 = 1;
/// The wait before the second attempt, where a route names none. It doubles each time.
const BACKOFF: Duration = Duration::from_millis(25);

/// Sends a request, and again if the response has one of the codes that its route names. One with a body is sent once: its
/// body is not kept.
async fn send_again(
    client: &Client,
    to: &To<'_>,
    request: Request<RequestBody>,
    kind: Kind,
    exchange: &mut Exchange,
    retry: Option<&Retry>,
) -> Result<(Response<Incoming>, Leased), Refusal> {
    let Some(retry) = retry.filter(|_| matches!(request.body(), RequestBody::Empty)) else {
        return send(client, to, request, kind, exchange).await;
    };
    let mut backoff = retry.backoff.unwrap_or(BACKOFF);
    for _ in 0..retry.attempts.unwrap_or(RETRIES) {
        let (response, leased) = send(client, to, copy(&request), kind, exchange).await?;
        if !retry.codes.contains(&response.status().as_u16()) {
            return Ok((response, leased));
        }
        drop((response, leased));
        timers::sleep(backoff).await;
        backoff *= 2;
    }
    send(client, to, request, kind, exchange).await
}

/// Sends a request to one endpoint after the other, until one has it.
async fn send(
    client: &Client,
    to: &To<'_>,
    request: Request<RequestBody>,
    kind: Kind,
    exchange: &mut Exchange,
) -> Result<(Response<Incoming>, Leased), Refusal> {
    let plan = upstream::plan(&client.gate, &to.view.mesh, &to.view.own, to.target)?;
    let attempts = plan.attempts();
    let mut pending = Some(request);
    let mut last = None;
    for (index, route) in attempts.iter().enumerate() {
        exchange.attempt(route);
        let others = index + 1 < attempts.len();
        match ask(client, to, route, others, kind, &mut pending).await {
            Ok(answered) => return Ok(answered),
            Err(refusal) if pending.is_some() && refusal.again => {
                tracing::debug!(reason = %refusal.refusal.reason, "an endpoint could not be asked; trying another");
                last = Some(refusal.refusal);
            }
            Err(refusal) => return Err(refusal.refusal),
        }
    }
    Err(last.unwrap_or_else(|| Failure::NoRoute.into()))
}

/// Why an endpoint did not answer, and whether another one may.
struct Unanswered {
    refusal: Refusal,
    again: bool,
}

/// Asks one endpoint. A request that can't have reached it is put back.
async fn ask(
    client: &Client,
    to: &To<'_>,
    route: &Route,
    others: bool,
    kind: Kind,
    pending: &mut Option<Request<RequestBody>>,
) -> Result<(Response<Incoming>, Leased), Unanswered> {
    let (gate, lane) = (&client.gate, client.lane());
    let key = UpstreamKey::new(route, kind);
    let caller = Caller { own: &to.view.own, from: client.tunnel.local, service: service_of(to.target) };
    let connect = async || upstream::open(gate, lane, &caller, route, others).await.map_err(Lack::Failure);
    let mut fresh = false;
    loop {
        let leased = if fresh {
            match connect().await {
                Ok(stream) => lane.http.make(&key, gate.config.max_head, stream).await.map_err(Lack::Handshake),
                Err(lack) => Err(lack),
            }
        } else {
            lane.http.lease(&key, gate.config.max_head, connect).await
        };
        let mut leased = match leased {
            Ok(leased) => leased,
            Err(Lack::Failure(failure)) => {
                let again = failure.may_try_another_endpoint();
                return Err(Unanswered { refusal: failure.into(), again });
            }
            Err(Lack::Handshake(error)) => return Err(Unanswered { refusal: broken(&error), again: true }),
        };
        let Some(request) = pending.take() else {
            return Err(Unanswered { refusal: Failure::NoRoute.into(), again: false });
        };
        let reused = leased.reused && !fresh;
        let Some(sender) = leased.sender() else {
            *pending = Some(request);
            fresh = true;
            continue;
        };
        // A kept connection may be closed by the endpoint at the moment of the request. One that changes nothing may be
        // asked again.
        let copy = (reused && is_repeatable(&request)).then(|| copy(&request));
        let mut error = match sender.send(request).await {
            Ok(response) => return Ok((response, leased)),
            Err(error) => error,
        };
        if let Some(request) = error.take_message() {
            *pending = Some(request);
            if reused {
                fresh = true;
                continue;
            }
            return Err(Unanswered { refusal: broken(error.error()), again: true });
        }
        if let Some(copy) = copy
            && (error.error().is_incomplete_message() || error.error().is_canceled())
        {
            *pending = Some(copy);
            fresh = true;
            continue;
        }
        return Err(Unanswered { refusal: terminated(error.error()), again: false });
    }
}

/// Whether asking twice is as good as asking once (RFC 9110 §9.2.2), and possible.
fn is_repeatable(request: &Request<RequestBody>) -> bool {
    let idempotent = [Method::GET, Method::HEAD, Method::OPTIONS, Method::PUT, Method::DELETE, Method::TRACE];
    matches!(request.body(), RequestBody::Empty) && idempotent.contains(request.method())
}

fn copy(request: &Request<RequestBody>) -> Request<RequestBody> {
    let mut copy = Request::new(RequestBody::Empty);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = request.version();
    *copy.headers_mut() = request.headers().clone();
    copy
}

fn service_of(target: &WaypointTarget) -> Option<&Arc<leno_model::Service>> {
    match target {
        WaypointTarget::Service { service, .. } => Some(service),
        WaypointTarget::Pod { service, .. } => service.as_ref(),
    }
}

fn broken(error: &dyn std::fmt::Display) -> Refusal {
    Refusal::new(
        StatusCode::SERVICE_UNAVAILABLE,
        Flag::UpstreamFailure,
        format!("the connection to the endpoint could not be used: {error}"),
    )
}

fn terminated(error: &hyper::Error) -> Refusal {
    use std::error::Error;
    let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
    // The client's body ended too early, or broke its own rules.
    if error.is_user() || error.is_body_write_aborted() {
        return Refusal::new(
            StatusCode::BAD_REQUEST,
            Flag::ProtocolError,
            format!("the request's body broke off: {error}{cause}"),
        );
    }
    if error.is_parse_too_large() {
        return Refusal::new(
            StatusCode::BAD_GATEWAY,
            Flag::UpstreamTermination,
            "the head of the endpoint's response is larger than LENO_MAX_HEAD",
        );
    }
    if error.is_parse() {
        return Refusal::new(
            StatusCode::BAD_GATEWAY,
            Flag::UpstreamTermination,
            format!("the endpoint's response is not HTTP ({error}); does its port speak what the Service declares?"),
        );
    }
    Refusal::new(
        StatusCode::SERVICE_UNAVAILABLE,
        Flag::UpstreamTermination,
        format!("the endpoint closed the connection before it had answered: {error}{cause}"),
    )
}
