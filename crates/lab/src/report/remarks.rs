//! Remarks on a run for a reader. Remarks that say the same about several turns are grouped.

use std::fmt::Write as _;

use super::markup::escape;

/// The remarks are unfolded if there are at most this many.
const FEW: usize = 4;

/// The remarks as a section; empty if there are none.
pub(super) fn html(warnings: &[String]) -> String {
    if warnings.is_empty() {
        return String::new();
    }
    let mut out = "<h2 id=\"remarks\">Remarks</h2>\n".to_owned();
    let groups = groups(warnings);
    let open = if warnings.len() <= FEW { " open" } else { "" };
    for group in groups {
        match group[..] {
            // Writing to a string cannot fail.
            [one] => drop(writeln!(out, "<p class=\"warn\">{}</p>", escape(one))),
            [first, ..] => {
                let what = first.split_once(": ").map_or(first, |(_, what)| what);
                let _ = writeln!(
                    out,
                    "<details{open}><summary class=\"warn\">{} turns, such as: {}</summary><ul>",
                    group.len(),
                    escape(what)
                );
                for remark in group {
                    let _ = writeln!(out, "<li>{}", escape(remark));
                }
                out.push_str("</ul></details>\n");
            }
            [] => {}
        }
    }
    out
}

/// Groups remarks that differ only in their numbers and their turn, in the order of the first of each.
fn groups(warnings: &[String]) -> Vec<Vec<&str>> {
    let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
    for warning in warnings {
        let kind = kind(warning);
        match groups.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, group)) => group.push(warning),
            None => groups.push((kind, vec![warning])),
        }
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

/// A remark without its numbers and without the turn that it is about (`STEP with SUBJECT, round N: …`).
fn kind(warning: &str) -> String {
    let text = match warning.split_once(": ") {
        Some((turn, rest)) if turn.contains(", round ") => rest,
        _ => warning,
    };
    text.chars().filter(|letter| !letter.is_ascii_digit()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_remarks_are_grouped() {
        let warnings = [
            "a/b with leno, round 1: the hypervisor took 0.13 cores away",
            "the machine is not quiet",
            "a/c with none, round 12: the hypervisor took 1.20 cores away",
        ]
        .map(str::to_owned);
        assert_eq!(groups(&warnings), [vec![warnings[0].as_str(), warnings[2].as_str()], vec![warnings[1].as_str()]]);
        let html = html(&warnings);
        assert!(html.contains("2 turns, such as: the hypervisor took 0.13 cores away"), "{html}");
        assert!(html.contains("<li>a/c with none, round 12"), "{html}");
        assert_eq!(super::html(&[]), "");
    }
}
