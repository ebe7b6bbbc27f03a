//! Routes and policy routing rules of a network namespace.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use nix::sys::socket::SockProtocol;

use super::links::{CREATE_ONLY, CREATE_OR_REPLACE, address_from, family, link_index, octets, request, tolerate};
use super::message::{Attributes, Message, u32_at};
use super::socket::Socket;
use crate::error::Result;
use crate::netns::NetworkNamespace;

/// The table that routes go to when nothing else is said.
pub const TABLE_MAIN: u32 = 254;

const RTMSG: usize = 12;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_PREFSRC: u16 = 7;
const RTA_TABLE: u16 = 15;
const FRA_PRIORITY: u16 = 6;
const FRA_FWMARK: u16 = 10;
const FRA_TABLE: u16 = 15;
const FRA_FWMASK: u16 = 16;
/// Marks what was set by an administrator rather than by a routing daemon (`linux/rtnetlink.h`).
const RTPROT_STATIC: u8 = 4;
const RT_SCOPE_UNIVERSE: u8 = 0;
const RT_SCOPE_LINK: u8 = 253;
const RT_SCOPE_HOST: u8 = 254;
const RTNH_F_ONLINK: u32 = 4;
const FR_ACT_TO_TBL: u8 = 1;

/// The treatment of packets that a route matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RouteKind {
    /// They leave through a device.
    #[default]
    Unicast,
    /// They are for this namespace itself.
    Local,
    /// They are dropped without a word.
    Blackhole,
    /// They are refused with an ICMP error.
    Unreachable,
}

impl RouteKind {
    fn number(self) -> u8 {
        match self {
            Self::Unicast => 1,
            Self::Local => 2,
            Self::Blackhole => 6,
            Self::Unreachable => 7,
        }
    }
}

/// A route. `Route::to(net).via(gateway).device("eth0")`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The addresses that it is for; prefix length 0 is the default route.
    pub destination: IpNet,
    /// The next router, of the same family as the destination.
    pub gateway: Option<IpAddr>,
    /// The outgoing interface; with a gateway the kernel finds it by itself.
    pub device: Option<String>,
    /// The source address for packets whose sender did not choose one.
    pub source: Option<IpAddr>,
    /// The routing table.
    pub table: u32,
    /// The metric; lower wins. Absent means the kernel's default.
    pub metric: Option<u32>,
    /// The treatment of the packets.
    pub kind: RouteKind,
    /// Whether the gateway is reachable on the device although no route says so.
    pub on_link: bool,
}

impl Route {
    /// A route to `destination` in the main table that still needs a gateway or a device.
    #[must_use]
    pub fn to(destination: impl Into<IpNet>) -> Self {
        Self {
            destination: destination.into(),
            gateway: None,
            device: None,
            source: None,
            table: TABLE_MAIN,
            metric: None,
            kind: RouteKind::Unicast,
            on_link: false,
        }
    }

    /// The default route of IPv4.
    #[must_use]
    pub fn default_v4() -> Self {
        Self::to(default_of(Ipv4Addr::UNSPECIFIED.into()))
    }

    /// The default route of IPv6.
    #[must_use]
    pub fn default_v6() -> Self {
        Self::to(default_of(Ipv6Addr::UNSPECIFIED.into()))
    }

    /// The route to one address.
    #[must_use]
    pub fn host(address: IpAddr) -> Self {
        Self::to(IpNet::from(address))
    }

    /// Sets the next router.
    #[must_use]
    pub fn via(mut self, gateway: IpAddr) -> Self {
        self.gateway = Some(gateway);
        self
    }

    /// Sets the outgoing interface.
    #[must_use]
    pub fn device(mut self, name: impl Into<String>) -> Self {
        self.device = Some(name.into());
        self
    }

    /// Sets the preferred source address.
    #[must_use]
    pub fn source(mut self, address: IpAddr) -> Self {
        self.source = Some(address);
        self
    }

    /// Sets the routing table.
    #[must_use]
    pub fn table(mut self, table: u32) -> Self {
        self.table = table;
        self
    }

    /// Sets the metric.
    #[must_use]
    pub fn metric(mut self, metric: u32) -> Self {
        self.metric = Some(metric);
        self
    }

    /// Sets what happens to the packets.
    #[must_use]
    pub fn kind(mut self, kind: RouteKind) -> Self {
        self.kind = kind;
        self
    }

    /// Says that the gateway is reachable on the device.
    #[must_use]
    pub fn on_link(mut self) -> Self {
        self.on_link = true;
        self
    }
}

fn default_of(unspecified: IpAddr) -> IpNet {
    match unspecified {
        IpAddr::V4(v4) => IpNet::V4(ipnet::Ipv4Net::new_assert(v4, 0)),
        IpAddr::V6(v6) => IpNet::V6(ipnet::Ipv6Net::new_assert(v6, 0)),
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            RouteKind::Unicast => {}
            RouteKind::Local => f.write_str("local ")?,
            RouteKind::Blackhole => f.write_str("blackhole ")?,
            RouteKind::Unreachable => f.write_str("unreachable ")?,
        }
        write!(f, "{}", self.destination)?;
        if let Some(gateway) = self.gateway {
            write!(f, " via {gateway}")?;
        }
        if let Some(device) = &self.device {
            write!(f, " dev {device}")?;
        }
        if self.table != TABLE_MAIN {
            write!(f, " table {}", self.table)?;
        }
        Ok(())
    }
}

