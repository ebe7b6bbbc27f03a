//! Rules, put together in the order in which they are read: matches first, then statements, then the verdict.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use super::expression::{Comparison, Connection, Expression, Header, Meta, REGISTER_1, REGISTER_2, Verdict};
use crate::netlink::links::octets;
use crate::netlink::message::Message;

const NFTA_RULE_EXPRESSIONS: u16 = 4;
const NFTA_RULE_USERDATA: u16 = 7;
/// The text that the `nft` program shows as `comment "..."`: type 0, length, text with a terminating zero; at most 128
/// bytes of text.
const UDATA_COMMENT: u8 = 0;
const COMMENT_MAX: usize = 127;

/// A transport protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the protocols'")]
pub enum Protocol {
    Tcp,
    Udp,
}

impl Protocol {
    /// The IANA protocol number.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        })
    }
}

/// A rule under construction. Its `Display` form is close to what `nft list ruleset` prints for it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use = "a rule does nothing until it is added to a batch"]
pub struct Rule {
    expressions: Vec<Expression>,
    text: String,
    pub(super) comment: Option<String>,
    /// Whether the rule has been narrowed to a family, and to which.
    ipv6: Option<bool>,
    protocol: Option<Protocol>,
    invalid: Option<&'static str>,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        match &self.comment {
            Some(comment) => write!(f, " comment \"{comment}\""),
            None => Ok(()),
        }
    }
}

