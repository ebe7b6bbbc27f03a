//! Links, addresses and sysctls of a network namespace. Every function opens its own netlink socket in the namespace it is
//! given, so none of them moves the caller.

use std::fs;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};

use nix::sys::socket::SockProtocol;

use super::message::{Attributes, Message, u32_at};
use super::socket::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, Socket};
use crate::error::{Error, Result};
use crate::netns::NetworkNamespace;

pub use super::routes::{
    PolicyRule, Route, RouteKind, TABLE_MAIN, add_policy_rule, add_route, delete_policy_rule, delete_route,
    is_own_address, list_policy_rules, list_routes,
};

const IFINFOMSG: usize = 16;
const IFADDRMSG: usize = 8;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFF_UP: u32 = libc::IFF_UP.cast_unsigned();

/// One network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Its number inside its namespace; 1 is `lo`.
    pub index: u32,
    /// Its name, such as `eth0`.
    pub name: String,
    /// Whether it is administratively up.
    pub up: bool,
    /// Largest packet in bytes.
    pub mtu: u32,
    /// Hardware address, where it has one of six bytes.
    pub mac: Option<[u8; 6]>,
    /// Number of the bridge that it is a port of.
    pub master: Option<u32>,
    /// The kind of its driver: `veth`, `bridge`, `dummy`; absent for `lo` and hardware.
    pub kind: Option<String>,
}

/// One address of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkAddress {
    /// The interface's number.
    pub index: u32,
    /// The address.
    pub address: IpAddr,
    /// Length of the on-link prefix in bits.
    pub prefix_length: u8,
}

/// Optional properties of a pair of virtual Ethernet interfaces.
#[derive(Debug, Clone, Copy, Default)]
pub struct VethOptions {
    /// Largest packet in bytes, for both ends; the kernel's default is 1500.
    pub mtu: Option<u32>,
    /// Hardware address of the first end; random otherwise.
    pub mac: Option<[u8; 6]>,
    /// Hardware address of the second end; random otherwise.
    pub peer_mac: Option<[u8; 6]>,
}

/// Creates a virtual cable: `name` in `namespace` and `peer_name` in `peer_namespace`. Both ends start down.
///
/// # Errors
/// When a name is taken or unusable, or the caller lacks CAP_NET_ADMIN in either namespace.
pub fn create_veth(
    namespace: &NetworkNamespace,
    name: &str,
    peer_namespace: &NetworkNamespace,
    peer_name: &str,
    options: &VethOptions,
) -> Result<()> {
    check_name(name)?;
    check_name(peer_name)?;
    // The kernel takes a descriptor here; it is borrowed until the request has been answered.
    let peer_fd = peer_namespace.as_fd().as_raw_fd().cast_unsigned();
    let mut message = new_link(name, NLM_F_CREATE | NLM_F_EXCL);
    optional_link_attributes(&mut message, options.mtu, options.mac);
    message.nested(IFLA_LINKINFO, |info| {
        info.string(IFLA_INFO_KIND, "veth").nested(IFLA_INFO_DATA, |data| {
            data.nested(VETH_INFO_PEER, |peer| {
                peer.raw(&[0; IFINFOMSG]).string(IFLA_IFNAME, peer_name).u32(IFLA_NET_NS_FD, peer_fd);
                optional_link_attributes(peer, options.mtu, options.peer_mac);
            });
        });
    });
    request(namespace, message, || format!("creating veth pair {name}-{peer_name}"))
}

/// Creates a bridge, which starts down.
///
/// # Errors
/// When the name is taken or unusable, or the caller lacks CAP_NET_ADMIN.
pub fn create_bridge(namespace: &NetworkNamespace, name: &str) -> Result<()> {
    check_name(name)?;
    let mut message = new_link(name, NLM_F_CREATE | NLM_F_EXCL);
    message.nested(IFLA_LINKINFO, |info| {
        info.string(IFLA_INFO_KIND, "bridge");
    });
    request(namespace, message, || format!("creating bridge {name}"))
}

/// Makes `name` a port of the bridge `master`.
///
/// # Errors
/// When either doesn't exist or the caller lacks CAP_NET_ADMIN.
pub fn set_master(namespace: &NetworkNamespace, name: &str, master: &str) -> Result<()> {
    let index = link_index(namespace, master)?;
    let mut message = new_link(name, 0);
    message.u32(IFLA_MASTER, index);
    request(namespace, message, || format!("making {name} a port of {master}"))
}

