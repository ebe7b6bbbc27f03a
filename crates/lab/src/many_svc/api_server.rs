//! An API server as control planes see one: lists in pages, lists as watches, watches with bookmarks, TokenReviews, and
//! what control planes write. It speaks JSON; who would rather have protobuf is answered in JSON, as the protocol allows.
//!
//! It has a thread of its own, so that it does not wait for a thousand proxies in the same process.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::objects::{Collection, Object, Objects, Page, line};
use super::request::{Request, Selection};
use super::tokens::Tokens;
use super::writes::{self, refusal};

/// A real API server sends a bookmark about this often.
const BOOKMARK: Duration = Duration::from_secs(60);
/// How long a watch lasts if its client does not say, seconds.
const WATCH: u64 = 1800;
/// Largest body of a request, bytes; a real API server takes 3 MB.
const MAX_BODY: usize = 3 << 20;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A running API server. It ends with this value.
#[derive(Debug)]
pub(super) struct ApiServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    /// Ends the thread when it is dropped.
    _stop: oneshot::Sender<()>,
}

#[derive(Debug)]
struct Shared {
    objects: Mutex<Objects>,
    tokens: Tokens,
}

impl ApiServer {
    /// Starts it with these objects.
    ///
    /// # Errors
    /// If it can't listen, or can't have a thread.
    pub(super) fn start(objects: Objects, tokens: Tokens) -> io::Result<Self> {
        let shared = Arc::new(Shared { objects: Mutex::new(objects), tokens });
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = shared.clone();
        std::thread::Builder::new().name("api-server".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    served = serve(listener, serving) => {
                        if let Err(error) = served {
                            tracing::error!(%error, "the lab's API server has ended");
                        }
                    }
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Self { address, shared, _stop: stop })
    }

    /// Its address, as in a kubeconfig.
    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The tokens that it knows.
    pub(super) fn tokens(&self) -> &[String] {
        self.shared.tokens.all()
    }

    /// Its objects, to be changed. Those who watch are to be told.
    pub(super) fn objects(&self) -> MutexGuard<'_, Objects> {
        self.shared.objects.lock()
    }
}

