//! HTTP connections to endpoints, kept for the next request.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use leno_model::{Mesh, TunnelProtocol, WorkloadUid};
use leno_policy::Route;
use leno_tunnel::timers;
use parking_lot::Mutex;

use crate::balance::{Counted, InFlight, Shared};
use crate::body::upstream::RequestBody;
use crate::failure::Failure;
use crate::pool::stream::Stream;
use crate::transport::concurrent_streams::Streams;
use crate::transport::timer::{FirstCorked, Timer};
use crate::transport::wire::Wire;

/// The HTTP version spoken to an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Http1,
    Http2,
}

/// What requests must have in common to share connections.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct UpstreamKey {
    /// The program's address and port.
    target: SocketAddr,
    /// Its workload, if it is known. If the address passes to another pod, the key changes.
    peer: Option<WorkloadUid>,
    /// Whether it is reached in a tunnel.
    tunnel: bool,
    /// If `peer` is another waypoint: how many have sent on what goes there.
    passed: Option<u32>,
    kind: Kind,
}

impl UpstreamKey {
    /// For an endpoint, or for another waypoint if `passed` have sent on what goes there.
    pub(crate) fn new(route: &Route, kind: Kind, passed: u32) -> Self {
        let passed = matches!(route, Route::Hbone { via_waypoint: true, .. }).then_some(passed);
        let (target, peer, tunnel) = match route {
            Route::Hbone { target, workload, .. } => (*target, Some(workload.uid.clone()), true),
            Route::Plain { address, workload, .. } => (*address, workload.as_ref().map(|w| w.uid.clone()), false),
            Route::Passthrough { address } => (*address, None, false),
        };
        Self { target, peer, tunnel, passed, kind }
    }

    /// Whether requests share connections.
    pub(crate) fn is_shared(&self) -> bool {
        self.kind == Kind::Http2
    }

    /// Whether the endpoint is gone, or is reached in another way.
    pub(crate) fn is_obsolete(&self, mesh: &Mesh) -> bool {
        self.peer.as_ref().is_some_and(|peer| {
            mesh.workload(peer).is_none_or(|peer| {
                peer.not_understood.is_some()
                    || self.passed.is_none() && !peer.addresses.contains(&self.target.ip())
                    || (peer.tunnel_protocol == TunnelProtocol::Hbone) != self.tunnel
            })
        })
    }
}

/// Sends requests on one connection.
pub(crate) enum Sender {
    Http1(http1::SendRequest<RequestBody>),
    Http2(http2::SendRequest<RequestBody>),
}

impl Sender {
    /// Sends a request. One that can't have left comes back with the error.
    pub(crate) async fn send(
        &mut self,
        request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, TrySendError<Request<RequestBody>>> {
        match self {
            Self::Http1(sender) => sender.try_send_request(request).await,
            Self::Http2(sender) => sender.try_send_request(request).await,
        }
    }

    fn is_closed(&self) -> bool {
        match self {
            Self::Http1(sender) => sender.is_closed(),
            Self::Http2(sender) => sender.is_closed(),
        }
    }
}

/// HTTP/2 requests on one connection before another is opened. An endpoint may say fewer.
const STREAMS: usize = 100;

/// How long an endpoint may take to say so. A request that did not wait might have to wait for others to end.
const SETTINGS: Duration = Duration::from_secs(1);

/// An HTTP/2 connection gets no more requests when so many were given up, and they are more than half of all. Each is a
/// stream reset, for too many of which servers end a connection with all that is on it, other clients' requests as well:
/// Envoy after 500 (`overload.premature_reset_total_stream_count`).
const GIVEN_UP_MOST: u32 = 100;

/// HTTP/1.1 connections that one endpoint's place keeps without a request.
const IDLE_MOST: usize = 256;

/// How much of a body waits here for a reader, bytes: per request, and per connection. Clients share a connection, so those
/// that don't read must not use up its window: it is for as many as it carries.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * STREAMS as u32;

/// How much is buffered towards an endpoint that does not read, bytes.
const SEND_BUFFER: usize = 64 << 10;

/// What rules say of the connections to an endpoint.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Terms {
    /// How long one is kept without a request; `None` for the waypoint's own time.
    pub(crate) idle: Option<Duration>,
    /// Requests that it carries at most, one after the other.
    pub(crate) uses: Option<u32>,
}

impl Terms {
    /// Whether a connection that has carried so many requests gets no more.
    fn is_spent(self, uses: u32) -> bool {
        self.uses.is_some_and(|most| uses >= most)
    }
}

