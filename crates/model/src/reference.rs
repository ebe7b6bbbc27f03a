//! How the objects of a mesh name each other.

use std::fmt;
use std::net::IpAddr;

use crate::Name;

/// `namespace/hostname`: the key under which services are delivered and referred to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceName {
    /// Namespace.
    pub namespace: Name,
    /// Fully qualified host name, such as `web.default.svc.cluster.local`.
    pub hostname: Name,
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.hostname)
    }
}

/// An address within a network: two clusters' networks may reuse the same range.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NetworkAddress {
    /// Network id; empty for the default network.
    pub network: Name,
    /// The address.
    pub address: IpAddr,
}

impl fmt::Display for NetworkAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.address)
    }
}

/// Where a waypoint or network gateway is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GatewayAddress {
    /// What to connect to.
    pub destination: GatewayDestination,
    /// Its HBONE port.
    pub hbone_mtls_port: u16,
}

/// Either form a gateway's address comes in.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum GatewayDestination {
    /// A service by name.
    Hostname(ServiceName),
    /// A service or workload by address.
    Address(NetworkAddress),
}
