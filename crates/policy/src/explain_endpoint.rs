//! What becomes of a connection to one endpoint: which way it takes, and whether it is let in.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use leno_model::{Action, Mesh, RESERVED_PORTS, Service, TunnelProtocol, Workload, ports};
use serde::Serialize;

use crate::authorization::{AllowReason, Connection, Named, Verdict, examine};
use crate::endpoints::{Candidates, EndpointCounts};
use crate::inbound::InboundRefusal;
use crate::routing::{Route, RouteError};
use crate::understood::NotUnderstood;

/// The action shown for a policy that was not understood.
pub(crate) const NOT_UNDERSTOOD: &str = "not understood";
/// The action shown for a policy that has not arrived.
pub(crate) const UNKNOWN: &str = "unknown";

/// One workload in an explanation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Party {
    /// `namespace/name`.
    pub workload: String,
    /// The node; empty if unknown.
    pub node: String,
    /// The SPIFFE ID that it proves to have, if any.
    pub identity: Option<String>,
    /// Whether a node proxy carries its connections.
    pub in_mesh: bool,
}

/// The outcome of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Every endpoint accepts it.
    Allowed,
    /// No endpoint accepts it.
    Denied,
    /// Some endpoints accept it.
    Mixed,
    /// A proxy refuses it, whatever the policies say: the source's proxy does not send it, or no endpoint's proxy takes
    /// it.
    Refused,
    /// The mesh does not decide: it passes in the clear, and nobody checks.
    Undecided,
    /// Its waypoint decides about each of its requests.
    AtWaypoint,
    /// A route answers the request, and no endpoint is asked.
    AnsweredByRoute,
    /// UDP: nothing encrypts it and no policy is asked.
    PassesBy,
    /// A DNS query, which the source's own proxy answers.
    Answered,
}

/// One endpoint that may be chosen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EndpointExplanation {
    /// The workload; `None` if the mesh does not know the destination.
    pub workload: Option<Party>,
    /// The address where the connection ends.
    pub address: SocketAddr,
    /// How the connection gets there.
    pub path: Path,
    /// Why the endpoint's proxy refuses the connection whatever the policies say; `None` if it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// The decision there; `None` if nobody decides.
    pub arrival: Option<Arrival>,
    /// Other facts for the reader.
    pub notes: Vec<String>,
}

impl EndpointExplanation {
    /// Whether it is a waypoint, on the way to somewhere else.
    pub(crate) fn is_waypoint(&self) -> bool {
        matches!(self.path, Path::Hbone { via_waypoint: true, .. })
    }
}

/// How the bytes travel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Path {
    /// An HTTP/2 CONNECT tunnel over mutual TLS.
    Hbone {
        /// The address where the tunnel ends.
        tunnel: SocketAddr,
        /// The `:authority` of the CONNECT request.
        authority: String,
        /// The SPIFFE ids the peer may have.
        expected: Vec<String>,
        /// Whether the peer is a waypoint.
        via_waypoint: bool,
    },
    /// Plain TCP.
    Plaintext {
        /// Why it is not encrypted.
        reason: String,
    },
}

/// The authorisation decision at the destination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Arrival {
    /// Whether the connection is allowed.
    pub allowed: bool,
    /// The verdict in the words of the access log.
    pub verdict: String,
    /// The source's identity as the destination's proxy knows it.
    pub source_identity: Option<String>,
    /// The policy that decided; `None` if the decision has another reason.
    pub decided_by: Option<String>,
    /// The policies that were checked.
    pub policies: Vec<PolicyCheck>,
    /// The effect that dry-run policies would have had.
    pub dry_run: Vec<String>,
}

/// One policy that was checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PolicyCheck {
    /// `namespace/name`.
    pub policy: String,
    /// `ALLOW`, `DENY`, `unknown` for a policy that has not arrived, or `not understood`.
    pub action: &'static str,
    /// Whether it matched.
    pub matched: bool,
    /// Whether it is a dry run.
    pub dry_run: bool,
    /// What of it is not checked here, and what follows, for whoever wrote it. Known where policies are translated.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Why a service without candidates refuses the connection.
