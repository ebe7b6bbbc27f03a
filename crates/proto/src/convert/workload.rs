//! Workloads, from and to their message.

use leno_model as model;

use super::fields::{
    DEFAULT_CLUSTER, DEFAULT_SERVICE_ACCOUNT, gateway, gateway_to_proto, ip, ip_bytes, known, or, port, ports,
    ports_to_proto, reference, service_name, unless,
};
use crate::ConvertError;
use crate::workload as wire;

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
