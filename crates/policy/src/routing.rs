//! Where does a connection go that a program has opened? The outbound decision of Istio's ambient data plane, with
//! alternatives in case an endpoint does not answer.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use leno_model::{
    HBONE_PORT, Identity, LoadBalancingMode, Mesh, Name, Port, RESERVED_PORTS, Service, ServiceName, TunnelProtocol,
    Workload,
};
use smallvec::SmallVec;

use crate::endpoints::{self, Candidate, Candidates, EndpointCounts, Purpose};
use crate::understood::NotUnderstood;
use crate::waypoint::{self, WaypointProblem};

/// Identities that a peer may have. There is nearly always just one.
pub type Identities = SmallVec<[Identity; 1]>;

/// One way to carry a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// Encrypted, in a tunnel.
    Hbone {
        /// The workload at the other end of the tunnel.
        workload: Arc<Workload>,
        /// Where the tunnel ends.
        address: SocketAddr,
        /// The `:authority` of the CONNECT request.
        authority: String,
        /// The peer must prove one of these identities.
        expected: Identities,
        /// The service the client addressed, if it was one.
        service: Option<Arc<Service>>,
        /// The destination behind the tunnel.
        target: SocketAddr,
        /// The tunnel ends at a waypoint, which chooses the endpoint.
        via_waypoint: bool,
    },
    /// Plain TCP to a known endpoint that does not take HBONE.
    Plain {
        /// The endpoint.
        address: SocketAddr,
        /// The workload that has this address.
        workload: Option<Arc<Workload>>,
        /// The service the client addressed, if it was one.
        service: Option<Arc<Service>>,
    },
    /// Plain TCP to the original destination, which the mesh does not know.
    Passthrough {
        /// The original destination.
        address: SocketAddr,
    },
}

impl Route {
    /// The way to the same endpoint at its address of the other family, if the service that the client addressed has both;
    /// for when the endpoint says that its program can't be reached. The program may listen on one family only. A client
    /// outside of a mesh is refused then and asks for the other one by itself; in it, its connect has long succeeded.
    pub fn over_the_other_family(&self) -> Option<Self> {
        let Self::Hbone { workload, expected, service: Some(service), target, via_waypoint: false, .. } = self else {
            return None;
        };
        let is_other = |ip: &&IpAddr| ip.is_ipv4() != target.is_ipv4() && service.ip_families.permit(ip);
        let other = *workload.addresses.iter().find(is_other)?;
        let target = SocketAddr::new(other, target.port());
        Some(Self::Hbone {
            workload: workload.clone(),
            address: SocketAddr::new(other, HBONE_PORT),
            authority: target.to_string(),
            expected: expected.clone(),
            service: Some(service.clone()),
            target,
            via_waypoint: false,
        })
    }
}

/// Ways to carry one connection, the best first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoutePlan {
    attempts: SmallVec<[Route; MAX_ATTEMPTS]>,
    service: Option<Arc<Service>>,
}

/// One choice and two alternatives. That is enough to get past an endpoint that died unnoticed, and a client waits for
/// at most three connect timeouts.
const MAX_ATTEMPTS: usize = 3;

impl RoutePlan {
    /// The routes to try, in order; never empty. Later ones are other endpoints, for when a connect fails. The
    /// service's load balancing prefers none of them to an earlier one, except that endpoints that don't answer
    /// ([`route_around`]) come last.
    pub fn attempts(&self) -> &[Route] {
        &self.attempts
    }

    /// The service the client addressed, if it was one.
    pub fn service(&self) -> Option<&Arc<Service>> {
        self.service.as_ref()
    }
}

