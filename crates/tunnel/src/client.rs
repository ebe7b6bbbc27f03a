//! Client side of one HBONE connection: its task, its streams, the CONNECT request.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst,
};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use http::{HeaderMap, Method, Request, StatusCode, Uri};
use tokio::time::Instant;

use crate::carrier::{Guard, Handle, Role};
use crate::early::FirstBytes;
use crate::keepalive::Keepalive;
use crate::rarely::{Asked, rarely};
use crate::timers::{sleep, timeout};
use crate::waking::{Registered, Sleeper};
use crate::window::Window;
use crate::{Error, OpenError, Settings, Transport, TunnelStream};

/// The timers' grain: what waits for less would not wait at all.
const SHORTEST: Duration = Duration::from_millis(1);

/// A peer that was heard within this time is taken for alive. One that died without a word is
/// found out by the first request, which is then made again elsewhere, unless a program's first
/// bytes went with it. A peer that was not is asked for a sign of life together with the request.
pub(crate) const LIVELY: Duration = Duration::from_secs(1);

/// What to ask the peer for.
#[derive(Debug, Clone)]
pub struct ConnectRequest {
    /// `host:port` to connect to; IPv6 in brackets.
    pub authority: String,
    /// Headers, such as `baggage`, `forwarded` and `traceparent`.
    pub headers: HeaderMap,
}

/// What the peer answered, with status 200.
#[derive(Debug, Clone)]
pub struct ResponseHead {
    /// The status.
    pub status: StatusCode,
    /// Headers, such as the `baggage` that describes the destination.
    pub headers: HeaderMap,
}

/// One connection that streams can be opened on. While anyone holds it, HTTP/2 keeps the
/// transport open; so its own task must not.
pub(crate) struct Connection {
    send: SendRequest<Bytes>,
    /// What its streams' bytes go by.
    carrier: Handle,
    active: AtomicUsize,
    limit: usize,
    /// The peer's SETTINGS have come.
    settled: AtomicBool,
    pub(crate) created: Instant,
    /// When it stops taking new streams.
    drains: Option<Instant>,
    /// Half of the streams it may carry were open at some time.
    was_large: AtomicBool,
    /// Milliseconds after `created` when the last stream ended.
    idle_since: AtomicU64,
    /// The connection's task waits for the last stream to end, without a timer.
    awaits_idle: AtomicBool,
    task: Sleeper,
    /// It was given up because its peer was silent.
    pub(crate) fell_silent: AtomicBool,
    /// Milliseconds after `created` when something came from the peer.
    heard: Arc<AtomicU64>,
    /// The peer has answered a request with another status than 200.
    has_refused: AtomicBool,
}

/// A stream's place on a connection; free again when dropped.
pub(crate) struct Permit {
    connection: Arc<Connection>,
}

impl Drop for Permit {
    fn drop(&mut self) {
        // Before the count goes down: who then sees zero also sees since when.
        let now = self.connection.created.elapsed().as_millis() as u64;
        self.connection.idle_since.store(now, Relaxed);
        if self.connection.active.fetch_sub(1, SeqCst) == 1 && self.connection.awaits_idle.swap(false, SeqCst) {
            self.connection.task.wake();
        }
    }
}

impl Connection {
    /// Whether new streams can't be opened any more: GOAWAY was received or the transport ended.
    pub(crate) fn is_gone(&self) -> bool {
        let mut send = self.send.clone();
        matches!(send.poll_ready(&mut Context::from_waker(Waker::noop())), Poll::Ready(Err(_)))
    }

    /// Whether it takes no new streams at `now`, because what proved its two sides is about to end. Looked
    /// at by who wants to open one: no timer is needed.
    pub(crate) fn drains_by(&self, now: Instant) -> bool {
        self.drains.is_some_and(|drains| drains <= now)
    }

    /// Whether one more stream could be opened at once: fewer are than this side wants and the
    /// peer allows. With the pool's lock held, no other stream takes it meanwhile.
    ///
    /// False before the peer has told its limit: requests beyond it would wait on this
    /// connection until a stream ends, which may be never.
    pub(crate) fn has_room(&self) -> bool {
        self.settled.load(Acquire) && self.active() < self.limit.min(self.send.current_max_send_streams())
    }

    /// A place for one more stream, whatever the limits: HTTP/2 holds the request back until
    /// the peer allows it.
    pub(crate) fn acquire(self: &Arc<Self>) -> Permit {
        let active = self.active.fetch_add(1, Relaxed) + 1;
        if 2 * active >= self.limit {
            self.was_large.store(true, Relaxed);
        }
        Permit { connection: self.clone() }
    }

    /// Whether a program's bytes may be sent here before the peer has answered. Only to one that
    /// has spoken HTTP/2 (before, not even its verdict on our certificate is known) and was heard a
    /// moment ago. And not to one that has refused a request: bytes that reach it after a refusal
    /// may count as errors, and enough of these end the connection.
    fn takes_early_bytes(&self) -> bool {
        self.settled.load(Acquire) && self.is_lively() && !self.has_refused.load(Relaxed)
    }

