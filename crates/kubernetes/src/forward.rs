//! Connections to ports of pods, through the API server and the node's kubelet (`pods/portforward`).
//!
//! The kubelet connects inside the pod's network namespace. So this reaches what listens on the pod's loopback alone, and
//! no network policy stands in its way. The API server's pod proxy would do neither: it connects to the pod's address.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube_client::client::UpgradeConnectionError;
use kube_client::{Api, Error as ClientError};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{Client, Error};

trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Duplex for T {}

/// A connection to a port of a pod. It ends when this is dropped.
pub struct PodStream {
    stream: Box<dyn Duplex>,
    /// The kubelet's words, if it can't connect. Told once.
    error: Option<Pin<Box<dyn Future<Output = Option<String>> + Send>>>,
    /// What it was. Who speaks a protocol over this may take the error of a read for an end.
    complaint: Arc<OnceLock<String>>,
}

impl std::fmt::Debug for PodStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PodStream").finish_non_exhaustive()
    }
}

impl Client {
    /// Connects to `port` of the pod's loopback. Whoever asks needs the rights to `get` and to `create` `pods/portforward`:
    /// API servers before 1.35 ask for the first, later ones for the second.
    ///
    /// That nobody listens there is told by the first read.
    ///
    /// # Errors
    /// As all requests: if the API server can't be reached, refuses, or has no such pod.
    pub async fn connect(&self, namespace: &str, pod: &str, port: u16) -> Result<PodStream, Error> {
        let asked = format!("portforward {namespace}/{pod} {port}");
        let pods: Api<Pod> = Api::namespaced(self.service(), namespace);
        let forwarding = async {
            pods.portforward(pod, &[port]).await.map_err(|error| match error {
                ClientError::UpgradeConnection(UpgradeConnectionError::ProtocolSwitch(status)) => {
                    Error::Refused { asked: asked.clone(), status, message: refusal(status), retry_after: None }
                }
                error => self.unreachable(error),
            })
        };
        let mut forwarder = self.in_time(asked.clone(), forwarding).await?;
        let error = forwarder.take_error(port);
        let stream = forwarder.take_stream(port).ok_or_else(|| self.malformed(&asked, "no stream".to_owned()))?;
        Ok(PodStream {
            stream: Box::new(stream),
            error: error.map(|error| Box::pin(error) as _),
            complaint: Arc::default(),
        })
    }
}

/// The API server's own words are lost where the connection was to be another protocol's.
fn refusal(status: StatusCode) -> String {
    match status {
        StatusCode::FORBIDDEN => {
            "you may not connect to pods there; get the rights `get` and `create` of `pods/portforward`"
        }
        StatusCode::NOT_FOUND => "there is no such pod any more",
        _ => status.canonical_reason().unwrap_or("no reason given"),
    }
    .to_owned()
}

impl PodStream {
    /// The kubelet's complaint, if there is one by now.
    fn complaint(&mut self, cx: &mut Context<'_>) -> Option<io::Error> {
        let Poll::Ready(said) = self.error.as_mut()?.as_mut().poll(cx) else { return None };
        self.error = None;
        let said = self.complaint.get_or_init(|| said.unwrap_or_default().trim().to_owned());
        (!said.is_empty()).then(|| io::Error::new(io::ErrorKind::ConnectionRefused, said.clone()))
    }
}

impl AsyncRead for PodStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        let nothing = read.is_pending() || buf.filled().len() == before;
        // Without data there may be a reason. It is told before the end that it has brought about.
        if nothing && let Some(complaint) = self.complaint(cx) {
            return Poll::Ready(Err(complaint));
        }
        ready!(read)?;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for PodStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// How long a part of the mesh may take to answer. Its pages are written in milliseconds, but for a dump of a large mesh.
const PAGE_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest page, bytes: several times the dump of a mesh of 50 000 workloads. A proxy that somebody took must not fill the memory
/// of whoever asks it.
const LONGEST_PAGE: usize = 512 << 20;

/// What a port of a pod answered over HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodPage {
    /// The status.
    pub status: StatusCode,
    /// The whole body.
    pub body: String,
}