/// The connections of one thread.
#[derive(Default, Clone)]
pub(crate) struct HttpPool {
    places: Arc<Mutex<HashMap<UpstreamKey, Place, RandomState>>>,
}

#[derive(Default)]
struct Place {
    idle: Vec<Idle>,
    shared: Vec<(http2::SendRequest<RequestBody>, Arc<Use>)>,
    terms: Terms,
    making: Arc<Making>,
}

/// How HTTP/2 connections to an endpoint are made: one at a time.
#[derive(Default)]
struct Making {
    /// Held while one is made: others wait for it instead of making their own.
    turn: tokio::sync::Mutex<()>,
    /// How many could not be made, and why the last one.
    failed: Mutex<(u64, Option<Failure>)>,
}

/// An HTTP/1.1 connection without a request.
struct Idle {
    sender: http1::SendRequest<RequestBody>,
    since: Instant,
    uses: u32,
    counted: Option<Counted>,
}

/// How an HTTP/2 connection is used.
struct Use {
    active: AtomicUsize,
    uses: AtomicU32,
    /// Requests whose answers were not waited for.
    given_up: AtomicU32,
    streams: Arc<Streams>,
    _counted: Option<Counted>,
    /// When the last request ended.
    since: Mutex<Instant>,
}

impl Use {
    /// Whether the connection gets no more requests: it is closed after its last response.
    fn is_spent(&self, terms: Terms) -> bool {
        let (uses, given_up) = (self.uses.load(Relaxed), self.given_up.load(Relaxed));
        terms.is_spent(uses) || given_up >= GIVEN_UP_MOST && given_up > uses / 2
    }
}

/// A connection on loan. Dropping it gives it back.
pub(crate) struct Leased {
    pub(crate) sender: Option<Sender>,
    /// Whether it has carried requests before, and so may turn out to be closed.
    pub(crate) reused: bool,
    pool: HttpPool,
    key: UpstreamKey,
    shared: Option<Arc<Use>>,
    /// Requests that it has carried with this one.
    uses: u32,
    terms: Terms,
    /// Counts the connection, if nothing else does.
    counted: Option<Counted>,
    /// Counts the request at its endpoint.
    in_flight: Option<InFlight>,
    /// Whether the request has been answered to the end.
    answered: bool,
}

impl Drop for Leased {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            if !self.answered {
                shared.given_up.fetch_add(1, Relaxed);
            }
            if shared.active.fetch_sub(1, Relaxed) == 1 {
                *shared.since.lock() = Instant::now();
            }
        }
        let Some(Sender::Http1(sender)) = self.sender.take() else { return };
        if sender.is_closed() || self.terms.is_spent(self.uses) {
            return;
        }
        let mut places = self.pool.places.lock();
        let place = match places.get_mut(&self.key) {
            Some(place) => place,
            None => places.entry(self.key.clone()).or_default(),
        };
        place.terms = self.terms;
        if place.idle.len() < IDLE_MOST {
            if let Some(counted) = &self.counted {
                counted.is_free();
            }
            place.idle.push(Idle { sender, since: Instant::now(), uses: self.uses, counted: self.counted.take() });
        }
    }
}

impl Leased {
    /// Keeps the connection out of the pool: its bytes are no longer HTTP. Returns what counts it until it is dropped.
    pub(crate) fn take_out(mut self) -> (Option<Counted>, Option<InFlight>) {
        self.sender = None;
        (self.counted.take(), self.in_flight.take())
    }
}

/// What a new connection is made with.
pub(crate) struct New {
    /// Bytes that the head of a response may have.
    pub(crate) max_head: usize,
    pub(crate) terms: Terms,
    /// Counts the connection.
    pub(crate) counted: Option<Counted>,
}

impl HttpPool {
    /// A connection that is kept for `key` and takes a request now.
    pub(crate) fn kept(&self, key: &UpstreamKey) -> Option<Leased> {
        self.kept_with(key, STREAMS)
    }

    /// As [`Self::kept`], but however many requests share it.
    pub(crate) fn crowded(&self, key: &UpstreamKey) -> Option<Leased> {
        self.kept_with(key, usize::MAX)
    }

