//! Client side of one HBONE connection: its streams, and the CONNECT request.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use http::{HeaderMap, Method, Request, StatusCode, Uri};
use tokio::time::Instant;

use crate::carrier::Handle;
use crate::early::FirstBytes;
use crate::timers::sleep;
use crate::waking::{Registered, Sleeper};
use crate::{Error, OpenError, Settings, TunnelStream};

mod task;

pub(crate) use task::{Registry, start};

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