async fn serve(listener: std::net::TcpListener, shared: Arc<Shared>) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await?;
        while connections.try_join_next().is_some() {}
        let _ = stream.set_nodelay(true);
        let shared = shared.clone();
        connections.spawn(async move {
            let service = service_fn(move |request| {
                let shared = shared.clone();
                async move { Ok::<_, Infallible>(shared.answer(request).await) }
            });
            // A client that goes away is no failure of the server's.
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

impl Shared {
    async fn answer(self: &Arc<Self>, request: http::Request<Incoming>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let target = parts.uri.path_and_query().map(ToString::to_string).unwrap_or_default();
        let Some(asked) = Request::parse(&target) else { return about_itself(parts.uri.path()) };
        if parts.method == Method::GET && asked.name.is_none() {
            let partial = wants_metadata_only(&parts.headers);
            return if asked.flag("watch") { self.watch(&asked, partial) } else { self.list(&asked, partial) };
        }
        let body = http_body_util::Limited::new(body, MAX_BODY).collect().await;
        let body = match body.map(|body| body.to_bytes()) {
            Ok(body) if body.is_empty() => Ok(Value::Null),
            Ok(body) => serde_json::from_slice(&body).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let body = match body {
            Ok(body) => body,
            Err(error) => {
                tracing::debug!(target, error, "a request that is not understood");
                let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
                let message = format!("only JSON is understood here: {error}");
                return whole(status, &refusal(status, "UnsupportedMediaType", &message));
            }
        };
        let (status, answer) = if asked.collection == "/apis/authentication.k8s.io/v1/tokenreviews" {
            (StatusCode::CREATED, self.tokens.review(body))
        } else {
            writes::answer(&mut self.objects.lock(), &parts.method, &asked, body)
        };
        if !status.is_success() {
            tracing::debug!(method = %parts.method, target, %status, "refused");
        }
        whole(status, &answer)
    }

    /// Lists the objects as they are now. The pages of a list are of one version at a real API server; here a later page
    /// may be newer than the first, and a watch from the first page's version tells what changed since all the same.
    fn list(&self, asked: &Request, partial: bool) -> Response<Body> {
        let objects = self.objects.lock();
        let Some(collection) = objects.of(&asked.collection) else { return no_such_kind() };
        let begun = asked.parameter("continue").and_then(read_token);
        let (version, after) = begun.map_or((objects.version(), None), |(version, after)| (version, Some(after)));
        let limit = asked.number("limit").filter(|limit| *limit > 0);
        let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
        let Page { items, next } = collection.page(&asked.selection(), after.as_ref(), limit);
        let mut metadata = json!({"resourceVersion": version.to_string()});
        if let Some((last, left)) = next {
            metadata["continue"] = token(version, &last).into();
            metadata["remainingItemCount"] = left.into();
        }
        let (kind, api_version) = kind_of_items(collection, partial);
        let head = format!(r#"{{"kind":"{kind}List","apiVersion":"{api_version}","metadata":{metadata},"items":["#);
        drop(objects);
        let items = items.into_iter().enumerate().flat_map(move |(index, object)| {
            let comma = (index > 0).then_some(Bytes::from_static(b","));
            comma.into_iter().chain([object.sent(partial)])
        });
        let parts = [Bytes::from(head)].into_iter().chain(items).chain([Bytes::from_static(b"]}")]);
        streamed(stream::iter(parts))
    }

    fn watch(self: &Arc<Self>, asked: &Request, partial: bool) -> Response<Body> {
        let objects = self.objects.lock();
        let Some(collection) = objects.of(&asked.collection) else { return no_such_kind() };
        let selection = asked.selection();
        let changed = collection.watch();
        let mut first = Vec::new();
        let mut at = asked.number("resourceVersion").unwrap_or_default();
        // Who names no version gets what is there first.
        if asked.flag("sendInitialEvents") || at == 0 {
            at = objects.version();
            for object in collection.page(&selection, None, usize::MAX).items {
                line("ADDED", &object.sent(partial), &mut first);
            }
            if asked.flag("sendInitialEvents") {
                bookmark(collection, partial, at, true, &mut first);
            }
        }
        let seconds = asked.number("timeoutSeconds").unwrap_or(WATCH);
        let watch = Watch {
            shared: self.clone(),
            collection: asked.collection.clone(),
            selection,
            partial,
            bookmarks: asked.flag("allowWatchBookmarks"),
            at,
            first: Some(first.into()),
            changed,
            end: Instant::now() + Duration::from_secs(seconds),
            ended: false,
        };
        drop(objects);
        streamed(stream::unfold(watch, |mut watch| async move { Some((watch.next().await?, watch)) }))
    }
}

/// A watch under way.
struct Watch {
    shared: Arc<Shared>,
    collection: String,
    selection: Selection,
    partial: bool,
    bookmarks: bool,
    /// The version up to which everything was told.
    at: u64,
    first: Option<Bytes>,
    changed: watch::Receiver<()>,
    end: Instant,
    ended: bool,
}

impl Watch {
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.take().filter(|first| !first.is_empty()) {
            return Some(first);
        }
        let next_bookmark = Instant::now() + BOOKMARK;
        loop {
            if self.ended {
                return None;
            }
            self.changed.mark_unchanged();
            {
                let objects = self.shared.objects.lock();
                let collection = objects.of(&self.collection)?;
                let Some(events) = collection.since(self.at, &self.selection, self.partial) else {
                    self.ended = true;
                    let status = refusal(StatusCode::GONE, "Expired", "too old resource version");
                    let mut out = Vec::new();
                    line("ERROR", status.to_string().as_bytes(), &mut out);
                    return Some(out.into());
                };
                self.at = objects.version();
                if !events.is_empty() {
                    return Some(events);
                }
                if self.bookmarks && Instant::now() >= next_bookmark {
                    let mut out = Vec::new();
                    bookmark(collection, self.partial, self.at, false, &mut out);
                    return Some(out.into());
                }
            }
            tokio::select! {
                changed = self.changed.changed() => changed.ok()?,
                () = tokio::time::sleep_until(next_bookmark), if self.bookmarks => {}
                () = tokio::time::sleep_until(self.end) => return None,
            }
        }
    }
}

/// That everything up to a version was told, which may be the end of what was there first.
fn bookmark(collection: &Collection, partial: bool, version: u64, initial: bool, out: &mut Vec<u8>) {
    let (kind, api_version) = kind_of_items(collection, partial);
    let mut metadata = json!({"resourceVersion": version.to_string(), "creationTimestamp": null});
    if initial {
        metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
    }
    let object = json!({"kind": kind, "apiVersion": api_version, "metadata": metadata});
    line("BOOKMARK", object.to_string().as_bytes(), out);
}

fn kind_of_items(collection: &Collection, partial: bool) -> (&'static str, &'static str) {
    if partial { ("PartialObjectMetadata", "meta.k8s.io/v1") } else { (collection.kind(), collection.api_version()) }
}

/// Where the next page of a list begins.
fn token(version: u64, (namespace, name): &(String, String)) -> String {
    format!("{version}/{namespace}/{name}")
}

fn read_token(token: &str) -> Option<(u64, (String, String))> {
    let mut parts = token.splitn(3, '/');
    let version = parts.next()?.parse().ok()?;
    Some((version, (parts.next()?.to_owned(), parts.next()?.to_owned())))
}

/// Whether a client wants objects without all but their metadata.
fn wants_metadata_only(headers: &HeaderMap) -> bool {
    let accepted = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    accepted.contains("as=PartialObjectMetadata")
}

fn about_itself(path: &str) -> Response<Body> {
    let answer = match path {
        "/version" => json!({
            "major": "1", "minor": "34", "gitVersion": "v1.34.0", "platform": "linux/amd64",
        }),
        "/api" => json!({"kind": "APIVersions", "versions": ["v1"]}),
        "/apis" => json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": []}),
        "/readyz" | "/livez" | "/healthz" => json!("ok"),
        _ => return no_such_kind(),
    };
    whole(StatusCode::OK, &answer)
}

fn no_such_kind() -> Response<Body> {
    let status = StatusCode::NOT_FOUND;
    whole(status, &refusal(status, "NotFound", "the server could not find the requested resource"))
}

fn streamed(parts: impl futures_util::Stream<Item = Bytes> + Send + 'static) -> Response<Body> {
    use futures_util::StreamExt as _;
    let frames = parts.map(|part| Ok::<_, Infallible>(Frame::data(part)));
    with_type(Response::new(StreamBody::new(frames).boxed_unsync()))
}

fn whole(status: StatusCode, body: &Value) -> Response<Body> {
    let mut answer = Response::new(Full::new(Bytes::from(body.to_string())).boxed_unsync());
    *answer.status_mut() = status;
    with_type(answer)
}

fn with_type(mut answer: Response<Body>) -> Response<Body> {
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

/// The objects of a kind as they are now, for those who are not a client.
pub(super) fn find(server: &ApiServer, collection: &str, namespace: &str, name: &str) -> Option<Arc<Object>> {
    server.objects().of(collection)?.get(namespace, name).cloned()
}

#[cfg(test)]
#[path = "api_server_tests.rs"]
mod tests;
