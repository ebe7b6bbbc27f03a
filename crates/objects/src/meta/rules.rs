//! Checks of metadata and selectors that types can't express: names, ranges, and fields that must fit each other.
//!
//! Each check is declared at its field (see `object!`), so that its error has the path and line of that field. The
//! rules are those of the Kubernetes and Istio API servers.

#![allow(clippy::ptr_arg, reason = "a check takes its field as it is, and fields are vectors")]

use leno_model::Name;

use super::{LabelExpression, LabelOperator, Labels, ObjectMeta};
use crate::Kind;
use crate::decode::{Context, Problem};
use crate::validate::{label, subdomain};

type Check = Result<(), Problem>;

pub(crate) fn object_name(name: &Name, cx: &mut Context) -> Check {
    let rule = match cx.kind {
        Kind::Namespace | Kind::Service => label(name),
        _ => subdomain(name),
    };
    rule.map_err(Problem::here)
}

pub(crate) fn namespace_name(name: &Name, _: &mut Context) -> Check {
    label(name).map_err(Problem::here)
}

pub(crate) fn metadata(metadata: &ObjectMeta, cx: &mut Context) -> Check {
    if metadata.name.is_empty() {
        return Err(Problem::at(".name", "is required"));
    }
    if !cx.kind.is_namespaced() && !metadata.namespace.is_empty() {
        return Err(Problem::at(".namespace", format!("a {} has no namespace; remove the field", cx.kind)));
    }
    Ok(())
}

pub(crate) fn labels(labels: &Labels, _: &mut Context) -> Check {
    for (key, value) in labels {
        qualified_name(key).map_err(Problem::here)?;
        label_value(value).map_err(|why| Problem::at(format!(".{key}"), why))?;
    }
    Ok(())
}

pub(crate) fn annotations(annotations: &Labels, _: &mut Context) -> Check {
    annotations.keys().try_for_each(|key| qualified_name(&key.to_lowercase()).map_err(Problem::here))
}

fn label_value(value: &str) -> Result<(), String> {
    let sound = value.is_empty() || (value.len() <= 63 && is_name_part(value));
    if sound {
        Ok(())
    } else {
        Err(format!("{value:?} is no label value: at most 63 letters, digits, '-', '_' or '.', ends alphanumeric"))
    }
}

fn qualified_name(key: &str) -> Result<(), String> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    if prefix.is_none_or(|prefix| subdomain(prefix).is_ok()) && name.len() <= 63 && is_name_part(name) {
        Ok(())
    } else {
        Err(format!("{key:?} is no label key: [dns-name/]name, the name at most 63 letters, digits, '-', '_' or '.'"))
    }
}

fn is_name_part(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
        && text.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric)
        && text.as_bytes().last().is_some_and(u8::is_ascii_alphanumeric)
}

pub(crate) fn label_expressions(expressions: &Vec<LabelExpression>, _: &mut Context) -> Check {
    for (i, expression) in expressions.iter().enumerate() {
        let wants_values = matches!(expression.operator, LabelOperator::In | LabelOperator::NotIn);
        if wants_values == expression.values.is_empty() {
            let must = if wants_values { "needs" } else { "takes no" };
            return Err(Problem::at(format!("[{i}].values"), format!("{} {must} values", expression.operator)));
        }
    }
    Ok(())
}
