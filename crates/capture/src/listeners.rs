//! Which sockets listen in a network namespace? A proxy that ends sees this way that the next one has taken a pod over.

use std::collections::BTreeSet;

use nix::sys::socket::SockProtocol;

use crate::connections::{ID, ID_IN_MESSAGE, is_unknown, request};
use crate::error::Result;
use crate::netlink::socket::Socket;
use crate::netns::NetworkNamespace;

/// The bit of the state LISTEN (net/tcp_states.h).
const LISTEN: u32 = 1 << 10;
/// Offset of the inode in `struct inet_diag_msg`: after the id come expiry, both queues and the user, four bytes each.
const INODE: usize = ID_IN_MESSAGE + ID + 16;

/// Whether on each of these TCP ports a socket listens in the namespace that is not one of `own`, by inode number. The kernel
/// gives such a socket its share of new connections from the moment it shows here.
///
/// # Errors
/// When the namespace can't be examined.
pub fn others_listen(namespace: &NetworkNamespace, ports: &BTreeSet<u16>, own: &BTreeSet<u64>) -> Result<bool> {
    let mut socket = Socket::open(namespace, SockProtocol::NetlinkSockDiag)?;
    let mut others = BTreeSet::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        match socket.dump(&request(family, LISTEN)) {
            Ok(answers) => {
                let found = answers.iter().filter_map(|answer| parse(answer));
                others.extend(found.filter(|(_, inode)| !own.contains(inode)).map(|(port, _)| port));
            }
            // A kernel that doesn't have the family.
            Err(refusal) if family == libc::AF_INET6 && is_unknown(refusal.source.raw_os_error()) => {}
            Err(refusal) => return Err(refusal.into_error("listing the listening sockets of a pod")),
        }
    }
    Ok(ports.is_subset(&others))
}

/// Port and inode.
fn parse(answer: &[u8]) -> Option<(u16, u64)> {
    let port = u16::from_be_bytes(answer.get(ID_IN_MESSAGE..ID_IN_MESSAGE + 2)?.try_into().ok()?);
    let inode = u32::from_ne_bytes(answer.get(INODE..INODE + 4)?.try_into().ok()?);
    Some((port, u64::from(inode)))
}

#[cfg(test)]
#[path = "listeners_tests.rs"]
mod tests;
