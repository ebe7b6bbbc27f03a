//! Endpoints: which there are, and how they are reached.

mod dial;
mod room;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use leno_model::http::HashOf;
use leno_model::{Mesh, Service, Workload};
use leno_policy::{Route, RouteError, RoutePlan, WaypointTarget, route_around};
use leno_proxy::peers::headers::{self, TraceId};
use leno_proxy::peers::{self, TunnelKey};
use leno_tunnel::{ConnectRequest, timers};

use crate::balance::{Cluster, Common, InFlight, Limit, Overflow, Tried, Wish};
use crate::failure::Failure;
use crate::pool::stream::Stream;
use crate::state::shared::Gate;
use crate::state::worker::Lane;

pub(crate) use room::{Room, room};

/// Shortest time between two looks for idle connections.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);

/// How long a thread remembers the metrics of workloads that may be gone by now.
const SERIES_AGE: Duration = Duration::from_secs(60);

/// The endpoints for what was asked for.
pub(crate) enum Plan {
    /// Those of a service, with what is known of them.
    Balanced(Arc<Cluster>),
    /// The one way to a pod.
    Fixed(Box<RoutePlan>),
}

/// The next endpoint to try.
pub(crate) struct Next<'p> {
    pub(crate) route: &'p Route,
    /// What it has in common with the other endpoints of its service.
    pub(crate) of: Option<&'p Arc<Common>>,
    /// Whether there are others, if it does not answer.
    pub(crate) others: bool,
    /// Counts the request there, if it is one of a service's endpoints.
    pub(crate) in_flight: Option<InFlight>,
}

/// The endpoints for what was asked for.
pub(crate) fn plan(
    gate: &Gate,
    lane: &Lane,
    mesh: &Arc<Mesh>,
    own: &Workload,
    target: &WaypointTarget,
) -> Result<Plan, Failure> {
    match target {
        WaypointTarget::Service { service, port, address } => {
            let destination = SocketAddr::new(*address, *port);
            let cluster = lane.clusters.of(&gate.balancers, mesh, own, service, destination)?;
            match cluster.beyond() {
                None => Ok(Plan::Balanced(cluster)),
                Some(destination) => Ok(Plan::Fixed(Box::new(as_any_client(gate, mesh, own, destination)?))),
            }
        }
        WaypointTarget::Pod { address, .. } => Ok(Plan::Fixed(Box::new(as_any_client(gate, mesh, own, *address)?))),
    }
}

/// The way that any client's connection takes: through the waypoint of the destination, if it has one.
pub(crate) fn as_any_client(
    gate: &Gate,
    mesh: &Mesh,
    own: &Workload,
    destination: SocketAddr,
) -> Result<RoutePlan, RouteError> {
    let silent = |address| gate.silent.is_avoided(address);
    route_around(mesh, own, destination, &silent, &mut rand::random::<u64>)
}

impl Plan {
    /// What of a request decides about its endpoint, if anything does.
    pub(crate) fn hash_of(&self) -> Option<&HashOf> {
        match self {
            Self::Balanced(cluster) => cluster.hash_of(),
            Self::Fixed(_) => None,
        }
    }

    /// The next endpoint to try for a request or a connection (`limit`), after those that were `tried`; `None` if enough were.
    pub(crate) fn next(
        &self,
        gate: &Gate,
        tried: &mut Tried,
        limit: Limit,
        wish: Wish,
    ) -> Result<Option<Next<'_>>, Overflow> {
        match self {
            Self::Balanced(cluster) => {
                let Some(chosen) = cluster.choose(&gate.silent, tried, wish) else { return Ok(None) };
                let in_flight = Some(chosen.begin(limit)?);
                let (route, of) = (&chosen.endpoint.route, Some(&chosen.endpoint.of));
                Ok(Some(Next { route, of, others: chosen.others, in_flight }))
            }
            Self::Fixed(plan) => {
                let place = tried.count();
                let Some(route) = plan.attempts().get(place) else { return Ok(None) };
                tried.add(place);
                Ok(Some(Next { route, of: None, others: place + 1 < plan.attempts().len(), in_flight: None }))
            }
        }
    }

    /// The service whose endpoints these are.
    pub(crate) fn service(&self) -> Option<&Arc<Service>> {
        match self {
            Self::Balanced(cluster) => Some(cluster.service()),
            Self::Fixed(plan) => plan.service(),
        }
    }
}

/// Who connects, for the endpoint's own telemetry.
pub(crate) struct Caller<'a> {
    pub(crate) own: &'a Arc<Workload>,
    /// The client's address, or the waypoint's own if many clients share the connection.
    pub(crate) from: SocketAddr,
    pub(crate) service: Option<&'a Arc<Service>>,
    /// How long a connect may take, if a rule says so.
    pub(crate) connect_timeout: Option<Duration>,
    /// How many waypoints have sent it on to another one.
    pub(crate) passed: u32,
}

