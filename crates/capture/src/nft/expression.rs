//! The small instructions that a rule is compiled to, and their encoding (`linux/netfilter/nf_tables.h`).

use crate::netlink::message::Message;

use super::{NFTA_DATA_VALUE, NFTA_LIST_ELEM};

/// The register for what is being looked at; 16 bytes, wide enough for an IPv6 address.
pub(crate) const REGISTER_1: u32 = 1;
/// The register for a second operand, such as the port of a translation.
pub(crate) const REGISTER_2: u32 = 2;
const REGISTER_VERDICT: u32 = 0;

/// Which header an offset counts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Header {
    Network = 1,
    Transport = 2,
}

/// `NFT_META_*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meta {
    EtherType = 1,
    Mark = 3,
    InputInterface = 6,
    OutputInterface = 7,
    SocketOwner = 10,
    NetworkProtocol = 15,
    TransportProtocol = 16,
}

/// `NFT_CT_*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Connection {
    Mark = 3,
    Zone = 17,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Comparison {
    Equal = 0,
    NotEqual = 1,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    Accept,
    Drop,
    Return,
    Jump(String),
    Goto(String),
}

/// One instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Expression {
    /// Loads packet bytes into register 1.
    Payload { header: Header, offset: u32, length: u32 },
    /// Loads something known about the packet into register 1.
    Meta(Meta),
    /// Sets it from register 1.
    SetMeta(Meta),
    /// Loads something known about the connection into register 1.
    Connection(Connection),
    /// Sets it from register 1.
    SetConnection(Connection),
    /// Register 1 becomes `register & mask ^ xor`.
    Bitwise { mask: Vec<u8>, xor: Vec<u8> },
    /// Goes on only if register 1 compares like this.
    Compare(Comparison, Vec<u8>),
    /// Goes on only if register 1 is in the set.
    Lookup { set: String },
    /// Loads a random number below `modulus` into register 1.
    Random { modulus: u32 },
    /// Loads a constant.
    Immediate { register: u32, value: Vec<u8> },
    /// Ends the rule.
    Verdict(Verdict),
    /// Translates to the address in register 1 and, with a port, the port in register 2.
    Nat { destination: bool, ipv6: bool, address: bool, port: bool },
    /// Translates the destination to this namespace, at the port in register 1.
    Redirect,
    /// Translates the source to the address of the outgoing interface.
    Masquerade,
    /// Refuses with a TCP reset, or otherwise with "port unreachable".
    Reject { reset: bool },
    /// Counts packets and bytes.
    Counter,
}

impl Expression {
    fn name(&self) -> &'static str {
        match self {
            Self::Payload { .. } => "payload",
            Self::Meta(_) | Self::SetMeta(_) => "meta",
            Self::Connection(_) | Self::SetConnection(_) => "ct",
            Self::Bitwise { .. } => "bitwise",
            Self::Compare(..) => "cmp",
            Self::Lookup { .. } => "lookup",
            Self::Random { .. } => "numgen",
            Self::Immediate { .. } | Self::Verdict(_) => "immediate",
            Self::Nat { .. } => "nat",
            Self::Redirect => "redir",
            Self::Masquerade => "masq",
            Self::Reject { .. } => "reject",
            Self::Counter => "counter",
        }
    }

    /// Appends the instruction to a list of them.
    pub(crate) fn encode(&self, list: &mut Message) {
        const NFTA_EXPR_NAME: u16 = 1;
        const NFTA_EXPR_DATA: u16 = 2;
        list.nested(NFTA_LIST_ELEM, |element| {
            element.string(NFTA_EXPR_NAME, self.name()).nested(NFTA_EXPR_DATA, |data| self.encode_data(data));
        });
    }

    // The attribute numbers are local to each instruction, hence the bare numbers: each arm lists its `enum nft_*_attributes`
    // in order.
    fn encode_data(&self, data: &mut Message) {
        match self {
            Self::Payload { header, offset, length } => {
                data.be32(1, REGISTER_1).be32(2, *header as u32).be32(3, *offset).be32(4, *length);
            }
            Self::Meta(key) => {
                data.be32(1, REGISTER_1).be32(2, *key as u32);
            }
            Self::SetMeta(key) => {
                data.be32(2, *key as u32).be32(3, REGISTER_1);
            }
            Self::Connection(key) => {
                data.be32(1, REGISTER_1).be32(2, *key as u32);
            }
            Self::SetConnection(key) => {
                data.be32(2, *key as u32).be32(4, REGISTER_1);
            }
            Self::Bitwise { mask, xor } => {
                let length = u32::try_from(mask.len()).unwrap_or_default();
                data.be32(1, REGISTER_1).be32(2, REGISTER_1).be32(3, length);
                value(data, 4, mask);
                value(data, 5, xor);
            }
            Self::Compare(comparison, constant) => {
                data.be32(1, REGISTER_1).be32(2, *comparison as u32);
                value(data, 3, constant);
            }
            Self::Lookup { set } => {
                data.string(1, set).be32(2, REGISTER_1).be32(5, 0);
            }
            Self::Random { modulus } => {
                const NFT_NG_RANDOM: u32 = 1;
                data.be32(1, REGISTER_1).be32(2, *modulus).be32(3, NFT_NG_RANDOM).be32(4, 0);
            }
            Self::Immediate { register, value: constant } => {
                data.be32(1, *register);
                value(data, 2, constant);
            }
            Self::Verdict(verdict) => encode_verdict(verdict, data),
            Self::Nat { destination, ipv6, address, port } => {
                let family = if *ipv6 { super::Family::Ipv6 } else { super::Family::Ipv4 };
                data.be32(1, u32::from(*destination)).be32(2, u32::from(family.number()));
                if *address {
                    data.be32(3, REGISTER_1);
                }
                if *port {
                    data.be32(5, REGISTER_2);
                }
            }
            Self::Redirect => {
                data.be32(1, REGISTER_1);
            }
            Self::Masquerade | Self::Counter => {}
            Self::Reject { reset } => {
                const NFT_REJECT_TCP_RST: u32 = 1;
                const NFT_REJECT_ICMPX_UNREACH: u32 = 2;
                const NFT_REJECT_ICMPX_PORT_UNREACH: u8 = 1;
                if *reset {
                    data.be32(1, NFT_REJECT_TCP_RST);
                } else {
                    data.be32(1, NFT_REJECT_ICMPX_UNREACH).attribute(2, &[NFT_REJECT_ICMPX_PORT_UNREACH]);
                }
            }
        }
    }
}

fn encode_verdict(verdict: &Verdict, data: &mut Message) {
    const NFTA_DATA_VERDICT: u16 = 2;
    let (code, chain): (i32, _) = match verdict {
        Verdict::Drop => (0, None),
        Verdict::Accept => (1, None),
        Verdict::Jump(chain) => (-3, Some(chain)),
        Verdict::Goto(chain) => (-4, Some(chain)),
        Verdict::Return => (-5, None),
    };
    data.be32(1, REGISTER_VERDICT).nested(2, |data| {
        data.nested(NFTA_DATA_VERDICT, |data| {
            data.be32(1, code.cast_unsigned());
            if let Some(chain) = chain {
                data.string(2, chain);
            }
        });
    });
}

fn value(data: &mut Message, kind: u16, constant: &[u8]) {
    data.nested(kind, |data| {
        data.attribute(NFTA_DATA_VALUE, constant);
    });
}
