//! Checks of policies that types can't express: names, ranges, and fields that must fit each other.
//!
//! Each check is declared at its field (see `object!`), so that its error has the path and line of that field. The
//! rules are those of the Kubernetes and Istio API servers.

#![allow(clippy::ptr_arg, reason = "a check takes its field as it is, and fields are vectors")]

use super::{
    AuthorizationPolicySpec, MutualTlsMode, Operation, PeerAuthenticationSpec, PolicyAction, RequestAuthenticationSpec,
    Source,
};
use crate::decode::{Context, Problem};
use crate::scalars::IpBlock;
use crate::validate::{label, subdomain};

type Check = Result<(), Problem>;

pub(crate) fn not_empty<T>(items: &Vec<T>, _: &mut Context) -> Check {
    if items.is_empty() {
        // The standard's meaning ("no restriction") is the opposite of what authors usually intend.
        return Err(Problem::here("is an empty list; remove the field, or list what may match"));
    }
    Ok(())
}

pub(crate) fn patterns(patterns: &Vec<String>, _: &mut Context) -> Check {
    for (i, pattern) in patterns.iter().enumerate() {
        let at = format!("[{i}]");
        if pattern.is_empty() {
            return Err(Problem::at(at, "must not be empty"));
        }
        let inner = pattern.strip_prefix('*').unwrap_or(pattern);
        let inner = if inner.len() == pattern.len() { inner.strip_suffix('*').unwrap_or(inner) } else { inner };
        if inner.contains('*') && !pattern.contains('{') {
            return Err(Problem::at(at, format!("{pattern:?}: '*' may stand only at one end")));
        }
    }
    Ok(())
}

pub(crate) fn service_accounts(accounts: &Vec<String>, _: &mut Context) -> Check {
    for (i, account) in accounts.iter().enumerate() {
        let (namespace, name) = account.split_once('/').map_or((None, account.as_str()), |(ns, n)| (Some(ns), n));
        if namespace.is_some_and(|ns| label(ns).is_err()) || subdomain(name).is_err() {
            let message = format!("{account:?} is neither `account` nor `namespace/account` (no wildcards)");
            return Err(Problem::at(format!("[{i}]"), message));
        }
    }
    Ok(())
}

pub(crate) fn ports(ports: &Vec<String>, _: &mut Context) -> Check {
    for (i, port) in ports.iter().enumerate() {
        if port.parse::<u16>().map_or(true, |port| port == 0) {
            return Err(Problem::at(format!("[{i}]"), format!("{port:?} is not a port number (1 to 65535)")));
        }
    }
    Ok(())
}

pub(crate) fn source(source: &Source, cx: &mut Context) -> Check {
    if *source == Source::default() {
        return Err(Problem::here("must restrict something, such as principals or namespaces"));
    }
    let by_account = !source.service_accounts.is_empty() || !source.not_service_accounts.is_empty();
    let by_name = [&source.principals, &source.not_principals, &source.namespaces, &source.not_namespaces];
    if by_account && by_name.iter().any(|list| !list.is_empty()) {
        return Err(Problem::at(".serviceAccounts", "can't be combined with principals or namespaces"));
    }
    for principal in source.principals.iter().chain(&source.not_principals) {
        if principal.starts_with("spiffe://") {
            let path = cx.path();
            cx.warnings
                .push(format!("{path}: principal {principal:?} is written without spiffe://; read as if it were"));
        }
    }
    Ok(())
}

pub(crate) fn operation(operation: &Operation, _: &mut Context) -> Check {
    if *operation == Operation::default() {
        return Err(Problem::here("must restrict something, such as ports"));
    }
    Ok(())
}

/// The attributes that a condition may name (Istio's list).
const CONDITION_KEYS: [&str; 13] = [
    "request.auth.principal",
    "request.auth.audiences",
    "request.auth.presenter",
    "source.ip",
    "source.namespace",
    "source.principal",
    "source.serviceAccount",
    "remote.ip",
    "destination.ip",
    "destination.port",
    "connection.sni",
    "request.headers[",
    "request.auth.claims[",
];

pub(crate) fn condition_key(key: &String, _: &mut Context) -> Check {
    let known = CONDITION_KEYS.iter().any(|known| match known.strip_suffix('[') {
        Some(_) => key.starts_with(known) && key.ends_with(']'),
        None => key == known,
    });
    if known || key.starts_with("experimental.") {
        return Ok(());
    }
    Err(Problem::here(match crate::suggest::did_you_mean(key, CONDITION_KEYS) {
        Some(meant) => format!("unknown attribute {key:?}; did you mean {}?", meant.replace('[', "[NAME]")),
        None => format!("unknown attribute {key:?}"),
    }))
}

