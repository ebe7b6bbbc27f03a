//! A service: a name, its virtual addresses and how to spread connections over its endpoints
//! (`istio.workload.Service`).

use std::net::IpAddr;

use ipnet::IpNet;

use crate::{GatewayAddress, Name, NetworkAddress, ServiceName};

/// A port of a service, or a workload's port for a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Port {
    /// Port of the service.
    pub service_port: u16,
    /// Port of the endpoint. 0 means that each endpoint has its own (a named target port).
    pub target_port: u16,
    /// Declared protocol.
    pub app_protocol: AppProtocol,
    /// Transport protocol. Istio's wire format has no field for it: proxies are told of TCP ports only.
    pub transport: Transport,
}

impl Port {
    /// A TCP port without a declared application protocol. `target_port` 0 stands for a named target port.
    pub fn tcp(service_port: u16, target_port: u16) -> Self {
        Self { service_port, target_port, app_protocol: AppProtocol::Unknown, transport: Transport::Tcp }
    }
}

/// The transport protocol of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[allow(missing_docs, reason = "the names are the protocols")]
pub enum Transport {
    #[default]
    Tcp,
    Udp,
}

/// The name of a port of a service. Istio's wire format has no field for it, so it is known only where services are
/// declared.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PortName {
    /// The name; never empty.
    pub name: Name,
    /// Transport protocol of the port.
    pub transport: Transport,
    /// The port of the service.
    pub service_port: u16,
}

/// Declared application protocol of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[allow(missing_docs, reason = "the names are the protocols")]
pub enum AppProtocol {
    #[default]
    Unknown,
    Http11,
    Http2,
    Grpc,
    Tcp,
    Tls,
}

/// How endpoints are chosen.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct LoadBalancing {
    /// Scopes in order of weight.
    pub routing_preference: Vec<RoutingScope>,
    /// What the scopes mean.
    pub mode: LoadBalancingMode,
    /// Whether unready endpoints count.
    pub health_policy: HealthPolicy,
}

/// A property of the source that an endpoint may share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the properties")]
pub enum RoutingScope {
    Region,
    Zone,
    Subzone,
    Node,
    Cluster,
    Network,
}

/// What a routing preference means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum LoadBalancingMode {
    /// Any endpoint, weighted by capacity.
    #[default]
    Unspecified,
    /// Only endpoints that match every scope.
    Strict,
    /// The endpoints that match most scopes; others when those are gone.
    Failover,
    /// No choice: the original destination, as plain TCP.
    Passthrough,
}

/// Whether unready endpoints count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum HealthPolicy {
    /// Only healthy ones.
    #[default]
    OnlyHealthy,
    /// All (`publishNotReadyAddresses`).
    AllowAll,
}

/// Which address families a service has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[allow(missing_docs, reason = "the names are the families")]
pub enum IpFamilies {
    #[default]
    Automatic,
    Ipv4Only,
    Ipv6Only,
    Dual,
}

impl IpFamilies {
    /// Whether a service with these families has addresses like this one. Its endpoints may have addresses of other
    /// families.
    pub fn permit(self, address: &IpAddr) -> bool {
        match self {
            Self::Automatic | Self::Dual => true,
            Self::Ipv4Only => address.is_ipv4(),
            Self::Ipv6Only => address.is_ipv6(),
        }
    }
}

/// Who may resolve a service by name or address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Visibility {
    /// Everybody.
    #[default]
    Public,
    /// Only its own namespace.
    Namespace,
}

/// A waypoint and its share of connections.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WeightedWaypoint {
    /// The waypoint.
    pub destination: GatewayAddress,
    /// Share, relative to the sum.
    pub weight: u32,
}

/// A service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// Key: namespace and host name.
    pub id: ServiceName,
    /// Short name.
    pub name: Name,
    /// Virtual addresses; empty for a headless service.
    pub addresses: Vec<NetworkAddress>,
    /// Virtual address ranges with their network.
    pub ranges: Vec<(Name, IpNet)>,
    /// Ports.
    pub ports: Vec<Port>,
    /// The names of the ports that have one.
    pub port_names: Vec<PortName>,
    /// SPIFFE ids an endpoint may have besides its own.
    pub subject_alt_names: Vec<Name>,
    /// Waypoint for traffic addressed to this service.
    pub waypoint: Option<GatewayAddress>,
    /// Waypoints sampled per connection; used when a weight is positive.
    pub weighted_waypoints: Vec<WeightedWaypoint>,
    /// How endpoints are chosen.
    pub load_balancing: LoadBalancing,
    /// Address families.
    pub ip_families: IpFamilies,
    /// Wins when several services share a host name or address (set for Kubernetes services).
    pub canonical: bool,
    /// Gateways should send through the waypoint too.
    pub ingress_use_waypoint: bool,
    /// Who may resolve it.
    pub visibility: Visibility,
    /// Why it was not understood, as in [`Workload::not_understood`](crate::Workload::not_understood).
    pub not_understood: Option<Name>,
}

impl Service {
    /// A visible service without addresses, ports or other contents: the base that builders and decoders fill.
    pub fn new(namespace: impl Into<Name>, name: impl Into<Name>, hostname: impl Into<Name>) -> Self {
        Self {
            id: ServiceName { namespace: namespace.into(), hostname: hostname.into() },
            name: name.into(),
            addresses: Vec::new(),
            ranges: Vec::new(),
            ports: Vec::new(),
            port_names: Vec::new(),
            subject_alt_names: Vec::new(),
            waypoint: None,
            weighted_waypoints: Vec::new(),
            load_balancing: LoadBalancing::default(),
            ip_families: IpFamilies::default(),
            canonical: false,
            ingress_use_waypoint: false,
            visibility: Visibility::Public,
            not_understood: None,
        }
    }

    /// The service's TCP ports. The mesh carries no others.
    pub fn tcp_ports(&self) -> impl Iterator<Item = &Port> {
        self.ports.iter().filter(|port| port.transport == Transport::Tcp)
    }

    /// The TCP port with this number.
    pub fn port(&self, service_port: u16) -> Option<&Port> {
        self.tcp_ports().find(|port| port.service_port == service_port)
    }

    /// The port with this name.
    pub fn port_named(&self, name: &str, transport: Transport) -> Option<&Port> {
        let named = self.port_names.iter().find(|port| &*port.name == name && port.transport == transport)?;
        self.ports.iter().find(|port| port.transport == transport && port.service_port == named.service_port)
    }

    /// Whether a client in `namespace` may resolve it.
    pub fn visible_to(&self, namespace: &str) -> bool {
        self.visibility == Visibility::Public || &*self.id.namespace == namespace
    }
}

#[cfg(test)]
#[path = "service_tests.rs"]
mod tests;
