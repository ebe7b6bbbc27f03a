//! Conversion between policies about requests and their message.
//!
//! A part that can't be read refuses the whole policy, and then nobody gets in: leaving a test out would widen what the
//! policy allows.

use std::time::Duration;

use leno_model as model;
use leno_model::Name;
use leno_model::http;

use super::authorizer;
use super::fields::{known, service_name};
use crate::ConvertError;
use crate::waypoint as wire;
use wire::policy_test::Attribute as Wire;

/// Reads a policy.
///
/// # Errors
/// If it has an enum value or a kind of target that this version does not know, or lacks something.
pub fn request_policy_from_proto(policy: wire::AuthorizationPolicy) -> Result<http::Policy, ConvertError> {
    if policy.name.is_empty() {
        return Err(ConvertError::Missing { field: "name" });
    }
    Ok(http::Policy {
        id: model::PolicyName { namespace: policy.namespace.into(), name: policy.name.into() },
        action: match known("action", policy.action)? {
            wire::authorization_policy::Action::Allow => http::PolicyAction::Allow,
            wire::authorization_policy::Action::Deny => http::PolicyAction::Deny,
            wire::authorization_policy::Action::Audit => http::PolicyAction::Audit,
            wire::authorization_policy::Action::Authenticate => http::PolicyAction::Authenticate,
            wire::authorization_policy::Action::Custom => http::PolicyAction::Custom,
            wire::authorization_policy::Action::Unspecified => return Err(ConvertError::Missing { field: "action" }),
        },
        targets: policy.targets.into_iter().map(target).collect::<Result<_, _>>()?,
        rules: policy.rules.into_iter().map(rule).collect::<Result<_, _>>()?,
        dry_run: policy.dry_run,
        tokens: policy.tokens.into_iter().map(token_rule).collect::<Result<_, _>>()?,
        authorizer: policy.newer_authorizer.or(policy.authorizer).map(authorizer::from_proto).transpose()?,
        denied_because: (!policy.denied_because.is_empty()).then(|| policy.denied_because.into()),
        not_understood: (!policy.not_understood.is_empty()).then(|| policy.not_understood.into()),
    })
}

fn target(target: wire::PolicyTarget) -> Result<http::PolicyTarget, ConvertError> {
    Ok(match target.target.ok_or(ConvertError::Missing { field: "target" })? {
        wire::policy_target::Target::Service(name) => http::PolicyTarget::Service(service_name("target", &name)?),
        wire::policy_target::Target::Waypoint(name) => http::PolicyTarget::Waypoint(service_name("target", &name)?),
    })
}

fn rule(rule: wire::PolicyRule) -> Result<http::PolicyRule, ConvertError> {
    let tests = |alternative: wire::PolicyAlternative| alternative.tests.into_iter().map(test).collect();
    let clause = |clause: wire::PolicyClause| {
        let alternatives = clause.alternatives.into_iter().map(tests).collect::<Result<_, _>>()?;
        Ok(http::PolicyClause { alternatives })
    };
    Ok(http::PolicyRule { clauses: rule.clauses.into_iter().map(clause).collect::<Result<_, ConvertError>>()? })
}

fn test(test: wire::PolicyTest) -> Result<http::AttributeTest, ConvertError> {
    let mut key = test.key.into_iter().map(Name::from);
    let attribute = match known("attribute", test.attribute)? {
        Wire::Unspecified => return Err(ConvertError::Missing { field: "attribute" }),
        Wire::Principal => http::Attribute::Principal,
        Wire::Namespace => http::Attribute::Namespace,
        Wire::ServiceAccount => http::Attribute::ServiceAccount,
        Wire::SourceIp => http::Attribute::SourceIp,
        Wire::RemoteIp => http::Attribute::RemoteIp,
        Wire::DestinationIp => http::Attribute::DestinationIp,
        Wire::DestinationPort => http::Attribute::DestinationPort,
        Wire::Host => http::Attribute::Host,
        Wire::Method => http::Attribute::Method,
        Wire::Path => http::Attribute::Path,
        Wire::Header => http::Attribute::Header(key.next().ok_or(ConvertError::Missing { field: "key" })?),
        Wire::Sni => http::Attribute::Sni,
        Wire::RequestPrincipal => http::Attribute::RequestPrincipal,
        Wire::Audience => http::Attribute::Audience,
        Wire::Presenter => http::Attribute::Presenter,
        Wire::Claim => http::Attribute::Claim(key.collect()),
    };
    let names = |texts: Vec<String>| texts.into_iter().map(Name::from).collect();
    Ok(http::AttributeTest { attribute, values: names(test.values), not_values: names(test.not_values) })
}

