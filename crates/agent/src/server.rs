//! Answers the CNI plugin, this project's or Istio's.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, Request as HttpRequest, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use leno_objects::Pod;
use leno_telemetry::accepting;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::cluster::Cluster;
use crate::directory::is_of_uid;
use crate::events::{self, PodEvent};
use crate::metrics::AgentMetrics;
use crate::node_path;
use crate::pod::Request;
use crate::registry::Registry;

/// How long the API server is asked about a pod that is not known. The plugin waits for longer.
const ASK: Duration = Duration::from_secs(2);
/// How long the end of a sandbox may take.
const END: Duration = Duration::from_millis(800);
/// Longest question, bytes.
const QUESTION_MAX: usize = 64 << 10;
/// Time for a request's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(3);

/// What the plugin is told.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// The pod is captured, or need not be.
    Fine(&'static str),
    /// It may not start now; the same may succeed later.
    Later(String),
    /// It may not start.
    Never(String),
    /// This agent can't decide.
    Unknown(String),
}

/// Answers the plugin.
pub(crate) struct Desk {
    pub(crate) registry: Registry,
    pub(crate) cluster: Arc<dyn Cluster>,
    pub(crate) metrics: AgentMetrics,
    /// The node's processes.
    pub(crate) proc: PathBuf,
}

