//! nf_tables by netlink, without the `nft` program: tables, chains, sets and rules, committed as one transaction.
//!
//! ```no_run
//! use leno_capture::{NetworkNamespace, nft::{Batch, Chain, ChainType, Family, Hook, Protocol, Rule, Table}};
//! # fn main() -> leno_capture::Result<()> {
//! let table = Table::new(Family::Inet, "example");
//! let mut batch = Batch::new();
//! batch.replace_table(&table);
//! batch.add_chain(&table, Chain::base("output", ChainType::Nat, Hook::Output, -100));
//! let service = "10.96.0.10:80".parse().expect("a literal");
//! let rule = Rule::new().l4proto(Protocol::Tcp).to(service).dnat("10.0.0.7:8080".parse().expect("a literal"));
//! batch.add_rule(&table, "output", rule);
//! batch.commit(&NetworkNamespace::current()?)?;
//! # Ok(())
//! # }
//! ```

mod content;
mod dump;
mod expression;
mod rule;

use std::fmt;
use std::net::IpAddr;

use nix::sys::socket::SockProtocol;

use crate::error::{Error, Result};
use crate::netlink::links::octets;
use crate::netlink::message::Message;
use crate::netlink::socket::{NLM_F_APPEND, NLM_F_CREATE, Refusal, Socket};
use crate::netns::NetworkNamespace;

pub(crate) use content::Content;
pub use content::Problem;
pub use dump::{ChainInfo, RuleInfo, TableInfo, list_addresses, list_chains, list_rules, list_tables};
pub use rule::{Protocol, Rule, balance};

// linux/netfilter/nfnetlink.h and nf_tables.h
const NFNL_MSG_BATCH_BEGIN: u16 = 0x10;
const NFNL_MSG_BATCH_END: u16 = 0x11;
const NFNL_SUBSYS_NFTABLES: u16 = 10;
const NFT_MSG_NEWTABLE: u16 = 0;
const NFT_MSG_DELTABLE: u16 = 2;
const NFT_MSG_NEWCHAIN: u16 = 3;
const NFT_MSG_NEWRULE: u16 = 6;
const NFT_MSG_DELRULE: u16 = 8;
const NFT_MSG_NEWSET: u16 = 9;
const NFT_MSG_NEWSETELEM: u16 = 12;
const NFGENMSG: usize = 4;
const NFTA_LIST_ELEM: u16 = 1;
const NFTA_DATA_VALUE: u16 = 1;

/// Which packets a table sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// IPv4 and IPv6.
    Inet,
    /// IPv4 only; also there on kernels without IPv6.
    Ipv4,
    /// IPv6 only.
    Ipv6,
    /// Frames that pass a bridge.
    Bridge,
}

impl Family {
    /// `NFPROTO_*`.
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Inet => 1,
            Self::Ipv4 => 2,
            Self::Bridge => 7,
            Self::Ipv6 => 10,
        }
    }

    pub(crate) fn from_number(number: u8) -> Option<Self> {
        [Self::Inet, Self::Ipv4, Self::Ipv6, Self::Bridge].into_iter().find(|family| family.number() == number)
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Inet => "inet",
            Self::Ipv4 => "ip",
            Self::Ipv6 => "ip6",
            Self::Bridge => "bridge",
        })
    }
}

/// A table's full name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Table {
    /// Which packets it sees; tables of different families may share a name.
    pub family: Family,
    /// Its name.
    pub name: String,
}

impl Table {
    /// Names a table.
    #[must_use]
    pub fn new(family: Family, name: impl Into<String>) -> Self {
        Self { family, name: name.into() }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.family, self.name)
    }
}

/// The point on a packet's way where a base chain is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are netfilter's")]
pub enum Hook {
    Prerouting,
    Input,
    Forward,
    Output,
    Postrouting,
}

impl Hook {
    const ALL: [Self; 5] = [Self::Prerouting, Self::Input, Self::Forward, Self::Output, Self::Postrouting];

    fn number(self) -> u32 {
        match self {
            Self::Prerouting => 0,
            Self::Input => 1,
            Self::Forward => 2,
            Self::Output => 3,
            Self::Postrouting => 4,
        }
    }
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Prerouting => "prerouting",
            Self::Input => "input",
            Self::Forward => "forward",
            Self::Output => "output",
            Self::Postrouting => "postrouting",
        })
    }
}

/// The type of a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChainType {
    /// Accept, drop, mark.
    Filter,
    /// Translate addresses; sees only the first packet of a connection.
    Nat,
    /// As filter, and the packet is routed again if its mark changed. Output hook only.
    Route,
}

impl fmt::Display for ChainType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Filter => "filter",
            Self::Nat => "nat",
            Self::Route => "route",
        })
    }
}

/// How a base chain is tied to the packet's way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Base {
    /// The type of the chain.
    pub kind: ChainType,
    /// The hook where it is called.
    pub hook: Hook,
    /// In which order with the other chains of the hook; lower comes first.
    pub priority: i32,
    /// Whether packets that reach its end are dropped instead of accepted.
    pub drop_by_default: bool,
}