pub(crate) fn no_endpoint(service: &Service, port: u16, counts: EndpointCounts) -> RouteError {
    if let Err(error) = NotUnderstood::service(service) {
        return error.into();
    }
    match service.port(port) {
        Some(_) => RouteError::NoHealthyEndpoint { service: service.id.clone(), port, counts },
        None => RouteError::NoSuchPort {
            service: service.id.clone(),
            port,
            offered: service.tcp_ports().map(|p| p.service_port).collect(),
        },
    }
}

pub(crate) fn closest_first(mut candidates: Candidates<'_>) -> Candidates<'_> {
    candidates.sort_by(|a, b| b.rank.cmp(&a.rank).then_with(|| a.workload.uid.cmp(&b.workload.uid)));
    candidates
}

/// What is known of an endpoint.
pub(crate) fn of_endpoint(mesh: &Mesh, source: &Workload, route: Route) -> EndpointExplanation {
    match route {
        Route::Passthrough { address } => unknown(address, "the mesh knows nothing of the destination"),
        Route::Plain { address, workload: Some(workload), .. } => {
            let reason = match takes_tunnels(mesh, &workload) {
                true => "the destination is a waypoint, and what is addressed to it itself is not brought in a tunnel",
                false => "the destination is not in the mesh",
            };
            plaintext(mesh, source, &workload, address, reason)
        }
        Route::Plain { address, workload: None, .. } => unknown(address, "the service leaves its destinations alone"),
        Route::Hbone { workload, address, authority, expected, target, via_waypoint, .. } => {
            let (mut notes, mut refused) = (Vec::new(), None);
            let arrival = if via_waypoint {
                notes.push(
                    "the waypoint decides by its own policies and chooses the endpoint; the endpoint then sees the \
                     waypoint's identity"
                        .to_owned(),
                );
                None
            } else {
                refused = refused_at(&workload, target, true);
                let port = workload.application_tunnel.and_then(|t| t.port).unwrap_or(target.port());
                let to = SocketAddr::new(target.ip(), port);
                refused.is_none().then(|| arrive(mesh, source, &workload, to, true))
            };
            let expected = expected.iter().map(ToString::to_string).collect();
            let path = Path::Hbone { tunnel: address, authority, expected, via_waypoint };
            let address = if via_waypoint { address } else { target };
            let mut party = party(mesh, &workload);
            if via_waypoint {
                // It proves who it is, though no node proxy carries its connections.
                party.identity = workload.identity().map(|id| id.to_string());
            }
            EndpointExplanation { workload: Some(party), address, path, refused, arrival, notes }
        }
    }
}

pub(crate) fn plaintext(
    mesh: &Mesh,
    source: &Workload,
    workload: &Arc<Workload>,
    address: SocketAddr,
    reason: &str,
) -> EndpointExplanation {
    let mut notes = Vec::new();
    let refused = refused_at(workload, address, false);
    let arrival = if refused.is_some() {
        None
    } else if workload.tunnel_protocol == TunnelProtocol::Hbone {
        Some(arrive(mesh, source, workload, address, false))
    } else {
        let idle: Vec<String> = mesh
            .policies_for(workload)
            .map(|found| match found {
                Ok(policy) => Named(&policy.id).to_string(),
                Err(id) => Named(id).to_string(),
            })
            .collect();
        notes.push("no proxy is there to check policies".to_owned());
        if !idle.is_empty() {
            notes.push(format!("these policies have no effect until it is in the mesh: {}", idle.join(", ")));
        }
        None
    };
    let path = Path::Plaintext { reason: reason.to_owned() };
    EndpointExplanation { workload: Some(party(mesh, workload)), address, path, refused, arrival, notes }
}

pub(crate) fn unknown(address: SocketAddr, reason: &str) -> EndpointExplanation {
    EndpointExplanation {
        workload: None,
        address,
        path: Path::Plaintext { reason: reason.to_owned() },
        refused: None,
        arrival: None,
        notes: Vec::new(),
    }
}

/// Why the proxy of `to` refuses connections at `address` from anybody; `None` if it does not.
fn refused_at(to: &Workload, address: SocketAddr, tunnelled: bool) -> Option<String> {
    if let Err(error) = NotUnderstood::workload(to) {
        return Some(error.to_string());
    }
    if to.tunnel_protocol != TunnelProtocol::Hbone {
        return None;
    }
    let port = address.port();
    if tunnelled && RESERVED_PORTS.contains(&port) {
        return Some(InboundRefusal::ReservedPort(port).to_string());
    }
    match port {
        // Outside a tunnel, this port is the tunnel's own and is not redirected.
        ports::HBONE => {
            Some(format!("{address} is a port of the proxy itself, and the source has no client certificate"))
        }
        ports::DNS => Some(format!("{address} is a port of the proxy itself, open to its own pod only")),
        port if RESERVED_PORTS.contains(&port) => Some(format!("{address} is a port of the proxy itself")),
        _ => None,
    }
}

/// The decision of the destination's proxy.
fn arrive(mesh: &Mesh, source: &Workload, to: &Workload, address: SocketAddr, proven: bool) -> Arrival {
    let identity = if proven { source.identity() } else { None };
    let connection =
        Connection { source: identity.as_ref(), source_ip: address_of(source, address.ip()), destination: address };
    let (decision, asked) = examine(mesh, to, &connection);
    let decided_by = match &decision.verdict {
        Verdict::Allow(AllowReason::Policy(policy)) => Some(policy),
        Verdict::Allow(AllowReason::NoAllowPolicy) => None,
        Verdict::Deny(reason) => reason.policy(),
    };
    Arrival {
        allowed: decision.is_allowed(),
        verdict: decision.to_string(),
        source_identity: identity.as_ref().map(ToString::to_string),
        decided_by: decided_by.map(ToString::to_string),
        policies: asked
            .iter()
            .map(|check| PolicyCheck {
                policy: check.policy.to_string(),
                action: match check.action {
                    Some(Action::Allow) => "ALLOW",
                    Some(Action::Deny) => "DENY",
                    None if check.arrived => NOT_UNDERSTOOD,
                    None => UNKNOWN,
                },
                matched: check.matched,
                dry_run: check.dry_run,
                notes: Vec::new(),
            })
            .collect(),
        dry_run: decision.dry_run.iter().map(ToString::to_string).collect(),
    }
}

/// The source address that the destination will see.
pub(crate) fn address_of(source: &Workload, destination: IpAddr) -> IpAddr {
    let same = source.addresses.iter().find(|ip| ip.is_ipv4() == destination.is_ipv4());
    same.or(source.addresses.first()).copied().unwrap_or(match destination {
        IpAddr::V4(_) => IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED),
    })
}

