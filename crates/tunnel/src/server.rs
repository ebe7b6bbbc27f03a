//! Server side of an HBONE connection.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{HeaderMap, Method, Response, StatusCode};
use tokio::time::Instant;

use crate::carrier::{Guard, Handle, Lane, Role};
use crate::keepalive::{Due, Keepalive};
use crate::rarely::{Asked, rarely};
use crate::timers::{sleep_until, timeout};
use crate::window::Window;
use crate::{Error, Settings, Transport, TunnelStream};

/// How long a last GOAWAY may take to leave before the transport is dropped, and how long a
/// refused peer may go on sending.
const FAREWELL: Duration = Duration::from_secs(1);

/// A request on an HBONE connection, not yet answered. Bytes the peer sends already wait in its
/// stream window. Dropping it resets the stream (CANCEL).
#[derive(Debug)]
pub struct InboundConnect {
    head: http::request::Parts,
    recv: RecvStream,
    respond: SendResponse<Bytes>,
    /// What its bytes go by.
    lane: Lane,
}

impl InboundConnect {
    /// Method; anything but CONNECT deserves [`StatusCode::BAD_REQUEST`].
    pub fn method(&self) -> &Method {
        &self.head.method
    }

    /// What the peer wants to be connected to, `host:port`; unchecked.
    pub fn authority(&self) -> Option<&str> {
        self.head.uri.authority().map(http::uri::Authority::as_str)
    }

    /// Request headers.
    pub fn headers(&self) -> &HeaderMap {
        &self.head.headers
    }

    /// Takes the request headers out, for whoever outlives the answer.
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
    pub fn accept(mut self, headers: HeaderMap) -> Result<TunnelStream, Error> {
        let mut response = Response::new(());
        *response.headers_mut() = headers;
        let send = self.respond.send_response(response, false)?;
        Ok(TunnelStream::new(send, self.recv, self.lane, None))
    }

    /// Resets the request as one that nothing was done for (REFUSED_STREAM): the peer may send it again on
    /// another connection (RFC 9113 §8.7).
    pub fn turn_away(mut self) {
        self.respond.send_reset(Reason::REFUSED_STREAM);
    }

    /// Answers with an error status and no body. To be called on a runtime.
    pub fn refuse(mut self, status: StatusCode, headers: HeaderMap) {
        let mut response = Response::new(());
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        if let Err(error) = self.respond.send_response(response, true) {
            tracing::debug!(%error, "peer did not wait for its refusal");
            return;
        }
        // What the peer sent before it heard would otherwise meet a stream that HTTP/2 may have
        // forgotten already: an error, and a thousand of these end the connection with all that is
        // open on it.
        let mut recv = self.recv;
        tokio::spawn(timeout(FAREWELL, async move {
            while let Some(Ok(bytes)) = recv.data().await {
                let _ = recv.flow_control().release_capacity(bytes.len());
            }
        }));
    }
}

/// How an HBONE connection went.
#[derive(Debug)]
pub struct Served {
    /// Requests handed to the handler.
    pub requests: u64,
    /// Bytes received, all frames counted.
    pub bytes_received: u64,
    /// How it ended: `Ok` when the peer closed it or after a drain that lost nothing.
    pub end: Result<(), ServeError>,
}

/// Why a connection ended that nobody wanted to end.
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
    /// Whether a client that connects anew may fare better.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Connection(error) => error.is_retryable(),
            Self::DrainDeadline => true,
        }
    }
}