/// Why a connection is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each field is named in its text")]
pub enum RouteError {
    /// The connection would lead the proxy to itself.
    #[error("{0} is one of the proxy's own ports on loopback; a program must not connect to it")]
    ReservedPort(SocketAddr),
    /// The service has no such port.
    #[error("service {service} has no port {port}; it has {}", PortList(.offered))]
    NoSuchPort { service: ServiceName, port: u16, offered: Vec<u16> },
    /// No endpoint can take the connection.
    #[error("no healthy endpoint for service {service} port {port}: {counts}")]
    NoHealthyEndpoint { service: ServiceName, port: u16, counts: EndpointCounts },
    /// The waypoint that the connection must pass is not usable.
    #[error(
        "waypoint {waypoint} of {owner} can't be used: {problem}; the connection is refused rather than sent around it"
    )]
    Waypoint { owner: String, service: Option<ServiceName>, waypoint: String, problem: Box<WaypointProblem> },
    /// The connection must be encrypted, but the destination has no valid identity.
    #[error(
        "workload {workload} takes only HBONE, but its trust domain, namespace and service account form no SPIFFE id; \
         check what the control plane sends for it"
    )]
    NoIdentity { service: Option<ServiceName>, workload: Name },
    /// The source or the destination was not understood.
    #[error(transparent)]
    NotUnderstood(NotUnderstood),
}

impl From<NotUnderstood> for RouteError {
    fn from(error: NotUnderstood) -> Self {
        Self::NotUnderstood(error)
    }
}

impl RouteError {
    /// Whether the same connection may succeed later without a change of configuration.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::NoHealthyEndpoint { .. } | Self::Waypoint { .. } => true,
            Self::ReservedPort(_) | Self::NoSuchPort { .. } | Self::NoIdentity { .. } | Self::NotUnderstood(_) => false,
        }
    }

    /// The service the client addressed, if it was one.
    pub fn service(&self) -> Option<&ServiceName> {
        match self {
            Self::NoSuchPort { service, .. } | Self::NoHealthyEndpoint { service, .. } => Some(service),
            Self::Waypoint { service, .. }
            | Self::NoIdentity { service, .. }
            | Self::NotUnderstood(NotUnderstood { service, .. }) => service.as_ref(),
            Self::ReservedPort(_) => None,
        }
    }
}

/// Decides how a connection that `source` opened to `destination` is carried.
///
/// `random` spreads connections over equal endpoints and over weighted waypoints.
///
/// # Errors
/// If the connection must not be carried: see [`RouteError`]. It never falls back to plaintext for a destination that
/// takes HBONE, and never goes around a waypoint.
pub fn route(
    mesh: &Mesh,
    source: &Workload,
    destination: SocketAddr,
    random: &mut dyn FnMut() -> u64,
) -> Result<RoutePlan, RouteError> {
    route_around(mesh, source, destination, &|_| false, random)
}

/// As [`route`], with knowledge of endpoints that did not answer recently: those at addresses for which `silent` is
/// true are tried last. If there are no others, they are tried.
///
/// # Errors
/// As [`route`].
pub fn route_around(
    mesh: &Mesh,
    source: &Workload,
    destination: SocketAddr,
    silent: &dyn Fn(SocketAddr) -> bool,
    random: &mut dyn FnMut() -> u64,
) -> Result<RoutePlan, RouteError> {
    let destination = SocketAddr::new(destination.ip().to_canonical(), destination.port());
    plan(way(mesh, source, destination, random)?, destination, silent, random)
}

/// An endpoint of a service, for who chooses among them.
#[derive(Debug, Clone, Copy)]
pub struct Reachable<'m> {
    /// The workload.
    pub workload: &'m Arc<Workload>,
    /// The address and port where it listens.
    pub target: SocketAddr,
    /// How close it is to the source, as the service's load balancing has it; higher is closer.
    pub rank: usize,
}

