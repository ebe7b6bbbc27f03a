//! Reading nf_tables back, to check what is there.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::rule::Rule;
use super::{
    Base, Chain, ChainType, Family, Hook, NFGENMSG, NFT_MSG_NEWRULE, NFTA_DATA_VALUE, Table, nft_message, open,
};
use crate::error::Result;
use crate::netlink::links::address_from;
use crate::netlink::message::{Attributes, Message, be32_at};
use crate::netns::NetworkNamespace;

const NFT_MSG_GETTABLE: u16 = 1;
const NFT_MSG_GETCHAIN: u16 = 4;
const NFT_MSG_GETRULE: u16 = 7;
const NFT_MSG_GETSETELEM: u16 = 13;
const NFTA_RULE_EXPRESSIONS: u16 = 4;
const NFTA_RULE_USERDATA: u16 = 7;
const NFTA_EXPR_NAME: u16 = 1;
const NFTA_EXPR_DATA: u16 = 2;

/// A table that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableInfo {
    /// Its name.
    pub table: Table,
    /// How many chains, sets and other objects are in it.
    pub objects: u32,
}

/// A chain that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainInfo {
    /// The table that it is in.
    pub table: Table,
    /// The chain.
    pub chain: Chain,
}

/// A rule that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleInfo {
    /// The table that it is in.
    pub table: Table,
    /// The name of the chain that it is in.
    pub chain: String,
    /// Its comment.
    pub comment: Option<String>,
    /// Its expressions in the kernel's encoding.
    expressions: Vec<u8>,
}

impl RuleInfo {
    /// Whether this is the rule that `wanted` would make, whatever its counters and comment say.
    #[must_use]
    pub fn is(&self, wanted: &Rule) -> bool {
        const FIXED: usize = NFGENMSG;
        let mut message = nft_message(NFT_MSG_NEWRULE, 0, Family::Inet);
        wanted.encode(&mut message);
        let Some(wanted) = message.attributes(FIXED).nested(NFTA_RULE_EXPRESSIONS) else { return false };
        let found = Attributes(&self.expressions);
        wanted.count() == found.count()
            && wanted.zip(found).all(|((_, wanted), (_, found))| same_expression(Attributes(wanted), Attributes(found)))
    }
}

fn same_expression(wanted: Attributes<'_>, found: Attributes<'_>) -> bool {
    let name = wanted.string(NFTA_EXPR_NAME);
    if name != found.string(NFTA_EXPR_NAME) {
        return false;
    }
    let data = |attributes: Attributes<'_>| attributes.find(NFTA_EXPR_DATA).unwrap_or_default().to_vec();
    let (wanted, found) = (data(wanted), data(found));
    // The kernel reports more than it was told (defaults, counters), in its own order; it must not contradict.
    Attributes(&wanted)
        .all(|(kind, value)| Attributes(&found).find(kind).is_some_and(|reported| same_value(value, reported)))
}

/// Values are compared as bytes, except that flag bits and order of nested attributes may differ.
fn same_value(wanted: &[u8], found: &[u8]) -> bool {
    if wanted == found {
        return true;
    }
    let is_nested = |bytes: &[u8]| !bytes.is_empty() && nested_length(bytes) == bytes.len();
    is_nested(wanted)
        && is_nested(found)
        && Attributes(wanted)
            .all(|(kind, value)| Attributes(found).find(kind).is_some_and(|reported| same_value(value, reported)))
}

/// How many bytes a list of attributes covers.
fn nested_length(bytes: &[u8]) -> usize {
    Attributes(bytes).map(|(_, value)| (4 + value.len()).next_multiple_of(4)).sum()
}

/// The tables of a namespace, of the families known here.
///
/// # Errors
/// When the kernel has no nf_tables or the caller lacks CAP_NET_ADMIN.
pub fn list_tables(namespace: &NetworkNamespace) -> Result<Vec<TableInfo>> {
    let bodies = dump(namespace, &Message::new(kind(NFT_MSG_GETTABLE), 0, &[0; NFGENMSG]), "listing nf_tables tables")?;
    Ok(bodies
        .iter()
        .filter_map(|body| {
            let attributes = Attributes::after(body, NFGENMSG);
            let objects = attributes.find(3).and_then(|v| be32_at(v, 0)).unwrap_or_default();
            Some(TableInfo { table: table(body, attributes)?, objects })
        })
        .collect())
}

