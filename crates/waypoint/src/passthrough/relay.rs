//! Bytes that are passed on unread: TCP, TLS, and whatever is not HTTP.

use std::sync::{Arc, OnceLock};

use http::HeaderMap;
use leno_model::http::HashOf;
use leno_policy::http::{Denied, Destination, Guard};
use leno_policy::{ServerName, WaypointTarget, waypoint_target};
use leno_proxy::peers;
use leno_proxy::tunnels::Tunnel;
use leno_tunnel::server::InboundConnect;
use leno_tunnel::{TunnelStream, relay};

use crate::balance::{InFlight, Limit, Tried, Wish, hash};
use crate::connection::authorise::{self, What};
use crate::connection::record::Report;
use crate::connection::target::{self, Asked};
use crate::failure::Failure;
use crate::passthrough::routes;
use crate::pool::stream::Stream;
use crate::state::shared::Gate;
use crate::transport::wire::write_all;
use crate::upstream::{self, Caller};

/// Connects first, so that a client whose endpoint can't be reached is refused, and relays.
pub(crate) async fn carry(
    gate: &Arc<Gate>,
    tunnel: &Arc<Tunnel>,
    asked: Asked,
    mut request: InboundConnect,
    mut report: Report,
) {
    let guard = authorise::guard(gate, &asked.mesh, &asked.own, &asked.target);
    if guard.needs_server_name() || routes::needs_name(gate, tunnel, &asked) {
        // On its own, so that connections without such a route or policy do not have its size.
        return Box::pin(carry_by_name(gate, tunnel, &asked, request, report)).await;
    }
    let connected = tokio::select! {
        connected = Box::pin(connect(gate, tunnel, &asked, None, &mut report)) => connected,
        error = request.cancelled() => Err(peers::Failure::given_up(tunnel.peer, &error).into()),
        () = gate.stopped.cancelled() => Err(Failure::Stopped),
    };
    match connected {
        Ok(reached) => {
            if let Ok(stream) = request.accept(HeaderMap::new()) {
                relay(gate, tunnel, &asked, stream, reached, report).await;
            }
        }
        Err(failure) => {
            request.refuse(failure.status(), HeaderMap::new());
            report.failed(&failure);
        }
    }
}

/// As [`carry`], where the server name that the client asks for decides about the endpoint, or whether it may pass: it has to be
/// heard first.
async fn carry_by_name(
    gate: &Arc<Gate>,
    tunnel: &Arc<Tunnel>,
    asked: &Asked,
    request: InboundConnect,
    mut report: Report,
) {
    // Whatever can be refused without the name is refused at once.
    let guard = authorise::guard(gate, &asked.mesh, &asked.own, &asked.target);
    if !guard.needs_server_name()
        && let Err(failure) = permit(&guard, tunnel, &asked.target, &ServerName::Unknown, &mut report)
    {
        request.refuse(failure.status(), HeaderMap::new());
        return report.failed(&failure);
    }
    let Ok(mut stream) = request.accept(HeaderMap::new()) else { return };
    let reached = tokio::select! {
        reached = Box::pin(connect(gate, tunnel, asked, Some(&mut stream), &mut report)) => reached,
        () = gate.stopped.cancelled() => Err(Failure::Stopped),
    };
    match reached {
        Ok(reached) => relay(gate, tunnel, asked, stream, reached, report).await,
        Err(failure) => report.failed(&failure),
    }
}

/// An endpoint to which a connection may pass.
pub(crate) struct Reached {
    upstream: Stream,
    /// Where a route has sent it.
    routed: Option<WaypointTarget>,
    /// As far as it was needed.
    name: ServerName,
}

impl Reached {
    /// Returns when the endpoint has said something, or has ended.
    pub(crate) async fn speaks(&mut self) {
        self.upstream.speaks().await;
    }
}

