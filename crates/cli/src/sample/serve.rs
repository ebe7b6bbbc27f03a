//! The accept loop shared by the servers: HTTP/1.1 or HTTP/2, on IPv6 and IPv4, drained on SIGTERM.

use std::convert::Infallible;
use std::future::Future;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::time::Duration;

use anyhow::Context;
use http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use leno_telemetry::accepting;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tower_service::Service;

/// How long requests under way at SIGTERM may take; Kubernetes kills after 30 s.
const DRAIN: Duration = Duration::from_secs(5);

/// The protocol of a server's connections.
#[derive(Debug, Clone, Copy)]
pub(super) enum Protocol {
    Http1,
    /// HTTP/2 with prior knowledge, as gRPC without TLS does it.
    Grpc,
}

/// Completes at SIGTERM or SIGINT.
pub(super) async fn stop_signal() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => (),
        _ = interrupt.recv() => (),
    }
    Ok(())
}

/// Serves `service` until SIGTERM or SIGINT.
pub(super) async fn serve<S, B>(listener: TcpListener, protocol: Protocol, service: S) -> anyhow::Result<()>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Future<Output = Result<Response<B>, Infallible>> + Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (draining, drain) = watch::channel(());
    let mut connections = JoinSet::new();
    let mut stop = pin!(stop_signal());
    loop {
        tokio::select! {
            stopped = &mut stop => {
                stopped?;
                break;
            }
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    // Small messages, answered one by one: waiting to fill a segment only adds latency.
                    stream.set_nodelay(true).ok();
                    connections.spawn(connection(stream, protocol, service.clone(), drain.clone()));
                }
                // Neither want of descriptors nor a peer that is gone already is a reason to stop serving.
                Err(error) => {
                    if let Some(pause) = accepting::pause_after(&error) {
                        tokio::time::sleep(pause).await;
                    }
                }
            },
            Some(_) = connections.join_next() => (),
        }
    }
    drop(listener);
    drop(draining);
    let drained = async { while connections.join_next().await.is_some() {} };
    tokio::time::timeout(DRAIN, drained).await.ok();
    Ok(())
}

/// Listens on `port` of every address this machine has; 0 lets the kernel choose.
pub(super) async fn listen(port: u16) -> anyhow::Result<TcpListener> {
    // `[::]` takes IPv4 as well; without IPv6 in the kernel the bind fails and IPv4 is what there is.
    match TcpListener::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))).await {
        Ok(listener) => Ok(listener),
        Err(_) => TcpListener::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)))
            .await
            .with_context(|| format!("cannot listen on port {port}; choose another with --port")),
    }
}

async fn connection<S, B>(stream: tokio::net::TcpStream, protocol: Protocol, service: S, mut drain: watch::Receiver<()>)
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let io = TokioIo::new(stream);
    let service = service_fn(move |request| service.clone().call(request));
    // Either arm: serve, and once the sender of `drain` is dropped finish what is under way.
    match protocol {
        Protocol::Http1 => {
            let mut served =
                pin!(hyper::server::conn::http1::Builder::new().timer(TokioTimer::new()).serve_connection(io, service));
            tokio::select! {
                _ = served.as_mut() => return,
                _ = drain.changed() => served.as_mut().graceful_shutdown(),
            }
            served.await.ok();
        }
        Protocol::Grpc => {
            let mut served =
                pin!(hyper::server::conn::http2::Builder::new(TokioExecutor::new()).serve_connection(io, service));
            tokio::select! {
                _ = served.as_mut() => return,
                _ = drain.changed() => served.as_mut().graceful_shutdown(),
            }
            served.await.ok();
        }
    }
}