/// Writes a policy.
pub fn request_policy_to_proto(policy: &http::Policy) -> wire::AuthorizationPolicy {
    let asked = policy.authorizer.as_deref();
    let (known, newer) = match asked.is_none_or(authorizer::is_known_to_all) {
        true => (asked, None),
        false => (None, asked),
    };
    wire::AuthorizationPolicy {
        namespace: policy.id.namespace.to_string(),
        name: policy.id.name.to_string(),
        action: match policy.action {
            http::PolicyAction::Allow => wire::authorization_policy::Action::Allow,
            http::PolicyAction::Deny => wire::authorization_policy::Action::Deny,
            http::PolicyAction::Audit => wire::authorization_policy::Action::Audit,
            http::PolicyAction::Authenticate => wire::authorization_policy::Action::Authenticate,
            http::PolicyAction::Custom => wire::authorization_policy::Action::Custom,
        }
        .into(),
        targets: policy.targets.iter().map(target_to_proto).collect(),
        rules: policy.rules.iter().map(rule_to_proto).collect(),
        dry_run: policy.dry_run,
        not_understood: policy.not_understood.as_ref().map(ToString::to_string).unwrap_or_default(),
        tokens: policy.tokens.iter().map(token_rule_to_proto).collect(),
        authorizer: known.map(authorizer::to_proto),
        newer_authorizer: newer.map(authorizer::to_proto),
        denied_because: policy.denied_because.as_ref().map(ToString::to_string).unwrap_or_default(),
    }
}

fn token_rule(rule: wire::TokenRule) -> Result<http::TokenRule, ConvertError> {
    if rule.issuer.is_empty() {
        return Err(ConvertError::Missing { field: "issuer" });
    }
    let names = |texts: Vec<String>| texts.into_iter().map(Name::from).collect();
    Ok(http::TokenRule {
        issuer: rule.issuer.into(),
        audiences: names(rule.audiences),
        keys: match rule.keys {
            Some(wire::token_rule::Keys::Jwks(text)) => http::TokenKeys::Inline(text.into()),
            Some(wire::token_rule::Keys::Remote(remote)) => {
                http::TokenKeys::At { uri: remote.uri.into(), timeout: Duration::from_millis(remote.timeout_ms) }
            }
            None => http::TokenKeys::None,
        },
        headers: rule.headers.into_iter().map(|header| (header.name.into(), header.prefix.into())).collect(),
        params: names(rule.params),
        cookies: names(rule.cookies),
        forward: rule.forward,
        payload_header: (!rule.payload_header.is_empty()).then(|| rule.payload_header.into()),
        claim_headers: rule.claim_headers.into_iter().map(|it| (it.header.into(), names(it.claim))).collect(),
    })
}

fn token_rule_to_proto(rule: &http::TokenRule) -> wire::TokenRule {
    let texts = |names: &[Name]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    wire::TokenRule {
        issuer: rule.issuer.to_string(),
        audiences: texts(&rule.audiences),
        keys: match &rule.keys {
            http::TokenKeys::Inline(text) => Some(wire::token_rule::Keys::Jwks(text.to_string())),
            http::TokenKeys::At { uri, timeout } => Some(wire::token_rule::Keys::Remote(wire::RemoteKeys {
                uri: uri.to_string(),
                timeout_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
            })),
            http::TokenKeys::None => None,
        },
        headers: rule
            .headers
            .iter()
            .map(|(name, prefix)| wire::TokenHeader { name: name.to_string(), prefix: prefix.to_string() })
            .collect(),
        params: texts(&rule.params),
        cookies: texts(&rule.cookies),
        forward: rule.forward,
        payload_header: rule.payload_header.as_ref().map(ToString::to_string).unwrap_or_default(),
        claim_headers: rule
            .claim_headers
            .iter()
            .map(|(header, claim)| wire::ClaimHeader { header: header.to_string(), claim: texts(claim) })
            .collect(),
    }
}

