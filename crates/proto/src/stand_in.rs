//! Stand-ins: what applies in place of a resource that was refused.
//!
//! Leaving a refused resource out would open what it describes: an address of an unknown workload gets plaintext, and
//! traffic that the policy denies would pass. Keeping the last good version would be as bad if the refused one is
//! stricter. A stand-in uses the parts that can be read to close what the resource describes: nobody may talk to the
//! address, and the policy lets nobody in.

use leno_model as model;

use crate::convert::{DEFAULT_CLUSTER, DEFAULT_SERVICE_ACCOUNT, Resource, ip, or, service_name};
use crate::{security, workload as wire};

/// The stand-in for the address resource `name` that was refused for `reason`. It keeps that resource name, whatever
/// the message says, because the resource's removal will use it.
///
/// `None` if it is of an unknown kind, so that nothing can be read of it.
pub fn address_stand_in(name: &str, address: wire::Address, reason: &str) -> Option<Resource> {
    match address.r#type? {
        wire::address::Type::Workload(w) => Some(Resource::Workload(workload(name, w, reason))),
        wire::address::Type::Service(s) => {
            let (namespace, hostname) = name.split_once('/').unwrap_or(("", name));
            Some(Resource::Service(service(namespace, hostname, s, reason)))
        }
    }
}

fn workload(uid: &str, w: wire::Workload, reason: &str) -> model::Workload {
    model::Workload {
        // Nobody could connect to an address of another length.
        addresses: w.addresses.iter().filter_map(|bytes| ip("addresses", bytes).ok()).collect(),
        network: w.network.into(),
        tunnel_protocol: match wire::TunnelProtocol::try_from(w.tunnel_protocol) {
            Ok(wire::TunnelProtocol::None) => model::TunnelProtocol::None,
            _ => model::TunnelProtocol::Hbone,
        },
        trust_domain: or(w.trust_domain, model::DEFAULT_TRUST_DOMAIN),
        service_account: or(w.service_account, DEFAULT_SERVICE_ACCOUNT),
        node: w.node.into(),
        canonical_name: w.canonical_name.into(),
        canonical_revision: w.canonical_revision.into(),
        workload_name: w.workload_name.into(),
        cluster_id: or(w.cluster_id, DEFAULT_CLUSTER),
        // An endpoint that can't be used is different from no endpoint.
        services: w.services.keys().filter_map(|id| Some((service_name("services", id).ok()?, Vec::new()))).collect(),
        // In an unknown mode, the addresses may be its own. If they are its node's, the node's are closed with them.
        network_mode: match wire::NetworkMode::try_from(w.network_mode) {
            Ok(wire::NetworkMode::HostNetwork) => model::NetworkMode::HostNetwork,
            _ => model::NetworkMode::Standard,
        },
        not_understood: Some(reason.into()),
        ..model::Workload::new(uid, w.namespace, w.name)
    }
}

fn service(namespace: &str, hostname: &str, s: wire::Service, reason: &str) -> model::Service {
    let mut service = model::Service::new(namespace, s.name, hostname);
    for address in s.addresses {
        let network: model::Name = address.network.into();
        let Ok(base) = ip("addresses", &address.address) else { continue };
        match address.length.map(|length| crate::convert::range("addresses", &address.address, length)) {
            Some(Ok(range)) if range.prefix_len() < range.max_prefix_len() => service.ranges.push((network, range)),
            _ => service.addresses.push(model::NetworkAddress { network, address: base }),
        }
    }
    service.canonical = s.canonical;
    service.not_understood = Some(reason.into());
    service
}

/// The stand-in for the policy `name` that was refused: nobody gets in wherever it would have applied.
///
/// If that is unknown, because the scope is of an unknown kind or the message can't be read, it applies everywhere. A
/// narrower guess, such as the policy's own namespace, would be wrong for a policy of the root namespace, which guards
/// all others. The stand-in for a dry-run policy denies nobody either.
///
/// `None` if no policy can have this name.
pub fn policy_stand_in(
    name: &str,
    policy: Option<&security::Authorization>,
    reason: &str,
) -> Option<model::Authorization> {
    let (namespace, name) = name.split_once('/')?;
    let scope = policy.map(|policy| security::Scope::try_from(policy.scope));
    Some(model::Authorization {
        id: model::PolicyName { namespace: namespace.into(), name: name.into() },
        scope: match scope {
            Some(Ok(security::Scope::Namespace)) => model::Scope::Namespace,
            Some(Ok(security::Scope::WorkloadSelector)) => model::Scope::WorkloadSelector,
            Some(Ok(security::Scope::Global) | Err(_)) | None => model::Scope::Global,
        },
        action: model::Action::Deny,
        rules: vec![model::Rule::default()],
        dry_run: policy.is_some_and(|policy| policy.dry_run),
        not_understood: Some(reason.into()),
    })
}

#[cfg(test)]
#[path = "stand_in_tests.rs"]
mod tests;
