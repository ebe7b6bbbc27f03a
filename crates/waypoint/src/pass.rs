//! Bytes that are passed on unread: TCP, TLS, and whatever is not HTTP.

use std::sync::Arc;

use http::HeaderMap;
use leno_proxy::peers;
use leno_proxy::tunnels::Tunnel;
use leno_tunnel::server::InboundConnect;
use leno_tunnel::{TunnelStream, relay};

use crate::asked::Asked;
use crate::failure::Failure;
use crate::gate::Gate;
use crate::report::Report;
use crate::stream::Stream;
use crate::upstream::{self, Caller};
use crate::wire::write_all;

/// Connects first, so that a client whose endpoint can't be reached is refused, and relays.
pub(crate) async fn carry(
    gate: &Arc<Gate>,
    tunnel: &Arc<Tunnel>,
    asked: Asked,
    mut request: InboundConnect,
    mut report: Report,
) {
    let connected = tokio::select! {
        connected = Box::pin(connect(gate, tunnel, &asked, &mut report)) => connected,
        error = request.cancelled() => Err(peers::Failure::given_up(tunnel.peer, &error).into()),
        () = gate.stopped.cancelled() => Err(Failure::Stopped),
    };
    match connected {
        Ok(upstream) => {
            if let Ok(stream) = request.accept(HeaderMap::new()) {
                relay(gate, stream, upstream, report).await;
            }
        }
        Err(failure) => {
            request.refuse(failure.status(), HeaderMap::new());
            report.failed(&failure);
        }
    }
}

/// Connects to one of the endpoints.
pub(crate) async fn connect(
    gate: &Gate,
    tunnel: &Tunnel,
    asked: &Asked,
    report: &mut Report,
) -> Result<Stream, Failure> {
    let plan = upstream::plan(gate, &asked.mesh, &asked.own, &asked.target)?;
    let service = plan.service();
    let caller = Caller { own: &asked.own, from: tunnel.peer, service };
    let mut last = None;
    let count = plan.attempts().len();
    for (index, route) in plan.attempts().iter().enumerate() {
        report.attempt(route);
        match upstream::open(gate, gate.lane(tunnel), &caller, route, index + 1 < count).await {
            Ok(stream) => return Ok(stream),
            Err(failure) if failure.may_try_another_endpoint() => {
                tracing::debug!(%failure, "connect failed; trying another endpoint");
                last = Some(failure);
            }
            Err(failure) => return Err(failure),
        }
    }
    Err(last.unwrap_or(Failure::NoRoute))
}

/// Relays until both ends have ended.
pub(crate) async fn relay(gate: &Gate, mut stream: TunnelStream, upstream: Stream, report: Report) {
    let carried = report.opened();
    let stopped = gate.stopped.cancelled();
    let outcome = match upstream {
        Stream::Tunnel(upstream) => {
            relay::tunnel_to_tunnel(stream, upstream, &**carried.bytes(), &gate.relay, stopped).await
        }
        Stream::Tcp(upstream) => {
            let first = stream.take_unread();
            if !first.is_empty() {
                let length = first.len();
                if let Err(error) = write_all(&upstream, first).await {
                    return carried.finished(Err(leno_tunnel::RelayError::Remote(error)));
                }
                stream.release(length);
                leno_tunnel::Meter::forward(&**carried.bytes(), length as u64);
            }
            // For the relay, the TCP connection is the near end.
            relay::tcp_to_tunnel(upstream, stream, &carried.reversed(), &gate.relay, stopped).await
        }
    };
    carried.finished(outcome);
}