fn target_to_proto(target: &http::PolicyTarget) -> wire::PolicyTarget {
    wire::PolicyTarget {
        target: match target {
            http::PolicyTarget::Service(name) => Some(wire::policy_target::Target::Service(name.to_string())),
            http::PolicyTarget::Waypoint(name) => Some(wire::policy_target::Target::Waypoint(name.to_string())),
            // Only a stand-in has it. Whoever reads this closes everything, too.
            http::PolicyTarget::All => None,
        },
    }
}

fn rule_to_proto(rule: &http::PolicyRule) -> wire::PolicyRule {
    let alternative =
        |tests: &Vec<http::AttributeTest>| wire::PolicyAlternative { tests: tests.iter().map(test_to_proto).collect() };
    let clause = |clause: &http::PolicyClause| wire::PolicyClause {
        alternatives: clause.alternatives.iter().map(alternative).collect(),
    };
    wire::PolicyRule { clauses: rule.clauses.iter().map(clause).collect() }
}

fn test_to_proto(test: &http::AttributeTest) -> wire::PolicyTest {
    let texts = |names: &[Name]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    let (attribute, key) = match &test.attribute {
        http::Attribute::Principal => (Wire::Principal, Vec::new()),
        http::Attribute::Namespace => (Wire::Namespace, Vec::new()),
        http::Attribute::ServiceAccount => (Wire::ServiceAccount, Vec::new()),
        http::Attribute::SourceIp => (Wire::SourceIp, Vec::new()),
        http::Attribute::RemoteIp => (Wire::RemoteIp, Vec::new()),
        http::Attribute::DestinationIp => (Wire::DestinationIp, Vec::new()),
        http::Attribute::DestinationPort => (Wire::DestinationPort, Vec::new()),
        http::Attribute::Host => (Wire::Host, Vec::new()),
        http::Attribute::Method => (Wire::Method, Vec::new()),
        http::Attribute::Path => (Wire::Path, Vec::new()),
        http::Attribute::Header(name) => (Wire::Header, vec![name.to_string()]),
        http::Attribute::Sni => (Wire::Sni, Vec::new()),
        http::Attribute::RequestPrincipal => (Wire::RequestPrincipal, Vec::new()),
        http::Attribute::Audience => (Wire::Audience, Vec::new()),
        http::Attribute::Presenter => (Wire::Presenter, Vec::new()),
        http::Attribute::Claim(path) => (Wire::Claim, texts(path)),
    };
    wire::PolicyTest {
        attribute: attribute.into(),
        key,
        values: texts(&test.values),
        not_values: texts(&test.not_values),
    }
}

/// What stands for a policy that was refused: nobody gets into what it is attached to, or, if that can't be read, into
/// anything. A dry run stays one.
///
/// `None` if no policy can have this name.
pub fn request_policy_stand_in(
    name: &str,
    policy: Option<wire::AuthorizationPolicy>,
    reason: &str,
) -> Option<http::Policy> {
    let id = request_policy_of_resource(name)?;
    let dry_run = policy.as_ref().is_some_and(|policy| policy.dry_run);
    let targets = policy.map(|policy| policy.targets.into_iter().map(target).collect::<Result<Vec<_>, _>>());
    let targets = match targets {
        Some(Ok(targets)) if !targets.is_empty() => targets,
        _ => vec![http::PolicyTarget::All],
    };
    let not_understood = Some(reason.into());
    Some(http::Policy { targets, dry_run, not_understood, ..http::Policy::new(id, http::PolicyAction::Deny) })
}

/// The policy whose resource has this name; `None` if no policy's has.
pub fn request_policy_of_resource(name: &str) -> Option<model::PolicyName> {
    let (namespace, name) = name.split_once('/')?;
    Some(model::PolicyName { namespace: namespace.into(), name: name.into() })
}

#[cfg(test)]
#[path = "request_policy_tests.rs"]
mod tests;
