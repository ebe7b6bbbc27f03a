//! Requests to an API server.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube_client::client::{Body, ConfigExt};
use kube_client::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube_client::{Config, Error as ClientError};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::timeout;
use tower::{BoxError, ServiceBuilder};

use crate::Error;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The API server itself gives up on a request after a minute.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(65);
/// A dead API server, or a network that swallows packets, is noticed after half a minute.
const KEEPALIVE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 3;
/// Bytes of an error's text that are read.
const MAX_ERROR: usize = 64 << 10;

/// Which cluster, and as whom.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cluster {
    /// The kubeconfig file. Without one, a pod uses its service account; elsewhere it is `$KUBECONFIG` or
    /// `~/.kube/config`.
    pub kubeconfig: Option<PathBuf>,
    /// The context in the kubeconfig; without one, the current context.
    pub context: Option<String>,
}

/// How a JSON patch document changes an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patch {
    /// The fields that are given replace those of the object.
    Merge,
    /// The fields that are given are this field manager's own.
    Apply,
}

/// A connection to an API server. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    service: kube_client::Client,
    server: Arc<str>,
}

impl Client {
    /// Prepares requests. Nothing is sent yet.
    ///
    /// # Errors
    /// If there is no configuration, or it can't be used.
    pub async fn new(cluster: &Cluster) -> Result<Self, Error> {
        let options = KubeConfigOptions { context: cluster.context.clone(), ..KubeConfigOptions::default() };
        let in_pod = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
        let config = match &cluster.kubeconfig {
            Some(path) => {
                let file = Kubeconfig::read_from(path).map_err(unusable)?;
                Config::from_custom_kubeconfig(file, &options).await.map_err(unusable)?
            }
            None if in_pod && cluster.context.is_none() => Config::incluster().map_err(configuration)?,
            None => Config::from_kubeconfig(&options).await.map_err(unusable)?,
        };
        Self::with(config)
    }

    /// Sends requests to the API server at `url` without proving anything, for tests.
    ///
    /// # Errors
    /// If `url` is none.
    pub fn anonymous(url: &str) -> Result<Self, Error> {
        let mut config = Config::new(url.parse().map_err(configuration)?);
        // Else the machine's own roots are read, and there may be none.
        config.root_cert = Some(Vec::new());
        Self::with(config)
    }

    fn with(config: Config) -> Result<Self, Error> {
        if let Some(proxy) = &config.proxy_url {
            return Err(configuration(format!("it wants the proxy {proxy}, and proxies are not supported")));
        }
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        connector.set_keepalive(Some(KEEPALIVE));
        connector.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
        connector.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
        let connector = config.rustls_https_connector_with_connector(connector).map_err(configuration)?;
        let client: hyper_util::client::legacy::Client<_, Body> =
            hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build(connector);
        let service = ServiceBuilder::new()
            .layer(config.base_uri_layer())
            .option_layer(config.auth_layer().map_err(configuration)?)
            .layer(config.extra_headers_layer().map_err(configuration)?)
            .map_err(BoxError::from)
            .service(client);
        let server = config.cluster_url.to_string().trim_end_matches('/').into();
        Ok(Self { service: kube_client::Client::new(service, config.default_namespace), server })
    }

    /// For what the client library offers and this does not.
    pub(crate) fn service(&self) -> kube_client::Client {
        self.service.clone()
    }

    /// The namespace of this program's pod, or of the kubeconfig's context.
    pub fn default_namespace(&self) -> &str {
        self.service.default_namespace()
    }