    /// Whether the peer was heard a moment ago.
    fn is_lively(&self) -> bool {
        let heard = self.created + Duration::from_millis(self.heard.load(Relaxed));
        heard.elapsed() < LIVELY
    }

    /// Ready unless streams are open. The task of `cx` is woken when the last has ended.
    fn poll_idle(&self, registered: &mut Registered, cx: &Context<'_>) -> Poll<()> {
        if self.active() > 0 {
            registered.renew(cx, &self.task);
            self.awaits_idle.store(true, SeqCst);
            // The last may have ended meanwhile, and found nobody to wake.
            if self.active.load(SeqCst) > 0 {
                return Poll::Pending;
            }
            self.awaits_idle.store(false, SeqCst);
        }
        Poll::Ready(())
    }

    /// Streams open now.
    pub(crate) fn active(&self) -> usize {
        self.active.load(Acquire)
    }

    /// How long it is kept without a stream. HTTP/2 never gives back the tables of many streams,
    /// and they are worth less than the next handshake only where there are such often.
    fn patience(&self, settings: &Settings) -> Duration {
        settings.idle_timeout / if self.was_large.load(Relaxed) { 2 } else { 1 }
    }

    /// When the last stream ended.
    fn idle_since(&self) -> Instant {
        self.created + Duration::from_millis(self.idle_since.load(Relaxed))
    }
}

impl Permit {
    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Sends the request, and with it what the program says first, and waits for the answer.
    pub(crate) async fn connect<E>(
        self,
        request: &ConnectRequest,
        mut first: Option<&mut FirstBytes<'_>>,
        settings: &Settings,
    ) -> Result<(TunnelStream, ResponseHead), OpenError<E>> {
        let uri: Uri =
            request.authority.parse().map_err(|_| Error::InvalidAuthority(request.authority.as_str().into()))?;
        if uri.scheme().is_some() || uri.port().is_none() {
            return Err(Error::InvalidAuthority(request.authority.as_str().into()).into());
        }
        let mut head = Request::new(());
        *head.method_mut() = Method::CONNECT;
        *head.uri_mut() = uri;
        *head.headers_mut() = request.headers.clone();
        let (mut answer, send) = self.connection.send.clone().send_request(head, false).map_err(Error::from)?;
        let lane = self.connection.carrier.attach(send.stream_id().into());
        let early = self.connection.takes_early_bytes();
        // The kernel would take minutes to find out that an idle connection leads nowhere.
        let mut probing = (self.connection.settled.load(Acquire) && !self.connection.is_lively()).then(|| {
            self.connection.carrier.probe();
            (self.connection.carrier.received_so_far(), Box::pin(sleep(settings.probe_timeout)))
        });
        if let Some(first) = &mut first {
            first.begin();
        }
        let answer = poll_fn(|cx| {
            if let Poll::Ready(answer) = Pin::new(&mut answer).poll(cx) {
                return Poll::Ready(answer.map_err(|error| OpenError::Tunnel(error.into())));
            }
            if early
                && let Some(first) = &mut first
                && let Err(error) = first.poll_send(cx, &lane)
            {
                return Poll::Ready(Err(OpenError::Program(Arc::new(error))));
            }
            if let Some((before, timer)) = &mut probing
                && timer.as_mut().poll(cx).is_ready()
            {
                if self.connection.carrier.received_so_far() == *before {
                    return Poll::Ready(Err(Error::Unheard.into()));
                }
                probing = None;
            }
            Poll::Pending
        })
        .await;
        let refused = answer.as_ref().is_ok_and(|head| head.status() != StatusCode::OK);
        if refused {
            self.connection.has_refused.store(true, Relaxed);
        }
        if let Some(first) = first {
            match &answer {
                Ok(_) if !refused => first.accepted(&lane),
                Ok(_) => first.refused(),
                Err(OpenError::Tunnel(error)) if error.is_unprocessed() => first.refused(),
                Err(_) => {}
            }
        }
        let (head, recv) = answer?.into_parts();
        if head.status != StatusCode::OK {
            return Err(OpenError::Refused { status: head.status, headers: Box::new(head.headers) });
        }
        let stream = TunnelStream::new(send, recv, lane, Some(self));
        Ok((stream, ResponseHead { status: head.status, headers: head.headers }))
    }
}

/// What the task of a connection tells the pool.
pub(crate) trait Registry: Send + Sync + 'static {
    /// The peer has told its limits: other streams than the first may be opened.
    fn settled(&self);
    /// Takes the connection out of use if it carries no stream, on demand only if there are others
    /// to the same peer; says whether it is out of use.
    fn release_if_idle(&self, only_if_surplus: bool) -> bool;
    /// The connection is gone; why, if it did not end in order.
    fn gone(&self, error: Option<&Error>);
}

