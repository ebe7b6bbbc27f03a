//! Holding a pod's new connections while no proxy listens for them.
//!
//! The rules lead them to the proxy's ports ([`crate::pod_rules`]). Between two proxies nobody listens there, and the kernel
//! would refuse them: a program's connect fails at once, a resolver gives up on its question. Here that refusal is dropped on
//! its way out, so that the caller asks again by itself, as it does when a packet is lost: TCP after a second, a resolver after
//! its own patience. Nothing passes in the clear meanwhile: what is held is not led elsewhere.
//!
//! These rules match refusals, so they must be in place all the time. If they were installed when a proxy is seen to
//! have died, connections made before that would be refused. The installer removes them when no proxy comes, because a
//! program should learn soon that there is none.

use std::net::IpAddr;

use crate::error::Result;
use crate::netns::NetworkNamespace;
use crate::nft::{self, Batch, Chain, ChainType, Family, Hook, Protocol, Rule, Table};
use crate::pod_rules::{DNS_PORT, INBOUND_PORT, OUTBOUND_PORT, TUNNEL_PORT, lacks_inet};
use crate::sockets;

/// The table, in every family that it may be in.
const TABLE: &str = "leno-hold";
/// The chain for all packets that the pod's own kernel sends.
const OUTPUT: &str = "output";
/// The chain for refusals of TCP connections.
const REFUSED: &str = "refused";
/// Before address translation (-100), which would hide the port that refuses.
const PRIORITY: i32 = -300;

/// Holds new connections from now on. Repeating it is harmless.
///
/// # Errors
/// When the kernel has no nf_tables, or the caller lacks CAP_NET_ADMIN in the namespace.
pub fn install(namespace: &NetworkNamespace) -> Result<()> {
    sockets::hand_on_what_waits(namespace);
    match table(Family::Inet).commit(namespace) {
        Err(error) if lacks_inet(&error) => table(Family::Ipv4).commit(namespace),
        other => other,
    }
}

/// Has the kernel refuse what nobody takes, again.
///
/// # Errors
/// When the caller lacks CAP_NET_ADMIN in the namespace.
pub fn remove(namespace: &NetworkNamespace) -> Result<()> {
    let mut batch = Batch::new();
    for info in nft::list_tables(namespace)?.into_iter().filter(|info| info.table.name == TABLE) {
        batch.remove_table(&info.table);
    }
    if batch.is_empty() { Ok(()) } else { batch.commit(namespace) }
}

/// Whether new connections are held.
///
/// # Errors
/// When the namespace can't be examined.
pub fn is_installed(namespace: &NetworkNamespace) -> Result<bool> {
    Ok(nft::list_tables(namespace)?.iter().any(|info| info.table.name == TABLE && info.objects > 0))
}

fn table(family: Family) -> Batch {
    let table = Table::new(family, TABLE);
    let mut batch = Batch::new();
    batch.replace_table(&table);
    batch.add_chain(&table, Chain::base(OUTPUT, ChainType::Filter, Hook::Output, PRIORITY));
    batch.add_chain(&table, Chain::regular(REFUSED));
    let tcp = || Rule::new().l4proto(Protocol::Tcp);
    batch.add_rule(&table, OUTPUT, tcp().refusal().jump(REFUSED));
    let loopbacks = [IpAddr::from([127, 0, 0, 1]), IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1])];
    for loopback in loopbacks.into_iter().filter(|ip| ip.is_ipv4() || family != Family::Ipv4) {
        batch.add_rule(&table, OUTPUT, Rule::new().saddr(loopback).udp_port_unreachable(DNS_PORT).counter().drop());
    }
    for port in [OUTBOUND_PORT, INBOUND_PORT, TUNNEL_PORT, DNS_PORT] {
        batch.add_rule(&table, REFUSED, tcp().sport(port).counter().drop());
    }
    batch
}

#[cfg(test)]
#[path = "pod_hold_tests.rs"]
mod tests;
