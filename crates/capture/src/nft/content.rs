//! A table with its chains and rules: installed in one step, and compared with what is there.

use std::fmt;

use super::{Batch, Chain, Rule, Table, list_chains, list_rules};
use crate::error::Result;
use crate::netns::NetworkNamespace;

/// Something that is not as it was installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// It isn't there.
    Missing(String),
    /// It is there but shouldn't be.
    Unexpected(String),
    /// It is there and does something else.
    Different(String),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(what) => write!(f, "missing: {what}"),
            Self::Unexpected(what) => write!(f, "unexpected: {what}"),
            Self::Different(what) => write!(f, "different: {what}"),
        }
    }
}

/// A table and all that is in it.
pub(crate) struct Content {
    pub(crate) table: Table,
    pub(crate) chains: Vec<Chain>,
    /// Each with the name of its chain.
    pub(crate) rules: Vec<(&'static str, Rule)>,
}

impl Content {
    /// Creates the table, its chains and its rules.
    pub(crate) fn add_to(self, batch: &mut Batch) {
        batch.add_table(&self.table);
        for chain in self.chains {
            batch.add_chain(&self.table, chain);
        }
        for (chain, rule) in self.rules {
            batch.add_rule(&self.table, chain, rule);
        }
    }

    /// Adds what is not as it should be. The table must exist.
    pub(crate) fn check(&self, namespace: &NetworkNamespace, problems: &mut Vec<Problem>) -> Result<()> {
        let table = &self.table;
        let chains = list_chains(namespace, table)?;
        let rules = list_rules(namespace, table)?;
        for chain in &self.chains {
            match chains.iter().find(|found| found.chain.name == chain.name) {
                None => {
                    problems.push(Problem::Missing(format!("chain {table} {chain}")));
                    continue;
                }
                Some(found) if found.chain != *chain => problems
                    .push(Problem::Different(format!("chain {table} is `{}` instead of `{chain}`", found.chain))),
                Some(_) => {}
            }
            let wanted: Vec<_> = self.rules.iter().filter(|(name, _)| *name == chain.name).map(|(_, r)| r).collect();
            let found: Vec<_> = rules.iter().filter(|rule| rule.chain == chain.name).collect();
            for (index, rule) in wanted.iter().enumerate() {
                match found.get(index) {
                    None => problems.push(Problem::Missing(format!("rule {table} {}: {rule}", chain.name))),
                    Some(found) if !found.is(rule) => problems.push(Problem::Different(format!(
                        "rule {} of {table} {} is not `{rule}`",
                        index + 1,
                        chain.name
                    ))),
                    Some(_) => {}
                }
            }
            if found.len() > wanted.len() {
                let extra = found.len() - wanted.len();
                problems.push(Problem::Unexpected(format!("{extra} more rules at the end of {table} {}", chain.name)));
            }
        }
        for found in chains.iter().filter(|found| !self.chains.iter().any(|chain| chain.name == found.chain.name)) {
            problems.push(Problem::Unexpected(format!("chain {table} {}", found.chain)));
        }
        Ok(())
    }
}
