//! Connections that a pod's programs open: captured, routed, and carried to the peer.

pub(crate) mod places;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use leno_capture::sockets;
use leno_model::{Mesh, Workload, ports};
use leno_policy::{Route, RoutePlan, route, route_around};
use leno_proxy::peers::headers::{self, TraceId};
use leno_proxy::peers::{self, TunnelKey};
use leno_proxy::streams::{accept_next, given_up, hand_over, reset};
use leno_tunnel::{ConnectRequest, FirstBytes, Meter, OpenError, TunnelStream, relay, timers};
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};

use self::places::{Place, Places};
use crate::dial;
use crate::failure::Failure;
use crate::lanes::Lane;
use crate::pod::Pod;
use crate::pod::connections::{Counted, OutboundConnection};
use crate::report::{Direction, Report};
use crate::shares::Source;

/// Accepts captured connections on worker `own` until the pod takes no more.
pub(crate) async fn accept(pod: Arc<Pod>, _accepting: Counted, places: Arc<Places>, own: usize, listener: TcpListener) {
    while let Some((stream, source)) = accept_next(&listener, pod.closing()).await {
        let counted = pod.connections().count();
        let place = places.take(own, || sockets::original_destination_of(&stream, source).ok());
        if place.index == own {
            tokio::spawn(carry(pod.clone(), place, counted, stream, source));
            continue;
        }
        // If it is lost on its way, it must not look like a clean end.
        let _ = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
        let (pod, worker) = (pod.clone(), place.lane().worker.clone());
        hand_over(stream, source, &worker, move |stream| async move {
            let _ = SockRef::from(&stream).set_linger(None);
            carry(pod, place, counted, stream, source).await;
        });
    }
}

/// The far end of a connection.
enum Upstream {
    /// A tunnel, and the number of bytes sent with its request.
    Tunnel(TunnelStream, u64),
    Tcp(TcpStream),
}

pub(crate) async fn carry(pod: Arc<Pod>, place: Place, mut counted: Counted, stream: TcpStream, source: SocketAddr) {
    let lives = place.lane().worker.lives();
    let mut report = Report::new(&pod, Direction::Outbound, source);
    // A connection that arrived at its own destination was not redirected. That can only be this port.
    let original = sockets::original_destination_of(&stream, source).and_then(|original| {
        let redirected = original.port() != ports::OUTBOUND || sockets::arrival(&stream)? != original;
        Ok((original, redirected))
    });
    let (original, redirected) = match original {
        Ok(original) => original,
        Err(error) => {
            reset(stream);
            report.failed(&Failure::OriginalDestination(Arc::new(error)));
            return;
        }
    };
    report.destination_address(original);
    // A program dialled this very port. If the connection were passed on, it would arrive here again and again, until
    // no descriptor is left.
    if !redirected {
        reset(stream);
        report.failed(&Failure::ReservedPort(original));
        return;
    }
    if let Err(failure) = counted.take_socket(Source::Own) {
        reset(stream);
        report.failed(&failure);
        return;
    }
    // Boxed: finding the way to the peer needs much more state than what remains afterwards.
    let captured = Captured { pod: &pod, lane: place.lane(), stream: &stream, source, original };
    let connecting = Box::pin(captured.connect(&mut report));
    let connected = tokio::select! {
        connected = connecting => connected,
        error = given_up(&stream) => Err(peers::Failure::given_up(source, &error).into()),
        () = pod.stopped() => Err(Failure::Stopped),
    };
    let upstream = match connected {
        Ok((upstream, _)) => upstream,
        Err(failure) => {
            // The program's connect succeeded long ago. A reset is the nearest equivalent of the refusal that it would
            // have seen without the proxy.
            reset(stream);
            place.failed(original);
            report.failed(&failure);
            return;
        }
    };
    let carried = report.opened();
    let traffic = carried.traffic();
    counted.list_outbound(OutboundConnection { original, traffic: traffic.clone() });
    let options = &pod.context().relay;
    let outcome = match upstream {
        Upstream::Tunnel(tunnel, first) => {
            traffic.forward(first);
            relay::tcp_to_tunnel(stream, tunnel, traffic, options, pod.stopped()).await
        }
        Upstream::Tcp(upstream) => {
            counted.count_socket();
            relay::tcp_to_tcp(stream, upstream, &**traffic, options, pod.stopped()).await
        }
    };
    let bytes = carried.bytes().iter().sum();
    place.ended(original, bytes, carried.age());
    lives.carried(bytes);
    carried.finished(outcome, None);
}