/// Brings an interface up. Does nothing when it is.
///
/// # Errors
/// When it doesn't exist or the caller lacks CAP_NET_ADMIN.
pub fn set_up(namespace: &NetworkNamespace, name: &str) -> Result<()> {
    set_flags(namespace, name, IFF_UP)
}

/// Takes an interface down, which also drops its routes.
///
/// # Errors
/// When it doesn't exist or the caller lacks CAP_NET_ADMIN.
pub fn set_down(namespace: &NetworkNamespace, name: &str) -> Result<()> {
    set_flags(namespace, name, 0)
}

fn set_flags(namespace: &NetworkNamespace, name: &str, flags: u32) -> Result<()> {
    check_name(name)?;
    let mut message = Message::new(libc::RTM_NEWLINK, 0, &ifinfomsg(flags, IFF_UP));
    message.string(IFLA_IFNAME, name);
    request(namespace, message, || format!("bringing {name} {}", if flags == 0 { "down" } else { "up" }))
}

/// Removes an interface; of a veth pair, both ends. One that doesn't exist is not an error.
///
/// # Errors
/// When the caller lacks CAP_NET_ADMIN or the interface can't be removed, as `lo`.
pub fn delete_link(namespace: &NetworkNamespace, name: &str) -> Result<()> {
    check_name(name)?;
    let mut message = Message::new(libc::RTM_DELLINK, 0, &ifinfomsg(0, 0));
    message.string(IFLA_IFNAME, name);
    tolerate(request(namespace, message, || format!("removing {name}")), &[libc::ENODEV])
}

/// Gives an interface an address with its on-link prefix. Does nothing when it has it.
///
/// IPv6 addresses skip duplicate address detection: during the second or two that it takes nothing can be bound to the
/// address, and inside a namespace wired by its creator there is nobody to collide with.
///
/// # Errors
/// When the interface doesn't exist, the kernel has no IPv6, or the caller lacks CAP_NET_ADMIN.
pub fn add_address(namespace: &NetworkNamespace, name: &str, address: IpAddr, prefix_length: u8) -> Result<()> {
    let message = address_message(namespace, name, address, prefix_length)?;
    let outcome = request(namespace, message, || format!("adding address {address}/{prefix_length} to {name}"));
    tolerate(outcome, &[libc::EEXIST])
}

fn address_message(namespace: &NetworkNamespace, name: &str, address: IpAddr, prefix_length: u8) -> Result<Message> {
    let index = link_index(namespace, name)?;
    let flags = if address.is_ipv6() { libc::IFA_F_NODAD } else { 0 };
    let mut fixed = [0; IFADDRMSG];
    fixed[0] = family(address);
    fixed[1] = prefix_length;
    fixed[2] = u8::try_from(flags).unwrap_or_default();
    fixed[4..8].copy_from_slice(&index.to_ne_bytes());
    let mut message = Message::new(libc::RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, &fixed);
    let octets = octets(address);
    message.attribute(IFA_LOCAL, &octets).attribute(IFA_ADDRESS, &octets);
    Ok(message)
}

/// All interfaces of a namespace.
///
/// # Errors
/// When the namespace can't be entered.
pub fn list_links(namespace: &NetworkNamespace) -> Result<Vec<Link>> {
    let message = Message::new(libc::RTM_GETLINK, 0, &ifinfomsg(0, 0));
    let bodies = Socket::open(namespace, SockProtocol::NetlinkRoute)?
        .dump(&message)
        .map_err(|refusal| refusal.into_error("listing links"))?;
    Ok(bodies.iter().filter_map(|body| parse_link(body)).collect())
}

fn parse_link(body: &[u8]) -> Option<Link> {
    let attributes = Attributes::after(body, IFINFOMSG);
    Some(Link {
        index: u32_at(body, 4)?,
        name: attributes.string(IFLA_IFNAME)?,
        up: u32_at(body, 8)? & IFF_UP != 0,
        mtu: attributes.find(IFLA_MTU).and_then(|v| u32_at(v, 0)).unwrap_or_default(),
        mac: attributes.find(IFLA_ADDRESS).and_then(|v| v.try_into().ok()).filter(|mac| *mac != [0; 6]),
        master: attributes.find(IFLA_MASTER).and_then(|v| u32_at(v, 0)),
        kind: attributes.nested(IFLA_LINKINFO).and_then(|info| info.string(IFLA_INFO_KIND)),
    })
}

