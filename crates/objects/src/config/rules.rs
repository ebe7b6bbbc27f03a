//! What the shape of ConfigMaps and Secrets can't say.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use leno_model::Name;

use crate::decode::{Context, Problem};

type Check = Result<(), Problem>;

pub(crate) fn keys<T>(entries: &BTreeMap<Name, T>, _: &mut Context) -> Check {
    let is_part = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    for key in entries.keys() {
        let sound = !key.is_empty() && key.len() <= 253 && key.bytes().all(is_part) && !matches!(&**key, "." | "..");
        if !sound {
            let message = format!("{key:?} is no name of an entry: letters, digits, '-', '_' or '.', at most 253");
            return Err(Problem::here(message));
        }
    }
    Ok(())
}

pub(crate) fn base64_values(entries: &BTreeMap<Name, String>, cx: &mut Context) -> Check {
    keys(entries, cx)?;
    for (key, value) in entries {
        if decoded(value).is_err() {
            let message = match cx.kind {
                crate::Kind::Secret => "is not in base64: write plain text below stringData instead",
                _ => "is not in base64: write plain text below data instead",
            };
            return Err(Problem::at(format!(".{key}"), message));
        }
    }
    Ok(())
}

/// The bytes of a value in base64, which may be broken into lines.
pub(crate) fn decoded(value: &str) -> Result<Vec<u8>, base64::DecodeError> {
    let value: String = value.split_ascii_whitespace().collect();
    STANDARD.decode(value)
}
