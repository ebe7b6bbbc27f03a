//! A Kubernetes API server for tests: objects of any kind, paged lists, watches with bookmarks, conflicts, token
//! reviews, and, when a test asks for it, what a real server does only when something is wrong.

mod forward;
mod paths;
mod state;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::unfold;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use paths::Path;
use state::{State, refusal};

type Body = BoxBody<Bytes, Infallible>;

/// A running server. It stops when this is dropped.
#[derive(Debug)]
pub struct ApiServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    running: Option<JoinSet<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Wakes watches.
    changed: watch::Sender<()>,
}

/// The definition of one of Istio's security objects, with a version that is served.
pub fn definition(plural: &str, version: &str) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.security.istio.io")},
        "spec": {"versions": [{"name": version, "served": true}]},
    })
}

impl ApiServer {
    /// Starts without objects. It knows every kind.
    ///
    /// # Panics
    /// If it can't listen on the loopback address.
    pub async fn start() -> Self {
        let shared = Arc::new(Shared { state: Mutex::new(State::new()), changed: watch::Sender::new(()) });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listens");
        let address = listener.local_addr().expect("an address");
        let mut out = Self { address, shared, running: None };
        out.serve(listener);
        out
    }

    fn serve(&mut self, listener: TcpListener) {
        let shared = self.shared.clone();
        let mut running = JoinSet::new();
        running.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let shared = shared.clone();
                connections.spawn(async move {
                    let service = service_fn(move |request| {
                        let shared = shared.clone();
                        async move { Ok::<_, Infallible>(shared.answer(request).await) }
                    });
                    let served = hyper::server::conn::http1::Builder::new();
                    // A client that closes its connection is no failure of the server.
                    let _ = served.serve_connection(TokioIo::new(stream), service).with_upgrades().await;
                });
            }
        });
        self.running = Some(running);
    }

    /// Its address, as in a kubeconfig.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Adds or replaces an object, given with `apiVersion` and `kind`. Returns its version.
    pub fn put(&self, object: &Value) -> u64 {
        let version = self.shared.state.lock().put(object);
        self.shared.wake();
        version
    }

    /// Deletes an object by its kind (`apiVersion`, plural), namespace and name.
    pub fn delete(&self, api_version: &str, plural: &str, namespace: &str, name: &str) {
        self.shared.state.lock().delete(&paths::collection(api_version, plural), namespace, name);
        self.shared.wake();
    }

    /// An object as it is now.
    pub fn get(&self, api_version: &str, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        self.shared.state.lock().get(&paths::collection(api_version, plural), namespace, name).cloned()
    }

    /// All objects of a kind.
    pub fn all(&self, api_version: &str, plural: &str) -> Vec<Value> {
        self.shared.state.lock().all(&paths::collection(api_version, plural))
    }

    /// Forgets its log of changes. A watch from an earlier version is answered with 410, and so is the next page of a
    /// list that was begun before.
    pub fn compact(&self) {
        self.shared.state.lock().compact();
        self.shared.wake();
    }

    /// Sends every watch a bookmark for the present version.
    pub fn bookmark(&self) {
        self.shared.state.lock().bookmark();
        self.shared.wake();
    }

    /// Ends all watches.
    pub fn end_watches(&self) {
        self.shared.state.lock().epoch += 1;
        self.shared.wake();
    }

    /// Returns at most this many objects per page, whatever the client asks for.
    pub fn set_list_page(&self, objects: usize) {
        self.shared.state.lock().page = objects;
    }

    /// Answers the next request with `status`. Repeated calls queue up, one answer each.
    pub fn refuse_next(&self, refusals: impl IntoIterator<Item = (StatusCode, Option<u64>)>) {
        self.shared.state.lock().refusals.extend(refusals);
    }

    /// Refuses all requests whose path has this prefix, as if permission for them were missing.
    pub fn forbid(&self, path: &str) {
        self.shared.state.lock().forbidden.push(path.to_owned());
    }

    /// Sets whether the server knows a kind. The objects of a kind that it no longer knows are deleted.
    pub fn set_known(&self, api_version: &str, plural: &str, known: bool) {
        self.shared.state.lock().set_known(&paths::collection(api_version, plural), known);
        self.shared.wake();
    }

    /// Sets the `status` of a TokenReview of this token. Other tokens are refused.
    pub fn set_token(&self, token: &str, status: Value) {
        self.shared.state.lock().tokens.insert(token.to_owned(), status);
    }

    /// Answers each request for this path, whatever its query, with a text, as for a pod's log.
    pub fn set_text(&self, path: &str, text: &str) {
        self.shared.state.lock().texts.insert(path.to_owned(), text.to_owned());
    }

    /// Lets connections to a port of a pod's loopback lead to `address`. At all others nobody listens.
    pub fn set_port(&self, namespace: &str, pod: &str, port: u16, address: SocketAddr) {
        self.shared.state.lock().ports.insert(format!("{namespace}/{pod}:{port}"), address);
    }

    /// Lets the port of a pod's loopback answer requests for `path` with this status and text.
    ///
    /// # Panics
    /// If it can't listen on the loopback address.
    pub async fn set_page(&self, [namespace, pod]: [&str; 2], port: u16, path: &str, answer: (StatusCode, &str)) {
        let key = format!("{namespace}/{pod}:{port}");
        let (pages, listens) = {
            let mut state = self.shared.state.lock();
            let pages = state.pages.entry(key.clone()).or_default().clone();
            (pages, state.ports.contains_key(&key))
        };
        pages.lock().insert(path.to_owned(), (answer.0, answer.1.to_owned()));
        if listens {
            return;
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listens");
        self.set_port(namespace, pod, port, listener.local_addr().expect("an address"));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let pages = pages.clone();
                let service = service_fn(move |request: Request<Incoming>| {
                    let found = pages.lock().get(request.uri().path()).cloned();
                    async move {
                        let (status, text) = found.unwrap_or((StatusCode::NOT_FOUND, String::new()));
                        let mut answer = Response::new(Full::new(Bytes::from(text)));
                        *answer.status_mut() = status;
                        Ok::<_, Infallible>(answer)
                    }
                });
                let served = hyper::server::conn::http1::Builder::new();
                tokio::spawn(served.serve_connection(TokioIo::new(stream), service));
            }
        });
    }

    /// The requests that came since the last call: method, path and query.
    pub fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.state.lock().requests)
    }

    /// Waits until a request comes that satisfies `wanted`.
    pub async fn requested(&self, wanted: &str) {
        let mut changed = self.shared.changed.subscribe();
        while !self.shared.state.lock().requests.iter().any(|request| request.contains(wanted)) {
            // The sender lives in `self`.
            let _ = changed.changed().await;
        }
    }

    /// Closes its port and all connections.
    pub async fn stop(&mut self) {
        if let Some(mut running) = self.running.take() {
            running.shutdown().await;
        }
    }

    /// Opens its port again, with the same objects.
    ///
    /// # Panics
    /// If another process has taken the port.
    pub async fn restart(&mut self) {
        self.stop().await;
        let listener = TcpListener::bind(self.address).await.expect("the port is free");
        self.serve(listener);
    }
}