/// The endpoints of `service` for requests that `source`, a waypoint of it or of a service whose requests are sent there,
/// passes on; in no particular order, never none. `destination` has the port of the service, and an address of the family that
/// is preferred: the one that the client asked for, for instance.
///
/// # Errors
/// As [`route`].
pub fn reachable<'m>(
    mesh: &'m Mesh,
    source: &Workload,
    service: &'m Arc<Service>,
    destination: SocketAddr,
) -> Result<Vec<Reachable<'m>>, RouteError> {
    NotUnderstood::workload(source)?;
    NotUnderstood::service(service)?;
    let of = |one: &Candidate<'m>| Reachable { workload: one.workload, target: one.target, rank: one.rank };
    match way_to_endpoints(mesh, source, service, destination.port(), destination.ip())? {
        Way::Endpoints { candidates, .. } => Ok(candidates.iter().map(of).collect()),
        _ => Ok(Vec::new()),
    }
}

/// The route to one of the [`reachable`] endpoints.
///
/// # Errors
/// If it has no identity that it could prove.
pub fn route_to_reachable(service: &Arc<Service>, to: Reachable<'_>) -> Result<Route, RouteError> {
    let Reachable { workload, target, rank } = to;
    to_candidate(Some(service), &Candidate { workload, target, rank, silent: false })
}

/// The ways to try, in order.
fn plan(
    mut way: Way<'_>,
    destination: SocketAddr,
    silent: &dyn Fn(SocketAddr) -> bool,
    random: &mut dyn FnMut() -> u64,
) -> Result<RoutePlan, RouteError> {
    let service = way.service().cloned();
    let mut attempts = SmallVec::new();
    match &mut way {
        Way::Passthrough { service } => attempts.push(passthrough(*service, destination)),
        Way::Workload(workload) => attempts.push(to_candidate(None, &direct(workload, destination))?),
        Way::Endpoints { service, candidates } => {
            mark(candidates, |candidate| silent(connected_to(candidate)));
            let mut refused = None;
            while attempts.len() < MAX_ATTEMPTS
                && let Some(candidate) = endpoints::take(candidates, random)
            {
                match to_candidate(Some(service), &candidate) {
                    Ok(route) => attempts.push(route),
                    Err(error) => refused = Some(error),
                }
            }
            if let (true, Some(error)) = (attempts.is_empty(), refused) {
                return Err(error);
            }
        }
        Way::Waypoint { service, waypoint, candidates } => {
            mark(candidates, |candidate| silent(candidate.target));
            let mut refused = None;
            while attempts.len() < MAX_ATTEMPTS
                && let Some(candidate) = endpoints::take(candidates, random)
            {
                match to_waypoint(*service, *waypoint, &candidate, destination) {
                    Ok(route) => attempts.push(route),
                    Err(error) => refused = Some(error),
                }
            }
            if let (true, Some(error)) = (attempts.is_empty(), refused) {
                return Err(error);
            }
        }
    }
    Ok(RoutePlan { attempts, service })
}

/// Marks silent candidates, unless all are silent.
fn mark(candidates: &mut Candidates<'_>, silent: impl Fn(&Candidate<'_>) -> bool) {
    if candidates.len() > 1 {
        for candidate in candidates {
            candidate.silent = silent(candidate);
        }
    }
}

/// The kind of a destination, before an endpoint is chosen.
pub(crate) enum Way<'m> {
    /// Unknown to the mesh, or of a service that passes destinations through unchanged.
    Passthrough { service: Option<&'m Arc<Service>> },
    /// One workload, addressed by its own address.
    Workload(&'m Arc<Workload>),
    /// A service. There is at least one candidate.
    Endpoints { service: &'m Arc<Service>, candidates: Candidates<'m> },
    /// Through a waypoint. There is at least one candidate.
    Waypoint {
        /// The service addressed.
        service: Option<&'m Arc<Service>>,
        /// The waypoint's own service.
        waypoint: Option<&'m Arc<Service>>,
        candidates: Candidates<'m>,
    },
}

impl<'m> Way<'m> {
    fn service(&self) -> Option<&'m Arc<Service>> {
        match self {
            Self::Passthrough { service } | Self::Waypoint { service, .. } => *service,
            Self::Endpoints { service, .. } => Some(service),
            Self::Workload(_) => None,
        }
    }
}

