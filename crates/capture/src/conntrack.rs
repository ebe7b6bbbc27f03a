//! Making a pod's existing connections known to connection tracking before anything is redirected.
//!
//! A namespace without firewall rules has no connection tracking. When the rules bring it, the next packet of an old connection
//! looks like the first packet of a new one, would be redirected to a proxy that knows nothing of it, and the connection would
//! be reset. Tracking entries for the sockets that exist prevent that. The obvious alternative, a rule that exempts packets
//! without SYN, would let a client that sends a forged ACK ahead of its SYN slip past the proxy.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use nix::sys::socket::SockProtocol;

use crate::error::{Error, Result};
use crate::netlink::links::octets;
use crate::netlink::message::{Attributes, Message};
use crate::netlink::socket::{NLM_F_CREATE, NLM_F_EXCL, Socket};
use crate::netns::NetworkNamespace;

// linux/netfilter/nfnetlink.h, nfnetlink_conntrack.h, nf_conntrack_common.h and nf_conntrack_tcp.h
const CT_NEW: u16 = 1 << 8;
const CT_GET: u16 = (1 << 8) | 1;
const CT_DELETE: u16 = (1 << 8) | 2;
const NFGENMSG: usize = 4;
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_STATUS: u16 = 3;
const CTA_PROTOINFO: u16 = 4;
const CTA_TIMEOUT: u16 = 7;
const CTA_ZONE: u16 = 18;
const IPS_SEEN_REPLY: u32 = 2;
const IPS_ASSURED: u32 = 4;
const IPS_CONFIRMED: u32 = 8;
const STATE_ESTABLISHED: u8 = 3;
/// Don't judge sequence numbers, whose history the entry doesn't have.
const BE_LIBERAL: u8 = 8;
/// The kernel's own lifetime of an idle connection: five days.
const TIMEOUT_SECONDS: u32 = 432_000;
const IPPROTO_TCP: u8 = 6;
const IPPROTO_UDP: u8 = 17;
const DNS_PORT: u16 = 53;

/// A TCP connection as the kernel lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Connection {
    local: SocketAddr,
    remote: SocketAddr,
}