impl Rule {
    /// A rule that matches every packet and does nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// The reason why it is not usable, if there is one.
    pub(super) fn invalid(&self) -> Option<&'static str> {
        self.invalid
    }

    pub(super) fn encode(&self, message: &mut Message) {
        message.nested(NFTA_RULE_EXPRESSIONS, |list| {
            for expression in &self.expressions {
                expression.encode(list);
            }
        });
        if let Some(comment) = &self.comment {
            let mut data = vec![UDATA_COMMENT, u8::try_from(comment.len() + 1).unwrap_or(u8::MAX)];
            data.extend_from_slice(comment.as_bytes());
            data.push(0);
            message.attribute(NFTA_RULE_USERDATA, &data);
        }
    }

    fn push(mut self, expressions: impl IntoIterator<Item = Expression>) -> Self {
        self.expressions.extend(expressions);
        self
    }

    fn say(mut self, text: impl fmt::Display) -> Self {
        if !self.text.is_empty() {
            self.text.push(' ');
        }
        self.text.push_str(&text.to_string());
        self
    }

    fn fail(mut self, reason: &'static str) -> Self {
        self.invalid.get_or_insert(reason);
        self
    }

    fn compare(self, load: Expression, comparison: Comparison, constant: impl Into<Vec<u8>>) -> Self {
        self.push([load, Expression::Compare(comparison, constant.into())])
    }

    /// A note of at most 127 bytes that `nft list` shows and [`super::list_rules`] returns.
    pub fn comment(mut self, comment: impl Into<String>) -> Self {
        let comment = comment.into();
        if comment.len() > COMMENT_MAX || comment.contains('\0') {
            return self.fail("a comment has at most 127 bytes");
        }
        self.comment = Some(comment);
        self
    }

    // --- matches -----------------------------------------------------------------------------------------------------

    /// Only packets that came in through this interface.
    pub fn input_interface(self, name: &str) -> Self {
        self.interface(Meta::InputInterface, "iifname", Comparison::Equal, name)
    }

    /// Only packets that came in through another interface, or through none.
    pub fn input_interface_not(self, name: &str) -> Self {
        self.interface(Meta::InputInterface, "iifname", Comparison::NotEqual, name)
    }

    /// Only packets that leave through this interface.
    pub fn output_interface(self, name: &str) -> Self {
        self.interface(Meta::OutputInterface, "oifname", Comparison::Equal, name)
    }

    /// Only packets that leave through another interface, or through none.
    pub fn output_interface_not(self, name: &str) -> Self {
        self.interface(Meta::OutputInterface, "oifname", Comparison::NotEqual, name)
    }

    fn interface(self, key: Meta, word: &str, comparison: Comparison, name: &str) -> Self {
        if name.is_empty() || name.len() >= libc::IFNAMSIZ {
            return self.fail("an interface name has 1 to 15 bytes");
        }
        let mut padded = name.as_bytes().to_vec();
        padded.resize(libc::IFNAMSIZ, 0);
        self.compare(Expression::Meta(key), comparison, padded)
            .say(format_args!("{word} {}\"{name}\"", not(comparison)))
    }

    /// Only IPv4 packets.
    pub fn ipv4(self) -> Self {
        self.family(false, true)
    }

    /// Only IPv6 packets.
    pub fn ipv6(self) -> Self {
        self.family(true, true)
    }

    fn family(mut self, ipv6: bool, say: bool) -> Self {
        match self.ipv6 {
            Some(same) if same == ipv6 => self,
            Some(_) => self.fail("no packet is both IPv4 and IPv6"),
            None => {
                self.ipv6 = Some(ipv6);
                let family = if ipv6 { super::Family::Ipv6 } else { super::Family::Ipv4 };
                let rule = self.compare(Expression::Meta(Meta::NetworkProtocol), Comparison::Equal, [family.number()]);
                if say { rule.say(format_args!("meta nfproto ipv{}", if ipv6 { 6 } else { 4 })) } else { rule }
            }
        }
    }

    /// Only packets of this transport protocol. Needed before ports.
    pub fn l4proto(mut self, protocol: Protocol) -> Self {
        match self.protocol {
            Some(same) if same == protocol => self,
            Some(_) => self.fail("no packet is both TCP and UDP"),
            None => {
                self.protocol = Some(protocol);
                self.compare(Expression::Meta(Meta::TransportProtocol), Comparison::Equal, [protocol.number()])
                    .say(format_args!("meta l4proto {protocol}"))
            }
        }
    }

    /// Only packets from these addresses.
    pub fn saddr(self, net: impl Into<IpNet>) -> Self {
        self.address("saddr", net.into(), Comparison::Equal)
    }

    /// Only packets from this address, in a table of the family [`super::Family::Bridge`]: frames have no family of their own.
    pub fn bridged_saddr(self, address: IpAddr) -> Self {
        let ether_type: u16 = if address.is_ipv6() { 0x86dd } else { 0x0800 };
        let word = if address.is_ipv6() { "ip6" } else { "ip" };
        self.compare(Expression::Meta(Meta::EtherType), Comparison::Equal, ether_type.to_be_bytes())
            .compare(load_address("saddr", address.is_ipv6()), Comparison::Equal, octets(address))
            .say(format_args!("{word} saddr {address}"))
    }

    /// Only packets to these addresses.
    pub fn daddr(self, net: impl Into<IpNet>) -> Self {
        self.address("daddr", net.into(), Comparison::Equal)
    }

    /// Only packets to other addresses of the same family.
    pub fn daddr_not(self, net: impl Into<IpNet>) -> Self {
        self.address("daddr", net.into(), Comparison::NotEqual)
    }

    fn address(self, field: &str, net: IpNet, comparison: Comparison) -> Self {
        let ipv6 = net.addr().is_ipv6();
        let word = if ipv6 { "ip6" } else { "ip" };
        let said = if net.prefix_len() == net.max_prefix_len() { net.addr().to_string() } else { net.to_string() };
        let mut rule = self.family(ipv6, false).push([load_address(field, ipv6)]);
        if net.prefix_len() < net.max_prefix_len() {
            let mask = octets(net.netmask());
            let xor = vec![0; mask.len()];
            rule = rule.push([Expression::Bitwise { mask, xor }]);
        }
        rule.push([Expression::Compare(comparison, octets(net.network()))])
            .say(format_args!("{word} {field} {}{said}", not(comparison)))
    }

    /// Only packets whose destination is in the named set.
    pub fn daddr_in(self, set: &str, kind: super::SetType) -> Self {
        let ipv6 = kind == super::SetType::Ipv6Address;
        let word = if ipv6 { "ip6" } else { "ip" };
        self.family(ipv6, false)
            .push([load_address("daddr", ipv6), Expression::Lookup { set: set.into() }])
            .say(format_args!("{word} daddr @{set}"))
    }

    /// Only packets from this port. The protocol must have been chosen.
    pub fn sport(self, port: u16) -> Self {
        self.port("sport", port, Comparison::Equal)
    }

    /// Only packets to this port. The protocol must have been chosen.
    pub fn dport(self, port: u16) -> Self {
        self.port("dport", port, Comparison::Equal)
    }

    /// Only packets to another port. The protocol must have been chosen.
    pub fn dport_not(self, port: u16) -> Self {
        self.port("dport", port, Comparison::NotEqual)
    }

    fn port(self, field: &str, port: u16, comparison: Comparison) -> Self {
        // Without a protocol the same bytes would also be read from, say, an ICMP checksum.
        let Some(protocol) = self.protocol else { return self.fail("a port needs a protocol first") };
        let offset = if field == "sport" { 0 } else { 2 };
        self.compare(
            Expression::Payload { header: Header::Transport, offset, length: 2 },
            comparison,
            port.to_be_bytes(),
        )
        .say(format_args!("{protocol} {field} {}{port}", not(comparison)))
    }

    /// Only the kernel's answers to a SYN for which there is no listener: with RST and ACK, and numbered 0, which the reset of a
    /// connection that exists is not but by chance. The protocol must have been chosen.
    pub fn refusal(self) -> Self {
        const RST_ACK: u8 = 0x14;
        if self.protocol != Some(Protocol::Tcp) {
            return self.fail("a refusal of a connection is TCP's");
        }
        self.push([
            Expression::Payload { header: Header::Transport, offset: 13, length: 1 },
            Expression::Bitwise { mask: vec![RST_ACK], xor: vec![0] },
            Expression::Compare(Comparison::Equal, vec![RST_ACK]),
            Expression::Payload { header: Header::Transport, offset: 4, length: 4 },
            Expression::Compare(Comparison::Equal, vec![0; 4]),
        ])
        .say("tcp flags & (rst | ack) == rst | ack tcp sequence 0")
    }

    /// Only messages of ICMP that nobody takes datagrams at this port. The family must have been chosen.
    pub fn udp_port_unreachable(self, port: u16) -> Self {
        // Protocol, type and code, length of the header of IP in the message.
        let (protocol, kind, header) = match self.ipv6 {
            Some(false) => (1, [3, 3], 20),
            Some(true) => (58, [1, 4], 40),
            None => return self.fail("a message of ICMP needs a family first"),
        };
        // Behind the message's own header of 8 bytes, in the one of UDP behind that of IP.
        let offset = 8 + header + 2;
        self.compare(Expression::Meta(Meta::TransportProtocol), Comparison::Equal, [protocol])
            .compare(Expression::Payload { header: Header::Transport, offset: 0, length: 2 }, Comparison::Equal, kind)
            .compare(
                Expression::Payload { header: Header::Transport, offset, length: 2 },
                Comparison::Equal,
                port.to_be_bytes(),
            )
            .say(format_args!("meta l4proto {protocol} port-unreachable udp dport {port}"))
    }

    /// Only packets to this address and port. The protocol must have been chosen.
    pub fn to(self, destination: SocketAddr) -> Self {
        self.daddr(destination.ip()).dport(destination.port())
    }

    /// Only packets whose mark has this value in the bits of the mask.
    pub fn mark(self, value: u32, mask: u32) -> Self {
        self.masked(Expression::Meta(Meta::Mark), "meta mark", Comparison::Equal, value, mask)
    }

    /// Only packets whose mark has another value in the bits of the mask.
    pub fn mark_not(self, value: u32, mask: u32) -> Self {
        self.masked(Expression::Meta(Meta::Mark), "meta mark", Comparison::NotEqual, value, mask)
    }

    /// Only packets of connections whose mark has this value in the bits of the mask.
    pub fn connection_mark(self, value: u32, mask: u32) -> Self {
        self.masked(Expression::Connection(Connection::Mark), "ct mark", Comparison::Equal, value, mask)
    }

    fn masked(self, load: Expression, word: &str, comparison: Comparison, value: u32, mask: u32) -> Self {
        let operator = if comparison == Comparison::Equal { "==" } else { "!=" };
        self.push([
            load,
            Expression::Bitwise { mask: mask.to_ne_bytes().into(), xor: vec![0; 4] },
            Expression::Compare(comparison, value.to_ne_bytes().into()),
        ])
        .say(format_args!("{word} & {mask:#x} {operator} {value:#x}"))
    }

    /// Only packets sent by sockets of this user.
    pub fn socket_owner(self, uid: u32) -> Self {
        self.compare(Expression::Meta(Meta::SocketOwner), Comparison::Equal, uid.to_ne_bytes())
            .say(format_args!("meta skuid {uid}"))
    }

    /// One packet in `modulus`, at random. In a NAT chain: one connection in `modulus`.
    pub fn random(self, modulus: u32) -> Self {
        if modulus == 0 {
            return self.fail("the modulus of a random number is at least 1");
        }
        self.push([Expression::Random { modulus }, Expression::Compare(Comparison::Equal, vec![0; 4])])
            .say(format_args!("numgen random mod {modulus} 0"))
    }

    // --- statements --------------------------------------------------------------------------------------------------

    /// Counts packets and bytes; `nft list` shows them.
    pub fn counter(self) -> Self {
        self.push([Expression::Counter]).say("counter")
    }

    /// Gives the packet this mark.
    pub fn set_mark(self, value: u32) -> Self {
        self.push([immediate(REGISTER_1, value.to_ne_bytes()), Expression::SetMeta(Meta::Mark)])
            .say(format_args!("meta mark set {value:#x}"))
    }

    /// Gives the packet its connection's mark.
    pub fn set_mark_from_connection(self) -> Self {
        self.push([Expression::Connection(Connection::Mark), Expression::SetMeta(Meta::Mark)])
            .say("meta mark set ct mark")
    }

    /// Sets the bits of the mask in the connection's mark to those of the value and keeps the others.
    pub fn set_connection_mark(self, value: u32, mask: u32) -> Self {
        self.push([
            Expression::Connection(Connection::Mark),
            Expression::Bitwise { mask: (!mask).to_ne_bytes().into(), xor: (value & mask).to_ne_bytes().into() },
            Expression::SetConnection(Connection::Mark),
        ])
        .say(format_args!("ct mark set ct mark & {:#x} | {:#x}", !mask, value & mask))
    }

    /// Tracks the packet's connection apart from those of other zones. Raw priority (-300) only.
    pub fn set_connection_zone(self, zone: u16) -> Self {
        self.push([immediate(REGISTER_1, zone.to_ne_bytes()), Expression::SetConnection(Connection::Zone)])
            .say(format_args!("ct zone set {zone}"))
    }

    // --- verdicts ----------------------------------------------------------------------------------------------------

    /// Lets the packet pass this hook and priority.
    pub fn accept(self) -> Self {
        self.push([Expression::Verdict(Verdict::Accept)]).say("accept")
    }

    /// Drops the packet.
    pub fn drop(self) -> Self {
        self.push([Expression::Verdict(Verdict::Drop)]).say("drop")
    }

    /// Goes back to the calling chain, or in a base chain to its default.
    pub fn return_(self) -> Self {
        self.push([Expression::Verdict(Verdict::Return)]).say("return")
    }

    /// Calls another chain.
    pub fn jump(self, chain: &str) -> Self {
        self.push([Expression::Verdict(Verdict::Jump(chain.into()))]).say(format_args!("jump {chain}"))
    }

    /// Goes on in another chain without coming back.
    pub fn goto(self, chain: &str) -> Self {
        self.push([Expression::Verdict(Verdict::Goto(chain.into()))]).say(format_args!("goto {chain}"))
    }

    /// Sends the connection to this port of the namespace itself: of the loopback address in the output hook, of the incoming
    /// interface's address in the prerouting hook.
    pub fn redirect(self, port: u16) -> Self {
        if self.protocol.is_none() {
            return self.fail("a port needs a protocol first");
        }
        self.push([immediate(REGISTER_1, port.to_be_bytes()), Expression::Redirect])
            .say(format_args!("redirect to :{port}"))
    }

    /// Sends the connection to another address, and with a port other than 0 to another port.
    pub fn dnat(self, to: SocketAddr) -> Self {
        self.nat(true, to)
    }

    /// Makes the connection come from another address, and with a port other than 0 from another port.
    pub fn snat(self, to: SocketAddr) -> Self {
        self.nat(false, to)
    }

    fn nat(self, destination: bool, to: SocketAddr) -> Self {
        let port = to.port() != 0;
        if port && self.protocol.is_none() {
            return self.fail("a port needs a protocol first");
        }
        let ipv6 = to.is_ipv6();
        let word = if destination { "dnat" } else { "snat" };
        let rule = self.family(ipv6, true).push([immediate(REGISTER_1, octets(to.ip()))]);
        let rule = if port { rule.push([immediate(REGISTER_2, to.port().to_be_bytes())]) } else { rule };
        let rule = rule.push([Expression::Nat { destination, ipv6, address: true, port }]);
        let family = if ipv6 { "ip6" } else { "ip" };
        if port {
            rule.say(format_args!("{word} {family} to {to}"))
        } else {
            rule.say(format_args!("{word} {family} to {}", to.ip()))
        }
    }

    /// Makes the connection come from the address of the interface through which it leaves.
    pub fn masquerade(self) -> Self {
        self.push([Expression::Masquerade]).say("masquerade")
    }

    /// Refuses the packet: TCP with a reset, anything else with "port unreachable".
    pub fn reject(self) -> Self {
        let reset = self.protocol == Some(Protocol::Tcp);
        self.push([Expression::Reject { reset }]).say(if reset {
            "reject with tcp reset"
        } else {
            "reject with icmpx port-unreachable"
        })
    }
}

