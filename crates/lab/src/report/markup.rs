//! Text in HTML and SVG.

/// Escapes text for HTML, including attributes.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
    out
}

/// The kinds of ids: a step, and the rounds of a figure.
pub(super) const STEP: &str = "step";
pub(super) const ROUNDS: &str = "rounds";

/// An element's id made of names: letters and digits, with a dash for anything else.
pub(super) fn id(kind: &str, names: &[&str]) -> String {
    let mut id = kind.to_owned();
    for name in names {
        id.push('-');
        for letter in name.chars() {
            if letter.is_ascii_alphanumeric() {
                id.push(letter.to_ascii_lowercase());
            } else if letter == '.' {
                // `p99.9` and `p99 9` are two figures.
                id.push('_');
            } else if !id.ends_with('-') {
                id.push('-');
            }
        }
    }
    id
}

/// The CSS class of a subject, by its index. The style sheet gives it a colour, for light and dark.
pub(super) fn colour(index: usize) -> String {
    format!("s{}", index % COLOURS)
}

/// The number of colours in the style sheet.
const COLOURS: usize = 8;

/// A point in time for people, to the minute, in UTC: `2026-11-22 18:48`. `time` is RFC 3339 in UTC.
pub(super) fn minute(time: &str) -> String {
    match (time.get(..10), time.get(10..11), time.get(11..16)) {
        (Some(day), Some("T"), Some(clock)) => format!("{day} {clock}"),
        _ => time.to_owned(),
    }
}

/// The time of day to the second: `18:48:10`. `time` is RFC 3339 in UTC.
pub(super) fn clock(time: &str) -> &str {
    time.get(11..19).unwrap_or(time)
}

/// A count with its noun: `1 round`, `5 rounds`.
pub(super) fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}