/// All addresses of a namespace.
///
/// # Errors
/// When the namespace can't be entered.
pub fn list_addresses(namespace: &NetworkNamespace) -> Result<Vec<LinkAddress>> {
    let message = Message::new(libc::RTM_GETADDR, 0, &[0; IFADDRMSG]);
    let bodies = Socket::open(namespace, SockProtocol::NetlinkRoute)?
        .dump(&message)
        .map_err(|refusal| refusal.into_error("listing addresses"))?;
    Ok(bodies.iter().filter_map(|body| parse_address(body)).collect())
}

fn parse_address(body: &[u8]) -> Option<LinkAddress> {
    let attributes = Attributes::after(body, IFADDRMSG);
    // On point-to-point links IFA_ADDRESS is the far end; IFA_LOCAL, where present, is always ours.
    let octets = attributes.find(IFA_LOCAL).or_else(|| attributes.find(IFA_ADDRESS))?;
    Some(LinkAddress { index: u32_at(body, 4)?, address: address_from(octets)?, prefix_length: *body.get(1)? })
}

/// The number of an interface.
///
/// # Errors
/// ENODEV when there is none of this name.
pub fn link_index(namespace: &NetworkNamespace, name: &str) -> Result<u32> {
    check_name(name)?;
    let mut message = Message::new(libc::RTM_GETLINK, 0, &ifinfomsg(0, 0));
    message.string(IFLA_IFNAME, name);
    let operation = || format!("looking up interface {name}");
    let body = Socket::open(namespace, SockProtocol::NetlinkRoute)?
        .get(message)
        .map_err(|refusal| refusal.into_error(operation()))?;
    u32_at(&body, 4).ok_or_else(|| Error::Malformed { operation: operation(), reason: "it is too short" })
}

/// Whether this kernel can do IPv6 at all in the namespace: compiled in and not switched off at boot.
///
/// # Errors
/// When the namespace can't be entered.
pub fn has_ipv6(namespace: &NetworkNamespace) -> Result<bool> {
    let probe = namespace.run(|| {
        nix::sys::socket::socket(
            nix::sys::socket::AddressFamily::Inet6,
            nix::sys::socket::SockType::Datagram,
            nix::sys::socket::SockFlag::SOCK_CLOEXEC,
            None,
        )
    })?;
    match probe {
        Ok(_) => Ok(true),
        Err(nix::Error::EAFNOSUPPORT) => Ok(false),
        Err(e) => Err(Error::system("probing for IPv6", e)),
    }
}

/// Sets a sysctl, named with dots (`net.ipv4.ip_forward`) or slashes (for interface names that contain dots).
///
/// # Errors
/// When it doesn't exist, the value is refused or `/proc/sys` is read-only.
pub fn set_sysctl(namespace: &NetworkNamespace, name: &str, value: &str) -> Result<()> {
    let path = sysctl_path(name)?;
    namespace
        .run(|| fs::write(&path, value))?
        .map_err(|e| Error::system(format!("setting sysctl {name} to {value}"), e))
}

/// Reads a sysctl, without the trailing line break.
///
/// # Errors
/// When it doesn't exist.
pub fn get_sysctl(namespace: &NetworkNamespace, name: &str) -> Result<String> {
    let path = sysctl_path(name)?;
    let text =
        namespace.run(|| fs::read_to_string(&path))?.map_err(|e| Error::system(format!("reading sysctl {name}"), e))?;
    Ok(text.trim_end().to_owned())
}

/// Lets a namespace route between its interfaces: IPv4, and IPv6 where the kernel has it.
///
/// # Errors
/// As [`set_sysctl`].
pub fn enable_forwarding(namespace: &NetworkNamespace) -> Result<()> {
    set_sysctl(namespace, "net.ipv4.ip_forward", "1")?;
    // A missing file means a kernel without IPv6, where there is nothing to forward.
    tolerate(set_sysctl(namespace, "net.ipv6.conf.all.forwarding", "1"), &[libc::ENOENT])
}

/// Makes addresses usable at once on interfaces created from now on, the link-local ones included, and stops the kernel from
/// taking routes from router advertisements. Does nothing on a kernel without IPv6.
///
/// # Errors
/// As [`set_sysctl`].
pub fn disable_address_detection(namespace: &NetworkNamespace) -> Result<()> {
    for name in ["accept_dad", "accept_ra"] {
        for scope in ["all", "default"] {
            tolerate(set_sysctl(namespace, &format!("net.ipv6.conf.{scope}.{name}"), "0"), &[libc::ENOENT])?;
        }
    }
    Ok(())
}

