//! The gRPC channel to a control plane. TLS proves the server's identity, a token proves ours.

use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use leno_tls::{ControlConnector, HANDSHAKE_TIMEOUT, RootSource, TlsStream};
use tokio::net::TcpStream;
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue, MetadataMap};
use tonic::transport::{Channel, Endpoint};
use tower_service::Service;

use crate::Error;
use crate::error::{cause_of, with_causes};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of HTTP/2 PINGs, the same as ztunnel's. A control plane that vanished is noticed after 40 s.
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Receive window, bytes. The first answer holds the whole mesh, and with the default window it would take many round
/// trips.
const WINDOW: u32 = 1 << 20;

/// Where the token that identifies this proxy comes from.
#[derive(Clone, PartialEq, Eq)]
pub enum TokenSource {
    /// A file, read for every request: Kubernetes replaces it before it expires.
    File(PathBuf),
    /// The token itself.
    Literal(String),
}

impl TokenSource {
    fn read(&self) -> Result<String, Error> {
        match self {
            Self::Literal(token) => Ok(token.trim().to_owned()),
            Self::File(path) => std::fs::read_to_string(path)
                .map(|token| token.trim().to_owned())
                .map_err(|source| Error::Token { path: path.clone(), source }),
        }
    }
}

impl fmt::Debug for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::Literal(_) => f.write_str("Literal(..)"),
        }
    }
}

/// How to reach a control plane.
#[derive(Debug, Clone)]
pub struct ChannelConfig {
    /// `https://host:port`; a missing scheme means https.
    pub address: Uri,
    /// The root certificates that its certificate must chain to.
    pub root: RootSource,
    /// The name that its certificate must have, if not the address's host.
    pub alt_hostname: Option<String>,
    /// The token that identifies this proxy, if the control plane wants one.
    pub token: Option<TokenSource>,
    /// The id of our cluster. It is sent as `clusterid`, by which Istio knows who issued the token.
    pub cluster_id: String,
    /// Further headers for each request.
    pub headers: Vec<(String, String)>,
}

impl ChannelConfig {
    /// `host:port`, for messages.
    pub(crate) fn authority(&self) -> String {
        self.address.authority().map_or_else(|| self.address.to_string(), ToString::to_string)
    }

    /// A channel that connects when it is first used, and again after a failure. Root certificates are read at each
    /// connect.
    pub(crate) fn lazy(&self) -> Result<Channel, Error> {
        let (endpoint, dial) = self.endpoint()?;
        Ok(endpoint.connect_with_connector_lazy(dial))
    }

    /// A new, connected channel.
    pub(crate) async fn connect(&self) -> Result<Channel, Error> {
        let (endpoint, dial) = self.endpoint()?;
        endpoint.connect_with_connector(dial).await.map_err(|error| self.transport_error(&error))
    }

    fn endpoint(&self) -> Result<(Endpoint, Dial), Error> {
        let bad = |reason| Error::Address { address: self.address.to_string(), reason };
        match self.address.scheme_str() {
            None | Some("https") => {}
            Some(_) => return Err(bad("the control plane is only spoken to over TLS")),
        }
        let authority = self.address.authority().ok_or_else(|| bad("it has no host"))?;
        let host = authority.host();
        let port = authority.port_u16().ok_or_else(|| bad("it has no port"))?;
        let dial = Dial {
            // An IPv6 literal has brackets only in a URI.
            host: host.trim_start_matches('[').trim_end_matches(']').into(),
            port,
            name: self.alt_hostname.clone(),
            connector: ControlConnector::new(self.root.clone()),
        };
        let uri = Uri::builder()
            .scheme("https")
            .authority(authority.clone())
            .path_and_query("/")
            .build()
            .map_err(|_| bad("it is not a URI"))?;
        let endpoint = Endpoint::from(uri)
            .http2_keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(2 * WINDOW);
        Ok((endpoint, dial))
    }

    /// Adds our credentials to a request.
    pub(crate) fn identify(&self, metadata: &mut MetadataMap) -> Result<(), Error> {
        let mut add = |name: &str, value: &str| -> Result<(), Error> {
            let bad = || Error::Header { name: name.to_owned() };
            let key = AsciiMetadataKey::from_bytes(name.as_bytes()).map_err(|_| bad())?;
            metadata.insert(key, AsciiMetadataValue::try_from(value).map_err(|_| bad())?);
            Ok(())
        };
        if let Some(token) = &self.token {
            add("authorization", &format!("Bearer {}", token.read()?))?;
        }
        add("clusterid", &self.cluster_id)?;
        for (name, value) in &self.headers {
            add(&name.to_ascii_lowercase(), value)?;
        }
        Ok(())
    }

    /// The error that a gRPC status stands for: an answer of the control plane, or the end of the connection.
    pub(crate) fn status_error(&self, status: &tonic::Status) -> Error {
        let transport = cause_of::<tonic::transport::Error>(status).is_some() || cause_of::<Error>(status).is_some();
        if transport {
            return self.transport_error(status);
        }
        Error::Status { code: status.code(), message: status.message().to_owned() }
    }

    fn transport_error(&self, error: &(dyn std::error::Error + 'static)) -> Error {
        let address = self.authority();
        // If our own connector failed, its reason is copied, because it can't be moved out.
        match cause_of::<Error>(error) {
            Some(Error::Connect { source, .. }) => {
                Error::Connect { address, source: std::io::Error::new(source.kind(), source.to_string()) }
            }
            Some(Error::ConnectTimeout { after, .. }) => Error::ConnectTimeout { address, after: *after },
            Some(Error::Tls { source, .. }) => Error::Tls { address, source: source.clone() },
            _ => Error::Transport { address, reason: with_causes(error) },
        }
    }
}

/// Opens the TLS connection under a channel.
#[derive(Clone)]
struct Dial {
    host: std::sync::Arc<str>,
    port: u16,
    name: Option<String>,
    connector: ControlConnector,
}

impl Dial {
    async fn dial(self) -> Result<TokioIo<TlsStream<TcpStream>>, Error> {
        let address = format!("{}:{}", self.host, self.port);
        let connecting = TcpStream::connect((&*self.host, self.port));
        let tcp = match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
            Err(_) => return Err(Error::ConnectTimeout { address, after: CONNECT_TIMEOUT }),
            Ok(Err(source)) => return Err(Error::Connect { address, source }),
            Ok(Ok(tcp)) => tcp,
        };
        tcp.set_nodelay(true).map_err(|source| Error::Connect { address: address.clone(), source })?;
        let name = self.name.as_deref().unwrap_or(&self.host);
        let stream = self
            .connector
            .connect(tcp, name, HANDSHAKE_TIMEOUT)
            .await
            .map_err(|source| Error::Tls { address, source })?;
        Ok(TokioIo::new(stream))
    }
}

impl Service<Uri> for Dial {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        Box::pin(self.clone().dial())
    }
}