/// Connects to one of the endpoints, if the policies let the connection pass unread. `stream` is what the client says, for
/// routes and policies that go by it.
pub(crate) async fn connect(
    gate: &Gate,
    tunnel: &Tunnel,
    asked: &Asked,
    mut stream: Option<&mut TunnelStream>,
    report: &mut Report,
) -> Result<Reached, Failure> {
    let mut name = ServerName::Unknown;
    let guard = authorise::guard(gate, &asked.mesh, &asked.own, &asked.target);
    if let Some(stream) = stream.as_deref_mut().filter(|_| guard.needs_server_name()) {
        name = routes::heard(gate, asked, stream).await;
    }
    permit(&guard, tunnel, &asked.target, &name, report)?;
    let routed = routes::target(gate, tunnel, asked, stream.as_deref_mut()).await?;
    if let Some(routed) = &routed {
        report.aimed(routed);
        if let Some(guard) = gate.guards.of_backend(&asked.mesh, &asked.own, &asked.target, routed) {
            if let (Some(stream), ServerName::Unknown) = (stream, &name)
                && guard.needs_server_name()
            {
                name = routes::heard(gate, asked, stream).await;
            }
            permit(&guard, tunnel, routed, &name, report)?;
        }
    }
    let upstream = reach(gate, tunnel, asked, routed.as_ref(), report).await?;
    Ok(Reached { upstream, routed, name })
}

async fn reach(
    gate: &Gate,
    tunnel: &Tunnel,
    asked: &Asked,
    routed: Option<&WaypointTarget>,
    report: &mut Report,
) -> Result<Stream, Failure> {
    let target = routed.unwrap_or(&asked.target);
    let plan = upstream::plan(gate, gate.lane(tunnel), &asked.mesh, &asked.own, target)?;
    let (mut tried, mut last) = (Tried::default(), None);
    // A rule that goes by the client's address is for connections, too.
    let hash = matches!(plan.hash_of(), Some(HashOf::SourceIp)).then(|| hash::of_address(tunnel.peer.ip()));
    while let Some(mut next) = plan.next(gate, &mut tried, Limit::Connections, Wish { hash, held: None })? {
        let connect_timeout = next.of.and_then(|of| of.rules.connect_timeout);
        let (own, from, service) = (&asked.own, tunnel.peer, plan.service());
        let caller = Caller { own, from, service, connect_timeout, passed: asked.passed };
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

/// Asks policies whether the connection may pass unread.
fn permit(
    guard: &Guard,
    tunnel: &Tunnel,
    target: &WaypointTarget,
    name: &ServerName,
    report: &mut Report,
) -> Result<(), Failure> {
    let judged = authorise::judge(guard, tunnel, target, What::Unread(name), |note| report.note(note));
    judged.map_err(|denied| denied_unread(name, denied, guard))
}

fn denied_unread(name: &ServerName, denied: Denied, guard: &Guard) -> Failure {
    Failure::Denied(Arc::new(name.denied(denied, guard)))
}

/// Returns when the policies no longer let the connection pass: those of what was asked for, or those of the backend to which a
/// route has sent it.
async fn forbidden(
    gate: &Gate,
    tunnel: &Tunnel,
    asked: &Asked,
    (routed, name): (Option<&WaypointTarget>, &ServerName),
) -> Failure {
    let mut changes = gate.core.state.subscribe();
    let judge = |guard: &Guard, target: &WaypointTarget| {
        let judged = authorise::judge(guard, tunnel, target, What::Unread(name), |_| ());
        judged.map_err(|denied| denied_unread(name, denied, guard))
    };
    loop {
        // What has left this waypoint is another's to judge.
        if let Some((mesh, own)) = gate.own.now()
            && let Ok(target) = waypoint_target(&mesh, &own, &asked.authority)
        {
            let mut judged = judge(&authorise::guard(gate, &mesh, &own, &target), &target);
            let backend = routed.and_then(WaypointTarget::routed).and_then(|(service, port)| {
                target::backend(&mesh, &target, &Destination { service: service.clone(), port })
            });
            if let Some(backend) = backend
                && let Some(guard) = gate.guards.of_backend(&mesh, &own, &target, &backend)
            {
                judged = judged.and_then(|()| judge(&guard, &backend));
            }
            if let Err(failure) = judged {
                return failure;
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
    reached: Reached,
    report: Report,
) {
    let Reached { upstream, routed, name } = reached;
    let carried = report.opened();
    let cut = OnceLock::new();
    let stopped = async {
        tokio::select! {
            () = gate.stopped.cancelled() => {}
            failure = forbidden(gate, tunnel, asked, (routed.as_ref(), &name)) => drop(cut.set(failure)),
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