pub(crate) fn party(mesh: &Mesh, workload: &Workload) -> Party {
    let in_mesh = workload.tunnel_protocol == TunnelProtocol::Hbone;
    Party {
        workload: format!("{}/{}", workload.namespace, workload.name),
        node: workload.node.to_string(),
        identity: workload.identity().filter(|_| in_mesh || takes_tunnels(mesh, workload)).map(|id| id.to_string()),
        in_mesh,
    }
}

/// Whether the workload is the end of tunnels itself, as a waypoint is, which nothing captures.
fn takes_tunnels(mesh: &Mesh, workload: &Workload) -> bool {
    let mut services = workload.services.keys().filter_map(|id| mesh.service(id));
    services.any(|service| service.tcp_ports().any(|port| port.target_port == ports::HBONE))
}

/// What the answers of all endpoints come to.
pub(crate) fn of_endpoints(endpoints: &[EndpointExplanation]) -> Outcome {
    if endpoints.iter().all(|endpoint| endpoint.refused.is_some()) {
        return Outcome::Refused;
    }
    let decided: Option<Vec<bool>> = endpoints
        .iter()
        .map(|e| if e.refused.is_some() { Some(false) } else { e.arrival.as_ref().map(|a| a.allowed) })
        .collect();
    match decided {
        None => Outcome::Undecided,
        Some(all) if all.iter().all(|allowed| *allowed) => Outcome::Allowed,
        Some(all) if all.iter().any(|allowed| *allowed) => Outcome::Mixed,
        Some(_) => Outcome::Denied,
    }
}