    fn kept_with(&self, key: &UpstreamKey, streams: usize) -> Option<Leased> {
        let mut places = self.places.lock();
        let place = places.get_mut(key)?;
        let terms = place.terms;
        let leased = |sender, shared, uses, counted| {
            let pool = self.clone();
            let key = key.clone();
            let sender = Some(sender);
            Some(Leased {
                sender,
                reused: true,
                pool,
                key,
                shared,
                uses,
                terms,
                counted,
                in_flight: None,
                answered: false,
            })
        };
        match key.kind {
            Kind::Http1 => {
                place.idle.retain(|idle| !idle.sender.is_closed());
                // The latest first: others get old and are closed.
                let ready = place.idle.iter().rposition(|idle| idle.sender.is_ready())?;
                let Idle { sender, uses, counted, .. } = place.idle.remove(ready);
                leased(Sender::Http1(sender), None, uses + 1, counted)
            }
            Kind::Http2 => {
                place.shared.retain(|(sender, shared)| !sender.is_closed() && !shared.is_spent(terms));
                let active = |shared: &Use| shared.active.load(Relaxed);
                let has_room =
                    |shared: &Use| streams == usize::MAX || active(shared) < shared.streams.most().min(streams);
                let free = place.shared.iter().filter(|(_, shared)| has_room(shared));
                let (sender, shared) = free.min_by_key(|(_, shared)| active(shared))?;
                shared.active.fetch_add(1, Relaxed);
                shared.uses.fetch_add(1, Relaxed);
                leased(Sender::Http2(sender.clone()), Some(shared.clone()), 0, None)
            }
        }
    }

    /// Lets go of one connection without a request, among those that `shared` counts. Returns whether there was one.
    pub(crate) fn let_go(&self, shared: &Arc<Shared>) -> bool {
        let is_of = |idle: &Idle| idle.counted.as_ref().is_some_and(|counted| counted.is_of(shared));
        let mut places = self.places.lock();
        let found = places.values_mut().find_map(|place| {
            let found = place.idle.iter().position(is_of)?;
            Some(place.idle.remove(found))
        });
        drop(places);
        // After the lock is released: dropping wakes the connection's task.
        found.is_some()
    }

    /// The shortest time for which rules keep a connection without a request.
    pub(crate) fn shortest_idle(&self) -> Option<Duration> {
        self.places.lock().values().filter_map(|place| place.terms.idle).min()
    }

    /// A connection for `key`: one that is kept, or else a new one over what `open` connects.
    pub(crate) async fn lease(
        &self,
        key: &UpstreamKey,
        new: New,
        open: impl AsyncFnOnce() -> Result<Stream, Failure>,
    ) -> Result<Leased, Lack> {
        if let Some(kept) = self.kept(key) {
            return Ok(kept);
        }
        if key.kind == Kind::Http1 {
            return Ok(self.make(key, new, open().await?).await?);
        }
        let making = self.places.lock().entry(key.clone()).or_default().making.clone();
        let failed = making.failed.lock().0;
        let _turn = making.turn.lock().await;
        if let Some(kept) = self.kept(key) {
            return Ok(kept);
        }
        // Whoever waited for an endpoint that does not answer has waited long enough.
        if let (now, Some(failure)) = &*making.failed.lock()
            && *now != failed
        {
            return Err(failure.clone().into());
        }
        match open().await {
            Ok(stream) => Ok(self.make(key, new, stream).await?),
            Err(failure) => {
                let mut failed = making.failed.lock();
                *failed = (failed.0 + 1, Some(failure.clone()));
                Err(failure.into())
            }
        }
    }