/// The rules that spread connections for one service address evenly over its endpoints, for a NAT chain: the first takes one
/// connection in `n`, the second one in `n - 1` of the rest, and the last takes what is left. Endpoints of the other family
/// are skipped; without any there are no rules.
#[must_use]
pub fn balance(protocol: Protocol, service: SocketAddr, endpoints: &[SocketAddr]) -> Vec<Rule> {
    let usable: Vec<_> = endpoints.iter().filter(|e| e.is_ipv4() == service.is_ipv4()).collect();
    (1..=usable.len())
        .rev()
        .zip(usable)
        .map(|(left, endpoint)| {
            let rule = Rule::new().l4proto(protocol).to(service);
            // A random number below 1 is always 0; the last rule needs none.
            let rule = if left > 1 { rule.random(u32::try_from(left).unwrap_or(u32::MAX)) } else { rule };
            rule.dnat(*endpoint)
        })
        .collect()
}

fn immediate(register: u32, value: impl Into<Vec<u8>>) -> Expression {
    Expression::Immediate { register, value: value.into() }
}

fn load_address(field: &str, ipv6: bool) -> Expression {
    // RFC 791 §3.1 and RFC 8200 §3.
    let (offset, length) = match (ipv6, field) {
        (false, "saddr") => (12, 4),
        (false, _) => (16, 4),
        (true, "saddr") => (8, 16),
        (true, _) => (24, 16),
    };
    Expression::Payload { header: Header::Network, offset, length }
}

fn not(comparison: Comparison) -> &'static str {
    match comparison {
        Comparison::Equal => "",
        Comparison::NotEqual => "!= ",
    }
}