/// A policy routing rule: packets with a mark are looked up in another table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyRule {
    /// Whether it is about IPv6 packets; the families have separate rule lists.
    pub ipv6: bool,
    /// The packet mark to match, and the bits of it that count. Absent: every packet.
    pub mark: Option<(u32, u32)>,
    /// Its place in the order; lower comes first. The main table is at 32766.
    pub priority: u32,
    /// The table to look in.
    pub table: u32,
}

impl fmt::Display for PolicyRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IPv{} rule", if self.ipv6 { 6 } else { 4 })?;
        if let Some((mark, mask)) = self.mark {
            write!(f, " fwmark {mark:#x}/{mask:#x}")?;
        }
        write!(f, " pref {} lookup {}", self.priority, self.table)
    }
}

/// Adds a route, or replaces the one to the same destination with the same metric.
///
/// # Errors
/// When the gateway is not reachable, the device doesn't exist or the caller lacks CAP_NET_ADMIN.
pub fn add_route(namespace: &NetworkNamespace, route: &Route) -> Result<()> {
    let message = route_message(libc::RTM_NEWROUTE, CREATE_OR_REPLACE, namespace, route)?;
    request(namespace, message, || format!("adding route {route}"))
}

/// Removes a route. One that doesn't exist is not an error.
///
/// # Errors
/// When the device doesn't exist or the caller lacks CAP_NET_ADMIN.
pub fn delete_route(namespace: &NetworkNamespace, route: &Route) -> Result<()> {
    let message = route_message(libc::RTM_DELROUTE, 0, namespace, route)?;
    tolerate(request(namespace, message, || format!("removing route {route}")), &[libc::ESRCH])
}

fn route_message(kind: u16, flags: u16, namespace: &NetworkNamespace, route: &Route) -> Result<Message> {
    let scope = match (route.kind, route.gateway) {
        (RouteKind::Local, _) => RT_SCOPE_HOST,
        (RouteKind::Unicast, None) => RT_SCOPE_LINK,
        _ => RT_SCOPE_UNIVERSE,
    };
    let mut fixed = [0; RTMSG];
    fixed[0] = family(route.destination.addr());
    fixed[1] = route.destination.prefix_len();
    // Tables above 255 are named by the attribute alone.
    fixed[4] = u8::try_from(route.table).unwrap_or_default();
    fixed[5] = RTPROT_STATIC;
    fixed[6] = scope;
    fixed[7] = route.kind.number();
    fixed[8..12].copy_from_slice(&(if route.on_link { RTNH_F_ONLINK } else { 0 }).to_ne_bytes());
    let mut message = Message::new(kind, flags, &fixed);
    if route.destination.prefix_len() > 0 {
        message.attribute(RTA_DST, &octets(route.destination.network()));
    }
    if let Some(gateway) = route.gateway {
        message.attribute(RTA_GATEWAY, &octets(gateway));
    }
    if let Some(device) = &route.device {
        message.u32(RTA_OIF, link_index(namespace, device)?);
    }
    if let Some(source) = route.source {
        message.attribute(RTA_PREFSRC, &octets(source));
    }
    if let Some(metric) = route.metric {
        message.u32(RTA_PRIORITY, metric);
    }
    message.u32(RTA_TABLE, route.table);
    Ok(message)
}

/// The routes of one table, IPv4 and IPv6, without the kernel's bookkeeping entries (broadcast, multicast, cached).
///
/// # Errors
/// When the namespace can't be entered.
pub fn list_routes(namespace: &NetworkNamespace, table: u32) -> Result<Vec<Route>> {
    let names = super::links::list_links(namespace)?;
    let mut socket = Socket::open(namespace, SockProtocol::NetlinkRoute)?;
    let message = Message::new(libc::RTM_GETROUTE, 0, &[0; RTMSG]);
    let bodies = socket.dump(&message).map_err(|refusal| refusal.into_error("listing routes"))?;
    let name = |index| names.iter().find(|link| link.index == index).map(|link| link.name.clone());
    Ok(bodies.iter().filter_map(|body| parse_route(body, name)).filter(|route| route.table == table).collect())
}

