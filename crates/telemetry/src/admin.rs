//! A small HTTP/1 server for metrics, readiness and debugging. It serves people and scrapers,
//! not programs in the mesh: few connections, small requests, and no request can harm it.

mod body;
mod places;
mod routes;
mod scrapes;

use std::convert::Infallible;
use std::future::Future;
use std::io::{self, Write};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::time::timeout;

pub use body::Body;
pub use routes::{logging, metrics, readiness};

use body::Taken;
use places::{Place, Places};

use crate::accepting;

/// The response of a handler.
pub type Answer = Response<Body>;

/// Time for a request's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(3);

/// Time for a request's body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a connection may go without progress of its response. Each carries one request. Pods can reach the
/// readiness and metrics ports, which answer at once, and must not be able to keep their places.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);

/// Largest request body, bytes.
const BODY_LIMIT: usize = 64 << 10;

/// Largest request head, bytes; hyper's minimum.
const HEAD_LIMIT: usize = 8 << 10;

/// Time for connections to end after shutdown was requested.
const GRACE: Duration = Duration::from_secs(2);

/// A request with its body.
#[derive(Debug)]
pub struct Request {
    /// Method.
    pub method: Method,
    /// Path without the query.
    pub path: String,
    /// Query without the question mark; empty if there is none.
    pub query: String,
    /// Headers.
    pub headers: HeaderMap,
    /// Body.
    pub body: Bytes,
}

impl Request {
    /// Value of the query parameter `name`, percent-decoded; empty if it has none.
    pub fn parameter(&self, name: &str) -> Option<String> {
        self.query.split('&').find_map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (percent_decode(key) == name).then(|| percent_decode(value))
        })
    }
}

/// Decodes `application/x-www-form-urlencoded`. Invalid escapes are kept as they are.
fn percent_decode(text: &str) -> String {
    let hex = |b: u8| char::from(b).to_digit(16).map(|digit| digit as u8);
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        match (bytes[i], bytes.get(i + 1).copied().and_then(hex), bytes.get(i + 2).copied().and_then(hex)) {
            (b'%', Some(high), Some(low)) => {
                out.push(high << 4 | low);
                i += 2;
            }
            (b'+', ..) => out.push(b' '),
            (byte, ..) => out.push(byte),
        }
        i += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// A response with a text body.
pub fn text(status: StatusCode, body: impl Into<String>) -> Answer {
    typed(status, "text/plain; charset=utf-8", body.into())
}

/// A response with a JSON body. `write` writes it on a thread of its own, so that neither its making nor its size
/// delays others. An error or a panic breaks the response off.
pub fn json(write: impl FnOnce(&mut dyn Write) -> io::Result<()> + Send + 'static) -> Answer {
    written("application/json", write)
}

/// As [`json`], an answer with one JSON object on each line. What is flushed is sent.
pub fn lines(write: impl FnOnce(&mut dyn Write) -> io::Result<()> + Send + 'static) -> Answer {
    written("application/x-ndjson", write)
}

fn written(
    content_type: &'static str,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()> + Send + 'static,
) -> Answer {
    match Body::written(write) {
        Ok(body) => of_type(StatusCode::OK, content_type, body),
        Err(error) => text(StatusCode::SERVICE_UNAVAILABLE, format!("no thread can be had to answer: {error}\n")),
    }
}

fn typed(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Answer {
    of_type(status, content_type, Body::whole(body))
}

fn of_type(status: StatusCode, content_type: &'static str, body: Body) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

type Handler = dyn Fn(Request) -> Pin<Box<dyn Future<Output = Answer> + Send>> + Send + Sync;

/// The handlers of a server.
#[derive(Clone, Default)]
pub struct Routes {
    routes: Vec<(Method, String, Arc<Handler>)>,
}

impl Routes {
    /// No routes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a handler for `method` on exactly `path`. The handler of GET also answers HEAD.
    #[must_use]
    pub fn add<H, F>(mut self, method: Method, path: impl Into<String>, handler: H) -> Self
    where
        H: Fn(Request) -> F + Send + Sync + 'static,
        F: Future<Output = Answer> + Send + 'static,
    {
        self.routes.push((method, path.into(), Arc::new(move |request| Box::pin(handler(request)))));
        self
    }

    /// Adds a synchronous handler for GET on `path`.
    #[must_use]
    pub fn get(self, path: impl Into<String>, handler: impl Fn(Request) -> Answer + Send + Sync + 'static) -> Self {
        self.add(Method::GET, path, move |request| std::future::ready(handler(request)))
    }

    /// Adds a synchronous handler for POST on `path`.
    #[must_use]
    pub fn post(self, path: impl Into<String>, handler: impl Fn(Request) -> Answer + Send + Sync + 'static) -> Self {
        self.add(Method::POST, path, move |request| std::future::ready(handler(request)))
    }

    /// Adds all routes of `other`.
    #[must_use]
    pub fn merge(mut self, other: Self) -> Self {
        self.routes.extend(other.routes);
        self
    }

    async fn answer(&self, request: http::Request<Incoming>, place: &Place) -> Answer {
        let (head, body) = request.into_parts();
        let path = head.uri.path();
        let wanted = if head.method == Method::HEAD { &Method::GET } else { &head.method };
        let here = || self.routes.iter().filter(|(_, route, _)| route == path);
        let Some((.., handler)) = here().find(|(method, ..)| method == wanted) else {
            let allowed: Vec<&str> = here().map(|(method, ..)| method.as_str()).collect();
            return if allowed.is_empty() { self.not_found() } else { not_allowed(&allowed.join(", ")) };
        };
        let body = match timeout(BODY_TIMEOUT, Limited::new(body, BODY_LIMIT).collect()).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(_)) => return text(StatusCode::PAYLOAD_TOO_LARGE, "the request's body is too large or broken\n"),
            Err(_) => return text(StatusCode::REQUEST_TIMEOUT, "the request's body did not come\n"),
        };
        let request = Request {
            path: path.to_owned(),
            query: head.uri.query().unwrap_or_default().to_owned(),
            method: head.method,
            headers: head.headers,
            body,
        };
        place.asked();
        // In a task, so that a handler that panics costs only its response.
        let handler = handler.clone();
        match tokio::spawn(async move { handler(request).await }).await {
            Ok(answer) => answer,
            Err(error) => {
                tracing::error!(%error, "an admin handler failed");
                text(StatusCode::INTERNAL_SERVER_ERROR, "the handler failed; see the log\n")
            }
        }
    }

    fn not_found(&self) -> Answer {
        let mut body = "not found; there is:\n".to_owned();
        for (method, path, _) in &self.routes {
            body.extend([method.as_str(), " ", path, "\n"]);
        }
        text(StatusCode::NOT_FOUND, body)
    }
}

fn not_allowed(allowed: &str) -> Answer {
    let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, format!("method not allowed; use {allowed}\n"));
    if let Ok(value) = HeaderValue::from_str(allowed) {
        answer.headers_mut().insert(ALLOW, value);
    }
    answer
}