impl Shared {
    fn wake(&self) {
        self.changed.send_modify(|()| ());
    }

    async fn answer(self: &Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let target = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
        let forward = {
            let state = self.state.lock();
            let forbidden = state.forbidden.iter().any(|path| target.starts_with(path.as_str()));
            forward::wanted(&target).filter(|_| !forbidden).map(|(name, port)| (port, state.ports.get(&name).copied()))
        };
        if let Some((port, address)) = forward {
            self.state.lock().requests.push(format!("{} {target}", request.method()));
            return forward::answer(request, port, address);
        }
        let (parts, body) = request.into_parts();
        let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        let refused = {
            let mut state = self.state.lock();
            state.requests.push(format!("{} {target}", parts.method));
            let forbidden = state.forbidden.iter().any(|path| target.starts_with(path.as_str()));
            if forbidden { Some((StatusCode::FORBIDDEN, None)) } else { state.refusals.pop_front() }
        };
        self.wake();
        if let Some((status, retry_after)) = refused {
            let mut answer = whole(status, &refusal(status, "as the test wants it"));
            if let Some(seconds) = retry_after {
                answer.headers_mut().insert(RETRY_AFTER, seconds.into());
            }
            return answer;
        }
        let text = self.state.lock().texts.get(parts.uri.path()).cloned();
        if let Some(text) = text {
            return Response::new(Full::new(Bytes::from(text)).boxed());
        }
        let Some(path) = Path::parse(&target) else {
            return whole(StatusCode::NOT_FOUND, &refusal(StatusCode::NOT_FOUND, "no such path"));
        };
        if parts.method == Method::GET && path.query("watch").is_some() {
            return self.watch(&path);
        }
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let (status, answer) = self.state.lock().answer(&parts.method, &path, body);
        self.wake();
        whole(status, &answer)
    }

    fn watch(self: &Arc<Self>, path: &Path) -> Response<Body> {
        if !self.state.lock().is_known(&path.collection) {
            return whole(StatusCode::NOT_FOUND, &refusal(StatusCode::NOT_FOUND, "no such kind"));
        }
        let at: u64 = path.query("resourceVersion").and_then(|text| text.parse().ok()).unwrap_or_default();
        let seconds = path.query("timeoutSeconds").and_then(|text| text.parse().ok()).unwrap_or(300);
        let watch = Watch {
            shared: self.clone(),
            changed: self.changed.subscribe(),
            epoch: self.state.lock().epoch,
            path: path.clone(),
            at,
            end: tokio::time::Instant::now() + Duration::from_secs(seconds),
            pending: VecDeque::new(),
            ended: false,
        };
        let frames = unfold(watch, |mut watch| async move {
            let event = watch.next().await?;
            let line = Bytes::from(format!("{event}\n"));
            Some((Ok::<_, Infallible>(Frame::data(line)), watch))
        });
        let mut answer = Response::new(BodyExt::boxed(StreamBody::new(frames)));
        answer.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
        answer
    }
}

struct Watch {
    shared: Arc<Shared>,
    changed: watch::Receiver<()>,
    epoch: u64,
    path: Path,
    at: u64,
    end: tokio::time::Instant,
    pending: VecDeque<Value>,
    ended: bool,
}

impl Watch {
    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Some(event);
            }
            if self.ended {
                return None;
            }
            self.changed.mark_unchanged();
            {
                let state = self.shared.state.lock();
                if state.epoch != self.epoch {
                    return None;
                }
                match state.since(self.at, &self.path) {
                    Some((version, events)) => {
                        self.at = version;
                        self.pending.extend(events);
                    }
                    None => {
                        self.ended = true;
                        let status = refusal(StatusCode::GONE, "too old resource version");
                        return Some(json!({"type": "ERROR", "object": status}));
                    }
                }
            }
            if self.pending.is_empty() {
                tokio::select! {
                    // The sender lives in `self`.
                    _ = self.changed.changed() => {}
                    () = tokio::time::sleep_until(self.end) => return None,
                }
            }
        }
    }
}

fn whole(status: StatusCode, body: &Value) -> Response<Body> {
    let mut answer = Response::new(Full::new(Bytes::from(body.to_string())).boxed());
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    answer
}