/// The kind of `destination` for `source`.
pub(crate) fn way<'m>(
    mesh: &'m Mesh,
    source: &Workload,
    destination: SocketAddr,
    random: &mut dyn FnMut() -> u64,
) -> Result<Way<'m>, RouteError> {
    if destination.ip().is_loopback() && RESERVED_PORTS.contains(&destination.port()) {
        return Err(RouteError::ReservedPort(destination));
    }
    NotUnderstood::workload(source)?;
    match addressed(mesh, source, destination) {
        Addressed::Service(service) => way_to_service(mesh, source, service, destination, random),
        Addressed::Workload(workload) => way_to_workload(mesh, source, workload, destination),
        Addressed::Nobody => Ok(Way::Passthrough { service: None }),
    }
}

/// The owner of a destination address.
pub(crate) enum Addressed<'m> {
    Service(&'m Arc<Service>),
    Workload(&'m Arc<Workload>),
    Nobody,
}

/// The owner of `destination` from `source`'s view: a service with exactly this address, else a workload, else a
/// service with a range that holds it. Ranges come last because they may also cover pods' addresses, and would take
/// those pods out of the mesh.
pub(crate) fn addressed<'m>(mesh: &'m Mesh, source: &Workload, destination: SocketAddr) -> Addressed<'m> {
    let ip = destination.ip();
    let service = mesh.service_by_vip(&source.network, ip, &source.namespace);
    if let Some(service) = service
        && service.addresses.iter().any(|a| a.address == ip && a.network == source.network)
    {
        return Addressed::Service(service);
    }
    if let Some(workload) = mesh.workload_by_address(&source.network, ip) {
        return Addressed::Workload(workload);
    }
    service.map_or(Addressed::Nobody, Addressed::Service)
}

fn way_to_workload<'m>(
    mesh: &'m Mesh,
    source: &Workload,
    workload: &'m Arc<Workload>,
    destination: SocketAddr,
) -> Result<Way<'m>, RouteError> {
    NotUnderstood::workload(workload)?;
    let gateway = workload.waypoint.as_deref().or_else(|| waypoint::guarding(mesh, workload, destination.port()));
    let Some(gateway) = gateway.filter(|g| !waypoint::is_waypoint(mesh, source, g)) else {
        return Ok(Way::Workload(workload));
    };
    let (waypoint, candidates) =
        waypoint::resolve(mesh, source, gateway, destination).map_err(|problem| RouteError::Waypoint {
            owner: format!("workload {}/{}", workload.namespace, workload.name),
            service: None,
            waypoint: waypoint::Gateway(gateway).to_string(),
            problem: Box::new(problem),
        })?;
    Ok(Way::Waypoint { service: None, waypoint, candidates })
}

fn way_to_service<'m>(
    mesh: &'m Mesh,
    source: &Workload,
    service: &'m Arc<Service>,
    destination: SocketAddr,
    random: &mut dyn FnMut() -> u64,
) -> Result<Way<'m>, RouteError> {
    NotUnderstood::service(service)?;
    let gateway = waypoint::waypoint_of(service, random);
    if let Some(gateway) = gateway.filter(|_| !waypoint::serves(mesh, source, service)) {
        let (waypoint, candidates) =
            waypoint::resolve(mesh, source, gateway, destination).map_err(|problem| RouteError::Waypoint {
                owner: format!("service {}", service.id),
                service: Some(service.id.clone()),
                waypoint: waypoint::Gateway(gateway).to_string(),
                problem: Box::new(problem),
            })?;
        return Ok(Way::Waypoint { service: Some(service), waypoint, candidates });
    }
    if service.load_balancing.mode == LoadBalancingMode::Passthrough {
        // The destination stays as it is, but it must not get plaintext if a workload there takes HBONE.
        if let Some(workload) = mesh.workload_by_address(&source.network, destination.ip()) {
            return way_to_workload(mesh, source, workload, destination);
        }
        return Ok(Way::Passthrough { service: Some(service) });
    }
    way_to_endpoints(mesh, source, service, destination.port(), destination.ip())
}

