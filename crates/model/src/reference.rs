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

/// The end of host names that no service may have (RFC 2606 §2): of a waypoint that does not let itself be used.
const NOT_ALLOWED: &str = ".not-allowed.invalid";

impl ServiceName {
    /// The name that stands for a waypoint's service where the waypoint does not let itself be used. No service has it, so
    /// every proxy refuses what must pass there.
    pub fn not_allowed(waypoint: &Self) -> Self {
        Self { namespace: waypoint.namespace.clone(), hostname: format!("{}{NOT_ALLOWED}", waypoint.hostname).into() }
    }

    /// Whether it stands for a waypoint that does not let itself be used.
    pub fn is_not_allowed(&self) -> bool {
        self.hostname.ends_with(NOT_ALLOWED)
    }

    /// The host name as a user knows it, also if it stands for a waypoint that does not let itself be used.
    pub fn users_hostname(&self) -> &str {
        self.hostname.strip_suffix(NOT_ALLOWED).unwrap_or(&self.hostname)
    }
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