/// Stops the kernel from dropping packets whose source it would route elsewhere, on existing and future interfaces. New
/// namespaces inherit the host's setting, which distributions make strict.
///
/// # Errors
/// As [`set_sysctl`].
pub fn disable_reverse_path_filter(namespace: &NetworkNamespace) -> Result<()> {
    set_sysctl(namespace, "net.ipv4.conf.default.rp_filter", "0")?;
    set_sysctl(namespace, "net.ipv4.conf.all.rp_filter", "0")?;
    // The kernel applies the stricter of `all` and the interface's own value.
    for link in list_links(namespace)? {
        set_sysctl(namespace, &format!("net/ipv4/conf/{}/rp_filter", link.name), "0")?;
    }
    Ok(())
}

/// Makes the namespace's bridges plain switches. Where the kernel has br_netfilter, each packet that crosses a bridge is otherwise
/// taken through the rules of IP as if it were routed there.
///
/// # Errors
/// As [`set_sysctl`]; a kernel without br_netfilter is none.
pub fn disable_bridge_filter(namespace: &NetworkNamespace) -> Result<()> {
    for name in ["iptables", "ip6tables", "arptables"] {
        tolerate(set_sysctl(namespace, &format!("net.bridge.bridge-nf-call-{name}"), "0"), &[libc::ENOENT])?;
    }
    Ok(())
}

fn sysctl_path(name: &str) -> Result<String> {
    let path = if name.contains('/') { name.to_owned() } else { name.replace('.', "/") };
    // Interface names end up in here; without this one could reach outside /proc/sys.
    if !path.starts_with("net/") || path.split('/').any(|part| part.is_empty() || part == "." || part == "..") {
        return Err(Error::InvalidName {
            name: name.into(),
            what: "sysctl",
            reason: "it must be a path of plain parts that starts with net",
        });
    }
    Ok(format!("/proc/sys/{path}"))
}

pub(super) fn request(
    namespace: &NetworkNamespace,
    message: Message,
    operation: impl FnOnce() -> String,
) -> Result<()> {
    Socket::open(namespace, SockProtocol::NetlinkRoute)?
        .request(message)
        .map_err(|refusal| refusal.into_error(operation()))
}

/// Turns refusals that mean "it is already so" into success.
pub(super) fn tolerate(outcome: Result<()>, errnos: &[i32]) -> Result<()> {
    match outcome {
        Err(error) if error.errno().is_some_and(|errno| errnos.contains(&errno)) => Ok(()),
        other => other,
    }
}

fn new_link(name: &str, flags: u16) -> Message {
    let mut message = Message::new(libc::RTM_NEWLINK, flags, &ifinfomsg(0, 0));
    message.string(IFLA_IFNAME, name);
    message
}

fn optional_link_attributes(message: &mut Message, mtu: Option<u32>, mac: Option<[u8; 6]>) {
    if let Some(mtu) = mtu {
        message.u32(IFLA_MTU, mtu);
    }
    if let Some(mac) = mac {
        message.attribute(IFLA_ADDRESS, &mac);
    }
}

/// `struct ifinfomsg`: family, padding, device type, index, flags, change mask.
fn ifinfomsg(flags: u32, change: u32) -> [u8; IFINFOMSG] {
    let mut fixed = [0; IFINFOMSG];
    fixed[8..12].copy_from_slice(&flags.to_ne_bytes());
    fixed[12..16].copy_from_slice(&change.to_ne_bytes());
    fixed
}

/// The kernel's own rules for interface names (`dev_valid_name`), checked here for a better message than EINVAL.
fn check_name(name: &str) -> Result<()> {
    let reason = if name.is_empty() || name.len() >= libc::IFNAMSIZ {
        "it must have 1 to 15 bytes"
    } else if name == "." || name == ".." || name.contains(['/', ':', '\0']) || name.contains(char::is_whitespace) {
        "it must not contain '/', ':' or white space"
    } else {
        return Ok(());
    };
    Err(Error::InvalidName { name: name.into(), what: "interface name", reason })
}

pub(super) fn family(address: IpAddr) -> u8 {
    // AF_INET is 2 and AF_INET6 is 10; the structures have one byte for them.
    u8::try_from(if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }).unwrap_or_default()
}

pub(crate) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

pub(crate) fn address_from(octets: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(octets) {
        return Some(IpAddr::from(v4));
    }
    <[u8; 16]>::try_from(octets).ok().map(IpAddr::from)
}

// Route messages share these two with links.
pub(super) const CREATE_ONLY: u16 = NLM_F_CREATE | NLM_F_EXCL;
pub(super) const CREATE_OR_REPLACE: u16 = NLM_F_CREATE | NLM_F_REPLACE;

#[cfg(test)]
#[path = "links_tests.rs"]
mod tests;
