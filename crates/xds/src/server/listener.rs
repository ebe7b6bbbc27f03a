//! Accepts the control plane's connections and hands their requests to the services.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use leno_proto::ca::istio_certificate_service_server::IstioCertificateServiceServer;
use leno_telemetry::accepting;
use leno_tls::{ControlAcceptor, HANDSHAKE_TIMEOUT};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tower_service::Service as _;

use super::calm::Calming;
use super::connection::{PeerAddress, Shutdown};
use super::places::{Limits, Place, Places};
use super::refusals::Refusals;
use super::{CaService, Service, discovery};

/// Largest certificate request, bytes. A real one has a kilobyte.
const MAX_CERTIFICATE_REQUEST: usize = 64 << 10;
/// Bytes that a client may send before the server reads them. There can be thousands of clients.
const WINDOW: u32 = 64 << 10;
/// Time for a connection to end its streams on shutdown.
const DRAIN: Duration = Duration::from_secs(2);

/// The services on the control plane's port.
#[derive(Debug, Clone)]
pub struct Services {
    /// Delta discovery.
    pub discovery: Service,
    /// Certificates.
    pub certificates: CaService,
}

type Certificates = IstioCertificateServiceServer<CaService>;

/// Serves connections from `listener` until `shutdown` completes, then ends streams in good order and returns. The
/// listener may be in another network namespace. Each connection is a task of its own on the calling runtime.
pub async fn serve(
    listener: TcpListener,
    acceptor: ControlAcceptor,
    services: Services,
    limits: Limits,
    shutdown: impl Future<Output = ()>,
) {
    let (down, signal) = watch::channel(false);
    let metrics = services.discovery.metrics().clone();
    let shared = Arc::new(Shared {
        acceptor,
        discovery: services.discovery,
        certificates: IstioCertificateServiceServer::new(services.certificates)
            .max_decoding_message_size(MAX_CERTIFICATE_REQUEST),
        places: Places::new(limits, metrics.clone()),
        refusals: Refusals::new(metrics),
        signal,
    });
    let mut connections = JoinSet::new();
    let mut shutdown = std::pin::pin!(shutdown);
    {
        // This future continues after another branch was taken, because it may hold a connection that waits for its place.
        let mut accepting = std::pin::pin!(shared.accept(&listener));
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                Some(_) = connections.join_next() => {}
                accepted = &mut accepting => {
                    accepting.set(shared.accept(&listener));
                    let Some((tcp, peer, place)) = accepted else { continue };
                    connections.spawn(shared.clone().connection(tcp, peer, Arc::new(place)));
                }
            }
        }
    }
    drop(listener);
    down.send_replace(true);
    let ended = tokio::time::timeout(DRAIN, async { while connections.join_next().await.is_some() {} }).await;
    if ended.is_err() {
        tracing::warn!(left = connections.len(), "control plane connections did not end in time; closing them");
    }
}

/// State shared by all connections of a listener.
struct Shared {
    acceptor: ControlAcceptor,
    discovery: Service,
    certificates: Certificates,
    places: Arc<Places>,
    refusals: Refusals,
    signal: watch::Receiver<bool>,
}

impl Shared {
    async fn accept(&self, listener: &TcpListener) -> Option<(TcpStream, SocketAddr, Place)> {
        match listener.accept().await {
            Ok((tcp, peer)) => match self.places.take(peer.ip()).await {
                Ok(place) => Some((tcp, peer, place)),
                Err(refusal) => {
                    self.refusals.tell(refusal, peer);
                    None
                }
            },
            Err(error) => {
                if let Some(pause) = accepting::pause_after(&error) {
                    tokio::time::sleep(pause).await;
                }
                None
            }
        }
    }

    /// Serves one connection as long as it has its place.
    async fn connection(self: Arc<Self>, tcp: TcpStream, peer: SocketAddr, place: Arc<Place>) {
        let deadline = Instant::now() + self.places.limits().first_request;
        let lost = place.lost(deadline);
        tokio::select! {
            () = self.speak(tcp, peer, &place) => {}
            refusal = lost => self.refusals.tell(refusal, peer),
        }
    }

    async fn speak(&self, tcp: TcpStream, peer: SocketAddr, place: &Arc<Place>) {
        if let Err(error) = tcp.set_nodelay(true) {
            tracing::debug!(%peer, %error, "control plane connection lost");
            return;
        }
        let stream = match self.acceptor.accept(tcp, HANDSHAKE_TIMEOUT).await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!(%peer, %error, "TLS with a control plane client failed");
                return;
            }
        };
        let shutdown = Shutdown(Some(self.signal.clone()));
        let (of_requests, place) = (shutdown.clone(), place.clone());
        let (discovery, certificates) = (self.discovery.clone(), self.certificates.clone());
        let service = service_fn(move |mut request: http::Request<Incoming>| {
            request.extensions_mut().insert(PeerAddress(peer));
            request.extensions_mut().insert(of_requests.clone());
            request.extensions_mut().insert(place.clone());
            route(request, discovery.clone(), certificates.clone())
        });
        let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(Some(Duration::from_secs(30)))
            .keep_alive_timeout(Duration::from_secs(10))
            .max_concurrent_streams(128)
            .max_header_list_size(32 << 10)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(2 * WINDOW)
            .serve_connection(TokioIo::new(Calming::new(stream, peer)), service);
        let mut serving = std::pin::pin!(serving);
        let ended = tokio::select! {
            ended = &mut serving => ended,
            () = shutdown.wait() => {
                serving.as_mut().graceful_shutdown();
                serving.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%peer, %error, "control plane connection ended");
        }
    }
}

async fn route(
    request: http::Request<Incoming>,
    discovery: Service,
    mut certificates: Certificates,
) -> Result<http::Response<tonic::body::Body>, Infallible> {
    let name = request.uri().path().trim_start_matches('/').split('/').next().unwrap_or_default();
    match name {
        discovery::NAME => Ok(discovery.call(request).await),
        <Certificates as tonic::server::NamedService>::NAME => certificates.call(request).await,
        other => {
            let status = tonic::Status::unimplemented(format!("this control plane has no service {other:?}"));
            Ok(status.into_http())
        }
    }
}
