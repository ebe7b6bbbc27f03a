//! Reading the Prometheus text format.

use std::collections::BTreeMap;

use serde::Serialize;

/// One line of a metrics page: what is counted, of what, and the count.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Sample {
    /// The metric's name.
    pub(crate) name: String,
    /// Its labels.
    pub(crate) labels: BTreeMap<String, String>,
    /// Its value.
    pub(crate) value: f64,
}

/// The samples of a page. Lines that are none are passed over.
pub(crate) fn samples(page: &str) -> impl Iterator<Item = Sample> {
    page.lines().filter_map(sample)
}

fn sample(line: &str) -> Option<Sample> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    let name_end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(name_end);
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            rest = rest.trim_start_matches([',', ' ']);
            if let Some(after) = rest.strip_prefix('}') {
                rest = after;
                break;
            }
            let (key, value) = rest.split_once("=\"")?;
            let (value, after) = quoted(value)?;
            labels.insert(key.to_owned(), value);
            rest = after;
        }
    }
    // A timestamp or an exemplar may follow the value.
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Sample { name: name.to_owned(), labels, value })
}

/// Text up to the closing quote, with escapes undone, and what follows the quote.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match characters.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            _ => value.push(character),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_hold_anything_and_what_is_no_sample_is_passed_over() {
        let page =
            "# HELP a b\na_total{x=\"a \\\"quoted\\\\ }, value\",y=\"\"} 2.0 1700000000\nb 11\ngarbage{\n# EOF\n";
        let found: Vec<_> = samples(page).collect();
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].name.as_str(), found[0].value), ("a_total", 2.0));
        assert_eq!(found[0].labels["x"], "a \"quoted\\ }, value");
        assert!(found[1].labels.is_empty());
    }
}
