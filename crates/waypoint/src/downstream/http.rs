//! Serves a client's HTTP connection.

use std::cell::Cell;
use std::convert::Infallible;
use std::error::Error;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::CONNECTION;
use http::{HeaderValue, Method, Request, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use leno_telemetry::metrics::ResponseFlags;
use leno_tunnel::{rarely, timers};

use crate::failure::Failure;
use crate::pipeline::forward::forward;
use crate::request::client::Client;
use crate::request::slow_reader::End;
use crate::transport::timer::{Here, Timer};
use crate::transport::wire::{Signs, Wire};
use crate::transport::write_coalescing::Cork;

/// How much of a request's body waits here for an endpoint, bytes: per request, and per connection.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;

/// How long a client without requests may take: to end its connection, once it was asked to; to begin one, once the
/// waypoint drains.
pub(crate) const FAREWELL: Duration = Duration::from_secs(1);

/// How long an HTTP/1.1 connection without a request stays once the waypoint drains. Whoever sends one meanwhile is answered,
/// and told that it was the last: a connection that is closed at once takes with it the request that is on its way. But a
/// waypoint that nobody uses is to end soon.
const LAST_CALL: Duration = Duration::from_secs(3);

/// How much is buffered for a client that does not read, bytes per request.
const SEND_BUFFER: usize = 64 << 10;

/// Requests that may be reset before they are looked at, at a time. No more can come in one turn ([`crate::transport::h2_flood`]), and
/// between turns all are looked at.
const PENDING_RESETS: usize = 128;

/// Serves requests until the client or the waypoint ends the connection.
pub(crate) async fn serve(client: Arc<Client>, wire: Wire, http2: bool) {
    let gate = client.gate.clone();
    let config = &gate.config;
    let outcome = if http2 {
        let mut builder = http2::Builder::new(Here);
        builder
            .timer(Timer)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(SEND_BUFFER)
            .max_concurrent_streams(config.max_concurrent_requests)
            // Clients may give up many at once. What that costs is bounded by who follows their frames.
            .max_pending_accept_reset_streams(PENDING_RESETS)
            // For WebSockets (RFC 8441).
            .enable_connect_protocol()
            .max_header_list_size(u32::try_from(config.max_head).unwrap_or(u32::MAX));
        let service = {
            let client = client.clone();
            service_fn(move |request: Request<Incoming>| {
                let doubtful = client.requests.looked_at();
                let client = client.clone();
                async move {
                    if doubtful {
                        client.requests.settled().await;
                    }
                    forward(client, request).await
                }
            })
        };
        let (wire, cork) = wire.http2(client.requests.clone(), client.lane().pace.clone()).corked();
        let connection = pin!(builder.serve_connection(wire, service));
        let turns = Turns { slow: None, cork, last_call: None };
        let ended = until_end(&client, connection, |connection| connection.graceful_shutdown(), turns).await;
        if matches!(ended, Ended::Broken(_)) {
            client.requests.broken();
        }
        ended
    } else {
        let mut builder = http1::Builder::new();
        // Not `pipeline_flush`: with it, the answer to what is not HTTP stays unsent.
        builder.timer(Timer).header_read_timeout(None).max_buf_size(config.max_head).writev(true);
        let signs = Arc::new(Signs::default());
        signs.heard.store(wire.has_unread(), Relaxed);
        let slow = SlowHead { signs: signs.clone(), limit: config.head_timeout, timer: None };
        let service = {
            let signs = signs.clone();
            let client = client.clone();
            let requests = Cell::new(0);
            service_fn(move |mut request: Request<Incoming>| {
                signs.heard.store(false, Relaxed);
                requests.set(requests.get() + 1);
                if let Some(ambiguity) = signs.doubt.about(requests.get()) {
                    request.extensions_mut().insert(ambiguity);
                }
                // It is refused, and the library then takes the connection for one that has ceased to be HTTP.
                signs.complete.store(request.method() == Method::CONNECT, Relaxed);
                let (client, signs) = (client.clone(), signs.clone());
                async move {
                    let gate = client.gate.clone();
                    let Ok(mut response) = forward(client, request).await;
                    // What has come meanwhile was its body, or waits for its turn.
                    signs.heard.store(false, Relaxed);
                    if gate.draining.is_cancelled() && response.status() != StatusCode::SWITCHING_PROTOCOLS {
                        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                    }
                    Ok::<_, Infallible>(response)
                }
            })
        };
        let connection = builder.serve_connection(wire.http1(signs.clone()), service);
        let connection = pin!(connection.with_upgrades());
        let last_call = Some(LAST_CALL.min(gate.core.config.drain_deadline / 4));
        let turns = Turns { slow: Some(slow), cork: None, last_call };
        let ended = until_end(&client, connection, |connection| connection.graceful_shutdown(), turns).await;
        if let Ended::Broken(error) = &ended {
            // The library has answered that.
            signs.complete.store(error.is_parse(), Relaxed);
        }
        ended
    };
    report_end(&client, outcome);
}

/// How a connection ended.
enum Ended {
    /// As HTTP wants it.
    Well,
    /// The client broke the protocol, or went away.
    Broken(hyper::Error),
    /// The head of a request took too long.
    SlowHead(Duration),
    /// The client reads nothing, and memory is short.
    Unread,
    /// The waypoint ends.
    Stopped,
}

/// The requests were told of one by one; this tells of what ended the connection.
fn report_end(client: &Client, ended: Ended) {
    match ended {
        Ended::Well | Ended::Stopped => {}
        Ended::Unread => {
            let error = "the client reads nothing of its responses, and memory is short (LENO_MAX_MEMORY)";
            client.report.failed_with(ResponseFlags::ResourceLimit, error.to_owned());
        }
        Ended::SlowHead(limit) => {
            client.report.failed_with(ResponseFlags::Connect, Failure::SlowHead(limit).to_string());
        }
        // A client that goes away between requests.
        Ended::Broken(error) if error.is_incomplete_message() || error.is_canceled() => {}
        Ended::Broken(error) => {
            let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
            let error = format!("the client's HTTP can't be read: {error}{cause}");
            client.report.failed_with(ResponseFlags::Connect, error);
        }
    }
}

/// What a connection needs at the end of each turn.
struct Turns {
    slow: Option<SlowHead>,
    cork: Option<Arc<Cork>>,
    /// How long the connection stays without a request once the waypoint drains, if its responses can say that it ends. HTTP/2
    /// has a frame for that.
    last_call: Option<Duration>,
}

/// Drives a connection. When the waypoint drains, it is told to end with its open requests.
async fn until_end<C>(
    client: &Client,
    mut connection: Pin<&mut C>,
    end_soon: impl Fn(Pin<&mut C>),
    Turns { mut slow, cork, last_call }: Turns,
) -> Ended
where
    C: Future<Output = Result<(), hyper::Error>>,
{
    let gate = &client.gate;
    let draining = pin!(gate.draining.cancelled());
    let mut draining = Some(rarely(draining));
    let stopped = pin!(gate.stopped.cancelled());
    let mut stopped = rarely(stopped);
    let mut idle = Idle {
        client,
        limit: gate.config.client_idle_timeout,
        timer: Box::pin(timers::sleep(gate.config.client_idle_timeout)),
    };
    let mut ending = false;
    poll_fn(|cx| {
        if Pin::new(&mut stopped).poll(cx).is_ready() {
            return Poll::Ready(Ended::Stopped);
        }
        client.requests.next_turn();
        let polled = connection.as_mut().poll(cx);
        if let Some(cork) = &cork {
            cork.release(cx);
        }
        match polled {
            Poll::Ready(Ok(())) => Poll::Ready(Ended::Well),
            Poll::Ready(Err(error)) => Poll::Ready(Ended::Broken(error)),
            // Later than the connection's own turn: the library ends one at once of which it has read nothing yet.
            Poll::Pending if draining.as_mut().is_some_and(|draining| Pin::new(draining).poll(cx).is_ready()) => {
                draining = None;
                match last_call {
                    Some(limit) => (idle.limit, idle.timer) = (limit, Box::pin(timers::sleep(limit))),
                    None => end_soon(connection.as_mut()),
                }
                // The connection is to hear of it at once.
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Poll::Pending if client.unread.ends(cx) == End::Now => Poll::Ready(Ended::Unread),
            Poll::Pending if !ending && client.unread.ends(cx) == End::Soon => {
                ending = true;
                (idle.limit, idle.timer) = (FAREWELL, Box::pin(timers::sleep(FAREWELL)));
                end_soon(connection.as_mut());
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Poll::Pending if idle.poll(cx).is_ready() => {
                if ending {
                    return Poll::Ready(Ended::Well);
                }
                ending = true;
                idle.limit = FAREWELL;
                end_soon(connection.as_mut());
                // The connection is to hear of it at once, and the timer is to be set.
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Poll::Pending => match &mut slow {
                Some(slow) => slow.poll(cx).map(Ended::SlowHead),
                None => Poll::Pending,
            },
        }
    })
    .await
}

/// Finds out that a connection has had no request for long. It looks once in each such time, so that requests cost nothing.
struct Idle<'a> {
    client: &'a Client,
    limit: Duration,
    timer: Pin<Box<tokio::time::Sleep>>,
}

impl Idle<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // A timer that has ended is set anew before it is looked at again.
        while self.timer.as_mut().poll(cx).is_ready() {
            let left = match self.client.pending.idle() {
                None => self.limit,
                Some(idle) if idle >= self.limit => {
                    self.timer = Box::pin(timers::sleep(FAREWELL));
                    return Poll::Ready(());
                }
                Some(idle) => self.limit - idle,
            };
            self.timer = Box::pin(timers::sleep(left));
        }
        Poll::Pending
    }
}

/// Ends a connection whose client sends the head of a request too slowly. Nearly every head comes at once, and needs no
/// timer.
struct SlowHead {
    /// Bytes have come, and no request with them yet.
    signs: Arc<Signs>,
    limit: Duration,
    timer: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl SlowHead {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Duration> {
        if !self.signs.heard.load(Relaxed) {
            self.timer = None;
            return Poll::Pending;
        }
        let timer = self.timer.get_or_insert_with(|| Box::pin(timers::sleep(self.limit)));
        timer.as_mut().poll(cx).map(|()| self.limit)
    }
}
