//! Conversion between authorisation policies and their message.
//!
//! A part that can't be read refuses the whole policy. Leaving the part out would empty a list, which then matches
//! everything, or shorten a `not_` list, which then excludes less.

use ipnet::IpNet;
use leno_model as model;

use super::fields::{ip_bytes, known, port, range};
use crate::ConvertError;
use crate::security as wire;

/// Reads a policy.
///
/// # Errors
/// If it has no name, an enum value or kind of string match that this version does not know, or an invalid address or
/// port.
pub fn authorization_from_proto(a: wire::Authorization) -> Result<model::Authorization, ConvertError> {
    if a.name.is_empty() {
        return Err(ConvertError::Missing { field: "name" });
    }
    let rules = a.rules.into_iter().map(rule).collect::<Result<_, _>>()?;
    Ok(model::Authorization {
        id: model::PolicyName { namespace: a.namespace.into(), name: a.name.into() },
        scope: match known("scope", a.scope)? {
            wire::Scope::Global => model::Scope::Global,
            wire::Scope::Namespace => model::Scope::Namespace,
            wire::Scope::WorkloadSelector => model::Scope::WorkloadSelector,
        },
        action: match known("action", a.action)? {
            wire::Action::Allow => model::Action::Allow,
            wire::Action::Deny => model::Action::Deny,
        },
        rules,
        dry_run: a.dry_run,
        not_understood: None,
    })
}

/// Writes a policy.
pub fn authorization_to_proto(a: &model::Authorization) -> wire::Authorization {
    wire::Authorization {
        name: a.id.name.to_string(),
        namespace: a.id.namespace.to_string(),
        scope: match a.scope {
            model::Scope::Global => wire::Scope::Global,
            model::Scope::Namespace => wire::Scope::Namespace,
            model::Scope::WorkloadSelector => wire::Scope::WorkloadSelector,
        }
        .into(),
        action: match a.action {
            model::Action::Allow => wire::Action::Allow,
            model::Action::Deny => wire::Action::Deny,
        }
        .into(),
        rules: a
            .rules
            .iter()
            .map(|rule| wire::Rule {
                clauses: rule
                    .clauses
                    .iter()
                    .map(|clause| wire::Clause { matches: clause.matches.iter().map(match_to_proto).collect() })
                    .collect(),
            })
            .collect(),
        dry_run: a.dry_run,
        extensions: Vec::new(),
    }
}

fn rule(rule: wire::Rule) -> Result<model::Rule, ConvertError> {
    let clauses = rule
        .clauses
        .into_iter()
        .map(|clause| {
            let matches = clause.matches.into_iter().map(match_from_proto).collect::<Result<_, _>>()?;
            Ok(model::Clause { matches })
        })
        .collect::<Result<_, ConvertError>>()?;
    Ok(model::Rule { clauses })
}

fn match_from_proto(m: wire::Match) -> Result<model::Match, ConvertError> {
    Ok(model::Match {
        namespaces: strings("namespaces", m.namespaces)?,
        not_namespaces: strings("not_namespaces", m.not_namespaces)?,
        principals: strings("principals", m.principals)?,
        not_principals: strings("not_principals", m.not_principals)?,
        source_ips: ranges("source_ips", m.source_ips)?,
        not_source_ips: ranges("not_source_ips", m.not_source_ips)?,
        destination_ips: ranges("destination_ips", m.destination_ips)?,
        not_destination_ips: ranges("not_destination_ips", m.not_destination_ips)?,
        destination_ports: ports("destination_ports", m.destination_ports)?,
        not_destination_ports: ports("not_destination_ports", m.not_destination_ports)?,
        service_accounts: accounts(m.service_accounts),
        not_service_accounts: accounts(m.not_service_accounts),
    })
}

fn match_to_proto(m: &model::Match) -> wire::Match {
    wire::Match {
        namespaces: strings_to_proto(&m.namespaces),
        not_namespaces: strings_to_proto(&m.not_namespaces),
        principals: strings_to_proto(&m.principals),
        not_principals: strings_to_proto(&m.not_principals),
        source_ips: ranges_to_proto(&m.source_ips),
        not_source_ips: ranges_to_proto(&m.not_source_ips),
        destination_ips: ranges_to_proto(&m.destination_ips),
        not_destination_ips: ranges_to_proto(&m.not_destination_ips),
        destination_ports: m.destination_ports.iter().copied().map(u32::from).collect(),
        not_destination_ports: m.not_destination_ports.iter().copied().map(u32::from).collect(),
        service_accounts: accounts_to_proto(&m.service_accounts),
        not_service_accounts: accounts_to_proto(&m.not_service_accounts),
        extensions: Vec::new(),
    }
}

fn strings(field: &'static str, list: Vec<wire::StringMatch>) -> Result<Vec<model::StringMatch>, ConvertError> {
    use wire::string_match::MatchType;
    list.into_iter()
        .map(|m| match m.match_type {
            Some(MatchType::Exact(s)) => Ok(model::StringMatch::Exact(s.into())),
            Some(MatchType::Prefix(s)) => Ok(model::StringMatch::Prefix(s.into())),
            Some(MatchType::Suffix(s)) => Ok(model::StringMatch::Suffix(s.into())),
            Some(MatchType::Presence(())) => Ok(model::StringMatch::Presence),
            None => Err(ConvertError::EmptyStringMatch { field }),
        })
        .collect()
}

fn strings_to_proto(list: &[model::StringMatch]) -> Vec<wire::StringMatch> {
    use wire::string_match::MatchType;
    list.iter()
        .map(|m| wire::StringMatch {
            match_type: Some(match m {
                model::StringMatch::Exact(s) => MatchType::Exact(s.to_string()),
                model::StringMatch::Prefix(s) => MatchType::Prefix(s.to_string()),
                model::StringMatch::Suffix(s) => MatchType::Suffix(s.to_string()),
                model::StringMatch::Presence => MatchType::Presence(()),
            }),
        })
        .collect()
}

fn ranges(field: &'static str, list: Vec<wire::Address>) -> Result<Vec<IpNet>, ConvertError> {
    list.iter().map(|a| range(field, &a.address, a.length)).collect()
}

fn ranges_to_proto(list: &[IpNet]) -> Vec<wire::Address> {
    list.iter().map(|net| wire::Address { address: ip_bytes(net.addr()), length: net.prefix_len().into() }).collect()
}

fn ports(field: &'static str, list: Vec<u32>) -> Result<Vec<u16>, ConvertError> {
    list.into_iter().map(|value| port(field, value)).collect()
}

fn accounts(list: Vec<wire::ServiceAccountMatch>) -> Vec<model::ServiceAccountMatch> {
    list.into_iter()
        .map(|m| model::ServiceAccountMatch {
            namespace: m.namespace.into(),
            service_account: m.service_account.into(),
        })
        .collect()
}

fn accounts_to_proto(list: &[model::ServiceAccountMatch]) -> Vec<wire::ServiceAccountMatch> {
    list.iter()
        .map(|m| wire::ServiceAccountMatch {
            namespace: m.namespace.to_string(),
            service_account: m.service_account.to_string(),
        })
        .collect()
}