impl Client {
    /// Asks for a page over HTTP at a port of a pod's loopback.
    ///
    /// # Errors
    /// As [`Self::connect`]; [`Error::Pod`] with the reason if nobody listens there, or it is not HTTP that answers.
    pub async fn page(&self, namespace: &str, pod: &str, port: u16, path: &str) -> Result<PodPage, Error> {
        let stream = self.connect(namespace, pod, port).await?;
        let asked = format!("GET {path} of port {port} of {namespace}/{pod}");
        let complaint = stream.complaint.clone();
        let failed = |reason: &str| {
            let reason = complaint.get().filter(|said| !said.is_empty()).map_or(reason, String::as_str).to_owned();
            Error::Pod { asked: asked.clone(), reason }
        };
        let broken = |reason: hyper::Error| failed(&reason.to_string());
        let answer = async {
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
            let request = Request::get(path).header(HOST, "localhost").body(Empty::<Bytes>::new());
            let request = request.map_err(|error| failed(&error.to_string()))?;
            let reading = async {
                let answer = sender.send_request(request).await.map_err(broken)?;
                let status = answer.status();
                let body = Limited::new(answer.into_body(), LONGEST_PAGE).collect().await;
                let body = body.map_err(|error| failed(&error.to_string()))?.to_bytes();
                Ok(PodPage { status, body: String::from_utf8_lossy(&body).into_owned() })
            };
            let (mut reading, connection) = (std::pin::pin!(reading), std::pin::pin!(connection));
            tokio::select! {
                page = &mut reading => page,
                // The answer may have come whole by then.
                ended = connection => reading.await.map_err(|error: Error| ended.err().map_or(error, broken)),
            }
        };
        let late = |_| failed("it does not answer");
        tokio::time::timeout(PAGE_TIMEOUT, answer).await.map_err(late)?
    }
}

#[cfg(test)]
mod tests {
    use leno_testkit::api_server::ApiServer;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn a_port_of_a_pod_is_reached_through_the_api_server() {
        let server = ApiServer::start().await;
        let client = Client::anonymous(&server.url()).unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        server.set_port("shop", "web", 15000, listener.local_addr().unwrap());
        let mut stream = client.connect("shop", "web", 15000).await.unwrap();
        stream.write_all(b"ping").await.unwrap();
        let (mut accepted, _) = listener.accept().await.unwrap();
        let mut heard = [0; 4];
        accepted.read_exact(&mut heard).await.unwrap();
        accepted.write_all(b"and pong").await.unwrap();
        drop(accepted);
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert_eq!((&heard, answer.as_str()), (b"ping", "and pong"));
    }

    #[tokio::test]
    async fn why_a_port_is_not_reached_is_told() {
        let server = ApiServer::start().await;
        let client = Client::anonymous(&server.url()).unwrap();
        let mut nobody = client.connect("shop", "web", 1).await.unwrap();
        let refused = nobody.read_to_string(&mut String::new()).await.unwrap_err();
        assert!(refused.to_string().contains("failed to connect to localhost:1"), "{refused}");
        let page = client.page("shop", "web", 1, "/").await.unwrap_err().to_string();
        assert!(page.contains("failed to connect to localhost:1"), "{page}");
        server.forbid("/api/v1/namespaces/shop/pods/web/portforward");
        let forbidden = client.connect("shop", "web", 1).await.unwrap_err();
        assert_eq!(forbidden.status(), Some(StatusCode::FORBIDDEN));
        assert!(forbidden.to_string().contains("`create` of `pods/portforward`"), "{forbidden}");
    }

    #[tokio::test]
    async fn a_page_comes_whole() {
        let server = ApiServer::start().await;
        let client = Client::anonymous(&server.url()).unwrap();
        let long = "x".repeat(300_000);
        server.set_page(["shop", "web"], 15020, "/metrics", (StatusCode::OK, &long)).await;
        server.set_page(["shop", "web"], 15020, "/ready", (StatusCode::INTERNAL_SERVER_ERROR, "no")).await;
        let page = client.page("shop", "web", 15020, "/metrics").await.unwrap();
        assert_eq!((page.status, page.body.len()), (StatusCode::OK, long.len()));
        let page = client.page("shop", "web", 15020, "/ready").await.unwrap();
        assert_eq!(page, PodPage { status: StatusCode::INTERNAL_SERVER_ERROR, body: "no".to_owned() });
    }
}