/// A connection before it is known where it goes.
struct Captured<'a> {
    pod: &'a Arc<Pod>,
    lane: &'a Lane,
    stream: &'a TcpStream,
    /// The program's address.
    source: SocketAddr,
    /// The destination that the program asked for.
    original: SocketAddr,
}

impl Captured<'_> {
    async fn connect(&self, report: &mut Report) -> Result<(Upstream, SocketAddr), Failure> {
        let Self { pod, original, .. } = *self;
        loop {
            let (mesh, workload) = pod.caller().await?;
            report.source_workload(&workload);
            let mut random = rand::random::<u64>;
            let silent = |address| pod.silent().is_avoided(address);
            let plan = route_around(&mesh, &workload, original, &silent, &mut random).map_err(|error| {
                report.service(error.service().and_then(|id| mesh.service(id)));
                Failure::Route(Arc::new(error))
            })?;
            let trying = self.try_plan(&workload, &plan, report);
            let tried = if plan.attempts().iter().any(is_tunnel) {
                Some(trying.await?)
            } else {
                tokio::select! {
                    tried = trying => Some(tried?),
                    // The kernel repeats its connect. One of the repeated packets may meet a rule that leads it to a
                    // pod which has joined the mesh meanwhile and whose program speaks first.
                    () = becomes_part_of_the_mesh(pod, &mesh, original) => None,
                }
            };
            match tried {
                Some((Upstream::Tcp(stream), actual)) if !may_stay_in_the_clear(pod, &mesh, actual).await? => {
                    reset(stream);
                }
                Some(connected) => return Ok(connected),
                None => {}
            }
            tracing::debug!(%original, "became part of the mesh while connecting; starting over");
        }
    }

    async fn try_plan(
        &self,
        workload: &Arc<Workload>,
        plan: &RoutePlan,
        report: &mut Report,
    ) -> Result<(Upstream, SocketAddr), Failure> {
        // Early data is taken only if every attempt passes it on.
        let mut first = plan.attempts().iter().all(takes_first_bytes).then(|| FirstBytes::of(self.stream));
        let mut last = None;
        let mut unreachable = None;
        // The second round tries those again whose idle tunnel was dead. A new tunnel is dialled only when nobody else
        // is left, because dialling a peer that is gone takes long.
        let count = plan.attempts().len();
        let mut silent = [false; 8];
        for (index, attempt) in plan.attempts().iter().chain(plan.attempts()).enumerate() {
            if index >= count && !silent.get(index - count).is_some_and(|silent| *silent) {
                continue;
            }
            let others = index + 1 < count;
            match self.try_route(workload, attempt, others, first.as_mut(), report).await {
                Ok(connected) => return Ok(connected),
                Err(failure)
                    if failure.may_try_another_endpoint() && !first.as_ref().is_some_and(FirstBytes::in_doubt) =>
                {
                    tracing::debug!(original = %self.original, %failure, "connect failed; trying another endpoint");
                    if let Some(silent) = silent.get_mut(index) {
                        *silent = matches!(failure, Failure::Peer(peers::Failure::SilentTunnel { .. }));
                    }
                    if failure.is_unreachable_program() {
                        unreachable.get_or_insert(attempt);
                    }
                    last = Some(failure);
                }
                Err(failure) => return Err(failure),
            }
        }
        if let Some(other) = unreachable.and_then(Route::over_the_other_family) {
            return self.try_route(workload, &other, false, first.as_mut(), report).await;
        }
        Err(last.unwrap_or(Failure::NoRoute))
    }

    async fn try_route(
        &self,
        workload: &Arc<Workload>,
        route: &Route,
        others: bool,
        mut first: Option<&mut FirstBytes<'_>>,
        report: &mut Report,
    ) -> Result<(Upstream, SocketAddr), Failure> {
        let pod = self.pod;
        match route {
            Route::Passthrough { address } => {
                report.upstream(*address, None, None);
                if pod.context().core.state.has_just_left(address.ip()) {
                    return Err(Failure::JustLeft(*address));
                }
                Ok((Upstream::Tcp(dial::tcp(pod, *address).await?), *address))
            }
            Route::Plain { address, workload, service } => {
                report.upstream(*address, workload.as_ref(), service.as_ref());
                let stream = pod.silent().dial(*address, others, dial::tcp(pod, *address)).await?;
                Ok((Upstream::Tcp(stream), *address))
            }
            Route::Hbone { workload: peer, address, authority, expected, service, target, .. } => {
                report.upstream(*target, Some(peer), service.as_ref());
                report.tunnel_address(*address);
                let identity = pod.context().core.identity(workload).await?;
                report.source_identity(identity.identity());
                let trace = TraceId::random();
                report.trace(trace.trace());
                let key = TunnelKey {
                    from: pod.netns().id(),
                    source: identity.identity().clone(),
                    expected: expected.to_vec(),
                    peer: peer.uid.clone(),
                    address: *address,
                };
                let request = ConnectRequest {
                    authority: authority.clone(),
                    headers: headers::request(pod.baggage(workload), self.source, service.as_deref(), &trace),
                };
                let dial = || pod.silent().dial(*address, others, dial::tls(pod, &identity, *address, expected));
                // This covers our connect and handshake, and the peer's own connect: a peer that answers PINGs but not
                // requests must not hold a program for ever.
                let config = &pod.context().core.config;
                let wait = config.connect_timeout * 2 + config.handshake_timeout;
                let opened =
                    timers::timeout(wait, self.lane.tunnels.open_with(&key, dial, request, first.as_deref_mut())).await;
                let opened = opened.map_err(|_| peers::Failure::ConnectTimeout { address: *address, waited: wait })?;
                // A refusal by a peer is an answer of one that has proved its identity.
                if !matches!(opened, Err(OpenError::Dial(_) | OpenError::Tunnel(_) | OpenError::Program(_))) {
                    report.mutual_tls();
                }
                let (stream, _) = opened.map_err(|error| {
                    let failure = peers::Failure::tunnel(*address, self.source, error);
                    if matches!(failure, peers::Failure::SilentTunnel { .. }) {
                        pod.silent().has_fallen_silent(*address);
                    }
                    failure
                })?;
                pod.silent().answered(*address);
                if let [only] = expected.as_slice() {
                    report.destination_identity(only);
                }
                let said = first.map_or(0, |first| first.taken() as u64);
                Ok((Upstream::Tunnel(stream, said), *address))
            }
        }
    }
}