/// Listens on all addresses of this machine; on those of IPv4 alone where the kernel has no IPv6. Port 0 lets the kernel
/// choose.
///
/// # Errors
/// If the port is in use or may not be used.
pub async fn listen(port: u16) -> io::Result<TcpListener> {
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await
        }
        bound => bound,
    }
}

/// Serves `routes` on `listener` until `shutdown` completes.
pub async fn serve(listener: TcpListener, routes: Routes, shutdown: impl Future<Output = ()>) {
    let routes = Arc::new(routes);
    let places = Arc::<Places>::default();
    let mut shutdown = pin!(shutdown);
    let mut connections = tokio::task::JoinSet::new();
    let (stop, stopped) = tokio::sync::watch::channel(false);
    loop {
        while connections.try_join_next().is_some() {}
        let (io, client) = tokio::select! {
            () = &mut shutdown => break,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    if let Some(pause) = accepting::pause_after(&error) {
                        tokio::time::sleep(pause).await;
                    }
                    continue;
                }
            },
        };
        let place = Arc::new(places.take(client.ip()));
        let (routes, stopped) = (routes.clone(), stopped.clone());
        connections.spawn(async move {
            let taken = Taken::default();
            tokio::select! {
                went_on = goes_on(connection(io, routes, place.clone(), stopped, taken.clone()), &taken) => {
                    if !went_on {
                        tracing::debug!(%client, "an admin connection took too long");
                    }
                }
                () = place.lost() => tracing::debug!(%client, "an admin connection gave way to another"),
            }
        });
    }
    // No more connections are accepted while the last responses leave.
    drop(listener);
    stop.send_replace(true);
    let _ = timeout(GRACE, async { while connections.join_next().await.is_some() {} }).await;
}

/// Whether the connection ended without standing still for [`CONNECTION_TIMEOUT`].
async fn goes_on(connection: impl Future<Output = ()>, taken: &Taken) -> bool {
    let mut connection = pin!(connection);
    loop {
        let before = taken.load(Ordering::Relaxed);
        if timeout(CONNECTION_TIMEOUT, &mut connection).await.is_ok() {
            return true;
        }
        if taken.load(Ordering::Relaxed) == before {
            return false;
        }
    }
}

async fn connection(
    io: tokio::net::TcpStream,
    routes: Arc<Routes>,
    place: Arc<Place>,
    mut stopped: tokio::sync::watch::Receiver<bool>,
    taken: Taken,
) {
    let service = service_fn(move |request| {
        let (routes, place, taken) = (routes.clone(), place.clone(), taken.clone());
        async move {
            let mut answer = routes.answer(request, &place).await;
            answer.body_mut().count(taken);
            Ok::<_, Infallible>(answer)
        }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .keep_alive(false)
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_LIMIT)
        .serve_connection(TokioIo::new(io), service);
    let mut connection = pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = async { let _ = stopped.wait_for(|stopped| *stopped).await; } => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "an admin connection failed");
    }
}

#[cfg(test)]
#[path = "admin_tests.rs"]
mod tests;
