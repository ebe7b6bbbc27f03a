//! Bytes that are passed on unread: TCP, TLS, and whatever is not HTTP.

use std::sync::{Arc, OnceLock};

use http::HeaderMap;
use leno_model::http::HashOf;
use leno_policy::waypoint_target;
use leno_proxy::peers;
use leno_proxy::tunnels::Tunnel;
use leno_tunnel::server::InboundConnect;
use leno_tunnel::{TunnelStream, relay};

use crate::asked::Asked;
use crate::balance::{InFlight, Limit, Tried, Wish, hash};
use crate::by_route;
use crate::failure::Failure;
use crate::gate::Gate;
use crate::guard;
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
    if by_route::needs_name(gate, tunnel, &asked) {
        // On its own, so that connections without such a route do not have its size.
        return Box::pin(carry_by_name(gate, tunnel, &asked, request, report)).await;
    }
    let connected = tokio::select! {
        connected = Box::pin(connect(gate, tunnel, &asked, None, &mut report)) => connected,
        error = request.cancelled() => Err(peers::Failure::given_up(tunnel.peer, &error).into()),
        () = gate.stopped.cancelled() => Err(Failure::Stopped),
    };
    match connected {
        Ok(upstream) => {
            if let Ok(stream) = request.accept(HeaderMap::new()) {
                relay(gate, tunnel, &asked, stream, upstream, report).await;
            }
        }
        Err(failure) => {
            request.refuse(failure.status(), HeaderMap::new());
            report.failed(&failure);
        }
    }
}

/// As [`carry`], where the server name that the client asks for decides about the endpoint: it has to be heard first.
async fn carry_by_name(
    gate: &Arc<Gate>,
    tunnel: &Arc<Tunnel>,
    asked: &Asked,
    request: InboundConnect,
    mut report: Report,
) {
    if let Err(failure) = permit(gate, tunnel, asked, &mut report) {
        request.refuse(failure.status(), HeaderMap::new());
        return report.failed(&failure);
    }
    let Ok(mut stream) = request.accept(HeaderMap::new()) else { return };
    let reached = tokio::select! {
        reached = Box::pin(reach(gate, tunnel, asked, Some(&mut stream), &mut report)) => reached,
        () = gate.stopped.cancelled() => Err(Failure::Stopped),
    };
    match reached {
        Ok(upstream) => relay(gate, tunnel, asked, stream, upstream, report).await,
        Err(failure) => report.failed(&failure),
    }
}

/// Connects to one of the endpoints, if the policies let the connection pass unread. `stream` is what the client says, for a
/// route that goes by it.
pub(crate) async fn connect(
    gate: &Gate,
    tunnel: &Tunnel,
    asked: &Asked,
    stream: Option<&mut TunnelStream>,
    report: &mut Report,
) -> Result<Stream, Failure> {
    permit(gate, tunnel, asked, report)?;
    reach(gate, tunnel, asked, stream, report).await
}

async fn reach(
    gate: &Gate,
    tunnel: &Tunnel,
    asked: &Asked,
    stream: Option<&mut TunnelStream>,
    report: &mut Report,
) -> Result<Stream, Failure> {
    let routed = by_route::target(gate, tunnel, asked, stream).await?;
    if let Some(routed) = &routed {
        report.aimed(routed);
        if let Some(guard) = gate.guards.of_backend(&asked.mesh, &asked.own, &asked.target, routed) {
            let judged = guard::judge(&guard, tunnel, routed, None, |note| report.note(note));
            judged.map_err(|denied| Failure::Denied(Arc::new(denied)))?;
        }
    }
    let target = routed.as_ref().unwrap_or(&asked.target);
    let plan = upstream::plan(gate, gate.lane(tunnel), &asked.mesh, &asked.own, target)?;
    let (mut tried, mut last) = (Tried::default(), None);
    // A rule that goes by the client's address is for connections, too.
    let hash = matches!(plan.hash_of(), Some(HashOf::SourceIp)).then(|| hash::of_address(tunnel.peer.ip()));
    while let Some(mut next) = plan.next(gate, &mut tried, Limit::Connections, Wish { hash, held: None })? {
        let connect_timeout = next.of.and_then(|of| of.rules.connect_timeout);
        let caller = Caller { own: &asked.own, from: tunnel.peer, service: plan.service(), connect_timeout };
        report.attempt(next.route);
        match upstream::open(gate, gate.lane(tunnel), &caller, next.route, next.others).await {
            Ok(stream) => {
                next.in_flight.iter_mut().for_each(InFlight::connected);
                report.at(next.in_flight);
                return Ok(stream);
            }
            Err(failure) if failure.may_try_another_endpoint() => {
                tracing::debug!(%failure, "connect failed; trying another endpoint");
                next.in_flight.iter_mut().for_each(InFlight::unreachable);
                last = Some(failure);
            }
            Err(failure) => return Err(failure),
        }
    }
    Err(last.unwrap_or(Failure::NoRoute))
}

/// Asks the policies whether the connection may pass unread.
fn permit(gate: &Gate, tunnel: &Tunnel, asked: &Asked, report: &mut Report) -> Result<(), Failure> {
    let guard = guard::guard(gate, &asked.mesh, &asked.own, &asked.target);
    let judged = guard::judge(&guard, tunnel, &asked.target, None, |note| report.note(note));
    judged.map_err(|denied| Failure::Denied(Arc::new(denied)))
}

/// Returns when the policies no longer let the connection pass.
async fn forbidden(gate: &Gate, tunnel: &Tunnel, asked: &Asked) -> Failure {
    let mut changes = gate.core.state.subscribe();
    loop {
        // What has left this waypoint is another's to judge.
        if let Some((mesh, own)) = gate.own.now()
            && let Ok(target) = waypoint_target(&mesh, &own, &asked.authority)
        {
            let guard = guard::guard(gate, &mesh, &own, &target);
            if let Err(denied) = guard::judge(&guard, tunnel, &target, None, |_| ()) {
                return Failure::Denied(Arc::new(denied));
            }
        }
        if changes.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// Relays until both ends have ended, or a policy ends it.
pub(crate) async fn relay(
    gate: &Gate,
    tunnel: &Tunnel,
    asked: &Asked,
    mut stream: TunnelStream,
    upstream: Stream,
    report: Report,
) {
    let carried = report.opened();
    let cut = OnceLock::new();
    let stopped = async {
        tokio::select! {
            () = gate.stopped.cancelled() => {}
            failure = forbidden(gate, tunnel, asked) => drop(cut.set(failure)),
        }
    };
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
    match cut.into_inner() {
        Some(failure) => carried.cut(&failure),
        None => carried.finished(outcome),
    }
}