/// Makes tracking entries for the TCP connections of the namespace and returns how many there are. Tracking must be active
/// already, so that no connection made meanwhile is missed.
pub(crate) fn keep_existing_connections(namespace: &NetworkNamespace) -> Result<usize> {
    let connections = list(namespace)?;
    if connections.is_empty() {
        return Ok(0);
    }
    let mut socket = Socket::open(namespace, SockProtocol::NetlinkNetFilter)?;
    for connection in &connections {
        let created = socket.request(entry(connection, true));
        let outcome = match created {
            // A packet of it was seen already. Unless one from the other side was seen too, address translation still takes
            // the connection for new; saying that replies were seen settles it.
            Err(refusal) if refusal.source.raw_os_error() == Some(libc::EEXIST) => {
                socket.request(entry(connection, false))
            }
            other => other,
        };
        match outcome {
            Ok(()) => {}
            // nfnetlink's answer when the kernel has no interface to connection tracking.
            Err(refusal) if matches!(refusal.source.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => {
                tracing::warn!(
                    %namespace, connections = connections.len(), error = %refusal.source,
                    "this kernel can't be told about existing connections (CONFIG_NF_CT_NETLINK); they will be reset"
                );
                return Ok(0);
            }
            // The connection ended meanwhile.
            Err(refusal) if refusal.source.raw_os_error() == Some(libc::ENOENT) => {}
            Err(refusal) => {
                let Connection { local, remote } = connection;
                return Err(refusal.into_error(format!("keeping the connection {local} - {remote}")));
            }
        }
    }
    Ok(connections.len())
}

/// Deletes the tracking entries of DNS over UDP in the namespace, and with them where each leads. What is asked from the same
/// port next is a new flow and meets the rules as they are now.
pub(crate) fn forget_dns(namespace: &NetworkNamespace) -> Result<()> {
    let mut socket = Socket::open(namespace, SockProtocol::NetlinkNetFilter)?;
    let entries = match socket.dump(&Message::new(CT_GET, 0, &[0; NFGENMSG])) {
        Ok(entries) => entries,
        // As above: a kernel without the interface.
        Err(refusal) if matches!(refusal.source.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => return Ok(()),
        Err(refusal) => return Err(refusal.into_error("listing tracked connections")),
    };
    for entry in entries.iter().filter(|entry| is_dns(Attributes::after(entry, NFGENMSG))) {
        let attributes = Attributes::after(entry, NFGENMSG);
        let (Some(family), Some(tuple)) = (entry.first(), attributes.find(CTA_TUPLE_ORIG)) else { continue };
        let mut message = Message::new(CT_DELETE, 0, &[*family, 0, 0, 0]);
        message.nested(CTA_TUPLE_ORIG, |message| {
            message.raw(tuple);
        });
        if let Some(zone) = attributes.find(CTA_ZONE) {
            message.attribute(CTA_ZONE, zone);
        }
        match socket.request(message) {
            Ok(()) => {}
            // It timed out meanwhile.
            Err(refusal) if refusal.source.raw_os_error() == Some(libc::ENOENT) => {}
            Err(refusal) => return Err(refusal.into_error("forgetting a DNS query")),
        }
    }
    Ok(())
}

fn is_dns(entry: Attributes<'_>) -> bool {
    let protocol = entry.nested(CTA_TUPLE_ORIG).and_then(|tuple| tuple.nested(2));
    protocol.is_some_and(|protocol| {
        protocol.find(1) == Some(&[IPPROTO_UDP][..]) && protocol.find(3) == Some(&DNS_PORT.to_be_bytes()[..])
    })
}

/// The message that creates a connection's entry, or marks an existing one as replied to.
fn entry(connection: &Connection, create: bool) -> Message {
    let Connection { local, remote } = *connection;
    let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let flags = if create { NLM_F_CREATE | NLM_F_EXCL } else { 0 };
    let mut message = Message::new(CT_NEW, flags, &[u8::try_from(family).unwrap_or_default(), 0, 0, 0]);
    // Who called whom isn't known and doesn't matter: both directions are left alone.
    tuple(&mut message, CTA_TUPLE_ORIG, local, remote);
    if create {
        tuple(&mut message, CTA_TUPLE_REPLY, remote, local);
        message.nested(CTA_PROTOINFO, |info| {
            info.nested(1, |tcp| {
                tcp.attribute(1, &[STATE_ESTABLISHED]);
                for direction in [4, 5] {
                    tcp.attribute(direction, &[BE_LIBERAL, BE_LIBERAL]);
                }
            });
        });
        message.be32(CTA_TIMEOUT, TIMEOUT_SECONDS);
    }
    message.be32(CTA_STATUS, IPS_SEEN_REPLY | IPS_ASSURED | IPS_CONFIRMED);
    message
}

fn tuple(message: &mut Message, kind: u16, from: SocketAddr, to: SocketAddr) {
    let (source, destination) = if from.is_ipv4() { (1, 2) } else { (3, 4) };
    message.nested(kind, |tuple| {
        tuple
            .nested(1, |ip| {
                ip.attribute(source, &octets(from.ip())).attribute(destination, &octets(to.ip()));
            })
            .nested(2, |protocol| {
                protocol
                    .attribute(1, &[IPPROTO_TCP])
                    .attribute(2, &from.port().to_be_bytes())
                    .attribute(3, &to.port().to_be_bytes());
            });
    });
}

fn list(namespace: &NetworkNamespace) -> Result<Vec<Connection>> {
    let mut connections = Vec::new();
    // Of the thread, not of the process: only the thread is in the namespace.
    for path in ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"] {
        match namespace.run(|| fs::read_to_string(path))? {
            Ok(table) => connections.extend(table.lines().filter_map(parse)),
            // tcp6 is absent on kernels without IPv6.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(Error::system(format!("listing connections of {namespace}"), e)),
        }
    }
    Ok(connections)
}

/// Reads a line of `/proc/net/tcp`: number, local and remote address in hexadecimal, state.
fn parse(line: &str) -> Option<Connection> {
    const TIME_WAIT: u8 = 6;
    const CLOSE: u8 = 7;
    const LISTEN: u8 = 10;
    let mut words = line.split_ascii_whitespace().skip(1);
    let (local, remote) = (parse_address(words.next()?)?, parse_address(words.next()?)?);
    let state = u8::from_str_radix(words.next()?, 16).ok()?;
    (!matches!(state, TIME_WAIT | CLOSE | LISTEN)).then_some(Connection { local, remote })
}

/// Reads `0100007F:1F90`: words of 32 bits in network order, printed as numbers of this machine's order.
fn parse_address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let word =
        |index: usize| u32::from_str_radix(address.get(index * 8..index * 8 + 8)?, 16).ok().map(u32::to_ne_bytes);
    let ip = match address.len() {
        8 => IpAddr::from(Ipv4Addr::from(word(0)?)),
        32 => {
            let mut octets = [0; 16];
            for (index, chunk) in octets.chunks_exact_mut(4).enumerate() {
                chunk.copy_from_slice(&word(index)?);
            }
            IpAddr::from(Ipv6Addr::from(octets)).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn the_kernels_table_is_understood() {
        let header = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid";
        assert_eq!(parse(header), None);
        let established = "   1: 0100630A:1F90 0200630A:C350 01 00000000:00000000 00:00000000 00000000     0";
        let expected =
            Connection { local: "10.99.0.1:8080".parse().unwrap(), remote: "10.99.0.2:50000".parse().unwrap() };
        assert_eq!(parse(established), Some(expected));
        let mapped = "   2: 0000000000000000FFFF00000100630A:1F90 0000000000000000FFFF00000200630A:C350 08 0:0";
        assert_eq!(parse(mapped), Some(expected));
        let v6 = "   3: 000099FD000000000000000001000000:1F90 000099FD000000000000000002000000:C350 01 0:0";
        let v6 = parse(v6).unwrap();
        assert_eq!((v6.local, v6.remote), ("[fd99::1]:8080".parse().unwrap(), "[fd99::2]:50000".parse().unwrap()));
        let listening = "   0: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0";
        assert_eq!(parse(listening), None);
        for broken in ["", "1:", "1: 0100007F 0 0", "1: zz:1 zz:2 01", "1: 0100007F:1F90 0100007F:1F90"] {
            assert_eq!(parse(broken), None, "{broken}");
        }
    }
}
