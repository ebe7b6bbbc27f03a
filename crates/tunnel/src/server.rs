//! Server side of an HBONE connection.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{HeaderMap, Method, Response, StatusCode, Uri};
use tokio::time::{Instant, Sleep};

use crate::carrier::{Handle, Lane, LibraryIo, Patience, Role, Violation};
use crate::driver::{Driver, Side};
use crate::keepalive::{Due, Keepalive};
use crate::rarely::{Asked, Rarely, rarely};
use crate::timers::{sleep_until, timeout};
use crate::{Error, Settings, Transport, TunnelStream};

mod requests;

pub use requests::{Requests, requests};

/// How long a final GOAWAY may take to be sent before the transport is dropped, and how long a refused peer may go on
/// sending.
const FAREWELL: Duration = Duration::from_secs(1);

/// A request on an HBONE connection that was not answered yet. Bytes that the peer has sent already wait in the stream's
/// window. Dropping it resets the stream (CANCEL).
#[derive(Debug)]
pub struct InboundConnect {
    head: http::request::Parts,
    recv: RecvStream,
    respond: SendResponse<Bytes>,
    /// Carries its bytes.
    lane: Lane,
}

impl InboundConnect {
    /// The method. Anything but CONNECT should be answered with [`StatusCode::BAD_REQUEST`].
    pub fn method(&self) -> &Method {
        &self.head.method
    }

    /// The URI. A CONNECT request's has an authority and nothing else.
    pub fn uri(&self) -> &Uri {
        &self.head.uri
    }

    /// The `host:port` that the peer wants to be connected to, unchecked.
    pub fn authority(&self) -> Option<&str> {
        self.head.uri.authority().map(http::uri::Authority::as_str)
    }

    /// Request headers.
    pub fn headers(&self) -> &HeaderMap {
        &self.head.headers
    }

    /// Takes the request headers out, for use after the answer.
    pub fn take_headers(&mut self) -> HeaderMap {
        std::mem::take(&mut self.head.headers)
    }

    /// Completes when the peer has given up on this request.
    pub async fn cancelled(&mut self) -> Error {
        match poll_fn(|cx| self.respond.poll_reset(cx)).await {
            Ok(code) => Error::Reset { code, by_peer: true },
            Err(error) => error.into(),
        }
    }

    /// Answers 200: from now on, bytes flow.
    ///
    /// # Errors
    /// If the peer has reset the stream or the connection is gone.
    pub fn accept(self, headers: HeaderMap) -> Result<TunnelStream, Error> {
        self.answer(StatusCode::OK, headers)
    }

    /// Answers with this status: from now on, the bodies of request and response flow.
    ///
    /// # Errors
    /// As [`InboundConnect::accept`].
    pub fn answer(mut self, status: StatusCode, headers: HeaderMap) -> Result<TunnelStream, Error> {
        let mut response = Response::new(());
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        let send = self.respond.send_response(response, false)?;
        Ok(TunnelStream::new(send, self.recv, self.lane, None))
    }

    /// Resets the request as not processed (REFUSED_STREAM). The peer may send it again on another connection (RFC 9113
    /// §8.7).
    pub fn turn_away(mut self) {
        self.respond.send_reset(Reason::REFUSED_STREAM);
    }

    /// Answers with an error status and no body. It must be called on a runtime.
    pub fn refuse(mut self, status: StatusCode, headers: HeaderMap) {
        let mut response = Response::new(());
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        if let Err(error) = self.respond.send_response(response, true) {
            tracing::debug!(%error, "peer did not wait for its refusal");
            return;
        }
        // Bytes that the peer sent before it got the answer could otherwise reach a stream that the library has forgotten.
        // That is an error, and a thousand of these end the connection with all its streams.
        let mut recv = self.recv;
        tokio::spawn(timeout(FAREWELL, async move {
            while let Some(Ok(bytes)) = recv.data().await {
                let _ = recv.flow_control().release_capacity(bytes.len());
            }
        }));
    }
}

/// The result of serving an HBONE connection.
#[derive(Debug)]
pub struct Served {
    /// Requests handed to the handler.
    pub requests: u64,
    /// Bytes received, in all frames.
    pub bytes_received: u64,
    /// How it ended: `Ok` when the peer closed it or after a drain that lost nothing.
    pub end: Result<(), ServeError>,
}