/// Resolves when the program's destination must be reached by a tunnel, although that was not so according to `then`.
async fn becomes_part_of_the_mesh(pod: &Pod, then: &Arc<Mesh>, original: SocketAddr) {
    let mut changes = pod.context().core.state.subscribe();
    loop {
        if let Some((now, workload)) = pod.workload_now().filter(|(now, _)| !Arc::ptr_eq(then, now)) {
            let plan = route(&now, &workload, original, &mut rand::random::<u64>);
            if plan.is_ok_and(|plan| plan.attempts().iter().any(is_tunnel)) {
                return;
            }
        }
        if changes.changed().await.is_err() {
            // Nothing will change any more.
            return std::future::pending().await;
        }
    }
}

/// Waypoints are other proxies, and some refuse bytes that come before their answer.
fn takes_first_bytes(route: &Route) -> bool {
    matches!(route, Route::Hbone { via_waypoint: false, .. })
}

fn is_tunnel(route: &Route) -> bool {
    matches!(route, Route::Hbone { .. })
}

/// Whether a plaintext connection to `address` that was opened according to `then` may be used now. A connect can take
/// seconds, and may end at a pod or service that was unknown or outside the mesh when it began.
async fn may_stay_in_the_clear(pod: &Pod, then: &Arc<Mesh>, address: SocketAddr) -> Result<bool, Failure> {
    let (now, workload) = pod.caller().await?;
    if Arc::ptr_eq(then, &now) {
        return Ok(true);
    }
    let state = &pod.context().core.state;
    let in_the_clear = |route: &Route| match route {
        Route::Hbone { .. } => false,
        Route::Plain { .. } => true,
        // It may have come and gone meanwhile.
        Route::Passthrough { address } => !state.has_just_left(address.ip()),
    };
    let plan = route(&now, &workload, address, &mut rand::random::<u64>);
    Ok(plan.is_ok_and(|plan| plan.attempts().iter().all(in_the_clear)))
}
