//! Checks of routes that types can't express. The rules are those of the Gateway API's definitions. What a control plane has
//! to say of a route by its status is not checked here.

#![allow(clippy::ptr_arg, reason = "a check takes its field as it is, and fields are vectors")]

use super::{ConnectionRouteRule, Fraction, GRPCMethodMatch, HTTPPathModifier, HTTPPathModifierType, HTTPRouteRule};
use crate::decode::{Context, Problem};
use crate::validate::no_duplicates;

type Check = Result<(), Problem>;

pub(crate) fn http_rules(rules: &Option<Vec<HTTPRouteRule>>, _: &mut Context) -> Check {
    let rules = rules.iter().flatten();
    no_duplicates(rules.map(|rule| rule.name.as_deref().unwrap_or_default()), ".name", "rule name")
}

pub(crate) fn method(method: &Option<String>, _: &mut Context) -> Check {
    const KNOWN: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
    match method.as_deref() {
        Some(method) if !KNOWN.contains(&method) => {
            Err(Problem::here(format!("{method:?} is not one of {}", KNOWN.join(", "))))
        }
        _ => Ok(()),
    }
}

pub(crate) fn percent(percent: &Option<u32>, _: &mut Context) -> Check {
    match percent {
        Some(percent) if *percent > 100 => Err(Problem::here(format!("{percent} is more than 100"))),
        _ => Ok(()),
    }
}

pub(crate) fn fraction(fraction: &Option<Fraction>, _: &mut Context) -> Check {
    match fraction {
        Some(fraction) if fraction.denominator == 0 => Err(Problem::at(".denominator", "must not be 0")),
        Some(fraction) if fraction.numerator > fraction.denominator => {
            Err(Problem::at(".numerator", "must not be greater than the denominator"))
        }
        _ => Ok(()),
    }
}

pub(crate) fn scheme(scheme: &Option<String>, _: &mut Context) -> Check {
    match scheme.as_deref() {
        Some(scheme) if !matches!(scheme, "http" | "https") => {
            Err(Problem::here(format!("{scheme:?} is neither http nor https")))
        }
        _ => Ok(()),
    }
}

pub(crate) fn path_modifier(path: &Option<HTTPPathModifier>, _: &mut Context) -> Check {
    let Some(path) = path else { return Ok(()) };
    let fits = match path.kind {
        HTTPPathModifierType::ReplaceFullPath => {
            path.replace_full_path.is_some() && path.replace_prefix_match.is_none()
        }
        HTTPPathModifierType::ReplacePrefixMatch => {
            path.replace_prefix_match.is_some() && path.replace_full_path.is_none()
        }
    };
    if fits {
        Ok(())
    } else {
        Err(Problem::here(format!("type {} needs the field of this name and no other", path.kind)))
    }
}

pub(crate) fn retry_codes(codes: &Vec<u32>, _: &mut Context) -> Check {
    match codes.iter().find(|code| !(400..600).contains(*code)) {
        Some(code) => Err(Problem::here(format!("{code} is not a status code from 400 to 599"))),
        None => Ok(()),
    }
}

pub(crate) fn session_name(name: &Option<String>, _: &mut Context) -> Check {
    let token = |name: &str| {
        !name.is_empty() && name.len() <= 128 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
    };
    match name.as_deref() {
        Some(name) if !token(name) => {
            Err(Problem::here(format!("{name:?} must be 1 to 128 letters, digits, '-', '_' or '.'")))
        }
        _ => Ok(()),
    }
}

pub(crate) fn grpc_method(method: &Option<GRPCMethodMatch>, _: &mut Context) -> Check {
    match method {
        Some(method) if method.service.is_none() && method.method.is_none() => {
            Err(Problem::here("needs a service or a method"))
        }
        _ => Ok(()),
    }
}

pub(crate) fn one_rule(rules: &Vec<ConnectionRouteRule>, _: &mut Context) -> Check {
    if rules.len() == 1 { Ok(()) } else { Err(Problem::here("must have one rule")) }
}

pub(crate) fn server_names(names: &Vec<String>, _: &mut Context) -> Check {
    if names.is_empty() {
        return Err(Problem::here("must name a server"));
    }
    let label = |label: &str| {
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        !label.is_empty() && label.bytes().all(inner) && !label.starts_with('-') && !label.ends_with('-')
    };
    let name = |name: &&String| {
        let plain = name.strip_prefix("*.").unwrap_or(name);
        name.len() <= 253 && plain.split('.').all(label) && plain.parse::<std::net::IpAddr>().is_err()
    };
    match names.iter().find(|one| !name(one)) {
        Some(wrong) => {
            Err(Problem::here(format!("{wrong:?} is not the name of a server, in lower case, or *. and one")))
        }
        None => Ok(()),
    }
}
