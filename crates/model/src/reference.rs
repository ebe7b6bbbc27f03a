//! How the objects of a mesh refer to each other.

use std::fmt;
use std::net::IpAddr;

use crate::Name;

/// `namespace/hostname`: the key of a service.
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

/// An address within a network. Two clusters' networks may use the same range.
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

/// The address of a waypoint or network gateway.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GatewayAddress {
    /// The service or workload to connect to.
    pub destination: GatewayDestination,
    /// Its HBONE port.
    pub hbone_mtls_port: u16,
}

/// A gateway's address: by name or by IP address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum GatewayDestination {
    /// A service by name.
    Hostname(ServiceName),
    /// A service or workload by address.
    Address(NetworkAddress),
}