/// Waypoints that may send a request or a connection on to another one, one after the other.
const PASSED_MOST: u32 = 4;

/// Connects to an endpoint. If there are `others`, one that did not answer before is not waited for long.
pub(crate) async fn open(
    gate: &Gate,
    lane: &Lane,
    caller: &Caller<'_>,
    route: &Route,
    others: bool,
) -> Result<Stream, Failure> {
    let connect = caller.connect_timeout.unwrap_or(gate.core.config.connect_timeout);
    match route {
        Route::Passthrough { address } => Err(Failure::Outside(*address)),
        Route::Plain { address, .. } => {
            Ok(Stream::Tcp(gate.silent.dial(*address, others, dial::tcp(*address, connect)).await?))
        }
        Route::Hbone { via_waypoint: true, .. } if caller.passed >= PASSED_MOST => {
            Err(Failure::Circle { waypoints: caller.passed })
        }
        Route::Hbone { workload: peer, address, authority, expected, via_waypoint, .. } => {
            let identity = gate.core.identity(caller.own).await?;
            let key = TunnelKey {
                from: gate.here,
                source: identity.identity().clone(),
                expected: expected.to_vec(),
                peer: peer.uid.clone(),
                address: *address,
            };
            let trace = TraceId::random();
            let service = caller.service.map(|service| &**service);
            let mut headers = headers::request(gate.own.baggage(caller.own), caller.from, service, &trace);
            if *via_waypoint {
                headers::put_passed(&mut headers, caller.passed + 1);
            }
            let request = ConnectRequest { authority: authority.clone(), headers };
            let dial = || gate.silent.dial(*address, others, dial::tls(gate, &identity, *address, expected, connect));
            // This covers our connect and handshake, and the peer's own connect.
            let config = &gate.core.config;
            let wait = connect + config.connect_timeout + config.handshake_timeout;
            let opened = timers::timeout(wait, lane.tunnels.open(&key, dial, request)).await;
            let opened = opened.map_err(|_| peers::Failure::ConnectTimeout { address: *address, waited: wait })?;
            let (stream, _) = opened.map_err(|error| {
                let failure = peers::Failure::tunnel(*address, caller.from, error);
                if matches!(failure, peers::Failure::SilentTunnel { .. }) {
                    gate.silent.has_fallen_silent(*address);
                }
                failure
            })?;
            gate.silent.answered(*address);
            Ok(Stream::Tunnel(stream))
        }
    }
}

/// Ends all connections to endpoints, and waits until their peers have been told: one whose peer is told nothing is an error
/// there. It also waits for those that are in use, so use it with a time limit.
pub(crate) async fn close(gate: &Gate) {
    for lane in &gate.lanes {
        lane.http.evict(|_| true, Duration::ZERO);
    }
    join_all(gate.lanes.iter().map(|lane| lane.tunnels.close())).await;
}

/// Stops using tunnels and connections to peers that are gone or have changed since they were made, and connections that
/// were idle for long. Never returns; for the control thread.
#[expect(clippy::disallowed_methods, reason = "the control thread keeps its timers")]
pub(crate) async fn forget_peers(gate: Arc<Gate>) {
    let mut changes = gate.core.state.subscribe();
    let mut generation = 0;
    let mut forgotten = Instant::now();
    let idle = gate.config.upstream_idle_timeout;
    loop {
        let kept = gate.lanes.iter().any(|lane| lane.http.count() > 0);
        // While nothing is kept, nothing wakes this thread up but news and this: at the next look, something may be.
        let shortest = gate.lanes.iter().filter_map(|lane| lane.http.shortest_idle()).min();
        let pause = if kept { shortest.unwrap_or(idle).min(idle) / 2 } else { idle };
        if forgotten.elapsed() >= SERIES_AGE {
            gate.lanes.iter().for_each(|lane| lane.series.forget());
            forgotten = Instant::now();
        }
        match tokio::time::timeout(pause.max(SHORTEST_PAUSE), changes.changed()).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return,
            Err(_) => {
                gate.lanes.iter().for_each(|lane| lane.http.evict(|_| false, idle));
                continue;
            }
        }
        let now = changes.borrow_and_update().generation;
        let changed = gate.core.state.changed_since(generation);
        generation = now;
        let mesh = gate.core.state.load();
        gate.balancers.forget(&mesh);
        gate.rates.forget(&mesh);
        for lane in &gate.lanes {
            lane.clusters.forget(&mesh);
            lane.tunnels.evict(|key| changed.concerns(&key.peer) && key.is_obsolete(&mesh));
            lane.http.evict(|key| key.is_obsolete(&mesh), idle);
        }
    }
}
