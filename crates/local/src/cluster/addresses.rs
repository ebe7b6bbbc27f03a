//! The addresses of the stage. All of them are private to the stage's network namespaces, so the ranges can be
//! constants: they can't clash with the machine's own.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::stable_hash::fnv;

/// Most nodes a stage can have: a node's number is one byte of its pods' addresses.
pub const MAX_NODES: usize = 250;
/// Most pods a node can have at a time.
pub const MAX_PODS_PER_NODE: usize = 240;

/// Name of the interface in a node's namespace that leads to the other nodes.
pub const NODE_LINK: &str = "fabric0";
/// Name of the interface in a pod's namespace.
pub const POD_LINK: &str = "eth0";
/// Address of the cluster's DNS server, on every node.
pub const CLUSTER_DNS: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
/// Next hop of every pod, on the node's end of its link. IPv6 neighbours answer only for
/// addresses of the very interface, so it is a link-local one.
pub const POD_GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

/// The control plane's addresses on the fabric, IPv4 first.
pub fn control_plane() -> (Ipv4Addr, Ipv6Addr) {
    (Ipv4Addr::new(172, 30, 0, 1), Ipv6Addr::new(0xfd00, 0x172, 0x30, 0, 0, 0, 0, 1))
}

/// Addresses of the node with this number, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeAddresses {
    number: u8,
}

impl NodeAddresses {
    /// Addresses of node `number`, 1 to [`MAX_NODES`]; `None` outside.
    pub fn new(number: usize) -> Option<Self> {
        let number = u8::try_from(number).ok().filter(|n| *n > 0 && usize::from(*n) <= MAX_NODES)?;
        Some(Self { number })
    }

    /// Which node it is, from 1.
    pub(crate) fn number(&self) -> u8 {
        self.number
    }

    /// On the link to the other nodes.
    pub fn fabric_v4(&self) -> Ipv4Addr {
        Ipv4Addr::new(172, 30, 1, self.number)
    }

    /// On the link to the other nodes.
    pub fn fabric_v6(&self) -> Ipv6Addr {
        Ipv6Addr::new(0xfd00, 0x172, 0x30, 0, 0, 0, 1, u16::from(self.number))
    }

    /// Pods' next hop, and source of what the node sends them.
    pub fn gateway_v4(&self) -> Ipv4Addr {
        self.pod_v4(1)
    }

    /// The node's own address in its pods' range.
    pub fn gateway_v6(&self) -> Ipv6Addr {
        self.pod_v6(1)
    }

    /// Range of its pods, as address and prefix length.
    pub fn pods_v4(&self) -> (Ipv4Addr, u8) {
        (self.pod_v4(0), 24)
    }

    /// Range of its pods, as address and prefix length.
    pub fn pods_v6(&self) -> (Ipv6Addr, u8) {
        (self.pod_v6(0), 64)
    }

    /// Address of the pod in `slot`.
    pub fn pod_v4(&self, slot: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 244, self.number, slot)
    }

    /// Address of the pod in `slot`.
    pub fn pod_v6(&self, slot: u8) -> Ipv6Addr {
        Ipv6Addr::new(0xfd00, 0x10, 0x244, u16::from(self.number), 0, 0, 0, u16::from(slot))
    }
}

/// Slots for the pods of one node. A freed slot is used again as late as possible, so that what
/// still remembers an address doesn't reach the wrong pod.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    used: BTreeSet<u8>,
    last: u8,
}

impl Slots {
    const FIRST: u8 = 10;
    const COUNT: u8 = 240;

    pub(crate) fn take(&mut self) -> Option<u8> {
        for _ in 0..Self::COUNT {
            self.last = if self.last < Self::FIRST || self.last == Self::FIRST + Self::COUNT - 1 {
                Self::FIRST
            } else {
                self.last + 1
            };
            if self.used.insert(self.last) {
                return Some(self.last);
            }
        }
        None
    }

    pub(crate) fn free(&mut self, slot: u8) {
        self.used.remove(&slot);
    }
}

/// The virtual addresses of services: derived from the service's name, so that they are the same
/// in every run unless two names collide.
#[derive(Debug, Default)]
pub(crate) struct VirtualAddresses {
    taken: BTreeSet<IpAddr>,
}

impl VirtualAddresses {
    /// Marks an address that a manifest names.
    pub(crate) fn reserve(&mut self, address: IpAddr) -> bool {
        self.taken.insert(address)
    }

    /// An IPv4 address of 10.96.0.0/16 above the first 256, which are for fixed ones, and the
    /// IPv6 address of fd00:10:96::/112 with the same last 16 bits.
    pub(crate) fn allocate(&mut self, namespace: &str, name: &str) -> (Ipv4Addr, Ipv6Addr) {
        let start = fnv(format!("{namespace}/{name}").as_bytes());
        for step in 0..0xff00_u64 {
            let offset = u16::try_from(0x100 + start.wrapping_add(step) % 0xfe00).unwrap_or(0x100);
            let [high, low] = offset.to_be_bytes();
            let v4 = Ipv4Addr::new(10, 96, high, low);
            let v6 = Ipv6Addr::new(0xfd00, 0x10, 0x96, 0, 0, 0, 0, offset);
            if !self.taken.contains(&v4.into()) && !self.taken.contains(&v6.into()) {
                self.taken.insert(v4.into());
                self.taken.insert(v6.into());
                return (v4, v6);
            }
        }
        // 65 000 services on one machine: the address is shared, which the mesh model tolerates.
        (Ipv4Addr::new(10, 96, 255, 254), Ipv6Addr::new(0xfd00, 0x10, 0x96, 0, 0, 0, 0, 0xfffe))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_unique_and_reused_late() {
        let mut slots = Slots::default();
        let first = slots.take().unwrap();
        slots.free(first);
        let mut seen = BTreeSet::new();
        for _ in 0..MAX_PODS_PER_NODE {
            assert!(seen.insert(slots.take().unwrap()));
        }
        assert_eq!(slots.take(), None);
        assert!(seen.contains(&first) && !seen.contains(&0) && !seen.contains(&1) && !seen.contains(&255));
        slots.free(first);
        assert_eq!(slots.take(), Some(first));
    }

    #[test]
    fn virtual_addresses_are_stable_and_unique() {
        let (mut one, mut other) = (VirtualAddresses::default(), VirtualAddresses::default());
        let mut seen = BTreeSet::new();
        for number in 0..2000 {
            let name = format!("service-{number}");
            let (v4, v6) = one.allocate("default", &name);
            assert!(seen.insert(v4) && v4 != CLUSTER_DNS && v4.octets()[..2] == [10, 96]);
            assert_eq!(v6.segments()[..3], [0xfd00, 0x10, 0x96]);
        }
        let mut again = VirtualAddresses::default();
        assert_eq!(other.allocate("a", "b"), again.allocate("a", "b"));
    }

    #[test]
    fn nodes_have_their_own_ranges() {
        assert!(NodeAddresses::new(0).is_none() && NodeAddresses::new(251).is_none());
        let (a, b) = (NodeAddresses::new(1).unwrap(), NodeAddresses::new(2).unwrap());
        assert_ne!(a.fabric_v4(), b.fabric_v4());
        assert_eq!(a.pod_v4(10), Ipv4Addr::new(10, 244, 1, 10));
        assert_eq!(b.pod_v6(10).to_string(), "fd00:10:244:2::a");
    }
}
