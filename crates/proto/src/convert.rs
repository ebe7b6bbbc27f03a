//! The model's types, from and to their messages.

use std::net::{IpAddr, Ipv6Addr};

use bytes::Bytes;
use ipnet::IpNet;
use leno_model as model;
use leno_model::Name;

use crate::ConvertError;
pub use crate::convert_policy::{authorization_from_proto, authorization_to_proto};
use crate::workload as wire;

/// What an `Address` resource holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resource {
    /// One pod or external endpoint.
    Workload(model::Workload),
    /// A service.
    Service(model::Service),
}

impl Resource {
    /// The name under which discovery delivers it: a workload's uid, a service's
    /// `namespace/hostname`.
    pub fn name(&self) -> String {
        match self {
            Self::Workload(workload) => workload.uid.to_string(),
            Self::Service(service) => service.id.to_string(),
        }
    }
}

/// Reads an `Address`.
///
/// # Errors
/// If it holds neither kind, or a kind that [`workload_from_proto`] or [`service_from_proto`]
/// refuses.
pub fn address_from_proto(address: wire::Address) -> Result<Resource, ConvertError> {
    match address.r#type {
        Some(wire::address::Type::Workload(workload)) => workload_from_proto(workload).map(Resource::Workload),
        Some(wire::address::Type::Service(service)) => service_from_proto(service).map(Resource::Service),
        None => Err(ConvertError::Missing { field: "workload or service" }),
    }
}

/// Reads a workload. What the wire leaves empty gets its default: the trust domain
/// `cluster.local`, the service account `default`, the cluster `Kubernetes`, the capacity 1.
///
/// # Errors
/// If it has no uid, an enum value this version doesn't know, the retired sidecar mTLS tunnel, or
/// an address, port or reference that is none.
pub fn workload_from_proto(w: wire::Workload) -> Result<model::Workload, ConvertError> {
    if w.uid.is_empty() {
        return Err(ConvertError::Missing { field: "uid" });
    }
    let tunnel_protocol = match known("tunnel_protocol", w.tunnel_protocol)? {
        wire::TunnelProtocol::None => model::TunnelProtocol::None,
        wire::TunnelProtocol::Hbone => model::TunnelProtocol::Hbone,
        wire::TunnelProtocol::LegacyIstioMtls => {
            return Err(ConvertError::Unsupported { field: "tunnel_protocol", value: "LEGACY_ISTIO_MTLS" });
        }
    };
    let addresses = w.addresses.iter().map(|bytes| ip("addresses", bytes)).collect::<Result<_, _>>()?;
    let services = w
        .services
        .into_iter()
        .map(|(name, list)| Ok((service_name("services", &name)?, ports(list.ports)?)))
        .collect::<Result<_, ConvertError>>()?;
    let locality = w.locality.unwrap_or_default();
    Ok(model::Workload {
        uid: w.uid.into(),
        name: w.name.into(),
        namespace: w.namespace.into(),
        addresses,
        hostname: w.hostname.into(),
        network: w.network.into(),
        tunnel_protocol,
        trust_domain: or(w.trust_domain, model::DEFAULT_TRUST_DOMAIN),
        service_account: or(w.service_account, DEFAULT_SERVICE_ACCOUNT),
        waypoint: w.waypoint.map(|g| gateway("waypoint", g).map(Box::new)).transpose()?,
        network_gateway: w.network_gateway.map(|g| gateway("network_gateway", g).map(Box::new)).transpose()?,
        node: w.node.into(),
        canonical_name: w.canonical_name.into(),
        canonical_revision: w.canonical_revision.into(),
        workload_type: match known("workload_type", w.workload_type)? {
            wire::WorkloadType::Deployment => model::WorkloadType::Deployment,
            wire::WorkloadType::Cronjob => model::WorkloadType::CronJob,
            wire::WorkloadType::Pod => model::WorkloadType::Pod,
            wire::WorkloadType::Job => model::WorkloadType::Job,
        },
        workload_name: w.workload_name.into(),
        native_tunnel: w.native_tunnel,
        application_tunnel: w.application_tunnel.map(application_tunnel).transpose()?,
        authorization_policies: policy_names(&w.authorization_policies)?,
        health: match known("status", w.status)? {
            wire::WorkloadStatus::Healthy => model::Health::Healthy,
            wire::WorkloadStatus::Unhealthy => model::Health::Unhealthy,
        },
        cluster_id: or(w.cluster_id, DEFAULT_CLUSTER),
        services,
        locality: model::Locality {
            region: locality.region.into(),
            zone: locality.zone.into(),
            subzone: locality.subzone.into(),
        },
        network_mode: match known("network_mode", w.network_mode)? {
            wire::NetworkMode::Standard => model::NetworkMode::Standard,
            wire::NetworkMode::HostNetwork => model::NetworkMode::HostNetwork,
        },
        capacity: w.capacity.unwrap_or(1),
        not_understood: None,
    })
}

