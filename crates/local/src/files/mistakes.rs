//! Mistakes in manifests, in the author's words: the place, what stands there, and the fix.
//!
//! The YAML library tells what its grammar expected. A person wants to know which of the usual slips it was, and
//! that is in the lines around the place: a tab, a template, a forgotten `---`, a line that is indented by one
//! space too many.

use serde_saphyr::Error;

use crate::files::layout::{self, Found};

/// A document with a mistake in it.
pub(super) struct Document<'a> {
    /// File, as the user named it.
    pub file: &'a str,
    /// Line of the file on which the document starts, from 1.
    pub start: usize,
    /// Its text, with an empty line for each line of the file before it.
    pub text: &'a str,
    /// Path of the field that could not be read; empty where none is known.
    pub field: &'a str,
}

impl Document<'_> {
    /// `file:line:column: reason and fix`, the form that editors and terminals make clickable.
    pub(super) fn told(&self, error: &Error) -> String {
        let error = error.without_snippet();
        let at = error.location().filter(|at| at.line() > 0);
        let number = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        let place = at.map(|at| (number(at.line()), number(at.column())));
        let line = place.map_or(self.start, |(line, _)| line);
        let found = self.found(error, line).unwrap_or_else(|| {
            let (line, column) = place.unwrap_or((self.start, 0));
            Found { line, column, text: self.field_error(error, line, column) }
        });
        let Found { line, column, text } = found;
        if column > 0 {
            format!("{}:{line}:{column}: {text}", self.file)
        } else {
            format!("{}:{line}: {text}", self.file)
        }
    }

    /// The slip that explains the error, if the lines show one.
    fn found(&self, error: &Error, line: usize) -> Option<Found> {
        let lines: Vec<&str> = self.text.lines().collect();
        let grammar = is_grammar(error);
        if let Some(template) = layout::template(&lines, if grammar { None } else { Some(line) }) {
            return Some(template);
        }
        if let Error::DuplicateMappingKey { key, .. } = error {
            let column = error.location().map_or(1, |at| usize::try_from(at.column()).unwrap_or(1));
            return Some(layout::duplicate(&lines, key.as_deref().unwrap_or_default(), line, column));
        }
        if (grammar || matches!(error, Error::UnknownAnchor { .. }))
            && let Some(star) = layout::bare_star(&lines, line)
        {
            return Some(star);
        }
        if !grammar {
            return None;
        }
        layout::tab(&lines, self.start, line)
            .or_else(|| layout::unclosed(&lines, self.start, line))
            .or_else(|| layout::indentation(&lines, self.start, line))
            .or_else(|| layout::value(&lines, line))
    }

    /// A value that is not what its field takes; else the library's own words.
    fn field_error(&self, error: &Error, line: usize, column: usize) -> String {
        let here = self.text.lines().nth(line.saturating_sub(1)).unwrap_or_default();
        let value = here.get(column.saturating_sub(1)..).unwrap_or_default().trim();
        let field = if self.field.is_empty() { "the document" } else { self.field };
        let no_space = || match value.split_once(':') {
            Some((key, rest)) if !key.is_empty() && !key.contains([' ', '"', '\'']) && !rest.starts_with(' ') => {
                format!("; a space is missing after the colon of `{key}:`")
            }
            _ => String::new(),
        };
        match error {
            Error::SerdeInvalidType { unexpected, expected, .. } => {
                format!("{field}: {}", wrong_type(unexpected, expected))
            }
            Error::SerdeInvalidValue { unexpected, expected, .. } => {
                format!("{field}: {} is not {}", is(unexpected), belongs(expected))
            }
            Error::Unexpected { expected, .. } if expected.starts_with("sequence") => {
                format!(
                    "{field}: a list belongs here: write each item on its own line as `- item`, or all as `[item, item]`"
                )
            }
            Error::Unexpected { expected, .. } if expected.starts_with("mapping") && self.field.is_empty() => {
                format!("{NO_OBJECT}{}", no_space())
            }
            Error::Unexpected { expected, .. } if expected.starts_with("mapping") => {
                format!(
                    "{field}: fields belong here, each as `name: value` on its own line and indented below{}",
                    no_space()
                )
            }
            Error::Unexpected { expected, .. } if expected.contains("scalar") => {
                format!("{field}: one value belongs here, not a list or fields")
            }
            Error::InvalidScalar { ty, .. } => format!("{field}: `{value}` is not {}", type_words(ty)),
            Error::InvalidBooleanStrict { .. } => format!("{field}: `{value}` is neither true nor false"),
            Error::NullIntoString { .. } => format!("{field}: there is no value: write one, or remove the field"),
            other => self.plain(other),
        }
    }

    /// The library's words without the position, which stands before them already, and with the path of the field.
    fn plain(&self, error: &Error) -> String {
        let text = error.to_string();
        let mut reason = text.as_str();
        if let Some(at) = error.location() {
            for said in [
                format!("line {} column {}: ", at.line(), at.column()),
                format!("error: line {} column {}: ", at.line(), at.column()),
            ] {
                reason = reason.strip_prefix(&said).unwrap_or(reason);
            }
            let said = format!(" at line {}, column {}", at.line(), at.column());
            return self.with_path(&reason.replace(&said, ""));
        }
        self.with_path(reason)
    }

    fn with_path(&self, reason: &str) -> String {
        if self.field.is_empty() || reason.contains(self.field) {
            reason.to_owned()
        } else {
            format!("{}: {reason}", self.field)
        }
    }
}

