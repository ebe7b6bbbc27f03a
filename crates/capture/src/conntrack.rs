//! Makes a pod's existing connections known to connection tracking before anything is redirected.
//!
//! A namespace without firewall rules has no connection tracking. When the rules enable it, the next packet of an old
//! connection looks like the first packet of a new one. It would be redirected to a proxy that does not know the
//! connection, and the connection would be reset. Tracking entries for the existing sockets prevent that. The obvious
//! alternative, a rule that exempts packets without SYN, would let a client bypass the proxy by sending a forged ACK
//! before its SYN.

use std::collections::HashSet;
use std::net::SocketAddr;

use nix::sys::socket::SockProtocol;

use crate::connections::{self, Connection};
use crate::error::Result;
use crate::netlink::links::octets;
use crate::netlink::message::{Attributes, Message};
use crate::netlink::socket::{NLM_F_CREATE, NLM_F_EXCL, Refusal, Socket};
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
/// Don't check sequence numbers, because the entry does not know their history.
const BE_LIBERAL: u8 = 8;
/// The kernel's own lifetime of an idle connection: five days.
const TIMEOUT_SECONDS: u32 = 432_000;
const IPPROTO_TCP: u8 = 6;
const IPPROTO_UDP: u8 = 17;
const DNS_PORT: u16 = 53;

/// Creates tracking entries for the TCP connections of the namespace. Tracking must be active already, so that no
/// connection made meanwhile is missed.
pub(crate) fn keep_existing_connections(namespace: &NetworkNamespace) -> Result<()> {
    let first = match connections::list(namespace) {
        Err(error) if connections::is_unknown(error.errno()) => {
            tracing::warn!(%namespace, %error, "this kernel can't list connections (CONFIG_INET_DIAG); they will be reset");
            return Ok(());
        }
        listed => listed?,
    };
    let mut socket = Socket::open(namespace, SockProtocol::NetlinkNetFilter)?;
    let Some(created) = keep(&mut socket, namespace, &first)? else { return Ok(()) };
    // Again: a list that is read in several steps can lack a connection that moved when a neighbour ended.
    let second = connections::list(namespace)?;
    let late = keep(&mut socket, namespace, second.difference(&first))?.unwrap_or_default();
    // A connection that ended before its entry was created has left an entry that would let the next one with the same
    // ports bypass the proxy, for days. It must be missing from two lists, for the reason above. Entries created by the
    // kernel end by themselves.
    let mut gone: Vec<_> = created.difference(&second).chain(&late).collect();
    if !gone.is_empty() {
        let third = connections::list(namespace)?;
        gone.retain(|connection| !third.contains(connection));
    }
    for connection in gone {
        let mut message = Message::new(CT_DELETE, 0, &[family(connection), 0, 0, 0]);
        tuple(&mut message, CTA_TUPLE_ORIG, connection.local, connection.remote);
        delete(&mut socket, message, "forgetting a connection that has ended")?;
    }
    Ok(())
}

/// Returns the connections that had no entry and have one now; `None`, with a warning, if the kernel has no interface
/// for it.
fn keep<'a>(
    socket: &mut Socket,
    namespace: &NetworkNamespace,
    connections: impl IntoIterator<Item = &'a Connection>,
) -> Result<Option<HashSet<Connection>>> {
    let mut created = HashSet::new();
    for connection in connections {
        let outcome = match socket.request(entry(connection, true)) {
            Ok(()) => {
                created.insert(*connection);
                Ok(())
            }
            // A packet of it was seen already. Unless one from the other side was seen as well, address translation
            // still takes the connection for a new one. Marking it as replied to settles that.
            Err(refusal) if refusal.source.raw_os_error() == Some(libc::EEXIST) => {
                socket.request(entry(connection, false))
            }
            other => other,
        };
        match outcome {
            Ok(()) => {}
            Err(refusal) if is_lacking(&refusal) => {
                tracing::warn!(
                    %namespace, error = %refusal.source,
                    "this kernel can't be told about existing connections (CONFIG_NF_CT_NETLINK); they will be reset"
                );
                return Ok(None);
            }
            // The connection ended meanwhile.
            Err(refusal) if refusal.source.raw_os_error() == Some(libc::ENOENT) => {}
            Err(refusal) => {
                let Connection { local, remote } = connection;
                return Err(refusal.into_error(format!("keeping the connection {local} - {remote}")));
            }
        }
    }
    Ok(Some(created))
}

/// Deletes the tracking entries of DNS over UDP in the namespace, and with them the redirection of each. The next query
/// from the same port is a new flow and follows the current rules.
pub(crate) fn forget_dns(namespace: &NetworkNamespace) -> Result<()> {
    let mut socket = Socket::open(namespace, SockProtocol::NetlinkNetFilter)?;
    let entries = match socket.dump(&Message::new(CT_GET, 0, &[0; NFGENMSG])) {
        Ok(entries) => entries,
        // A kernel without the interface, as above.
        Err(refusal) if is_lacking(&refusal) => return Ok(()),
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
        delete(&mut socket, message, "forgetting a DNS query")?;
    }
    Ok(())
}

fn delete(socket: &mut Socket, message: Message, operation: &str) -> Result<()> {
    match socket.request(message) {
        Ok(()) => Ok(()),
        // It timed out meanwhile.
        Err(refusal) if refusal.source.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        Err(refusal) => Err(refusal.into_error(operation)),
    }
}

/// nfnetlink's answer if the kernel has no interface to connection tracking. ENOENT means that a single entry is
/// missing.
fn is_lacking(refusal: &Refusal) -> bool {
    matches!(refusal.source.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP))
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
    let flags = if create { NLM_F_CREATE | NLM_F_EXCL } else { 0 };
    let mut message = Message::new(CT_NEW, flags, &[family(connection), 0, 0, 0]);
    // The direction of the connection is unknown and does not matter: neither direction is redirected.
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

fn family(connection: &Connection) -> u8 {
    let family = if connection.local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    u8::try_from(family).unwrap_or_default()
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
