//! Fields that several messages have.

use std::net::{IpAddr, Ipv6Addr};

use bytes::Bytes;
use ipnet::IpNet;
use leno_model as model;
use leno_model::Name;

use crate::ConvertError;
use crate::workload as wire;

pub(crate) const DEFAULT_SERVICE_ACCOUNT: &str = "default";
pub(crate) const DEFAULT_CLUSTER: &str = "Kubernetes";

pub(crate) fn or(value: String, default: &str) -> Name {
    if value.is_empty() { default.into() } else { value.into() }
}

pub(super) fn unless(value: &Name, default: &str) -> String {
    if &**value == default { String::new() } else { value.to_string() }
}

pub(crate) fn known<T: TryFrom<i32>>(field: &'static str, value: i32) -> Result<T, ConvertError> {
    T::try_from(value).map_err(|_| ConvertError::UnknownEnum { field, value })
}

pub(crate) fn port(field: &'static str, value: u32) -> Result<u16, ConvertError> {
    u16::try_from(value).map_err(|_| ConvertError::Port { field, value })
}

pub(super) fn raw_ip(field: &'static str, bytes: &[u8]) -> Result<IpAddr, ConvertError> {
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

pub(super) fn reference(field: &'static str, value: &str) -> Result<(Name, Name), ConvertError> {
    match value.split_once('/') {
        Some((namespace, name)) if !name.is_empty() && !name.contains('/') => Ok((namespace.into(), name.into())),
        _ => Err(ConvertError::Reference { field, value: value.to_owned() }),
    }
}

pub(crate) fn service_name(field: &'static str, value: &str) -> Result<model::ServiceName, ConvertError> {
    reference(field, value).map(|(namespace, hostname)| model::ServiceName { namespace, hostname })
}

pub(super) fn ports(ports: Vec<wire::Port>) -> Result<Vec<model::Port>, ConvertError> {
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
pub(super) fn ports_to_proto(ports: &[model::Port]) -> Vec<wire::Port> {
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

pub(super) fn gateway(field: &'static str, g: wire::GatewayAddress) -> Result<model::GatewayAddress, ConvertError> {
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

pub(super) fn gateway_to_proto(g: &model::GatewayAddress) -> wire::GatewayAddress {
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
