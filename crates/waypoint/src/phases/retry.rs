//! A request is sent to one endpoint after the other, until one has it.

use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{Method, Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use leno_model::AppProtocol;
use leno_model::http::Retry;
use leno_policy::{Route, WaypointTarget};
use leno_tunnel::timers;
use tokio::time::Instant;

use crate::balance::{Limit, Seat, Tried, Wish, hash};
use crate::body::upstream::RequestBody;
use crate::failure::Failure;
use crate::pool::{HandshakeError, Kind, Lack, Leased, New, Terms, UpstreamKey};
use crate::request::client::{Client, View};
use crate::request::head::Asks;
use crate::request::refusal::{Flag, Refusal};
use crate::upstream::{self, Caller, Next, Plan, Room};

/// The HTTP version for the endpoint: what its port declares, or else what the client speaks.
pub(crate) fn kind(declared: AppProtocol, head: &Parts, asks: &Asks) -> Kind {
    if asks.upgrade {
        return Kind::Http1;
    }
    match declared {
        AppProtocol::Http2 | AppProtocol::Grpc => Kind::Http2,
        _ if head.version == Version::HTTP_2 => Kind::Http2,
        _ => Kind::Http1,
    }
}

/// Is told of each endpoint that is asked.
pub(crate) type Told<'a> = &'a mut (dyn FnMut(&Route) + Send);

/// Where a request goes.
pub(crate) struct To<'a> {
    pub(crate) view: &'a View,
    /// What its connection was asked for, or what a route says instead.
    pub(crate) target: &'a WaypointTarget,
    /// The endpoint that is asked at the moment.
    pub(crate) seat: &'a Seat,
    /// Whether it may be sent again, for what is answered.
    pub(crate) again: bool,
    /// Whether asking twice is as good as asking once whatever its method is, if its body is whole.
    pub(crate) repeatable: bool,
    /// The number of the endpoint at which its session is.
    pub(crate) held: Option<u64>,
}

/// Attempts after the first, where a route names none.
const RETRIES: u32 = 1;
/// HTTP/2 connections that one request may lose before it gets one of its own.
const SHARED_LOST_MOST: u32 = 3;
/// The wait before the second attempt, where a route names none. It doubles each time.
const BACKOFF: Duration = Duration::from_millis(25);

/// Whose timeout it is.
#[derive(Clone, Copy)]
pub(crate) enum Whose<'a> {
    /// That of a route's rule.
    Rule(&'a str),
    VirtualService,
    /// The client says it (`grpc-timeout`).
    Client,
}

impl std::fmt::Display for Whose<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Rule(label) => f.write_str(label),
            Self::VirtualService => f.write_str("the VirtualService"),
            Self::Client => f.write_str("the client (grpc-timeout)"),
        }
    }
}

pub(crate) fn late(limit: Duration, whose: Whose<'_>) -> Refusal {
    let reason = format!("no response came within {limit:?}, the timeout of {whose}");
    Refusal::new(StatusCode::GATEWAY_TIMEOUT, Flag::Timeout, reason)
}

/// What a route says of attempts.
#[derive(Clone, Copy)]
pub(crate) struct Again<'a> {
    pub(crate) retry: Option<&'a Retry>,
    /// How long one attempt may take, with its response.
    pub(crate) limit: Option<(Duration, Whose<'a>)>,
}

/// The status of an attempt that took too long, as a route names it.
const TOOK_TOO_LONG: u16 = 504;