impl Desk {
    /// Serves the plugins that connect. Never returns.
    pub(crate) async fn serve(self, listener: UnixListener) {
        let desk = Arc::new(self);
        let mut connections = JoinSet::new();
        loop {
            let stream = tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => stream,
                    Err(error) => {
                        if let Some(pause) = accepting::pause_after(&error) {
                            tokio::time::sleep(pause).await;
                        }
                        continue;
                    }
                },
                Some(_) = connections.join_next() => continue,
            };
            let desk = desk.clone();
            connections.spawn(async move {
                let service = service_fn(move |request| {
                    let desk = desk.clone();
                    async move { Ok::<_, Infallible>(desk.answer(request).await) }
                });
                let served = hyper::server::conn::http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(HEAD_TIMEOUT)
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
                if let Err(error) = served {
                    tracing::debug!(%error, "a CNI plugin hung up");
                }
            });
        }
    }

    async fn answer(&self, request: HttpRequest<Incoming>) -> Response<Full<Bytes>> {
        let path = request.uri().path().to_owned();
        let command = match (request.method(), &*path) {
            (&Method::POST, events::ADD) => "add",
            (&Method::POST, events::DEL) => "del",
            (&Method::POST, events::CHECK) => "check",
            _ => return written(StatusCode::NOT_FOUND, "this is the socket for a CNI plugin\n"),
        };
        let body = match Limited::new(request.into_body(), QUESTION_MAX).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) => return written(StatusCode::BAD_REQUEST, format!("the question can't be read: {error}\n")),
        };
        let event: PodEvent = match serde_json::from_slice(&body) {
            Ok(event) => event,
            Err(error) => return written(StatusCode::BAD_REQUEST, format!("the question can't be read: {error}\n")),
        };
        let verdict = match command {
            "add" => self.add(&event).await,
            "del" => self.end(&event).await,
            _ => self.check(&event).await,
        };
        let pod = format!("{}/{}", event.pod_namespace, event.pod_name);
        let (result, status, text) = match verdict {
            Verdict::Fine(result) => (result, StatusCode::OK, String::new()),
            Verdict::Later(reason) => ("later", StatusCode::CONFLICT, reason),
            Verdict::Never(reason) => ("refused", StatusCode::INTERNAL_SERVER_ERROR, reason),
            Verdict::Unknown(reason) => ("unknown", StatusCode::SERVICE_UNAVAILABLE, reason),
        };
        self.metrics.request(command, result);
        if status != StatusCode::OK {
            tracing::warn!(pod, command, "{text}");
        }
        written(status, text)
    }

    async fn add(&self, event: &PodEvent) -> Verdict {
        let begun = Instant::now();
        let pod = match self.pod(event).await {
            Ok(pod) => pod,
            Err(verdict) => return verdict,
        };
        let wanted = match self.is_wanted(&pod).await {
            Ok(wanted) => wanted,
            Err(verdict) => return verdict,
        };
        if !wanted {
            return Verdict::Fine("outside");
        }
        let namespace = match node_path::network_namespace(&self.proc, &event.netns) {
            Ok(namespace) => namespace,
            Err(error) => return Verdict::Never(error.to_string()),
        };
        let addresses = event.ips.iter().map(|ip| ip.address.ip.to_canonical()).collect();
        let Some(requests) = self.registry.requests(&pod.metadata.uid) else {
            return Verdict::Later("it is ending".to_owned());
        };
        let request = |answer| Request::Add { namespace, sandbox: event.container_id.clone(), addresses, answer };
        match answer_of(requests, request).await.and_then(|captured| captured) {
            Ok(()) => {
                self.metrics.delay.observe(begun.elapsed().as_secs_f64());
                Verdict::Fine("captured")
            }
            Err(reason) => Verdict::Later(reason),
        }
    }

    /// The pod that the runtime means. The watch may not have told of it yet.
    async fn pod(&self, event: &PodEvent) -> Result<Arc<Pod>, Verdict> {
        let PodEvent { pod_namespace: namespace, pod_name: name, pod_uid: uid, .. } = event;
        if let Some(pod) = self.registry.ask(|directory| directory.pod(namespace, name, uid)) {
            return Ok(pod);
        }
        match in_time(self.cluster.pod(namespace, name)).await {
            Ok(Some(pod)) if is_of_uid(&pod, uid) => Ok(self.registry.ask(|directory| directory.fetched(pod))),
            // One that the kubelet has from a file is not always in the API server; others have just been deleted.
            Ok(_) => match self.is_mesh_namespace(namespace).await {
                Ok(false) => Err(Verdict::Fine("outside")),
                Ok(true) => Err(Verdict::Later("the API server does not know it".to_owned())),
                Err(verdict) => Err(verdict),
            },
            Err(reason) => Err(Verdict::Unknown(format!("the pod is unknown, and {reason}"))),
        }
    }

    async fn is_wanted(&self, pod: &Pod) -> Result<bool, Verdict> {
        if let Some(wanted) = self.registry.ask(|directory| directory.is_wanted(pod)) {
            return Ok(wanted);
        }
        self.is_mesh_namespace(&pod.metadata.namespace).await?;
        let now = self.registry.ask(|directory| directory.is_wanted(pod));
        now.ok_or_else(|| Verdict::Unknown("the namespaces are not known yet".to_owned()))
    }

    async fn is_mesh_namespace(&self, namespace: &str) -> Result<bool, Verdict> {
        if let Some(known) = self.registry.ask(|directory| directory.is_mesh_namespace(namespace)) {
            return Ok(known);
        }
        match in_time(self.cluster.namespace(namespace)).await {
            Ok(Some(labels)) => {
                let decide = |directory: &mut crate::directory::Directory| {
                    directory.fetched_namespace(namespace, labels);
                    directory.is_mesh_namespace(namespace)
                };
                let known = self.registry.ask(decide);
                known.ok_or_else(|| Verdict::Unknown("the namespaces are not known yet".to_owned()))
            }
            Ok(None) => Ok(false),
            Err(reason) => Err(Verdict::Unknown(format!("its namespace is unknown, and {reason}"))),
        }
    }

    async fn end(&self, event: &PodEvent) -> Verdict {
        let PodEvent { pod_namespace, pod_name, pod_uid, .. } = event;
        let Some(pod) = self.registry.ask(|directory| directory.pod(pod_namespace, pod_name, pod_uid)) else {
            return Verdict::Fine("outside");
        };
        let Some(requests) = self.registry.requests(&pod.metadata.uid) else { return Verdict::Fine("outside") };
        let namespace = node_path::network_namespace(&self.proc, &event.netns).ok().map(|namespace| namespace.id());
        let request = |answer| Request::Ended { namespace, sandbox: event.container_id.clone(), answer };
        // It will be done, whoever waits for it.
        let _ = timeout(END, answer_of(requests, request)).await;
        Verdict::Fine("ended")
    }

    async fn check(&self, event: &PodEvent) -> Verdict {
        let pod = match self.pod(event).await {
            Ok(pod) => pod,
            Err(verdict) => return verdict,
        };
        match self.is_wanted(&pod).await {
            Ok(true) => {}
            Ok(false) => return Verdict::Fine("outside"),
            Err(verdict) => return verdict,
        }
        let Some(requests) = self.registry.requests(&pod.metadata.uid) else {
            return Verdict::Never("it is ending".to_owned());
        };
        match answer_of(requests, |answer| Request::Check { answer }).await.and_then(|captured| captured) {
            Ok(()) => Verdict::Fine("captured"),
            Err(reason) => Verdict::Never(reason),
        }
    }
}

/// Has a pod's task do something, and waits for its answer. A pod that has ended meanwhile gives none.
async fn answer_of<T>(
    requests: mpsc::Sender<Request>,
    make: impl FnOnce(oneshot::Sender<T>) -> Request,
) -> Result<T, String> {
    let (answer, answered) = oneshot::channel();
    let _ = requests.send(make(answer)).await;
    answered.await.map_err(|_| "it ended meanwhile".to_owned())
}

/// The API server's answer, unless it takes too long.
async fn in_time<T>(answer: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let late = |_| Err(format!("the API server does not answer within {} s", ASK.as_secs()));
    timeout(ASK, answer).await.unwrap_or_else(late)
}

fn written(status: StatusCode, text: impl Into<String>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(text.into()));
    *response.status_mut() = status;
    response
}
