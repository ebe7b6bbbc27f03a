//! Why does, or doesn't, a connection work? The path it takes, who answers, and what the policies decide on arrival.
//! Calls the functions that the proxy decides with, so the words are the same.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use leno_model::{Mesh, Service, ServiceName, Workload};
use serde::Serialize;

use crate::endpoints::{self, Candidate, Candidates, Purpose};
pub use crate::explain_endpoint::{Arrival, EndpointExplanation, Outcome, Party, Path, PolicyCheck};
use crate::explain_endpoint::{closest_first, no_endpoint, of_endpoint, of_endpoints, party, plaintext, unknown};
use crate::explain_request::{self, Asked, AtWaypoint};
use crate::find::Destination;
use crate::routing::{self, Addressed, Route, RouteError, Way};

/// Everything that is known about a connection before it is made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// The workload that connects.
    pub source: Party,
    /// The destination.
    pub destination: Destination,
    /// `tcp` or `udp`.
    pub transport: &'static str,
    /// The sum of all endpoints.
    pub outcome: Outcome,
    /// How the destination was understood, step by step.
    pub steps: Vec<String>,
    /// Why the source's proxy refuses the connection; `None` if it does not.
    pub refused: Option<String>,
    /// Each endpoint that may be chosen, the preferred one first.
    pub endpoints: Vec<EndpointExplanation>,
    /// What its waypoint makes of it, if it is sent through one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_waypoint: Option<Box<AtWaypoint>>,
}

impl Explanation {
    /// All endpoints, also those behind a waypoint.
    pub fn all_endpoints(&self) -> impl Iterator<Item = &EndpointExplanation> {
        let behind = self.at_waypoint.iter().flat_map(|at| &at.backends).flat_map(|backend| &backend.endpoints);
        self.endpoints.iter().chain(behind)
    }

    /// The policies that were asked, as `namespace/name`: at the waypoint, for its backends, and where endpoints accept.
    pub fn policies(&self) -> BTreeSet<&str> {
        let backends = self.at_waypoint.iter().flat_map(|at| &at.backends);
        let at_waypoint = self.at_waypoint.iter().flat_map(|at| &at.policies);
        let at_waypoint = at_waypoint.chain(backends.flat_map(|backend| &backend.policies));
        let arrivals = self.all_endpoints().filter_map(|endpoint| endpoint.arrival.as_ref());
        let arrivals = arrivals.flat_map(|arrival| &arrival.policies);
        let of_requests = self.at_waypoint.iter().flat_map(|at| &at.of_requests).map(|policy| &**policy);
        let at_waypoint = at_waypoint.map(|asked| &*asked.policy).chain(of_requests);
        at_waypoint.chain(arrivals.map(|check| &*check.policy)).collect()
    }

    /// All endpoints, also those behind a waypoint.
    pub fn all_endpoints_mut(&mut self) -> impl Iterator<Item = &mut EndpointExplanation> {
        let backends = self.at_waypoint.iter_mut().flat_map(|at| &mut at.backends);
        self.endpoints.iter_mut().chain(backends.flat_map(|backend| &mut backend.endpoints))
    }
}

/// Explains a connection from `source` to `destination`.
///
/// A source outside the mesh connects in plaintext, to an endpoint chosen by the node's service routing. It passes no
/// waypoint.
pub fn explain(mesh: &Mesh, source: &Workload, destination: impl Into<Destination>) -> Explanation {
    explain_request(mesh, source, destination, None)
}

/// As [`explain`], and what becomes of a request, if one is asked about.
pub fn explain_request(
    mesh: &Mesh,
    source: &Workload,
    destination: impl Into<Destination>,
    asked: Option<&Asked>,
) -> Explanation {
    let mut explanation = Explanation {
        source: party(mesh, source),
        destination: destination.into(),
        transport: "tcp",
        outcome: Outcome::Undecided,
        steps: Vec::new(),
        refused: None,
        endpoints: Vec::new(),
        at_waypoint: None,
    };
    match explanation.destination.clone() {
        Destination::Address(destination) => to_address(mesh, source, destination, asked, &mut explanation),
        Destination::Unaddressed { service, port } => to_nowhere(mesh, source, &service, port, &mut explanation),
    }
    if asked.is_some() && explanation.at_waypoint.is_none() && explanation.refused.is_none() {
        let why = "it passes no waypoint, so nobody looks at its requests: what is said below is about the connection";
        explanation.steps.push(why.to_owned());
    }
    explanation.outcome = outcome(&explanation);
    explanation
}

fn to_address(mesh: &Mesh, source: &Workload, destination: SocketAddr, asked: Option<&Asked>, out: &mut Explanation) {
    describe(mesh, source, destination, &mut out.steps);
    if source.may_be_in_mesh() {
        from_mesh(mesh, source, destination, asked, out);
    } else {
        out.steps.push(format!(
            "{}/{} is not in the mesh: it connects in plaintext and proves no identity",
            source.namespace, source.name
        ));
        from_outside(mesh, source, destination, out);
    }
}

/// The explanation for a service without an address: a program learns only that the name has none.
fn to_nowhere(mesh: &Mesh, source: &Workload, id: &ServiceName, port: u16, out: &mut Explanation) {
    out.steps
        .push(format!("service {id} has no address of its own, so its name stands for its endpoints; none has one"));
    let Some(service) = mesh.service(id) else { return };
    let nowhere = IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED);
    let (_, counts) = endpoints::candidates(mesh, source, service, port, Purpose::Service, nowhere);
    refuse(&no_endpoint(service, port, counts), out);
}

