//! What is a mesh? Identity, workload, service and policy as plain types, and [`Mesh`]: one
//! consistent picture of all of them with the indices the data path needs.
//!
//! This crate does no I/O and knows neither Kubernetes, nor protobuf, nor async. Names follow
//! Istio's ambient data plane (`istio.workload`, `istio.security`), so that a reader who knows
//! one knows the other.

mod identity;
pub mod map;
mod mesh;
mod policy;
mod service;
mod workload;

pub use identity::{DEFAULT_TRUST_DOMAIN, Identity, IdentityError};
pub use map::{Map, Set};
pub use mesh::{Endpoint, Mesh};
pub use policy::{Action, Authorization, Clause, Match, PolicyName, Rule, Scope, ServiceAccountMatch, StringMatch};
pub use service::{
    AppProtocol, HealthPolicy, IpFamilies, LoadBalancing, LoadBalancingMode, Port, RoutingScope, Service, ServiceName,
    Visibility, WeightedWaypoint,
};
pub use workload::{
    ApplicationProtocol, ApplicationTunnel, GatewayAddress, GatewayDestination, Health, Locality, NetworkAddress,
    NetworkMode, TunnelProtocol, Workload, WorkloadType, WorkloadUid,
};

/// A string that is stored once and shared by every object that names it: a namespace appears
/// in each workload, service and policy of a mesh.
pub type Name = std::sync::Arc<str>;

/// Ports no mesh peer and no pod may reach through the proxy, because the proxy itself listens
/// there: outbound capture, inbound plaintext capture, HBONE.
pub const RESERVED_PORTS: [u16; 3] = [15001, 15006, 15008];

/// Port on which every enrolled pod accepts HBONE.
pub const HBONE_PORT: u16 = 15008;
