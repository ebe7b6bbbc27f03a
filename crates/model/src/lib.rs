//! What is a mesh? Identity, workload, service, policy and HTTP route as plain types, and [`Mesh`]: one
//! consistent picture of all of them with the indices the data path needs.
//!
//! This crate does no I/O and knows neither Kubernetes, nor protobuf, nor async. Names follow
//! Istio's ambient data plane (`istio.workload`, `istio.security`), so that a reader who knows
//! one knows the other.

pub mod http;
mod identity;
mod index;
pub mod map;
mod mesh;
mod names;
mod policy;
pub mod ports;
mod recent;
mod reference;
mod service;
pub mod settings;
mod workload;

pub use identity::{DEFAULT_TRUST_DOMAIN, Identity, IdentityError};
pub use map::{Map, Set};
pub use mesh::{Endpoint, Kept, KeptFor, Mesh, PolicyChange, Release};
pub use names::Names;
pub use policy::{Action, Authorization, Clause, Match, PolicyName, Rule, Scope, ServiceAccountMatch, StringMatch};
pub use ports::{HBONE as HBONE_PORT, RESERVED as RESERVED_PORTS};
pub use recent::Recent;
pub use reference::{GatewayAddress, GatewayDestination, NetworkAddress, ServiceName};
pub use service::{
    AppProtocol, HealthPolicy, IpFamilies, LoadBalancing, LoadBalancingMode, Port, PortName, RoutingScope, Service,
    Transport, Visibility, WeightedWaypoint,
};
pub use workload::{
    ApplicationProtocol, ApplicationTunnel, Health, Locality, NetworkMode, TunnelProtocol, Workload, WorkloadType,
    WorkloadUid,
};

/// A string that is stored once and shared by every object that names it: a namespace appears
/// in each workload, service and policy of a mesh.
pub type Name = std::sync::Arc<str>;