pub(crate) fn authorization_spec(spec: &AuthorizationPolicySpec, cx: &mut Context) -> Check {
    if spec.selector.is_some() && (spec.target_ref.is_some() || !spec.target_refs.is_empty()) {
        return Err(Problem::here("selector and targetRefs exclude each other"));
    }
    if spec.target_ref.is_some() && !spec.target_refs.is_empty() {
        return Err(Problem::here("targetRef and targetRefs exclude each other"));
    }
    match (spec.action, &spec.provider) {
        (PolicyAction::Custom, None) => return Err(Problem::at(".provider", "is required by action CUSTOM")),
        (PolicyAction::Custom, Some(_)) | (_, None) => {}
        (_, Some(_)) => return Err(Problem::at(".provider", "goes with action CUSTOM only")),
    }
    if spec.action == PolicyAction::Deny && spec.rules.is_empty() {
        cx.warnings.push("a DENY policy without rules denies nothing".to_owned());
    }
    for (i, rule) in spec.rules.iter().enumerate() {
        for (j, when) in rule.when.iter().enumerate() {
            let at = format!(".rules[{i}].when[{j}]");
            if when.values.is_empty() && when.not_values.is_empty() {
                return Err(Problem::at(at, "needs values or notValues"));
            }
            for value in when.values.iter().chain(&when.not_values) {
                condition_value(&when.key, value).map_err(|why| Problem::at(at.clone(), why))?;
            }
        }
    }
    Ok(())
}

fn condition_value(key: &str, value: &str) -> Result<(), String> {
    match key {
        _ if value.is_empty() => Err("a value must not be empty".to_owned()),
        "source.ip" | "destination.ip" | "remote.ip" => value.parse::<IpBlock>().map(|_| ()),
        "destination.port" if value.parse::<u16>().map_or(true, |port| port == 0) => {
            Err(format!("{value:?} is not a port number (1 to 65535)"))
        }
        _ => Ok(()),
    }
}

pub(crate) fn peer_authentication_spec(spec: &PeerAuthenticationSpec, cx: &mut Context) -> Check {
    let selects = spec.selector.as_ref().is_some_and(|selector| !selector.match_labels.is_empty());
    if !spec.port_level_mtls.is_empty() && !selects {
        return Err(Problem::at(".portLevelMtls", "needs a selector: ports differ from workload to workload"));
    }
    let own = [("spec.mtls".to_owned(), &spec.mtls)];
    let ports = spec.port_level_mtls.iter().map(|(port, mtls)| (format!("spec.portLevelMtls.{}", port.0), mtls));
    for (at, _) in own.into_iter().chain(ports).filter(|(_, mtls)| mtls.mode == MutualTlsMode::Disable) {
        cx.warnings.push(format!("{at}.mode DISABLE: acts as PERMISSIVE, so mTLS stays accepted"));
    }
    Ok(())
}

pub(crate) fn not_blank(text: &String, _: &mut Context) -> Check {
    if text.trim().is_empty() { Err(Problem::here("must not be empty")) } else { Ok(()) }
}

pub(crate) fn header_name(name: &String, _: &mut Context) -> Check {
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if name.is_empty() || !name.bytes().all(token) {
        return Err(Problem::here(format!("{name:?} is no header's name")));
    }
    Ok(())
}

pub(crate) fn header_or_none(name: &String, cx: &mut Context) -> Check {
    if name.is_empty() { Ok(()) } else { header_name(name, cx) }
}

pub(crate) fn seconds_or_none(text: &String, _: &mut Context) -> Check {
    if text.is_empty() || seconds(text).is_some() {
        return Ok(());
    }
    Err(Problem::here(format!("{text:?} is no duration; write 5s or 0.5s")))
}

/// A duration as Istio writes it, in milliseconds.
pub(crate) fn seconds(text: &str) -> Option<u64> {
    let seconds: f64 = text.strip_suffix('s')?.parse().ok()?;
    (0.001..=3600.0).contains(&seconds).then_some((seconds * 1000.0) as u64)
}

pub(crate) fn request_authentication_spec(spec: &RequestAuthenticationSpec, _: &mut Context) -> Check {
    if spec.selector.is_some() && (spec.target_ref.is_some() || !spec.target_refs.is_empty()) {
        return Err(Problem::here("selector and targetRefs exclude each other"));
    }
    if spec.target_ref.is_some() && !spec.target_refs.is_empty() {
        return Err(Problem::here("targetRef and targetRefs exclude each other"));
    }
    for (i, rule) in spec.jwt_rules.iter().enumerate() {
        if !rule.jwks.is_empty() && !rule.jwks_uri.is_empty() {
            return Err(Problem::at(format!(".jwtRules[{i}]"), "jwks and jwksUri exclude each other"));
        }
    }
    Ok(())
}
