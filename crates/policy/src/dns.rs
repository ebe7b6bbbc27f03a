//! What does a pod get when it asks for a name? Services of the mesh under all names that Kubernetes clients use, as
//! Istio's DNS proxy answers them.

use std::net::IpAddr;
use std::sync::Arc;

use leno_model::{Mesh, Name, Service};

use crate::endpoints::ready;

/// The address family asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// A records.
    V4,
    /// AAAA records.
    V6,
}

impl Family {
    fn has(self, address: &IpAddr) -> bool {
        match self {
            Self::V4 => address.is_ipv4(),
            Self::V6 => address.is_ipv6(),
        }
    }
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DnsAnswer {
    /// Addresses, in the order to answer them.
    Records {
        /// The name that the addresses belong to, if the name asked for ends in a search domain and so is an alias of
        /// it.
        cname: Option<String>,
        /// Addresses; never empty.
        addresses: Vec<IpAddr>,
    },
    /// The name exists, but has no address of this family: an empty answer, not an error.
    NoData,
    /// The mesh does not know the name: another server must be asked.
    NotMine,
}

/// The client that asks. A name may mean different things to different clients.
#[derive(Debug, Clone, Copy)]
pub struct Client<'a> {
    /// The client's namespace.
    pub namespace: &'a str,
    /// The client's network.
    pub network: &'a Name,
}

/// Answers a client's question, whether or not the client is in the mesh.
///
/// `name` may be in any case and may end in a dot. `cluster_domain` is usually `cluster.local`. `random` decides the
/// order of the addresses.
pub fn resolve(
    mesh: &Mesh,
    client: Client<'_>,
    cluster_domain: &str,
    name: &str,
    family: Family,
    random: &mut dyn FnMut() -> u64,
) -> DnsAnswer {
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    for alias in aliases(&name, client.namespace, cluster_domain) {
        let Some(found) = lookup(mesh, &alias.name, client.namespace, cluster_domain) else { continue };
        let mut addresses = addresses_of(mesh, found.service, client.network, family);
        if addresses.is_empty() {
            return DnsAnswer::NoData;
        }
        shuffle(&mut addresses, random);
        // If the real name exists only as a wildcard, an alias to it would send the client in a circle.
        let cname = alias.stripped.filter(|_| !found.wildcard);
        return DnsAnswer::Records { cname, addresses };
    }
    DnsAnswer::NotMine
}

/// A candidate name.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Alias {
    name: String,
    /// The name without a search domain, if one was removed.
    stripped: Option<String>,
}

/// All names that a client may mean by `name`, the most literal one first.
fn aliases(name: &str, namespace: &str, domain: &str) -> Vec<Alias> {
    let mut all: Vec<Alias> = Vec::new();
    let mut add = |name: String, stripped: Option<&str>| {
        if all.iter().all(|known| known.name != name) {
            all.push(Alias { name, stripped: stripped.map(str::to_owned) });
        }
    };
    add(name.to_owned(), None);
    for expanded in kubernetes_names(name, namespace, domain) {
        add(expanded, None);
    }
    // A pod's resolv.conf lists these search domains, and its stub resolver appends them one after the other. Removing
    // them here answers the first query instead of the fourth.
    for search in [format!("{namespace}.svc.{domain}"), format!("svc.{domain}"), domain.to_owned()] {
        let Some(stripped) = name.strip_suffix(&search).and_then(|rest| rest.strip_suffix('.')) else { continue };
        add(stripped.to_owned(), Some(stripped));
        for expanded in kubernetes_names(stripped, namespace, domain) {
            add(expanded, Some(stripped));
        }
    }
    all
}

/// The full names that a short name can stand for, by its number of labels.
fn kubernetes_names(name: &str, namespace: &str, domain: &str) -> Vec<String> {
    let service_form = name.ends_with(".svc");
    match name.split('.').count() {
        1 => vec![format!("{name}.{namespace}.svc.{domain}")],
        2 => vec![format!("{name}.svc.{domain}"), format!("{name}.{namespace}.svc.{domain}")],
        3 if service_form => vec![format!("{name}.{domain}"), format!("{name}.svc.{domain}")],
        3 => vec![format!("{name}.svc.{domain}")],
        4 if service_form => vec![format!("{name}.{domain}")],
        _ => Vec::new(),
    }
}

struct Found<'m> {
    service: &'m Arc<Service>,
    wildcard: bool,
}

/// The service called `name`, or the one with the closest wildcard above it.
fn lookup<'m>(mesh: &'m Mesh, name: &str, namespace: &str, domain: &str) -> Option<Found<'m>> {
    let eligible = |service: &&Arc<Service>| {
        // A service without an address can only be answered with its endpoints. That is right only for headless
        // Kubernetes services: an external name belongs to another DNS server. A service that was not understood is
        // refused under all its names, so no other server may be asked.
        !service.addresses.is_empty() || in_domain(&service.id.hostname, domain) || service.not_understood.is_some()
    };
    if let Some(service) = mesh.service_by_hostname(name, namespace).filter(eligible) {
        return Some(Found { service, wildcard: name.starts_with("*.") });
    }
    let mut rest = name;
    while let Some((_, parent)) = rest.split_once('.') {
        if let Some(service) = mesh.service_by_hostname(&format!("*.{parent}"), namespace).filter(eligible) {
            return Some(Found { service, wildcard: true });
        }
        rest = parent;
    }
    None
}

fn in_domain(hostname: &str, domain: &str) -> bool {
    hostname.strip_suffix(domain).is_some_and(|rest| rest.ends_with(".svc."))
}

/// The service's virtual addresses. If it has none, because it is headless, those of its endpoints.
pub(crate) fn addresses_of(mesh: &Mesh, service: &Service, network: &Name, family: Family) -> Vec<IpAddr> {
    let wanted = |address: &IpAddr| family.has(address) && service.ip_families.permit(address);
    if !service.addresses.is_empty() {
        let mine = service.addresses.iter().filter(|a| a.network == *network && wanted(&a.address));
        return mine.map(|a| a.address).collect();
    }
    ready(mesh, service)
        .map(|endpoint| &endpoint.workload)
        .filter(|w| w.network == *network)
        .filter_map(|w| w.addresses.iter().find(|a| wanted(a)).copied())
        .collect()
}

/// Fisher and Yates' shuffle. Resolvers and clients tend to take the first address.
fn shuffle(addresses: &mut [IpAddr], random: &mut dyn FnMut() -> u64) {
    for last in (1..addresses.len()).rev() {
        // The remainder is at most `last`, so it always fits.
        let other = usize::try_from(random() % (last as u64 + 1)).unwrap_or(0);
        addresses.swap(last, other);
    }
}

#[cfg(test)]
#[path = "dns_tests.rs"]
mod tests;