/// The message for a document that does not begin like an object.
pub(super) const NO_OBJECT: &str = "apiVersion and kind are missing, so this is no Kubernetes object: every object begins with \
                                    both, such as `apiVersion: v1` and `kind: Service`";

/// A mistake in an item of a list. Its line is not known.
pub(super) fn told_of_item(field: &str, error: &str) -> String {
    let words = error.strip_prefix("invalid type: ").and_then(|rest| rest.split_once(", expected "));
    let text = words.map_or_else(|| error.to_owned(), |(unexpected, expected)| wrong_type(unexpected, expected));
    if field.is_empty() || text.contains(field) { text } else { format!("{field}: {text}") }
}

fn wrong_type(unexpected: &str, expected: &str) -> String {
    format!("{} stands where {} belongs{}", is(unexpected), belongs(expected), quotes(unexpected, expected))
}

/// Whether the text is no YAML at all, whatever object it was meant to be.
fn is_grammar(error: &Error) -> bool {
    matches!(
        error,
        Error::ExternalMessage { .. }
            | Error::Eof { .. }
            | Error::UnexpectedSequenceEnd { .. }
            | Error::UnexpectedMappingEnd { .. }
            | Error::ContainerEndMismatch { .. }
            | Error::UnexpectedContainerEndWhileReadingKeyNode { .. }
            | Error::UnexpectedContainerEndWhileSkippingNode { .. }
    )
}

/// serde's name of a value, in a user's words: "integer `1`", "string \"x\"", "sequence", "map".
fn is(unexpected: &str) -> String {
    let inside = |start: &str| unexpected.strip_prefix(start).map(|rest| rest.trim_matches('`').to_owned());
    if let Some(number) = inside("integer ").or_else(|| inside("floating point ")) {
        format!("the number {number}")
    } else if let Some(word) = inside("boolean ") {
        format!("{word} (a truth value)")
    } else if let Some(text) = unexpected.strip_prefix("string ") {
        format!("the text {text}")
    } else if unexpected == "sequence" {
        "a list".to_owned()
    } else if unexpected == "map" {
        "a group of fields".to_owned()
    } else if unexpected.starts_with("unit") || unexpected == "null" {
        "nothing".to_owned()
    } else {
        unexpected.to_owned()
    }
}

/// The accepted values of a field, without the advice in brackets.
fn belongs(expected: &str) -> &str {
    match expected.split_once(" (") {
        Some((what, _)) => what,
        None if expected == "a mapping" => "a group of fields",
        None => expected,
    }
}

/// A number or a truth value is text once it is in quotes, and the other way round.
fn quotes(unexpected: &str, expected: &str) -> String {
    let quoted = unexpected.strip_prefix("string \"").and_then(|rest| rest.strip_suffix('"'));
    if let Some(number) = quoted.filter(|text| text.parse::<u64>().is_ok()) {
        return format!(": write it without quotes, {number}");
    }
    let bare = ["integer ", "floating point ", "boolean "].iter().find_map(|kind| unexpected.strip_prefix(kind));
    match bare {
        Some(value) if expected.starts_with("a string") => {
            format!(": put it in quotes, \"{}\"", value.trim_matches('`'))
        }
        _ => String::new(),
    }
}

fn type_words(ty: &str) -> &str {
    match ty {
        "bool" | "boolean" => "true or false",
        "i8" | "i16" | "i32" | "i64" | "i128" => "a whole number",
        "u8" | "u16" | "u32" | "u64" | "u128" => "a whole number that is not negative",
        "f32" | "f64" | "float" => "a number",
        other => other,
    }
}

#[cfg(test)]
#[path = "mistakes_tests.rs"]
mod tests;