/// Sends a request, and again if the response has one of the codes that its route names. One with a body is sent once: its
/// body is not kept. Returns also when the response must have come.
pub(crate) async fn send_again(
    client: &Client,
    to: &To<'_>,
    request: Request<RequestBody>,
    kind: Kind,
    told: Told<'_>,
    again: Again<'_>,
) -> Result<(Response<Incoming>, Leased, Option<Instant>), Refusal> {
    let Some(retry) = again.retry.filter(|_| matches!(request.body(), RequestBody::Empty)) else {
        return attempt(client, to, request, kind, told, again.limit).await;
    };
    let mut backoff = retry.backoff.unwrap_or(BACKOFF);
    // Counts that it is sent again, until it is answered.
    let mut _again = None;
    for _ in 0..retry.attempts.unwrap_or(RETRIES) {
        let answered = attempt(client, to, copy(&request), kind, told, again.limit).await;
        let status = match &answered {
            Ok((response, ..)) => response.status().as_u16(),
            Err(refusal) if refusal.flag == Flag::Timeout => TOOK_TOO_LONG,
            Err(_) => return answered,
        };
        if !retry.codes.contains(&status) {
            return answered;
        }
        let Some(counted) = to.seat.again() else {
            tracing::debug!(status, "a request is not sent again: too many are");
            return answered;
        };
        _again = counted;
        drop(answered);
        timers::sleep(backoff).await;
        backoff *= 2;
    }
    attempt(client, to, request, kind, told, again.limit).await
}