/// Writes a workload, leaving out what is the default, as Istio's control plane does.
pub fn workload_to_proto(w: &model::Workload) -> wire::Workload {
    wire::Workload {
        uid: w.uid.to_string(),
        name: w.name.to_string(),
        namespace: w.namespace.to_string(),
        addresses: w.addresses.iter().copied().map(ip_bytes).collect(),
        hostname: w.hostname.to_string(),
        network: w.network.to_string(),
        tunnel_protocol: match w.tunnel_protocol {
            model::TunnelProtocol::None => wire::TunnelProtocol::None,
            model::TunnelProtocol::Hbone => wire::TunnelProtocol::Hbone,
        }
        .into(),
        trust_domain: unless(&w.trust_domain, model::DEFAULT_TRUST_DOMAIN),
        // Spelt out even when it is `default`: that is how Istio's control plane writes it.
        service_account: w.service_account.to_string(),
        waypoint: w.waypoint.as_deref().map(gateway_to_proto),
        network_gateway: w.network_gateway.as_deref().map(gateway_to_proto),
        node: w.node.to_string(),
        canonical_name: w.canonical_name.to_string(),
        canonical_revision: w.canonical_revision.to_string(),
        workload_type: match w.workload_type {
            model::WorkloadType::Deployment => wire::WorkloadType::Deployment,
            model::WorkloadType::CronJob => wire::WorkloadType::Cronjob,
            model::WorkloadType::Pod => wire::WorkloadType::Pod,
            model::WorkloadType::Job => wire::WorkloadType::Job,
        }
        .into(),
        workload_name: w.workload_name.to_string(),
        native_tunnel: w.native_tunnel,
        application_tunnel: w.application_tunnel.map(|tunnel| wire::ApplicationTunnel {
            protocol: match tunnel.protocol {
                model::ApplicationProtocol::None => wire::application_tunnel::Protocol::None,
                model::ApplicationProtocol::Proxy => wire::application_tunnel::Protocol::Proxy,
            }
            .into(),
            port: tunnel.port.unwrap_or(0).into(),
        }),
        authorization_policies: w.authorization_policies.iter().map(ToString::to_string).collect(),
        status: match w.health {
            model::Health::Healthy => wire::WorkloadStatus::Healthy,
            model::Health::Unhealthy => wire::WorkloadStatus::Unhealthy,
        }
        .into(),
        // Spelt out for the same reason as the service account.
        cluster_id: w.cluster_id.to_string(),
        services: w
            .services
            .iter()
            .map(|(name, ports)| (name.to_string(), wire::PortList { ports: ports_to_proto(ports) }))
            .collect(),
        locality: (w.locality != model::Locality::default()).then(|| wire::Locality {
            region: w.locality.region.to_string(),
            zone: w.locality.zone.to_string(),
            subzone: w.locality.subzone.to_string(),
        }),
        network_mode: match w.network_mode {
            model::NetworkMode::Standard => wire::NetworkMode::Standard,
            model::NetworkMode::HostNetwork => wire::NetworkMode::HostNetwork,
        }
        .into(),
        extensions: Vec::new(),
        capacity: (w.capacity != 1).then_some(w.capacity),
    }
}