/// Starts HTTP/2 on `io` and a task that drives it. The task needs the connection to call it
/// idle, and the registry needs it to find it, so the registry is made from it. Gives a place
/// for the first stream.
pub(crate) async fn start<IO, R: Registry>(
    io: IO,
    settings: &Arc<Settings>,
    register: impl FnOnce(&Arc<Connection>) -> R,
) -> Result<Permit, Error>
where
    IO: Transport + 'static,
{
    let mut window = Window::new(settings.connection_window, settings.window_budget.clone());
    let drains = io.drains_at();
    let carrier = Handle::new(io.into_box(), Role::Client, settings, window.ledger().clone());
    let guard = Guard(carrier.clone());
    let io = carrier.library_io();
    // It ends only once it is of no more use.
    io.patience().raise(settings.closing_timeout);
    let (send, mut driver) = timeout(settings.handshake_timeout, settings.client().handshake::<_, Bytes>(io))
        .await
        .map_err(|_| Error::HandshakeTimeout(settings.handshake_timeout))??;
    carrier.has_task();
    let received = carrier.received();
    let connection = Arc::new(Connection {
        send,
        carrier: carrier.clone(),
        active: AtomicUsize::new(0),
        limit: settings.streams_per_connection,
        settled: AtomicBool::new(false),
        was_large: AtomicBool::new(false),
        created: Instant::now(),
        drains,
        idle_since: AtomicU64::new(0),
        awaits_idle: AtomicBool::new(false),
        task: Sleeper::default(),
        fell_silent: AtomicBool::new(false),
        heard: Arc::default(),
        has_refused: AtomicBool::new(false),
    });
    // Before anybody else can take the last place.
    let permit = connection.acquire();
    let registry = register(&connection);
    let handle = Arc::downgrade(&connection);
    let mut keepalive = Keepalive::new(&carrier, driver.ping_pong(), settings, None);
    let surplus_timeout = settings.surplus_timeout.min(settings.idle_timeout).max(SHORTEST);
    let mut idle = Some(Box::pin(sleep(surplus_timeout)));
    let mut registered = Registered::default();
    let mut awaits_idle = false;
    let (heard, created) = (connection.heard.clone(), connection.created);
    let mut seen = 0;
    let settings = settings.clone();
    tokio::spawn(async move {
        // Lets go of the connection when nobody needs it; ready once the peer is dead.
        let mut silent = rarely(poll_fn(|cx| {
            while let Some(timer) = &mut idle {
                if !awaits_idle && timer.as_mut().poll(cx).is_pending() {
                    break;
                }
                let Some(connection) = handle.upgrade() else {
                    idle = None;
                    break;
                };
                awaits_idle = connection.poll_idle(&mut registered, cx).is_pending();
                if awaits_idle {
                    break;
                }
                let (now, since) = (Instant::now(), connection.idle_since());
                let (surplus, unused) = (since + surplus_timeout, since + connection.patience(&settings));
                let again = if surplus > now {
                    surplus
                } else if registry.release_if_idle(unused > now) {
                    idle = None;
                    break;
                } else {
                    // Another may be opened meanwhile, and then this one is one too many.
                    unused.min(now + surplus_timeout).max(now + SHORTEST)
                };
                timer.as_mut().reset(again);
            }
            keepalive.poll_due(cx)
        }));
        let mut library = Asked::new();
        let mut turns = 0u32;
        let result = poll_fn(|cx| {
            if Pin::new(&mut silent).poll(cx).is_ready() {
                if let Some(connection) = handle.upgrade() {
                    connection.fell_silent.store(true, Relaxed);
                }
                return Poll::Ready(Err(Error::PingTimeout(settings.ping_timeout)));
            }
            if let Some(size) = window.turn(cx) {
                carrier.resize_window(size);
            }
            if let Err(violation) = carrier.begin_turn(cx) {
                carrier.complain(cx, violation);
                return Poll::Ready(Err(violation.error()));
            }
            let mut looked = false;
            let ended = library.poll(cx, |cx| {
                looked = true;
                Pin::new(&mut driver).poll(cx)
            });
            let ended = ended.map_err(Error::from);
            if let Err(error) = carrier.end_turn(cx)
                && ended.is_pending()
            {
                return Poll::Ready(Err(Error::Lost(Arc::new(error))));
            }
            let so_far = received.load(Relaxed);
            if so_far > seen {
                // Not for each message, for looking at the clock is dear; what opens streams has
                // the library look at their answers.
                turns = turns.wrapping_add(1);
                if looked || turns.is_multiple_of(16) {
                    heard.store(created.elapsed().as_millis() as u64, Relaxed);
                }
                // SETTINGS are the first thing a peer sends (RFC 9113 §3.4).
                if seen == 0 {
                    if let Some(connection) = handle.upgrade() {
                        connection.settled.store(true, Release);
                    }
                    registry.settled();
                }
                seen = so_far;
            }
            ended
        })
        .await;
        // Before the transport is closed in the guard's way, which knows no reason.
        if let Err(error) = &result {
            guard.0.close(error);
        }
        drop(guard);
        registry.gone(result.as_ref().err());
        if let Err(error) = result {
            tracing::debug!(%error, "HBONE connection ended");
        }
    });
    Ok(permit)
}