/// A list of rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Its name, unique in its table.
    pub name: String,
    /// The hook where the kernel calls it; absent for chains that only other chains call.
    pub base: Option<Base>,
}

impl Chain {
    /// A chain that is called by other chains.
    #[must_use]
    pub fn regular(name: impl Into<String>) -> Self {
        Self { name: name.into(), base: None }
    }

    /// A chain that is called by the kernel and accepts what reaches its end.
    #[must_use]
    pub fn base(name: impl Into<String>, kind: ChainType, hook: Hook, priority: i32) -> Self {
        Self { name: name.into(), base: Some(Base { kind, hook, priority, drop_by_default: false }) }
    }

    /// Makes a base chain drop what reaches its end.
    #[must_use]
    pub fn drop_by_default(mut self) -> Self {
        if let Some(base) = &mut self.base {
            base.drop_by_default = true;
        }
        self
    }
}

impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if let Some(Base { kind, hook, priority, drop_by_default }) = self.base {
            let policy = if drop_by_default { "drop" } else { "accept" };
            write!(f, " {{ type {kind} hook {hook} priority {priority}; policy {policy}; }}")?;
        }
        Ok(())
    }
}

/// The type of a set's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetType {
    /// IPv4 addresses.
    Ipv4Address,
    /// IPv6 addresses.
    Ipv6Address,
}

impl SetType {
    /// The number by which the `nft` program knows the type, and the element size. The kernel only stores the number;
    /// with another one, `nft list` would print wrong addresses.
    fn numbers(self) -> (u32, u32) {
        match self {
            Self::Ipv4Address => (7, 4),
            Self::Ipv6Address => (8, 16),
        }
    }
}

/// Changes that are applied together or not at all. Packets see the old state or the new one, nothing in between.
#[derive(Debug, Default)]
pub struct Batch {
    messages: Vec<Message>,
    /// A description of each message, for errors.
    labels: Vec<String>,
    invalid: Option<Error>,
    sets: u32,
}

impl Batch {
    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    fn push(&mut self, message: Message, label: String) {
        self.messages.push(message);
        self.labels.push(label);
    }

    /// Creates a table unless it exists.
    pub fn add_table(&mut self, table: &Table) -> &mut Self {
        let mut message = nft_message(NFT_MSG_NEWTABLE, NLM_F_CREATE, table.family);
        // Attribute 1 is the table's name in every message of this subsystem.
        message.string(1, &table.name);
        self.push(message, format!("add table {table}"));
        self
    }

    /// Deletes a table with all that is in it. It must exist.
    pub fn delete_table(&mut self, table: &Table) -> &mut Self {
        let mut message = nft_message(NFT_MSG_DELTABLE, 0, table.family);
        message.string(1, &table.name);
        self.push(message, format!("delete table {table}"));
        self
    }

    /// Makes sure that a table doesn't exist.
    pub fn remove_table(&mut self, table: &Table) -> &mut Self {
        // There is no "delete if exists" before kernel 6.3; creating it first is what works everywhere.
        self.add_table(table).delete_table(table)
    }

    /// Makes sure that a table exists and is empty.
    pub fn replace_table(&mut self, table: &Table) -> &mut Self {
        self.remove_table(table).add_table(table)
    }

    /// Deletes all rules of a table, or of one chain of it; chains and sets stay.
    pub fn flush(&mut self, table: &Table, chain: Option<&str>) -> &mut Self {
        let mut message = nft_message(NFT_MSG_DELRULE, 0, table.family);
        message.string(1, &table.name);
        if let Some(chain) = chain {
            message.string(2, chain);
        }
        self.push(message, format!("flush {table} {}", chain.unwrap_or_default()));
        self
    }

    /// Creates a chain unless it exists.
    pub fn add_chain(&mut self, table: &Table, chain: Chain) -> &mut Self {
        const NFTA_CHAIN_NAME: u16 = 3;
        const NFTA_CHAIN_HOOK: u16 = 4;
        const NFTA_CHAIN_POLICY: u16 = 5;
        const NFTA_CHAIN_TYPE: u16 = 7;
        let mut message = nft_message(NFT_MSG_NEWCHAIN, NLM_F_CREATE, table.family);
        message.string(1, &table.name).string(NFTA_CHAIN_NAME, &chain.name);
        if let Some(base) = chain.base {
            message.nested(NFTA_CHAIN_HOOK, |hook| {
                hook.be32(1, base.hook.number()).be32(2, base.priority.cast_unsigned());
            });
            message.be32(NFTA_CHAIN_POLICY, u32::from(!base.drop_by_default));
            message.string(NFTA_CHAIN_TYPE, &base.kind.to_string());
        }
        self.push(message, format!("add chain {table} {chain}"));
        self
    }