/// What the destination is.
pub(crate) fn describe(mesh: &Mesh, source: &Workload, destination: SocketAddr, steps: &mut Vec<String>) {
    let ip = destination.ip();
    steps.push(match routing::addressed(mesh, source, destination) {
        Addressed::Service(service) => format!("{ip} is service {}", service.id),
        Addressed::Workload(workload) => format!("{ip} is workload {}/{}", workload.namespace, workload.name),
        Addressed::Nobody => format!("{ip} belongs to no service or workload of the mesh"),
    });
}

fn from_mesh(mesh: &Mesh, source: &Workload, destination: SocketAddr, asked: Option<&Asked>, out: &mut Explanation) {
    // The first waypoint with a positive weight stands for all: they differ in version, not in kind.
    let way = match routing::way(mesh, source, destination, &mut || 0) {
        Ok(way) => way,
        Err(error) => return refuse(&error, out),
    };
    match way {
        Way::Passthrough { service } => {
            out.steps.push("it is left alone: plain TCP to the original destination".to_owned());
            let route = routing::passthrough(service, destination);
            push(mesh, source, Ok(route), out);
        }
        Way::Workload(workload) => {
            push(mesh, source, routing::to_candidate(None, &routing::direct(workload, destination)), out);
        }
        Way::Endpoints { service, candidates } => {
            out.steps.push(choice(service, &candidates));
            for candidate in closest_first(candidates) {
                push(mesh, source, routing::to_candidate(Some(service), &candidate), out);
            }
        }
        Way::Waypoint { service, waypoint, candidates } => {
            let name = waypoint.map_or_else(|| "by address".to_owned(), |s| s.id.to_string());
            out.steps.push(format!("its traffic goes through waypoint {name}"));
            if service.is_some_and(|s| s.weighted_waypoints.iter().filter(|w| w.weight > 0).count() > 1) {
                out.steps.push("the waypoint is one of several that share its traffic by weight".to_owned());
            }
            for candidate in closest_first(candidates) {
                let route = routing::to_waypoint(service, waypoint, &candidate, destination);
                if let (Ok(Route::Hbone { workload, address, authority, .. }), None) = (&route, &out.at_waypoint) {
                    let found = explain_request::explain(mesh, source, workload, *address, authority, asked);
                    out.at_waypoint = Some(Box::new(found));
                }
                push(mesh, source, route, out);
            }
        }
    }
}

fn from_outside(mesh: &Mesh, source: &Workload, destination: SocketAddr, out: &mut Explanation) {
    let reason = "the source is not in the mesh";
    let plain = |candidate: &Candidate<'_>, out: &mut Explanation| {
        out.endpoints.push(plaintext(mesh, source, candidate.workload, candidate.target, reason));
    };
    match routing::addressed(mesh, source, destination) {
        Addressed::Nobody => out.endpoints.push(unknown(destination, reason)),
        Addressed::Workload(workload) => {
            bypassed(workload.waypoint.is_some(), out);
            plain(&routing::direct(workload, destination), out);
        }
        Addressed::Service(service) => {
            bypassed(service.waypoint.is_some() || !service.weighted_waypoints.is_empty(), out);
            let port = destination.port();
            let (candidates, counts) =
                endpoints::candidates(mesh, source, service, port, Purpose::Service, destination.ip());
            if candidates.is_empty() || service.not_understood.is_some() {
                return refuse(&no_endpoint(service, port, counts), out);
            }
            out.steps.push(choice(service, &candidates));
            for candidate in closest_first(candidates) {
                plain(&candidate, out);
            }
        }
    }
}

fn bypassed(has_waypoint: bool, out: &mut Explanation) {
    if has_waypoint {
        out.steps.push("its waypoint is not passed: only a source in the mesh is sent there".to_owned());
    }
}

fn refuse(error: &RouteError, out: &mut Explanation) {
    if let RouteError::Waypoint { waypoint, .. } = error {
        out.steps.push(format!("its traffic goes through waypoint {waypoint}"));
    }
    out.refused = Some(error.to_string());
}

fn choice(service: &Service, candidates: &Candidates<'_>) -> String {
    let best = candidates.iter().map(|c| c.rank).max().unwrap_or(0);
    let first = candidates.iter().filter(|c| c.rank == best).count();
    let all = candidates.len();
    let plural = if all == 1 { "" } else { "s" };
    let mut text = format!("{all} endpoint{plural} of {} can take the connection", service.name);
    if first < all {
        text.push_str(&format!("; the {first} closest to the source come first"));
    }
    text
}

fn push(mesh: &Mesh, source: &Workload, route: Result<Route, RouteError>, out: &mut Explanation) {
    match route {
        Ok(route) => out.endpoints.push(of_endpoint(mesh, source, route)),
        Err(error) => refuse(&error, out),
    }
}

fn outcome(explanation: &Explanation) -> Outcome {
    match &explanation.at_waypoint {
        Some(at_waypoint) => at_waypoint.outcome(),
        None => of_endpoints(&explanation.endpoints),
    }
}

#[cfg(test)]
#[path = "explain_tests.rs"]
mod tests;
