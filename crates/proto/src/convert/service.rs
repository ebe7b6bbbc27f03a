//! Services, from and to their message.

use leno_model as model;
use leno_model::Name;

use super::fields::{gateway, gateway_to_proto, ip, ip_bytes, known, ports, ports_to_proto, range};
use crate::ConvertError;
use crate::workload as wire;

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