/// [`workload_to_proto`] as the resource that discovery carries.
pub fn workload_to_address(workload: &model::Workload) -> wire::Address {
    wire::Address { r#type: Some(wire::address::Type::Workload(workload_to_proto(workload))) }
}

/// Reads a service. An address with a prefix length shorter than itself becomes a range.
///
/// # Errors
/// If it has no host name, an enum value this version doesn't know (an unknown visibility is
/// public, as Istio specifies), or an address or port that is none.
pub fn service_from_proto(s: wire::Service) -> Result<model::Service, ConvertError> {
    if s.hostname.is_empty() {
        return Err(ConvertError::Missing { field: "hostname" });
    }
    let mut service = model::Service::new(s.namespace, s.name, s.hostname);
    for address in s.addresses {
        let network: Name = address.network.into();
        let base = ip("addresses", &address.address)?;
        match address.length {
            Some(length) => {
                let range = range("addresses", &address.address, length)?;
                if range.prefix_len() == range.max_prefix_len() {
                    service.addresses.push(model::NetworkAddress { network, address: base });
                } else {
                    service.ranges.push((network, range));
                }
            }
            None => service.addresses.push(model::NetworkAddress { network, address: base }),
        }
    }
    service.ports = ports(s.ports)?;
    service.subject_alt_names = s.subject_alt_names.into_iter().map(Name::from).collect();
    service.waypoint = s.waypoint.map(|g| gateway("waypoint", g)).transpose()?;
    service.weighted_waypoints = s
        .weighted_waypoints
        .into_iter()
        .map(|w| {
            let destination = w.destination.ok_or(ConvertError::Missing { field: "weighted_waypoints.destination" })?;
            Ok(model::WeightedWaypoint { destination: gateway("weighted_waypoints", destination)?, weight: w.weight })
        })
        .collect::<Result<_, ConvertError>>()?;
    if let Some(lb) = s.load_balancing {
        service.load_balancing = load_balancing(&lb)?;
    }
    service.ip_families = match known("ip_families", s.ip_families)? {
        wire::IpFamilies::Automatic => model::IpFamilies::Automatic,
        wire::IpFamilies::Ipv4Only => model::IpFamilies::Ipv4Only,
        wire::IpFamilies::Ipv6Only => model::IpFamilies::Ipv6Only,
        wire::IpFamilies::Dual => model::IpFamilies::Dual,
    };
    service.canonical = s.canonical;
    service.ingress_use_waypoint = s.ingress_use_waypoint;
    service.visibility = match wire::Visibility::try_from(s.visibility) {
        Ok(wire::Visibility::Namespace) => model::Visibility::Namespace,
        Ok(wire::Visibility::Public) | Err(_) => model::Visibility::Public,
    };
    Ok(service)
}

/// Writes a service.
pub fn service_to_proto(s: &model::Service) -> wire::Service {
    let single = s.addresses.iter().map(|a| wire::NetworkAddress {
        network: a.network.to_string(),
        address: ip_bytes(a.address),
        length: None,
    });
    let ranges = s.ranges.iter().map(|(network, range)| wire::NetworkAddress {
        network: network.to_string(),
        address: ip_bytes(range.addr()),
        length: Some(range.prefix_len().into()),
    });
    wire::Service {
        name: s.name.to_string(),
        namespace: s.id.namespace.to_string(),
        hostname: s.id.hostname.to_string(),
        addresses: single.chain(ranges).collect(),
        ports: ports_to_proto(&s.ports),
        subject_alt_names: s.subject_alt_names.iter().map(ToString::to_string).collect(),
        waypoint: s.waypoint.as_ref().map(gateway_to_proto),
        load_balancing: (s.load_balancing != model::LoadBalancing::default())
            .then(|| load_balancing_to_proto(&s.load_balancing)),
        ip_families: match s.ip_families {
            model::IpFamilies::Automatic => wire::IpFamilies::Automatic,
            model::IpFamilies::Ipv4Only => wire::IpFamilies::Ipv4Only,
            model::IpFamilies::Ipv6Only => wire::IpFamilies::Ipv6Only,
            model::IpFamilies::Dual => wire::IpFamilies::Dual,
        }
        .into(),
        extensions: Vec::new(),
        canonical: s.canonical,
        ingress_use_waypoint: s.ingress_use_waypoint,
        weighted_waypoints: s
            .weighted_waypoints
            .iter()
            .map(|w| wire::WeightedWaypoint { destination: Some(gateway_to_proto(&w.destination)), weight: w.weight })
            .collect(),
        visibility: match s.visibility {
            model::Visibility::Public => wire::Visibility::Public,
            model::Visibility::Namespace => wire::Visibility::Namespace,
        }
        .into(),
    }
}

/// [`service_to_proto`] as the resource that discovery carries.
pub fn service_to_address(service: &model::Service) -> wire::Address {
    wire::Address { r#type: Some(wire::address::Type::Service(service_to_proto(service))) }
}

/// The policies a workload lists. One that is not `namespace/name` could never be found, and
/// ignoring it would let through what it denies.
fn policy_names(names: &[String]) -> Result<Vec<model::PolicyName>, ConvertError> {
    names
        .iter()
        .map(|name| {
            let (namespace, name) = reference("authorization_policies", name)?;
            Ok(model::PolicyName { namespace, name })
        })
        .collect()
}

pub(crate) const DEFAULT_SERVICE_ACCOUNT: &str = "default";
pub(crate) const DEFAULT_CLUSTER: &str = "Kubernetes";

pub(crate) fn or(value: String, default: &str) -> Name {
    if value.is_empty() { default.into() } else { value.into() }
}

fn unless(value: &Name, default: &str) -> String {
    if &**value == default { String::new() } else { value.to_string() }
}

pub(crate) fn known<T: TryFrom<i32>>(field: &'static str, value: i32) -> Result<T, ConvertError> {
    T::try_from(value).map_err(|_| ConvertError::UnknownEnum { field, value })
}

pub(crate) fn port(field: &'static str, value: u32) -> Result<u16, ConvertError> {
    u16::try_from(value).map_err(|_| ConvertError::Port { field, value })
}

fn raw_ip(field: &'static str, bytes: &[u8]) -> Result<IpAddr, ConvertError> {
    if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        Ok(IpAddr::from(v4))
    } else if let Ok(v6) = <[u8; 16]>::try_from(bytes) {
        Ok(IpAddr::from(v6))
    } else {
        Err(ConvertError::AddressLength { field, length: bytes.len() })
    }
}

pub(crate) fn ip(field: &'static str, bytes: &[u8]) -> Result<IpAddr, ConvertError> {
    raw_ip(field, bytes).map(|ip| ip.to_canonical())
}

/// An address range. The prefix of a v4-mapped address counts from the start of the v6 form; one
/// that reaches above the mapped part is no v4 range and stays as it is.
pub(crate) fn range(field: &'static str, bytes: &[u8], length: u32) -> Result<IpNet, ConvertError> {
    const MAPPED_BITS: u8 = 96;
    let bad = || ConvertError::PrefixLength { field, length };
    let prefix = u8::try_from(length).map_err(|_| bad())?;
    let raw = raw_ip(field, bytes)?;
    let (address, prefix) = match raw.to_canonical() {
        v4 @ IpAddr::V4(_) if raw.is_ipv6() && prefix >= MAPPED_BITS => (v4, prefix - MAPPED_BITS),
        _ => (raw, prefix),
    };
    // Host bits mean nothing in a range; cleared, equal ranges are equal.
    IpNet::new(address, prefix).map(|net| net.trunc()).map_err(|_| bad())
}

pub(crate) fn ip_bytes(address: IpAddr) -> Bytes {
    match address {
        IpAddr::V4(v4) => Bytes::copy_from_slice(&v4.octets()),
        IpAddr::V6(v6) => Bytes::copy_from_slice(&Ipv6Addr::octets(&v6)),
    }
}

fn reference(field: &'static str, value: &str) -> Result<(Name, Name), ConvertError> {
    match value.split_once('/') {
        Some((namespace, name)) if !name.is_empty() && !name.contains('/') => Ok((namespace.into(), name.into())),
        _ => Err(ConvertError::Reference { field, value: value.to_owned() }),
    }
}

pub(crate) fn service_name(field: &'static str, value: &str) -> Result<model::ServiceName, ConvertError> {
    reference(field, value).map(|(namespace, hostname)| model::ServiceName { namespace, hostname })
}

fn ports(ports: Vec<wire::Port>) -> Result<Vec<model::Port>, ConvertError> {
    ports
        .into_iter()
        .map(|p| {
            Ok(model::Port {
                service_port: port("service_port", p.service_port)?,
                target_port: port("target_port", p.target_port)?,
                app_protocol: match known("app_protocol", p.app_protocol)? {
                    wire::AppProtocol::Unknown => model::AppProtocol::Unknown,
                    wire::AppProtocol::Http11 => model::AppProtocol::Http11,
                    wire::AppProtocol::Http2 => model::AppProtocol::Http2,
                    wire::AppProtocol::Grpc => model::AppProtocol::Grpc,
                    wire::AppProtocol::Tcp => model::AppProtocol::Tcp,
                    wire::AppProtocol::Tls => model::AppProtocol::Tls,
                },
                transport: model::Transport::Tcp,
            })
        })
        .collect()
}

/// What is not carried by TCP has no place in the format.
fn ports_to_proto(ports: &[model::Port]) -> Vec<wire::Port> {
    ports
        .iter()
        .filter(|p| p.transport == model::Transport::Tcp)
        .map(|p| wire::Port {
            service_port: p.service_port.into(),
            target_port: p.target_port.into(),
            app_protocol: match p.app_protocol {
                model::AppProtocol::Unknown => wire::AppProtocol::Unknown,
                model::AppProtocol::Http11 => wire::AppProtocol::Http11,
                model::AppProtocol::Http2 => wire::AppProtocol::Http2,
                model::AppProtocol::Grpc => wire::AppProtocol::Grpc,
                model::AppProtocol::Tcp => wire::AppProtocol::Tcp,
                model::AppProtocol::Tls => wire::AppProtocol::Tls,
            }
            .into(),
        })
        .collect()
}

fn gateway(field: &'static str, g: wire::GatewayAddress) -> Result<model::GatewayAddress, ConvertError> {
    let destination = match g.destination {
        Some(wire::gateway_address::Destination::Hostname(h)) => {
            model::GatewayDestination::Hostname(model::ServiceName {
                namespace: h.namespace.into(),
                hostname: h.hostname.into(),
            })
        }
        Some(wire::gateway_address::Destination::Address(a)) => {
            let address = ip(field, &a.address)?;
            model::GatewayDestination::Address(model::NetworkAddress { network: a.network.into(), address })
        }
        // Leaving the gateway out would send traffic around it.
        None => return Err(ConvertError::Missing { field }),
    };
    Ok(model::GatewayAddress { destination, hbone_mtls_port: port("hbone_mtls_port", g.hbone_mtls_port)? })
}

fn gateway_to_proto(g: &model::GatewayAddress) -> wire::GatewayAddress {
    let destination = match &g.destination {
        model::GatewayDestination::Hostname(name) => {
            wire::gateway_address::Destination::Hostname(wire::NamespacedHostname {
                namespace: name.namespace.to_string(),
                hostname: name.hostname.to_string(),
            })
        }
        model::GatewayDestination::Address(a) => wire::gateway_address::Destination::Address(wire::NetworkAddress {
            network: a.network.to_string(),
            address: ip_bytes(a.address),
            length: None,
        }),
    };
    wire::GatewayAddress { destination: Some(destination), hbone_mtls_port: g.hbone_mtls_port.into() }
}

fn application_tunnel(tunnel: wire::ApplicationTunnel) -> Result<model::ApplicationTunnel, ConvertError> {
    let port = port("application_tunnel.port", tunnel.port)?;
    Ok(model::ApplicationTunnel {
        protocol: match known("application_tunnel.protocol", tunnel.protocol)? {
            wire::application_tunnel::Protocol::None => model::ApplicationProtocol::None,
            wire::application_tunnel::Protocol::Proxy => model::ApplicationProtocol::Proxy,
        },
        port: (port != 0).then_some(port),
    })
}

fn load_balancing(lb: &wire::LoadBalancing) -> Result<model::LoadBalancing, ConvertError> {
    use wire::load_balancing::{HealthPolicy, Mode, Scope};
    let scope = |value: &i32| {
        Ok(match known("routing_preference", *value)? {
            // The zero value names no property; a rule that says nothing must not be guessed at.
            Scope::UnspecifiedScope => {
                return Err(ConvertError::UnknownEnum { field: "routing_preference", value: *value });
            }
            Scope::Region => model::RoutingScope::Region,
            Scope::Zone => model::RoutingScope::Zone,
            Scope::Subzone => model::RoutingScope::Subzone,
            Scope::Node => model::RoutingScope::Node,
            Scope::Cluster => model::RoutingScope::Cluster,
            Scope::Network => model::RoutingScope::Network,
        })
    };
    Ok(model::LoadBalancing {
        routing_preference: lb.routing_preference.iter().map(scope).collect::<Result<_, _>>()?,
        mode: match known("load_balancing.mode", lb.mode)? {
            Mode::UnspecifiedMode => model::LoadBalancingMode::Unspecified,
            Mode::Strict => model::LoadBalancingMode::Strict,
            Mode::Failover => model::LoadBalancingMode::Failover,
            Mode::Passthrough => model::LoadBalancingMode::Passthrough,
        },
        health_policy: match known("health_policy", lb.health_policy)? {
            HealthPolicy::OnlyHealthy => model::HealthPolicy::OnlyHealthy,
            HealthPolicy::AllowAll => model::HealthPolicy::AllowAll,
        },
    })
}

fn load_balancing_to_proto(lb: &model::LoadBalancing) -> wire::LoadBalancing {
    use wire::load_balancing::{HealthPolicy, Mode, Scope};
    let scope = |scope: &model::RoutingScope| {
        i32::from(match scope {
            model::RoutingScope::Region => Scope::Region,
            model::RoutingScope::Zone => Scope::Zone,
            model::RoutingScope::Subzone => Scope::Subzone,
            model::RoutingScope::Node => Scope::Node,
            model::RoutingScope::Cluster => Scope::Cluster,
            model::RoutingScope::Network => Scope::Network,
        })
    };
    wire::LoadBalancing {
        routing_preference: lb.routing_preference.iter().map(scope).collect(),
        mode: match lb.mode {
            model::LoadBalancingMode::Unspecified => Mode::UnspecifiedMode,
            model::LoadBalancingMode::Strict => Mode::Strict,
            model::LoadBalancingMode::Failover => Mode::Failover,
            model::LoadBalancingMode::Passthrough => Mode::Passthrough,
        }
        .into(),
        health_policy: match lb.health_policy {
            model::HealthPolicy::OnlyHealthy => HealthPolicy::OnlyHealthy,
            model::HealthPolicy::AllowAll => HealthPolicy::AllowAll,
        }
        .into(),
    }
}

#[cfg(test)]
#[path = "convert_tests.rs"]
mod tests;