    /// Appends a rule to a chain. A rule that is no rule is reported by [`Self::commit`].
    pub fn add_rule(&mut self, table: &Table, chain: &str, rule: Rule) -> &mut Self {
        let label = format!("add rule {table} {chain} {rule}");
        if let Some(reason) = rule.invalid() {
            self.invalid.get_or_insert(Error::InvalidRule { rule: label, reason });
            return self;
        }
        let mut message = nft_message(NFT_MSG_NEWRULE, NLM_F_CREATE | NLM_F_APPEND, table.family);
        message.string(1, &table.name).string(2, chain);
        rule.encode(&mut message);
        self.push(message, label);
        self
    }

    /// Creates a set of addresses unless it exists.
    pub fn add_set(&mut self, table: &Table, name: &str, kind: SetType) -> &mut Self {
        const NFTA_SET_FLAGS: u16 = 3;
        const NFTA_SET_KEY_TYPE: u16 = 4;
        const NFTA_SET_KEY_LEN: u16 = 5;
        const NFTA_SET_ID: u16 = 10;
        let (number, length) = kind.numbers();
        self.sets += 1;
        let mut message = nft_message(NFT_MSG_NEWSET, NLM_F_CREATE, table.family);
        message
            .string(1, &table.name)
            .string(2, name)
            .be32(NFTA_SET_FLAGS, 0)
            .be32(NFTA_SET_KEY_TYPE, number)
            .be32(NFTA_SET_KEY_LEN, length)
            .be32(NFTA_SET_ID, self.sets);
        self.push(message, format!("add set {table} {name}"));
        self
    }

    /// Adds addresses to a set; those that are in it stay. All must be of the set's type.
    pub fn add_elements(&mut self, table: &Table, set: &str, addresses: &[IpAddr]) -> &mut Self {
        const NFTA_SET_ELEM_LIST_ELEMENTS: u16 = 3;
        const NFTA_SET_ELEM_KEY: u16 = 1;
        // The list is one attribute, whose length field has sixteen bits: about 2500 IPv6 addresses.
        for some in addresses.chunks(1024) {
            let mut message = nft_message(NFT_MSG_NEWSETELEM, NLM_F_CREATE, table.family);
            message.string(1, &table.name).string(2, set);
            message.nested(NFTA_SET_ELEM_LIST_ELEMENTS, |list| {
                for address in some {
                    list.nested(NFTA_LIST_ELEM, |element| {
                        element.nested(NFTA_SET_ELEM_KEY, |key| {
                            key.attribute(NFTA_DATA_VALUE, &octets(*address));
                        });
                    });
                }
            });
            self.push(message, format!("add element {table} {set} {some:?}"));
        }
        self
    }

    /// Applies the batch in `namespace`. An empty batch does nothing.
    ///
    /// # Errors
    /// [`Error::Nft`] names the refused entry. Whatever the error, nothing was applied.
    pub fn commit(self, namespace: &NetworkNamespace) -> Result<()> {
        if let Some(invalid) = self.invalid {
            return Err(invalid);
        }
        if self.messages.is_empty() {
            return Ok(());
        }
        let mut messages = Vec::with_capacity(self.messages.len() + 2);
        messages.push(Message::new(NFNL_MSG_BATCH_BEGIN, 0, &batch_header()));
        messages.extend(self.messages);
        messages.push(Message::new(NFNL_MSG_BATCH_END, 0, &batch_header()));
        let mut socket = open(namespace)?;
        socket.transact(messages).map_err(|refusal| explain(refusal, &self.labels))
    }
}

/// Finds the entry that a refusal is about.
fn explain(refusal: Refusal, labels: &[String]) -> Error {
    const BEGIN: u32 = 1;
    // The entry `i` follows the opening message, whose sequence number is 1.
    let entry = usize::try_from(refusal.sequence).ok().and_then(|s| s.checked_sub(2)).and_then(|i| labels.get(i));
    match entry {
        Some(entry) => Error::Nft { entry: entry.clone(), message: refusal.message, source: refusal.source },
        // nfnetlink answers the opening message when there is no subsystem behind it.
        None if refusal.sequence == BEGIN && refusal.source.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            Error::NoNftables { source: refusal.source }
        }
        None => refusal.into_error("committing an nf_tables transaction"),
    }
}

fn open(namespace: &NetworkNamespace) -> Result<Socket> {
    Socket::open(namespace, SockProtocol::NetlinkNetFilter).map_err(|error| match error {
        Error::System { source, .. } if source.raw_os_error() == Some(libc::EPROTONOSUPPORT) => {
            Error::NoNftables { source }
        }
        other => other,
    })
}

fn nft_message(kind: u16, flags: u16, family: Family) -> Message {
    // `struct nfgenmsg`: family, version 0, resource id 0.
    Message::new(NFNL_SUBSYS_NFTABLES << 8 | kind, flags, &[family.number(), 0, 0, 0])
}

/// The opening and closing message name the subsystem in the resource id, in network order.
fn batch_header() -> [u8; NFGENMSG] {
    let [high, low] = NFNL_SUBSYS_NFTABLES.to_be_bytes();
    [0, 0, high, low]
}

#[cfg(test)]
#[path = "nft_tests.rs"]
mod tests;
