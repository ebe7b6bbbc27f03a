//! The rules in a node's own network namespace that make the kubelet's health checks recognisable in a pod.
//!
//! The kubelet does not speak HBONE. Under a policy that requires mutual TLS its checks would fail, and the pod would be
//! restarted. So these rules give connections from the kubelet's user to a captured pod a source address that nobody else
//! has ([`PROBE_SOURCE_V4`]), and the pod's rules let that address pass untouched ([`crate::pod_rules`]). Istio uses the
//! same addresses in the same way.
//!
//! Whoever can send from this address bypasses the mesh. So the node drops packets with this source that come in from
//! elsewhere. Where the kernel has nf_tables for bridges, it also drops those that one pod sends another over a bridge.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use crate::error::Result;
use crate::netns::NetworkNamespace;
use crate::nft::{self, Batch, Chain, ChainType, Content, Family, Hook, Problem, Protocol, Rule, SetType, Table};
use crate::pod_rules::{PROBE_SOURCE_V4, PROBE_SOURCE_V6};

/// The table, once for packets and once for frames that pass a bridge.
const TABLE: &str = "leno-probes";
const POSTROUTING: &str = "postrouting";
const PREROUTING: &str = "prerouting";
const FORWARD: &str = "forward";
/// The captured pods' addresses.
const SETS: [(&str, SetType); 2] = [("pods-v4", SetType::Ipv4Address), ("pods-v6", SetType::Ipv6Address)];
/// Before the priority at which others translate sources (100), because the first translation of a connection decides.
const BEFORE_OTHERS: i32 = 95;
/// Before connection tracking (-200): what is dropped here leaves no entry.
const BEFORE_TRACKING: i32 = -300;

/// Whose connections count as health checks, and what they are made to look like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeRules {
    /// User that the kubelet runs as. Other processes of this user in the node's own namespace look the same.
    pub kubelet_uid: u32,
    /// Source of IPv4 health checks.
    pub source_v4: std::net::Ipv4Addr,
    /// Source of IPv6 health checks.
    pub source_v6: std::net::Ipv6Addr,
}

impl Default for ProbeRules {
    fn default() -> Self {
        Self { kubelet_uid: 0, source_v4: PROBE_SOURCE_V4, source_v6: PROBE_SOURCE_V6 }
    }
}

/// Installs the rules for the pods of these addresses, or replaces those that are there, in one step. Connections that
/// exist go on.
///
/// # Errors
/// When the kernel has no nf_tables, or the caller lacks CAP_NET_ADMIN in the namespace.
pub fn install(namespace: &NetworkNamespace, rules: &ProbeRules, pods: &BTreeSet<IpAddr>) -> Result<()> {
    let content = rules.packets();
    let mut batch = Batch::new();
    batch.replace_table(&content.table);
    for (name, kind) in SETS {
        batch.add_set(&content.table, name, kind);
        let members: Vec<_> = pods.iter().copied().filter(|ip| kind_of(*ip) == kind).collect();
        batch.add_elements(&content.table, name, &members);
    }
    content.add_to(&mut batch);
    batch.commit(namespace)?;
    let frames = rules.frames();
    let mut batch = Batch::new();
    batch.remove_table(&frames.table);
    frames.add_to(&mut batch);
    if let Err(error) = batch.commit(namespace) {
        tracing::warn!(
            %error,
            "pods on one bridge can send each other what looks like a health check, because the rules for bridged frames \
             can't be installed; use a kernel that has nf_tables for bridges (CONFIG_NF_TABLES_BRIDGE), or a pod \
             network without bridges"
        );
    }
    Ok(())
}

/// The differences from a fresh [`install`]; empty if there are none.
///
/// # Errors
/// When the namespace can't be examined.
pub fn check(namespace: &NetworkNamespace, rules: &ProbeRules, pods: &BTreeSet<IpAddr>) -> Result<Vec<Problem>> {
    let content = rules.packets();
    let tables = installed(namespace)?;
    if !tables.contains(&content.table) {
        return Ok(vec![Problem::Missing(format!("table {}", content.table))]);
    }
    let mut problems = Vec::new();
    content.check(namespace, &mut problems)?;
    let mut found = BTreeSet::new();
    for (name, _) in SETS {
        match nft::list_addresses(namespace, &content.table, name) {
            Ok(addresses) => found.extend(addresses),
            Err(error) if error.errno() == Some(libc::ENOENT) => problems.push(Problem::Missing(format!("set {name}"))),
            Err(error) => return Err(error),
        }
    }
    problems.extend(pods.difference(&found).map(|ip| Problem::Missing(format!("pod address {ip}"))));
    problems.extend(found.difference(pods).map(|ip| Problem::Unexpected(format!("pod address {ip}"))));
    let frames = rules.frames();
    if tables.contains(&frames.table) {
        frames.check(namespace, &mut problems)?;
    }
    Ok(problems)
}

/// Removes all traces.
///
/// # Errors
/// When the caller lacks CAP_NET_ADMIN in the namespace.
pub fn remove(namespace: &NetworkNamespace) -> Result<()> {
    let mut batch = Batch::new();
    for table in installed(namespace)? {
        batch.remove_table(&table);
    }
    if batch.is_empty() { Ok(()) } else { batch.commit(namespace) }
}

fn installed(namespace: &NetworkNamespace) -> Result<Vec<Table>> {
    let tables = nft::list_tables(namespace)?.into_iter().map(|info| info.table);
    Ok(tables.filter(|table| table.name == TABLE).collect())
}

fn kind_of(address: IpAddr) -> SetType {
    if address.is_ipv4() { SetType::Ipv4Address } else { SetType::Ipv6Address }
}

impl ProbeRules {
    fn sources(&self) -> [IpAddr; 2] {
        [self.source_v4.into(), self.source_v6.into()]
    }

    fn packets(&self) -> Content {
        let mut rules = Vec::new();
        for (source, (set, kind)) in self.sources().into_iter().zip(SETS) {
            let probe = Rule::new().l4proto(Protocol::Tcp).socket_owner(self.kubelet_uid).daddr_in(set, kind);
            rules.push((POSTROUTING, probe.counter().snat(SocketAddr::new(source, 0))));
            rules.push((PREROUTING, Rule::new().input_interface_not("lo").saddr(source).counter().drop()));
        }
        Content {
            table: Table::new(Family::Inet, TABLE),
            chains: vec![
                Chain::base(POSTROUTING, ChainType::Nat, Hook::Postrouting, BEFORE_OTHERS),
                Chain::base(PREROUTING, ChainType::Filter, Hook::Prerouting, BEFORE_TRACKING),
            ],
            rules,
        }
    }

    /// What goes from one port of a bridge to another. The node's own packets don't pass here.
    fn frames(&self) -> Content {
        let forged = self.sources().map(|source| (FORWARD, Rule::new().bridged_saddr(source).counter().drop()));
        Content {
            table: Table::new(Family::Bridge, TABLE),
            chains: vec![Chain::base(FORWARD, ChainType::Filter, Hook::Forward, BEFORE_TRACKING)],
            rules: forged.into(),
        }
    }
}

#[cfg(test)]
#[path = "probe_rules_tests.rs"]
mod tests;
