//! What a cluster looks like: how many nodes, their names and addresses. The same numbers every time, so that what a test
//! or a person noted down still holds after the next `up`.

use std::net::{Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

/// The subnets of nodes and pods are numbered by node, in one byte.
pub(crate) const NODES_MAX: u8 = 100;

/// The bridge on the host that joins the nodes; the host has the first address of its subnets.
pub(crate) const BRIDGE: &str = "lcbr0";

pub(crate) const SERVICE_RANGE_4: &str = "10.96.0.0/16";
/// The first address of the services' range: the API server's own Service.
pub(crate) const API_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
pub(crate) const DNS_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
pub(crate) const HOST_4: Ipv4Addr = Ipv4Addr::new(172, 30, 0, 1);
const PODS_4: &str = "10.244.0.0/16";

/// A unique local prefix (RFC 4193): `Leno` in ASCII.
const PREFIX_6: [u16; 3] = [0xfd4c, 0x656e, 0x6f00];
pub(crate) const HOST_6: Ipv6Addr = Ipv6Addr::new(PREFIX_6[0], PREFIX_6[1], PREFIX_6[2], 0, 0, 0, 0, 1);
pub(crate) const SERVICE_RANGE_6: &str = "fd4c:656e:6f00:2::/112";
const PODS_6: &str = "fd4c:656e:6f00:100::/56";

/// Which addresses nodes, pods and services have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Families {
    /// IPv4 and IPv6; a Service has IPv4 alone unless it asks for both, as in any dual-stack cluster.
    Dual,
    /// IPv4 alone.
    Ipv4,
}

/// The shape that was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) nodes: u8,
    pub(crate) families: Families,
}

/// One node's names and addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Node {
    /// From one.
    pub(crate) number: u8,
}

impl Plan {
    pub(crate) fn nodes(&self) -> impl Iterator<Item = Node> + use<> {
        (1..=self.nodes).map(|number| Node { number })
    }

    pub(crate) fn dual(&self) -> bool {
        self.families == Families::Dual
    }

    pub(crate) fn service_ranges(&self) -> String {
        self.both(SERVICE_RANGE_4, SERVICE_RANGE_6)
    }

    pub(crate) fn pod_ranges(&self) -> String {
        self.both(PODS_4, PODS_6)
    }

    fn both(&self, v4: &str, v6: &str) -> String {
        if self.dual() { format!("{v4},{v6}") } else { v4.to_owned() }
    }

    /// What the kubelet tells of its node.
    pub(crate) fn node_addresses(&self, node: Node) -> String {
        self.both(&node.address_4().to_string(), &node.address_6().to_string())
    }
}

impl Node {
    pub(crate) fn name(self) -> String {
        format!("n{}", self.number)
    }

    /// The host's end of the cable to the node.
    pub(crate) fn cable(self) -> String {
        format!("lc{}", self.name())
    }

    pub(crate) fn address_4(self) -> Ipv4Addr {
        Ipv4Addr::new(172, 30, 0, 10 + self.number)
    }

    pub(crate) fn address_6(self) -> Ipv6Addr {
        Ipv6Addr::new(PREFIX_6[0], PREFIX_6[1], PREFIX_6[2], 0, 0, 0, 0, 0x10 + u16::from(self.number))
    }

    pub(crate) fn pods_4(self) -> String {
        format!("10.244.{}.0/24", self.number)
    }

    pub(crate) fn pods_6(self) -> String {
        let subnet = Ipv6Addr::new(PREFIX_6[0], PREFIX_6[1], PREFIX_6[2], 0x100 + u16::from(self.number), 0, 0, 0, 0);
        format!("{subnet}/64")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_addresses_of_their_own() {
        let plan = Plan { nodes: NODES_MAX, families: Families::Dual };
        let mut seen = std::collections::BTreeSet::new();
        for node in plan.nodes() {
            assert!(node.cable().len() < 16, "longer than a link's name may be");
            for address in [node.address_4().to_string(), node.address_6().to_string(), node.pods_4(), node.pods_6()] {
                assert!(seen.insert(address.clone()), "{address} twice");
            }
            assert!(node.pods_6().starts_with("fd4c:656e:6f00:1"), "outside the pods' range: {}", node.pods_6());
        }
    }

    #[test]
    fn ipv6_is_named_only_where_it_is_wanted() {
        let plan = Plan { nodes: 1, families: Families::Ipv4 };
        let node = Node { number: 1 };
        let all = [plan.service_ranges(), plan.pod_ranges(), plan.node_addresses(node)];
        assert!(all.iter().all(|text| !text.contains(':')), "{all:?}");
        let plan = Plan { nodes: 1, families: Families::Dual };
        assert_eq!(plan.node_addresses(node), "172.30.0.11,fd4c:656e:6f00::11");
    }
}