/// Why a connection ended with an error.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The connection failed.
    #[error(transparent)]
    Connection(#[from] Error),
    /// Streams were still open when the drain's deadline came; they were cut.
    #[error("streams were still open at the end of the drain; raise the termination deadline to keep them longer")]
    DrainDeadline,
}

impl ServeError {
    /// Whether a new connection of the client may succeed.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Connection(error) => error.is_retryable(),
            Self::DrainDeadline => true,
        }
    }
}

/// Serves one connection to its end. Each request goes to `on_request`, which must not block: it spawns a task or hands the
/// request over.
///
/// When `drain` completes, the peer is told to open no more streams here (GOAWAY). Open streams may go on until the instant
/// that `drain` returned, and are then cut. If that instant has passed, they are cut at once. When the transport drains
/// ([`Transport::drains_at`]), the peer is told so as well, and open streams may go on without a limit. Dropping the future
/// drops the connection without a GOAWAY.
pub fn serve<IO, D, H>(io: IO, settings: &Settings, drain: D, on_request: H) -> impl Future<Output = Served>
where
    IO: Transport + 'static,
    D: Future<Output = Instant>,
    H: FnMut(InboundConnect),
{
    serve_to(io, settings, drain, on_request)
}

/// The receiver of requests.
trait Intake {
    /// Ready if it takes a request now. Otherwise, the task of `cx` is woken when it does.
    fn poll_ready(&mut self, cx: &Context<'_>) -> Poll<()>;

    fn take(&mut self, request: InboundConnect);
}

impl<H: FnMut(InboundConnect)> Intake for H {
    fn poll_ready(&mut self, _: &Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }

    fn take(&mut self, request: InboundConnect) {
        self(request);
    }
}

async fn serve_to<IO, D, I>(io: IO, settings: &Settings, drain: D, intake: I) -> Served
where
    IO: Transport + 'static,
    D: Future<Output = Instant>,
    I: Intake,
{
    let drains = io.drains_at();
    let mut driver = Driver::new(io, Role::Server, settings);
    let carrier = driver.carrier().clone();
    let received = carrier.received();
    let io = carrier.library_io();
    let patience = io.patience();
    let served = |requests, end| Served { requests, bytes_received: received.load(Relaxed), end };
    // Boxed, because its state is large and not needed after the handshake.
    let handshake = Box::pin(settings.server().handshake(io));
    let http2 = match timeout(settings.handshake_timeout, handshake).await {
        Err(_) => return served(0, Err(Error::HandshakeTimeout(settings.handshake_timeout).into())),
        Ok(Err(error)) => return served(0, Err(Error::from(error).into())),
        Ok(Ok(http2)) => http2,
    };
    carrier.has_task();
    let drain = pin!(drain);
    let mut side = ServerSide::new(Begun { carrier, http2, patience, settings, drains }, drain, intake);
    let end = driver.run(&mut side).await;
    served(side.requests, end)
}

struct ServerSide<'a, D, I> {
    carrier: Handle,
    http2: h2::server::Connection<LibraryIo, Bytes>,
    patience: Patience,
    settings: &'a Settings,
    intake: I,
    requests: u64,
    keepalive: Box<Keepalive>,
    /// For the keepalive.
    watch: Asked,
    /// `None` once it has completed.
    drain: Option<Rarely<Pin<&'a mut D>>>,
    /// Whether the peer was told to open no more streams.
    told: bool,
    /// Whether the peer was found to be dead in this turn.
    dead: bool,
    /// Set when it drains with a time limit, and when it has begun to end.
    deadline: Option<Pin<Box<Sleep>>>,
    /// Why it has begun to end.
    ending: Option<ServeError>,
}

/// A connection whose handshake is over.
struct Begun<'a> {
    carrier: Handle,
    http2: h2::server::Connection<LibraryIo, Bytes>,
    patience: Patience,
    settings: &'a Settings,
    drains: Option<Instant>,
}