fn parse_route(body: &[u8], name: impl Fn(u32) -> Option<String>) -> Option<Route> {
    const RTM_F_CLONED: u32 = 0x200;
    let attributes = Attributes::after(body, RTMSG);
    let number = |kind| attributes.find(kind).and_then(|v| u32_at(v, 0));
    let flags = u32_at(body, 8)?;
    if flags & RTM_F_CLONED != 0 {
        return None;
    }
    let kind = [RouteKind::Unicast, RouteKind::Local, RouteKind::Blackhole, RouteKind::Unreachable]
        .into_iter()
        .find(|kind| body.get(7) == Some(&kind.number()))?;
    let unspecified = match i32::from(*body.first()?) {
        libc::AF_INET => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        libc::AF_INET6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        _ => return None,
    };
    let address = attributes.find(RTA_DST).map_or(Some(unspecified), address_from)?;
    Some(Route {
        destination: IpNet::new(address, *body.get(1)?).ok()?,
        gateway: attributes.find(RTA_GATEWAY).and_then(address_from),
        device: number(RTA_OIF).and_then(name),
        source: attributes.find(RTA_PREFSRC).and_then(address_from),
        table: number(RTA_TABLE).unwrap_or_else(|| u32::from(body[4])),
        metric: number(RTA_PRIORITY),
        kind,
        on_link: flags & RTNH_F_ONLINK != 0,
    })
}

/// Whether the namespace takes packets to `address` for its own: an address of one of its interfaces, or what a local route
/// names. What only marked packets are delivered to does not count.
///
/// # Errors
/// When the namespace can't be entered, or the kernel does not say.
pub fn is_own_address(namespace: &NetworkNamespace, address: IpAddr) -> Result<bool> {
    let mut fixed = [0; RTMSG];
    fixed[0] = family(address);
    fixed[1] = IpNet::from(address).prefix_len();
    let mut message = Message::new(libc::RTM_GETROUTE, 0, &fixed);
    message.attribute(RTA_DST, &octets(address));
    match Socket::open(namespace, SockProtocol::NetlinkRoute)?.get(message) {
        Ok(body) => Ok(body.get(7).is_some_and(|kind| [libc::RTN_LOCAL, libc::RTN_ANYCAST].contains(kind))),
        // No route, or one that ends there: unreachable, prohibited, a black hole.
        Err(refusal) => match refusal.source.raw_os_error() {
            Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EACCES | libc::EINVAL) => Ok(false),
            _ => Err(refusal.into_error(format!("looking up the way to {address}"))),
        },
    }
}

/// Adds a policy routing rule. Does nothing when it is there.
///
/// # Errors
/// When the kernel has no policy routing or the caller lacks CAP_NET_ADMIN.
pub fn add_policy_rule(namespace: &NetworkNamespace, rule: &PolicyRule) -> Result<()> {
    let message = rule_message(libc::RTM_NEWRULE, CREATE_ONLY, rule);
    tolerate(request(namespace, message, || format!("adding {rule}")), &[libc::EEXIST])
}

/// Removes a policy routing rule. One that doesn't exist is not an error.
///
/// # Errors
/// When the caller lacks CAP_NET_ADMIN.
pub fn delete_policy_rule(namespace: &NetworkNamespace, rule: &PolicyRule) -> Result<()> {
    let message = rule_message(libc::RTM_DELRULE, 0, rule);
    tolerate(request(namespace, message, || format!("removing {rule}")), &[libc::ENOENT, libc::ESRCH])
}

fn rule_message(kind: u16, flags: u16, rule: &PolicyRule) -> Message {
    // `struct fib_rule_hdr` has the size and, as far as used, the layout of `struct rtmsg`, with the action where the route's
    // kind would be.
    let mut fixed = [0; RTMSG];
    fixed[0] = family(if rule.ipv6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() });
    fixed[4] = u8::try_from(rule.table).unwrap_or_default();
    fixed[7] = FR_ACT_TO_TBL;
    let mut message = Message::new(kind, flags, &fixed);
    message.u32(FRA_PRIORITY, rule.priority).u32(FRA_TABLE, rule.table);
    if let Some((mark, mask)) = rule.mark {
        message.u32(FRA_FWMARK, mark).u32(FRA_FWMASK, mask);
    }
    message
}

/// The policy routing rules of a namespace, IPv4 first, in the order in which the kernel tries them.
///
/// # Errors
/// When the namespace can't be entered.
pub fn list_policy_rules(namespace: &NetworkNamespace) -> Result<Vec<PolicyRule>> {
    let mut socket = Socket::open(namespace, SockProtocol::NetlinkRoute)?;
    let bodies = socket
        .dump(&Message::new(libc::RTM_GETRULE, 0, &[0; RTMSG]))
        .map_err(|refusal| refusal.into_error("listing policy routing rules"))?;
    Ok(bodies.iter().filter_map(|body| parse_rule(body)).collect())
}

fn parse_rule(body: &[u8]) -> Option<PolicyRule> {
    let attributes = Attributes::after(body, RTMSG);
    let number = |kind| attributes.find(kind).and_then(|v| u32_at(v, 0));
    let ipv6 = match i32::from(*body.first()?) {
        libc::AF_INET => false,
        libc::AF_INET6 => true,
        _ => return None,
    };
    Some(PolicyRule {
        ipv6,
        mark: number(FRA_FWMARK).map(|mark| (mark, number(FRA_FWMASK).unwrap_or(u32::MAX))),
        priority: number(FRA_PRIORITY).unwrap_or_default(),
        table: number(FRA_TABLE).unwrap_or_else(|| u32::from(body.get(4).copied().unwrap_or_default())),
    })
}