    /// As [`Self::lease`], but a new one.
    pub(crate) async fn make(
        &self,
        key: &UpstreamKey,
        New { max_head, terms, counted }: New,
        stream: Stream,
    ) -> Result<Leased, HandshakeError> {
        let wire = match stream {
            Stream::Tunnel(stream) => Wire::tunnel(stream),
            Stream::Tcp(stream) => Wire::tcp(stream),
        };
        let mut leased = Leased {
            sender: None,
            reused: false,
            pool: self.clone(),
            key: key.clone(),
            shared: None,
            uses: 1,
            terms,
            counted,
            in_flight: None,
            answered: false,
        };
        match key.kind {
            Kind::Http1 => {
                let mut builder = http1::Builder::new();
                builder.max_buf_size(max_head.max(16 << 10)).writev(true);
                let (mut sender, connection) = builder.handshake(wire).await?;
                tokio::spawn(async move {
                    if let Err(error) = connection.with_upgrades().await {
                        tracing::debug!(%error, "an HTTP/1.1 connection to an endpoint ended with an error");
                    }
                });
                sender.ready().await?;
                leased.sender = Some(Sender::Http1(sender));
            }
            Kind::Http2 => {
                let streams = Arc::new(Streams::new(STREAMS));
                let (wire, cork) = wire.endpoint(streams.clone()).corked();
                let mut builder = http2::Builder::new(FirstCorked::new(cork));
                builder
                    .timer(Timer)
                    .initial_stream_window_size(STREAM_WINDOW)
                    .initial_connection_window_size(CONNECTION_WINDOW)
                    .max_send_buf_size(SEND_BUFFER)
                    .max_header_list_size(u32::try_from(max_head).unwrap_or(u32::MAX));
                let (sender, connection) = builder.handshake(wire).await?;
                let of_task = streams.clone();
                tokio::spawn(async move {
                    if let Err(error) = connection.await {
                        tracing::debug!(%error, "an HTTP/2 connection to an endpoint ended with an error");
                    }
                    of_task.ended();
                });
                let _ = timers::timeout(SETTINGS, streams.told()).await;
                if streams.is_noise() {
                    return Err(HandshakeError::NotHttp2);
                }
                if sender.is_closed() {
                    return Err(HandshakeError::Ended);
                }
                let shared = Arc::new(Use {
                    active: AtomicUsize::new(1),
                    uses: AtomicU32::new(1),
                    given_up: AtomicU32::default(),
                    streams,
                    _counted: leased.counted.take(),
                    since: Mutex::new(Instant::now()),
                });
                let mut places = self.places.lock();
                let place = places.entry(key.clone()).or_default();
                place.terms = terms;
                place.shared.push((sender.clone(), shared.clone()));
                drop(places);
                leased.sender = Some(Sender::Http2(sender));
                leased.shared = Some(shared);
            }
        }
        Ok(leased)
    }

    /// Lets go of connections whose key satisfies `gone`, and of those that had no request for `idle`. Open requests go
    /// on.
    pub(crate) fn evict(&self, mut gone: impl FnMut(&UpstreamKey) -> bool, idle: Duration) {
        let mut dropped = Vec::new();
        let mut places = self.places.lock();
        places.retain(|key, place| {
            if gone(key) {
                dropped.push(std::mem::take(place));
                return false;
            }
            let idle = place.terms.idle.unwrap_or(idle);
            place.idle.retain(|kept| !kept.sender.is_closed() && kept.since.elapsed() < idle);
            place.shared.retain(|(sender, shared)| {
                let used = shared.active.load(Relaxed) > 0 || shared.since.lock().elapsed() < idle;
                !sender.is_closed() && used
            });
            !place.idle.is_empty() || !place.shared.is_empty() || Arc::strong_count(&place.making) > 1
        });
        drop(places);
        // After the lock is released: dropping wakes the connections' tasks.
        drop(dropped);
    }

    /// How many connections are kept.
    pub(crate) fn count(&self) -> usize {
        self.places.lock().values().map(|place| place.idle.len() + place.shared.len()).sum()
    }
}

/// Why a connection could not be had.
pub(crate) enum Lack {
    Failure(Failure),
    Handshake(HandshakeError),
}

impl From<Failure> for Lack {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

impl From<HandshakeError> for Lack {
    fn from(error: HandshakeError) -> Self {
        Self::Handshake(error)
    }
}

/// HTTP could not be started on a connection that stands.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    #[error("HTTP can't be started on it: {0}")]
    Http(#[from] hyper::Error),
    #[error(
        "what the endpoint answered is not HTTP/2; a request in HTTP/2 goes on in HTTP/2, so ask it over HTTP/1.1, or let its \
         program speak HTTP/2"
    )]
    NotHttp2,
    #[error(
        "the endpoint closed it before HTTP/2 began; if its program does not speak HTTP/2, ask it over HTTP/1.1: a request \
         in HTTP/2 goes on in HTTP/2"
    )]
    Ended,
}

impl Leased {
    /// The request counts at its endpoint until this is given back.
    pub(crate) fn counted(&mut self, in_flight: Option<InFlight>) {
        self.in_flight = in_flight;
    }

    /// The endpoint has answered to the end, or has broken off.
    pub(crate) fn answered(&mut self) {
        self.answered = true;
    }

    /// The connection's sender.
    pub(crate) fn sender(&mut self) -> Option<&mut Sender> {
        self.sender.as_mut().filter(|sender| !sender.is_closed())
    }
}

#[cfg(test)]
#[path = "http_pool_tests.rs"]
mod tests;
