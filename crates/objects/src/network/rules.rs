//! Checks of services and endpoints that types can't express: names, ranges, and fields that must fit each other.
//!
//! Each check is declared at its field (see `object!`), so that its error has the path and line of that field. The
//! rules are those of the Kubernetes and Istio API servers.

#![allow(clippy::ptr_arg, reason = "a check takes its field as it is, and fields are vectors")]

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::{AddressType, HEADLESS, IpFamilyPolicy, ServicePort, ServiceSpec, ServiceType};
use crate::Object;
use crate::decode::{Context, Problem};
use crate::validate::{no_duplicates, subdomain};

type Check = Result<(), Problem>;

pub(crate) fn service_ports(ports: &Vec<ServicePort>, _: &mut Context) -> Check {
    no_duplicates(ports.iter().map(|p| p.name.as_str()), ".name", "port name")?;
    let mut seen = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        if ports.len() > 1 && port.name.is_empty() {
            return Err(Problem::at(format!("[{i}].name"), "is required when there are several ports"));
        }
        if !seen.insert((port.protocol.as_str(), port.port)) {
            return Err(Problem::at(format!("[{i}].port"), format!("port {} is listed twice", port.port)));
        }
    }
    Ok(())
}

pub(crate) fn traffic_distribution(value: &Option<String>, _: &mut Context) -> Check {
    const KNOWN: [&str; 3] = ["PreferClose", "PreferSameZone", "PreferSameNode"];
    match value.as_deref() {
        None => Ok(()),
        Some(value) if KNOWN.contains(&value) => Ok(()),
        Some(value) => Err(Problem::here(format!("{value:?} is not one of {}", KNOWN.join(", ")))),
    }
}

pub(crate) fn service_spec(spec: &ServiceSpec, cx: &mut Context) -> Check {
    match spec.kind {
        ServiceType::ClusterIp => {}
        ServiceType::NodePort | ServiceType::LoadBalancer => {
            cx.warnings.push(format!("spec.type {}: acts as ClusterIP inside the mesh", spec.kind));
        }
        ServiceType::ExternalName => {
            cx.warnings.push("spec.type ExternalName: not part of the mesh, so the service is left out".to_owned());
            return Ok(());
        }
    }
    if spec.ports.is_empty() && !spec.is_headless() {
        return Err(Problem::at(".ports", "needs at least one port"));
    }
    let all: Vec<&String> =
        std::iter::once(&spec.cluster_ip).filter(|ip| !ip.is_empty()).chain(&spec.cluster_ips).collect();
    if let Some(wrong) = all.iter().find(|ip| ***ip != HEADLESS && ip.parse::<IpAddr>().is_err()) {
        return Err(Problem::at(".clusterIP", format!("{wrong:?} is neither an IP address nor None")));
    }
    if spec.is_headless() && all.iter().any(|ip| *ip != HEADLESS) {
        return Err(Problem::at(".clusterIPs", "None and addresses exclude each other"));
    }
    if !spec.cluster_ip.is_empty() && spec.cluster_ips.first().is_some_and(|first| *first != spec.cluster_ip) {
        return Err(Problem::at(".clusterIPs[0]", "must equal clusterIP"));
    }
    if spec.cluster_ips.len() > 2 || spec.ip_families.len() > 2 {
        return Err(Problem::at(".clusterIPs", "may hold one address per family"));
    }
    if let [first, second] = spec.virtual_addresses()[..]
        && first.is_ipv4() == second.is_ipv4()
    {
        return Err(Problem::at(".clusterIPs", "may hold one address per family"));
    }
    if let [first, second] = spec.ip_families[..] {
        if first == second {
            return Err(Problem::at(".ipFamilies", format!("{first} is listed twice")));
        }
        if spec.ip_family_policy.is_none_or(|policy| policy == IpFamilyPolicy::SingleStack) {
            return Err(Problem::at(".ipFamilyPolicy", "must be PreferDualStack or RequireDualStack for two families"));
        }
    }
    Ok(())
}

/// Checks that need the whole object.
pub(crate) fn object(object: &Object) -> Check {
    let Object::EndpointSlice(slice) = object else { return Ok(()) };
    for (i, endpoint) in slice.endpoints.iter().enumerate() {
        for (j, text) in endpoint.addresses.iter().enumerate() {
            let address = text.parse::<IpAddr>();
            let fits = match slice.address_type {
                AddressType::Ipv4 => address.is_ok_and(|address| address.is_ipv4()),
                AddressType::Ipv6 => address.is_ok_and(|address| address.is_ipv6()),
                AddressType::Fqdn => subdomain(text).is_ok(),
            };
            if !fits {
                let at = format!("endpoints[{i}].addresses[{j}]");
                return Err(Problem::at(at, format!("{text:?} is no {} address", slice.address_type)));
            }
        }
    }
    Ok(())
}

pub(crate) fn slice_addresses(addresses: &Vec<String>, _: &mut Context) -> Check {
    if addresses.is_empty() {
        return Err(Problem::here("needs at least one address"));
    }
    Ok(())
}