/// One attempt.
async fn attempt(
    client: &Client,
    to: &To<'_>,
    request: Request<RequestBody>,
    kind: Kind,
    told: Told<'_>,
    limit: Option<(Duration, Whose<'_>)>,
) -> Result<(Response<Incoming>, Leased, Option<Instant>), Refusal> {
    let sending = send(client, to, request, kind, told);
    let Some((limit, whose)) = limit else {
        return sending.await.map(|(response, leased)| (response, leased, None));
    };
    let deadline = Instant::now() + limit;
    tokio::select! {
        sent = sending => sent.map(|(response, leased)| (response, leased, Some(deadline))),
        () = timers::sleep_until(deadline) => {
            to.seat.gave_up();
            Err(late(limit, whose))
        }
    }
}

/// Sends a request to one endpoint after the other, until one has it.
pub(crate) async fn send(
    client: &Client,
    to: &To<'_>,
    request: Request<RequestBody>,
    kind: Kind,
    told: Told<'_>,
) -> Result<(Response<Incoming>, Leased), Refusal> {
    let plan = upstream::plan(&client.gate, client.lane(), &to.view.mesh, &to.view.own, to.target)?;
    let mut pending = Some(request);
    let refusal = match by_plan(&plan, client, to, &mut pending, kind, told).await {
        Err(refusal) if pending.is_some() => refusal,
        sent => return sent,
    };
    // Its endpoints may have been replaced since the request came.
    let Some((mesh, own)) = client.gate.own.now().filter(|(mesh, _)| !Arc::ptr_eq(mesh, &to.view.mesh)) else {
        return Err(refusal);
    };
    let target = match to.target {
        WaypointTarget::Service { service, port, address } => mesh
            .service(&service.id)
            .map(|service| WaypointTarget::Service { service: service.clone(), port: *port, address: *address }),
        WaypointTarget::Pod { .. } => None,
    };
    let Some(target) = target else { return Err(refusal) };
    let plan = upstream::plan(&client.gate, client.lane(), &mesh, &own, &target)?;
    by_plan(&plan, client, to, &mut pending, kind, told).await
}

/// As [`send`], by a plan of its own.
pub(crate) async fn send_by(
    plan: &Plan,
    client: &Client,
    to: &To<'_>,
    request: Request<RequestBody>,
    kind: Kind,
    told: Told<'_>,
) -> Result<(Response<Incoming>, Leased), Refusal> {
    by_plan(plan, client, to, &mut Some(request), kind, told).await
}

/// Sends a pending request by a plan. It is still pending after a failure if another endpoint may be asked.
async fn by_plan(
    plan: &Plan,
    client: &Client,
    to: &To<'_>,
    pending: &mut Option<Request<RequestBody>>,
    kind: Kind,
    told: Told<'_>,
) -> Result<(Response<Incoming>, Leased), Refusal> {
    let (mut tried, mut last) = (Tried::default(), None);
    let hash = plan
        .hash_of()
        .zip(pending.as_ref())
        .and_then(|(of, request)| hash::of(of, request.uri(), request.headers(), client.address().ip()));
    let by = Wish { held: to.held, hash };
    while let Some(mut next) = plan.next(&client.gate, &mut tried, Limit::Requests, by).map_err(Failure::from)? {
        told(next.route);
        to.seat.sit(next.in_flight.take());
        let asked = ask(client, to, &next, kind, pending).await;
        let mut in_flight = to.seat.leave();
        match asked {
            Ok((response, mut leased)) => {
                if let Some(in_flight) = &mut in_flight {
                    in_flight.answered(response.status(), response.headers());
                }
                if to.again {
                    to.seat.remember(in_flight.as_ref());
                }
                leased.counted(in_flight);
                return Ok((response, leased));
            }
            Err(Unanswered { refusal, again }) => {
                if let Some(in_flight) = &mut in_flight {
                    match refusal.flag {
                        Flag::UpstreamTermination => in_flight.broken(),
                        Flag::UpstreamFailure => in_flight.unreachable(),
                        _ => {}
                    }
                }
                if pending.is_none() || !again {
                    *pending = None;
                    return Err(refusal);
                }
                tracing::debug!(reason = %refusal.reason, "an endpoint could not be asked; trying another");
                last = Some(refusal);
            }
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
    next: &Next<'_>,
    kind: Kind,
    pending: &mut Option<Request<RequestBody>>,
) -> Result<(Response<Incoming>, Leased), Unanswered> {
    let lane = client.lane();
    let key = UpstreamKey::new(next.route, kind, client.passed);
    let connect_timeout = next.of.and_then(|of| of.rules.connect_timeout);
    let (service, from) = (to.target.service(), client.tunnel.local);
    let caller = Caller { own: &to.view.own, from, service, connect_timeout, passed: client.passed };
    // HTTP/2 requests that lost a connection together share the next one, too.
    let most = if key.is_shared() { SHARED_LOST_MOST } else { 1 };
    let mut lost = 0;
    loop {
        if lost > 0
            && let Some((mesh, _)) = client.gate.own.now()
            && key.is_obsolete(&mesh)
        {
            return Err(Unanswered { refusal: broken(&"the endpoint is gone"), again: true });
        }
        let fresh = lost >= most;
        let kept = if fresh { None } else { lane.http.kept(&key) };
        let leased = match kept {
            Some(kept) => Ok(kept),
            None => connected(client, &key, &caller, next, fresh).await,
        };
        let mut leased = match leased {
            Ok(leased) => leased,
            Err(Lack::Failure(failure)) => {
                let again = failure.may_try_another_endpoint();
                return Err(Unanswered { refusal: failure.into(), again });
            }
            Err(Lack::Handshake(error @ HandshakeError::NotHttp2)) => {
                let refusal = Refusal::new(StatusCode::BAD_GATEWAY, Flag::UpstreamTermination, error.to_string());
                return Err(Unanswered { refusal, again: true });
            }
            Err(Lack::Handshake(error)) => return Err(Unanswered { refusal: broken(&error), again: true }),
        };
        let Some(request) = pending.take() else {
            return Err(Unanswered { refusal: Failure::NoRoute.into(), again: false });
        };
        let reused = leased.reused && !fresh;
        let Some(sender) = leased.sender() else {
            *pending = Some(request);
            if fresh {
                return Err(Unanswered { refusal: broken(&"it was closed at once"), again: true });
            }
            lost += 1;
            continue;
        };
        // An endpoint may close a kept connection at the moment of the request. One that changes nothing may be asked
        // again; so may any that an HTTP/2 endpoint says it has not looked at.
        let is_whole = matches!(request.body(), RequestBody::Empty | RequestBody::Whole(_));
        let is_repeatable = reused && (to.repeatable && is_whole || is_repeatable(&request));
        let kept_copy = is_repeatable || key.is_shared() && is_whole;
        let copy = kept_copy.then(|| copy(&request));
        let mut error = match sender.send(request).await {
            Ok(response) => return Ok((response, leased)),
            Err(error) => error,
        };
        leased.answered();
        if let Some(request) = error.take_message() {
            *pending = Some(request);
            if reused {
                lost += 1;
                continue;
            }
            return Err(Unanswered { refusal: broken(error.error()), again: true });
        }
        if let Some(copy) = copy {
            let is_unprocessed = is_unprocessed(error.error());
            if is_unprocessed || is_repeatable && is_lost(error.error()) {
                *pending = Some(copy);
                if fresh {
                    return Err(Unanswered { refusal: broken(error.error()), again: is_unprocessed });
                }
                lost += 1;
                continue;
            }
        }
        return Err(Unanswered { refusal: terminated(error.error()), again: false });
    }
}

/// A connection that is not among those that are ready: a new one, or one that becomes free, as the rules permit.
async fn connected(
    client: &Client,
    key: &UpstreamKey,
    caller: &Caller<'_>,
    next: &Next<'_>,
    fresh: bool,
) -> Result<Leased, Lack> {
    let (gate, lane) = (&client.gate, client.lane());
    let connect = async || upstream::open(gate, lane, caller, next.route, next.others).await;
    let (mut terms, mut counted, mut pending) = (Terms::default(), None, None);
    if let Some(of) = next.of {
        terms = Terms { idle: of.rules.idle_timeout, uses: of.rules.max_requests_per_connection };
        pending = Some(of.count(Limit::Pending).map_err(|overflow| Lack::Failure(overflow.into()))?);
        match upstream::room(gate, lane, key, of).await {
            Room::Kept(kept) if !fresh => return Ok(kept),
            Room::Kept(kept) => drop(kept),
            Room::New(new) => counted = Some(new),
        }
    }
    let new = New { max_head: gate.config.max_head, terms, counted };
    let leased = if fresh {
        lane.http.make(key, new, connect().await?).await.map_err(Lack::Handshake)
    } else {
        lane.http.lease(key, new, connect).await
    };
    drop(pending);
    leased
}

/// Whether an HTTP/2 endpoint says that it has done nothing with a request (RFC 9113 §8.7): by resetting it so, or by ending
/// the connection with the number of an earlier one.
fn is_unprocessed(error: &hyper::Error) -> bool {
    use std::error::Error;
    let Some(error) = error.source().and_then(|source| source.downcast_ref::<h2::Error>()) else { return false };
    error.is_remote() && (error.is_go_away() || error.reason() == Some(h2::Reason::REFUSED_STREAM))
}

/// Whether a connection has ended with a request on it. One that others share ends by their doing, too.
fn is_lost(error: &hyper::Error) -> bool {
    use std::error::Error;
    let source = error.source();
    let is_io = |source: &(dyn Error + 'static)| {
        source.is::<std::io::Error>() || source.downcast_ref::<h2::Error>().is_some_and(h2::Error::is_io)
    };
    error.is_incomplete_message() || error.is_canceled() || source.is_some_and(is_io)
}

/// Whether asking twice is as good as asking once (RFC 9110 §9.2.2), and possible.
fn is_repeatable(request: &Request<RequestBody>) -> bool {
    let idempotent = [Method::GET, Method::HEAD, Method::OPTIONS, Method::PUT, Method::DELETE, Method::TRACE];
    matches!(request.body(), RequestBody::Empty) && idempotent.contains(request.method())
}

fn copy(request: &Request<RequestBody>) -> Request<RequestBody> {
    let mut copy = Request::new(match request.body() {
        RequestBody::Whole(bytes) => RequestBody::Whole(bytes.clone()),
        _ => RequestBody::Empty,
    });
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = request.version();
    *copy.headers_mut() = request.headers().clone();
    copy
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
    let source = error.source().and_then(|source| source.downcast_ref::<h2::Error>());
    let is_noise = |reason| matches!(reason, Some(h2::Reason::FRAME_SIZE_ERROR | h2::Reason::PROTOCOL_ERROR));
    if source.is_some_and(|source| source.is_library() && is_noise(source.reason())) {
        let reason = format!("what the endpoint sent breaks the rules of HTTP/2: {error}{cause}");
        return Refusal::new(StatusCode::BAD_GATEWAY, Flag::UpstreamTermination, reason);
    }
    Refusal::new(
        StatusCode::SERVICE_UNAVAILABLE,
        Flag::UpstreamTermination,
        format!("the endpoint closed the connection before it had answered: {error}{cause}"),
    )
}