fn way_to_endpoints<'m>(
    mesh: &'m Mesh,
    source: &Workload,
    service: &'m Arc<Service>,
    port: u16,
    like: IpAddr,
) -> Result<Way<'m>, RouteError> {
    if service.port(port).is_none() {
        let offered = service.tcp_ports().map(|p: &Port| p.service_port).collect();
        return Err(RouteError::NoSuchPort { service: service.id.clone(), port, offered });
    }
    let (candidates, counts) = endpoints::candidates(mesh, source, service, port, Purpose::Service, like);
    if candidates.is_empty() {
        return Err(RouteError::NoHealthyEndpoint { service: service.id.clone(), port, counts });
    }
    Ok(Way::Endpoints { service, candidates })
}

/// The candidate for a workload that was addressed by its own address.
pub(crate) fn direct<'m>(workload: &'m Arc<Workload>, destination: SocketAddr) -> Candidate<'m> {
    Candidate { workload, target: destination, rank: 0, silent: false }
}

/// The route of a destination that stays as it is.
pub(crate) fn passthrough(service: Option<&Arc<Service>>, destination: SocketAddr) -> Route {
    match service {
        Some(service) => Route::Plain { address: destination, workload: None, service: Some(service.clone()) },
        None => Route::Passthrough { address: destination },
    }
}

/// The address that the proxy connects to for an endpoint.
fn connected_to(to: &Candidate<'_>) -> SocketAddr {
    match to.workload.tunnel_protocol {
        TunnelProtocol::None => to.target,
        TunnelProtocol::Hbone => SocketAddr::new(to.target.ip(), HBONE_PORT),
    }
}

/// The route to one endpoint.
pub(crate) fn to_candidate(service: Option<&Arc<Service>>, to: &Candidate<'_>) -> Result<Route, RouteError> {
    let workload = to.workload;
    match workload.tunnel_protocol {
        TunnelProtocol::None => {
            Ok(Route::Plain { address: to.target, workload: Some(workload.clone()), service: service.cloned() })
        }
        TunnelProtocol::Hbone => Ok(Route::Hbone {
            workload: workload.clone(),
            address: connected_to(to),
            authority: to.target.to_string(),
            expected: expected(workload, service, service)?,
            service: service.cloned(),
            target: to.target,
            via_waypoint: false,
        }),
    }
}

/// The route through one instance of a waypoint. It is always a tunnel, even if the waypoint's workload does not
/// announce HBONE.
pub(crate) fn to_waypoint(
    service: Option<&Arc<Service>>,
    waypoint: Option<&Arc<Service>>,
    to: &Candidate<'_>,
    destination: SocketAddr,
) -> Result<Route, RouteError> {
    Ok(Route::Hbone {
        workload: to.workload.clone(),
        address: to.target,
        authority: destination.to_string(),
        expected: expected(to.workload, waypoint, service)?,
        service: service.cloned(),
        target: destination,
        via_waypoint: true,
    })
}

/// The identities that the workload may prove: its own, or one that the service names for its endpoints. Names that are
/// no SPIFFE ids are left out, because no peer could prove them.
fn expected(
    workload: &Workload,
    names: Option<&Arc<Service>>,
    addressed: Option<&Arc<Service>>,
) -> Result<Identities, RouteError> {
    let own = workload.identity().ok_or_else(|| RouteError::NoIdentity {
        service: addressed.map(|s| s.id.clone()),
        workload: workload.uid.clone(),
    })?;
    let mut all = Identities::from_iter([own]);
    for name in names.into_iter().flat_map(|service| &service.subject_alt_names) {
        if let Ok(identity) = name.parse()
            && !all.contains(&identity)
        {
            all.push(identity);
        }
    }
    Ok(all)
}

struct PortList<'a>(&'a [u16]);

impl fmt::Display for PortList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        for (index, port) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{port}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "routing_tests.rs"]
mod tests;
