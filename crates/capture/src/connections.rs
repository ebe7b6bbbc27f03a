//! Lists the TCP connections of a network namespace.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use nix::sys::socket::SockProtocol;

use crate::error::Result;
use crate::netlink::message::Message;
use crate::netlink::socket::Socket;
use crate::netns::NetworkNamespace;

// linux/sock_diag.h and inet_diag.h
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// Length of `struct inet_diag_sockid`: ports, addresses, interface, cookie.
pub(crate) const ID: usize = 48;
/// Its offset in `struct inet_diag_msg`: after family, state, timer and retransmissions.
pub(crate) const ID_IN_MESSAGE: usize = 4;
/// Bits of the states (net/tcp_states.h) of a connection that was requested and has not ended: all except TIME_WAIT
/// (6), CLOSE (7) and LISTEN (10). For connections that a peer is opening, the kernel has two states, SYN_RECV (3) and
/// NEW_SYN_RECV (12).
const OPEN: u32 = 0x1ffe & !(1 << 6 | 1 << 7 | 1 << 10);

/// A connection, or one that is being opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Connection {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
}

/// All connections of the namespace.
///
/// Not from `/proc/net/tcp`: the kernel finds a place in it by counting from the beginning, so with many new
/// connections the list never ends.
pub(crate) fn list(namespace: &NetworkNamespace) -> Result<HashSet<Connection>> {
    let mut socket = Socket::open(namespace, SockProtocol::NetlinkSockDiag)?;
    let mut connections = HashSet::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        match socket.dump(&request(family, OPEN)) {
            Ok(answers) => connections.extend(answers.iter().filter_map(|answer| parse(answer))),
            // The kernel does not have this address family.
            Err(refusal) if family == libc::AF_INET6 && is_unknown(refusal.source.raw_os_error()) => {}
            Err(refusal) => return Err(refusal.into_error("listing the TCP connections of a pod")),
        }
    }
    Ok(connections)
}

/// Whether a kernel can't list connections, or not those of this family.
pub(crate) fn is_unknown(errno: Option<i32>) -> bool {
    matches!(errno, Some(libc::ENOENT | libc::EOPNOTSUPP | libc::EAFNOSUPPORT | libc::EPROTONOSUPPORT))
}

/// `struct inet_diag_req_v2` for TCP sockets in these states, without conditions on addresses and ports.
pub(crate) fn request(family: i32, states: u32) -> Message {
    let mut fixed = [0; 8 + ID];
    let byte = |number: i32| u8::try_from(number).unwrap_or_default();
    (fixed[0], fixed[1]) = (byte(family), byte(libc::IPPROTO_TCP));
    fixed[4..8].copy_from_slice(&states.to_ne_bytes());
    Message::new(SOCK_DIAG_BY_FAMILY, 0, &fixed)
}

fn parse(answer: &[u8]) -> Option<Connection> {
    let is_v4 = i32::from(*answer.first()?) == libc::AF_INET;
    let id = answer.get(ID_IN_MESSAGE..ID_IN_MESSAGE + ID)?;
    let end = |port: usize, address: usize| -> Option<SocketAddr> {
        let port = u16::from_be_bytes(id.get(port..port + 2)?.try_into().ok()?);
        let ip = if is_v4 {
            let octets: [u8; 4] = id.get(address..address + 4)?.try_into().ok()?;
            IpAddr::from(Ipv4Addr::from(octets))
        } else {
            let octets: [u8; 16] = id.get(address..address + 16)?.try_into().ok()?;
            // A socket for both families shows IPv4 addresses as IPv6 ones.
            IpAddr::from(Ipv6Addr::from(octets)).to_canonical()
        };
        Some(SocketAddr::new(ip, port))
    };
    Some(Connection { local: end(0, 4)?, remote: end(2, 20)? })
}

#[cfg(test)]
#[path = "connections_tests.rs"]
mod tests;
