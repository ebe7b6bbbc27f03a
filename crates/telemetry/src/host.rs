//! Which addresses belong to one host, where shares are counted by address.

use std::net::{IpAddr, Ipv6Addr};

/// The host that an address belongs to. Whoever has an IPv6 address has the 2^64 addresses of its network (RFC 4291
/// §2.5.4).
pub fn one_host(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64)),
        v4 => v4,
    }
}
