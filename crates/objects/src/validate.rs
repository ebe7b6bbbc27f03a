//! The forms of names.

#![allow(clippy::ptr_arg, reason = "a check takes its field as it is")]

use std::collections::BTreeMap;

use leno_model::Name;

use crate::decode::{Context, Problem};

type Check = Result<(), Problem>;

/// An RFC 1123 label: at most 63 lower-case letters, digits and `-`; it starts and ends with a letter or digit.
pub(super) fn label(text: &str) -> Result<(), String> {
    let lower = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    let sound = bytes.len() <= 63
        && bytes.iter().all(|b| lower(*b) || *b == b'-')
        && bytes.first().is_some_and(|b| lower(*b))
        && bytes.last().is_some_and(|b| lower(*b));
    if sound {
        Ok(())
    } else {
        Err(format!("{text:?} must be 1 to 63 lower-case letters, digits or '-', and start and end with no '-'"))
    }
}

/// An RFC 1123 subdomain: labels joined by dots, at most 253 characters.
pub(super) fn subdomain(text: &str) -> Result<(), String> {
    if text.len() <= 253 && text.split('.').all(|part| label(part).is_ok()) {
        Ok(())
    } else {
        Err(format!(
            "{text:?} must be lower-case letters, digits, '-' or '.', and start and end with a letter or digit"
        ))
    }
}

/// An IANA service name (RFC 6335 §5.1): at most 15 lower-case letters, digits and single `-`, with at least one
/// letter.
pub(super) fn port_name(text: &str) -> Result<(), String> {
    let sound =
        label(text).is_ok() && text.len() <= 15 && !text.contains("--") && text.bytes().any(|b| b.is_ascii_lowercase());
    if sound {
        Ok(())
    } else {
        Err(format!(
            "{text:?} is no port name: 1 to 15 lower-case letters, digits or single '-', with a letter among them"
        ))
    }
}

pub(super) fn label_field(name: &String, _: &mut Context) -> Check {
    label(name).map_err(Problem::here)
}

pub(super) fn subdomain_field(name: &Name, _: &mut Context) -> Check {
    if name.is_empty() { Ok(()) } else { subdomain(name).map_err(Problem::here) }
}

pub(super) fn port_name_field(name: &String, _: &mut Context) -> Check {
    if name.is_empty() { Ok(()) } else { port_name(name).map_err(Problem::here) }
}

pub(super) fn service_port_name_field(name: &String, _: &mut Context) -> Check {
    if name.is_empty() { Ok(()) } else { label(name).map_err(Problem::here) }
}

/// A path below some directory, which must not lead out of it.
pub(super) fn inner_path_field(path: &String, _: &mut Context) -> Check {
    if path.starts_with('/') || path.split('/').any(|part| part == "..") {
        return Err(Problem::here(format!("{path:?} must be relative and without `..`")));
    }
    Ok(())
}

pub(super) fn absolute_path_field(path: &String, _: &mut Context) -> Check {
    if !path.starts_with('/') || path.split('/').any(|part| part == "..") || path.trim_matches('/').is_empty() {
        return Err(Problem::here(format!("{path:?} must begin with `/`, name something below it, and hold no `..`")));
    }
    Ok(())
}

pub(crate) fn no_duplicates<'a>(names: impl Iterator<Item = &'a str>, field: &str, what: &str) -> Check {
    let mut seen = BTreeMap::new();
    for (i, name) in names.enumerate().filter(|(_, name)| !name.is_empty()) {
        if let Some(first) = seen.insert(name, i) {
            return Err(Problem::at(format!("[{i}]{field}"), format!("{what} {name:?} is already used by [{first}]")));
        }
    }
    Ok(())
}