/// The chains of a table, in no particular order; none when the table doesn't exist.
///
/// # Errors
/// When the kernel has no nf_tables or the caller lacks CAP_NET_ADMIN.
pub fn list_chains(namespace: &NetworkNamespace, wanted: &Table) -> Result<Vec<ChainInfo>> {
    let message = nft_message(NFT_MSG_GETCHAIN, 0, wanted.family);
    let bodies = dump(namespace, &message, "listing nf_tables chains")?;
    Ok(bodies.iter().filter_map(|body| parse_chain(body)).filter(|chain| chain.table == *wanted).collect())
}

fn parse_chain(body: &[u8]) -> Option<ChainInfo> {
    let attributes = Attributes::after(body, NFGENMSG);
    let base = attributes.nested(4).and_then(|hook| {
        let number = be32_at(hook.find(1)?, 0)?;
        let kind = attributes.string(7)?;
        Some(Base {
            hook: Hook::ALL.into_iter().find(|hook| hook.number() == number)?,
            priority: be32_at(hook.find(2)?, 0)?.cast_signed(),
            kind: [ChainType::Filter, ChainType::Nat, ChainType::Route].into_iter().find(|k| k.to_string() == kind)?,
            drop_by_default: attributes.find(5).and_then(|v| be32_at(v, 0)) == Some(0),
        })
    });
    Some(ChainInfo { table: table(body, attributes)?, chain: Chain { name: attributes.string(3)?, base } })
}

/// The rules of a table, chain by chain and in order within each; none when the table doesn't exist.
///
/// # Errors
/// When the kernel has no nf_tables or the caller lacks CAP_NET_ADMIN.
pub fn list_rules(namespace: &NetworkNamespace, wanted: &Table) -> Result<Vec<RuleInfo>> {
    let mut message = nft_message(NFT_MSG_GETRULE, 0, wanted.family);
    message.string(1, &wanted.name);
    let bodies = dump(namespace, &message, "listing nf_tables rules")?;
    Ok(bodies
        .iter()
        .filter_map(|body| {
            let attributes = Attributes::after(body, NFGENMSG);
            Some(RuleInfo {
                table: table(body, attributes)?,
                chain: attributes.string(2)?,
                comment: attributes.find(NFTA_RULE_USERDATA).and_then(comment),
                expressions: attributes.find(NFTA_RULE_EXPRESSIONS).unwrap_or_default().to_vec(),
            })
        })
        .filter(|rule| rule.table == *wanted)
        .collect())
}

/// The addresses in a set. The set must exist.
///
/// # Errors
/// When there is no such set, the kernel has no nf_tables or the caller lacks CAP_NET_ADMIN.
pub fn list_addresses(namespace: &NetworkNamespace, table: &Table, set: &str) -> Result<BTreeSet<IpAddr>> {
    const ELEMENTS: u16 = 3;
    const KEY: u16 = 1;
    let mut message = nft_message(NFT_MSG_GETSETELEM, 0, table.family);
    message.string(1, &table.name).string(2, set);
    let bodies = dump(namespace, &message, "listing the addresses of an nf_tables set")?;
    let lists = bodies.iter().filter_map(|body| Attributes::after(body, NFGENMSG).nested(ELEMENTS));
    let elements = lists.flat_map(|list| list.map(|(_, element)| Attributes(element)));
    Ok(elements.filter_map(|element| address_from(element.nested(KEY)?.find(NFTA_DATA_VALUE)?)).collect())
}

fn dump(namespace: &NetworkNamespace, message: &Message, operation: &str) -> Result<Vec<Vec<u8>>> {
    open(namespace)?.dump(message).map_err(|refusal| refusal.into_error(operation))
}

fn kind(message: u16) -> u16 {
    super::NFNL_SUBSYS_NFTABLES << 8 | message
}

fn table(body: &[u8], attributes: Attributes<'_>) -> Option<Table> {
    Some(Table { family: Family::from_number(*body.first()?)?, name: attributes.string(1)? })
}

/// The comment among the user data: entries of type, length, bytes.
fn comment(mut data: &[u8]) -> Option<String> {
    while let [kind, length, rest @ ..] = data {
        let value = rest.get(..usize::from(*length))?;
        if *kind == 0 {
            let end = value.iter().position(|&b| b == 0).unwrap_or(value.len());
            return Some(String::from_utf8_lossy(&value[..end]).into_owned());
        }
        data = &rest[value.len()..];
    }
    None
}