    /// The API server's address.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Reads an object, or whatever else is at `path`.
    ///
    /// # Errors
    /// As all requests: if the API server can't be reached, refuses, or can't be understood.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        let body = self.bytes(Method::GET, path, None).await?;
        self.read(&format!("GET {path}"), &body)
    }

    /// Reads the text at `path`, such as a container's log.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub async fn text(&self, path: &str) -> Result<String, Error> {
        let body = self.bytes(Method::GET, path, None).await?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// As [`Self::get`]; `None` if there is nothing at `path`.
    ///
    /// # Errors
    /// As [`Self::get`], but for what is not found.
    pub async fn find<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>, Error> {
        match self.get(path).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Creates an object in the collection at `path`, and returns it as it is then.
    ///
    /// # Errors
    /// As [`Self::get`]; with [`Error::is_conflict`] if there is one of that name.
    pub async fn create<T: DeserializeOwned>(&self, path: &str, object: &Value) -> Result<T, Error> {
        let body = self.bytes(Method::POST, path, Some(("application/json", object.to_string()))).await?;
        self.read(&format!("POST {path}"), &body)
    }

    /// Replaces the object at `path`.
    ///
    /// # Errors
    /// As [`Self::get`]; with [`Error::is_conflict`] if `object` names a version that is not the latest.
    pub async fn replace<T: DeserializeOwned>(&self, path: &str, object: &Value) -> Result<T, Error> {
        let body = self.bytes(Method::PUT, path, Some(("application/json", object.to_string()))).await?;
        self.read(&format!("PUT {path}"), &body)
    }

    /// Changes the object at `path`.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub async fn patch(&self, path: &str, kind: Patch, patch: &Value) -> Result<(), Error> {
        let kind = match kind {
            Patch::Merge => "application/merge-patch+json",
            Patch::Apply => "application/apply-patch+yaml",
        };
        self.bytes(Method::PATCH, path, Some((kind, patch.to_string()))).await.map(drop)
    }

    /// Deletes the object at `path`, or all objects of the collection there.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub async fn delete(&self, path: &str) -> Result<(), Error> {
        self.bytes(Method::DELETE, path, None).await.map(drop)
    }

    /// The whole answer.
    pub(crate) async fn bytes(
        &self,
        method: Method,
        path: &str,
        body: Option<(&'static str, String)>,
    ) -> Result<Bytes, Error> {
        let asked = format!("{method} {}", without_query(path));
        let answer = async {
            let answer = self.send(method, path, body).await?;
            let collected = answer.into_body().collect().await.map_err(|error| self.unreachable(error))?;
            Ok(collected.to_bytes())
        };
        self.in_time(asked, answer).await
    }

    /// The answer's beginning; its body may take as long as it likes.
    pub(crate) async fn stream(&self, path: &str) -> Result<Body, Error> {
        let asked = format!("GET {}", without_query(path));
        self.in_time(asked, self.send(Method::GET, path, None)).await.map(Response::into_body)
    }

    pub(crate) async fn in_time<T>(
        &self,
        asked: String,
        answer: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let late = |_| Error::Timeout { server: self.server.to_string(), asked, waited: ANSWER_TIMEOUT };
        timeout(ANSWER_TIMEOUT, answer).await.map_err(late)?
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<(&'static str, String)>,
    ) -> Result<Response<Body>, Error> {
        let asked = format!("{method} {}", without_query(path));
        let mut request = Request::builder().method(method).uri(path);
        if let Some((kind, _)) = &body {
            request = request.header(CONTENT_TYPE, *kind);
        }
        let body = Body::from(body.map(|(_, text)| text.into_bytes()).unwrap_or_default());
        let request = request.body(body).map_err(|error| self.malformed(&asked, error.to_string()))?;
        let answer = self.service.send(request).await.map_err(|error| self.unreachable(error))?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        Err(refused(asked, answer).await)
    }

    fn read<T: DeserializeOwned>(&self, asked: &str, body: &[u8]) -> Result<T, Error> {
        serde_json::from_slice(body).map_err(|error| self.malformed(asked, error.to_string()))
    }

    pub(crate) fn malformed(&self, asked: &str, reason: String) -> Error {
        Error::Malformed { server: self.server.to_string(), asked: asked.to_owned(), reason }
    }

    pub(crate) fn unreachable(&self, error: ClientError) -> Error {
        Error::Unreachable { server: self.server.to_string(), source: innermost(error) }
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("server", &self.server).finish()
    }
}

/// Queries are long and say little.
fn without_query(path: &str) -> &str {
    path.split('?').next().unwrap_or(path)
}

/// The text of errors around it says "client error (Connect)" and the like, and leaves out the cause.
fn innermost(error: ClientError) -> Box<dyn std::error::Error + Send + Sync> {
    let mut text = error.to_string();
    let mut inner: Option<&dyn std::error::Error> = std::error::Error::source(&error);
    while let Some(cause) = inner {
        text = cause.to_string();
        inner = cause.source();
    }
    text.into()
}

fn configuration(error: impl Into<BoxError>) -> Error {
    Error::Configuration(error.into())
}

/// What is wrong with a kubeconfig, in words for whoever named it.
fn unusable(error: KubeconfigError) -> Error {
    let text = match &error {
        KubeconfigError::ReadConfig(reason, path) => format!("{} can't be read ({reason})", path.display()),
        KubeconfigError::Parse(reason) => {
            let reason = reason.to_string();
            let reason = reason.lines().next().unwrap_or_default().trim_start_matches("error: ");
            format!("the kubeconfig is no kubeconfig ({reason})")
        }
        KubeconfigError::LoadContext(name) => {
            format!("the kubeconfig has no context {name} (`kubectl config get-contexts` lists those that it has)")
        }
        KubeconfigError::CurrentContextNotSet => {
            "the kubeconfig has no current context (--context names one)".to_owned()
        }
        KubeconfigError::LoadClusterOfContext(name) => {
            format!("the kubeconfig's context is about the cluster {name}, which it does not have")
        }
        _ => return configuration(error),
    };
    configuration(text)
}

/// What an API server says when it refuses.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    message: String,
    details: Option<Details>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Details {
    retry_after_seconds: Option<u64>,
}

async fn refused(asked: String, answer: Response<Body>) -> Error {
    let (parts, body) = answer.into_parts();
    let body = Limited::new(body, MAX_ERROR).collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let status: Status = serde_json::from_slice(&body)
        .unwrap_or_else(|_| Status { message: String::from_utf8_lossy(&body).trim().to_owned(), details: None });
    let said = status.details.and_then(|details| details.retry_after_seconds).map(Duration::from_secs);
    let retry_after = retry_after(&parts.headers).or(said);
    let message = if status.message.is_empty() { reason(parts.status) } else { status.message };
    Error::Refused { asked, status: parts.status, message, retry_after }
}

fn reason(status: StatusCode) -> String {
    status.canonical_reason().unwrap_or("no reason given").to_owned()
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_wrong_with_a_kubeconfig_is_told() {
        let path = std::env::temp_dir().join(format!("leno-kubeconfig-{}", std::process::id()));
        let told = async |context: Option<&str>| {
            let cluster = Cluster { kubeconfig: Some(path.clone()), context: context.map(str::to_owned) };
            Client::new(&cluster).await.err().map(|error| error.to_string()).unwrap_or_default()
        };
        let said = told(None).await;
        assert!(said.contains(&format!("{} can't be read (No such file", path.display())), "{said}");
        assert!(said.ends_with("name a file with --kubeconfig"), "{said}");
        std::fs::write(&path, "junk: [\n").unwrap();
        let said = told(None).await;
        assert!(said.contains("is no kubeconfig (line 1 ") && !said.contains('\n'), "{said}");
        std::fs::write(&path, "apiVersion: v1\nkind: Config\n").unwrap();
        assert!(told(Some("other")).await.contains("has no context other (`kubectl config get-contexts`"));
        let said = told(None).await;
        std::fs::remove_file(&path).unwrap();
        assert!(said.contains("--context names one"), "{said}");
    }
}