/// Serves one connection to its end. Each request goes to `on_request`, which must not block:
/// it spawns a task or hands over.
///
/// When `drain` completes, the peer is told to open no more streams here (GOAWAY), and open
/// ones may go on until the instant it gave; then they are cut. `drain` giving an instant that
/// has passed means: at once. When the transport says that it drains, the peer is told so as well,
/// and open streams may go on for as long as they like. Dropping the future drops the connection
/// without a word.
pub async fn serve<IO, D, H>(io: IO, settings: &Settings, drain: D, mut on_request: H) -> Served
where
    IO: Transport + 'static,
    D: Future<Output = Instant>,
    H: FnMut(InboundConnect),
{
    let mut requests = 0;
    let mut window = Window::new(settings.connection_window, settings.window_budget.clone());
    let drains = io.drains_at();
    let carrier = Handle::new(io.into_box(), Role::Server, settings, window.ledger().clone());
    let _guard = Guard(carrier.clone());
    let received = carrier.received();
    let io = carrier.library_io();
    let patience = io.patience();
    let served = |requests, end| Served { requests, bytes_received: received.load(Relaxed), end };
    // Boxed: its state is large, and gone once it is over.
    let handshake = Box::pin(settings.server().handshake(io));
    let mut connection = match timeout(settings.handshake_timeout, handshake).await {
        Err(_) => return served(0, Err(Error::HandshakeTimeout(settings.handshake_timeout).into())),
        Ok(Err(error)) => return served(0, Err(Error::from(error).into())),
        Ok(Ok(connection)) => connection,
    };
    carrier.has_task();
    let mut keepalive = Keepalive::new(&carrier, connection.ping_pong(), settings, drains);
    let mut due = rarely(poll_fn(move |cx| keepalive.poll_due(cx)));
    let drain = pin!(drain);
    let mut drain = rarely(drain);
    let (mut drained, mut told) = (false, false);
    // Set once it is drained with a time limit, and once the end has begun.
    let mut deadline = None;
    let mut ending: Option<ServeError> = None;
    let mut library = Asked::new();
    let end = poll_fn(|cx| {
        let mut last_stream = false;
        if !drained && let Poll::Ready(until) = Pin::new(&mut drain).poll(cx) {
            (drained, last_stream) = (true, true);
            deadline = Some(Box::pin(sleep_until(until)));
        }
        let mut dead = false;
        while ending.is_none()
            && !dead
            && let Poll::Ready(due) = Pin::new(&mut due).poll(cx)
        {
            match due {
                Due::Dead => dead = true,
                Due::Drain => last_stream = true,
            }
        }
        if last_stream && !std::mem::replace(&mut told, true) {
            patience.raise(settings.closing_timeout);
            connection.graceful_shutdown();
            library.ask();
        }
        if let Some(size) = window.turn(cx) {
            carrier.resize_window(size);
        }
        let mut wrong = carrier.begin_turn(cx).err().map(|violation| (violation.error(), violation.code));
        if dead {
            wrong.get_or_insert((Error::PingTimeout(settings.ping_timeout), Reason::NO_ERROR));
        }
        if let Some((error, code)) = wrong.filter(|_| ending.is_none()) {
            carrier.fail(&error);
            ending = Some(error.into());
            connection.abrupt_shutdown(code);
            library.ask();
            deadline = Some(Box::pin(sleep_until(Instant::now() + FAREWELL)));
        }
        while let Some(timer) = &mut deadline
            && timer.as_mut().poll(cx).is_ready()
        {
            if let Some(reason) = ending.take() {
                return Poll::Ready(Err(reason));
            }
            ending = Some(ServeError::DrainDeadline);
            carrier.fail(&Error::GoAway { code: Reason::NO_ERROR, by_peer: false });
            connection.abrupt_shutdown(Reason::NO_ERROR);
            library.ask();
            timer.as_mut().reset(Instant::now() + FAREWELL);
        }
        loop {
            match library.poll(cx, |cx| connection.poll_accept(cx)) {
                Poll::Pending => {
                    return match carrier.end_turn(cx) {
                        Err(error) => {
                            Poll::Ready(Err(ending.take().unwrap_or_else(|| Error::Lost(Arc::new(error)).into())))
                        }
                        Ok(()) => Poll::Pending,
                    };
                }
                Poll::Ready(Some(Ok((request, respond)))) => {
                    requests += 1;
                    let (head, recv) = request.into_parts();
                    let lane = carrier.attach(recv.stream_id().into());
                    on_request(InboundConnect { head, recv, respond, lane });
                }
                Poll::Ready(Some(Err(error))) => {
                    let error = Error::from(error);
                    carrier.fail(&error);
                    return Poll::Ready(Err(ending.take().unwrap_or_else(|| error.into())));
                }
                Poll::Ready(None) => return Poll::Ready(ending.take().map_or(Ok(()), Err)),
            }
        }
    })
    .await;
    served(requests, end)
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