impl<'a, D: Future<Output = Instant>, I> ServerSide<'a, D, I> {
    /// A function of its own, because values that are borrowed where a future is awaited, as the library's connection is
    /// here, would take their space twice in the task.
    fn new(begun: Begun<'a>, drain: Pin<&'a mut D>, intake: I) -> Self {
        let Begun { carrier, mut http2, patience, settings, drains } = begun;
        Self {
            keepalive: Keepalive::new(&carrier, http2.ping_pong(), settings, drains),
            watch: Asked::new(),
            drain: Some(rarely(drain)),
            told: false,
            dead: false,
            deadline: None,
            ending: None,
            requests: 0,
            carrier,
            http2,
            patience,
            settings,
            intake,
        }
    }
}

impl<D: Future<Output = Instant>, I: Intake> Side for ServerSide<'_, D, I> {
    type Error = ServeError;

    fn poll_due(&mut self, cx: &mut Context<'_>, library: &Asked) -> Poll<ServeError> {
        let mut last_stream = false;
        if let Some(drain) = &mut self.drain
            && let Poll::Ready(until) = Pin::new(drain).poll(cx)
        {
            (self.drain, last_stream) = (None, true);
            self.deadline = Some(Box::pin(sleep_until(until)));
        }
        self.dead = false;
        while self.ending.is_none()
            && !self.dead
            && let Poll::Ready(due) = self.watch.poll(cx, |cx| self.keepalive.poll_due(cx))
        {
            match due {
                Due::Dead => self.dead = true,
                Due::Drain => last_stream = true,
            }
        }
        if last_stream && !std::mem::replace(&mut self.told, true) {
            self.patience.raise(self.settings.closing_timeout);
            self.http2.graceful_shutdown();
            library.ask();
        }
        Poll::Pending
    }

    fn poll_received(&mut self, cx: &mut Context<'_>, broken: Option<Violation>, library: &Asked) -> Poll<ServeError> {
        let mut wrong = broken.map(|violation| (violation.error(), violation.code));
        if self.dead {
            wrong.get_or_insert((Error::PingTimeout(self.settings.ping_timeout), Reason::NO_ERROR));
        }
        if let Some((error, code)) = wrong.filter(|_| self.ending.is_none()) {
            self.carrier.fail(&error);
            self.ending = Some(error.into());
            self.http2.abrupt_shutdown(code);
            library.ask();
            self.deadline = Some(Box::pin(sleep_until(Instant::now() + FAREWELL)));
        }
        while let Some(timer) = &mut self.deadline
            && timer.as_mut().poll(cx).is_ready()
        {
            if let Some(reason) = self.ending.take() {
                return Poll::Ready(reason);
            }
            self.ending = Some(ServeError::DrainDeadline);
            self.carrier.fail(&Error::GoAway { code: Reason::NO_ERROR, by_peer: false });
            self.http2.abrupt_shutdown(Reason::NO_ERROR);
            library.ask();
            timer.as_mut().reset(Instant::now() + FAREWELL);
        }
        Poll::Pending
    }

    fn poll_library(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ServeError>> {
        loop {
            let next = if self.intake.poll_ready(cx).is_ready() {
                ready!(self.http2.poll_accept(cx))
            } else {
                // Requests wait in the library, which handles everything else meanwhile.
                ready!(self.http2.poll_closed(cx)).err().map(Err)
            };
            match next {
                Some(Ok((request, respond))) => {
                    let (head, recv) = request.into_parts();
                    let lane = self.carrier.attach(recv.stream_id().into());
                    // Otherwise a peer that resets each request at once, or breaks a rule with it, would make this side
                    // look up a destination for each, for a whole turn's requests before anybody else has a turn.
                    if lane.has_failed() {
                        tracing::debug!(stream = lane.id(), "a request was reset before anybody looked at it");
                        continue;
                    }
                    self.requests += 1;
                    self.intake.take(InboundConnect { head, recv, respond, lane });
                }
                Some(Err(error)) => {
                    let error = Error::from(error);
                    self.carrier.fail(&error);
                    return Poll::Ready(Err(self.ending.take().unwrap_or_else(|| error.into())));
                }
                None => return Poll::Ready(self.ending.take().map_or(Ok(()), Err)),
            }
        }
    }

    fn lost(&mut self, error: io::Error) -> ServeError {
        self.ending.take().unwrap_or_else(|| Error::Lost(Arc::new(error)).into())
    }
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
