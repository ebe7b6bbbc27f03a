//! The tables of a step: all its figures, and the values of each round.

use std::fmt::Write as _;

use super::markup::{ROUNDS, clock, count, escape, id};
use super::ratio::{mark, ratio};
use super::verdict::{compared_with, is_own};
use super::{Report, StepInfo};
use crate::stats::{Better, Figure, Summary, number};

/// All figures of a step: medians and ranges of every subject, and Leno's ratios.
pub(super) fn figures(report: &Report, figures: &[&Figure]) -> String {
    let names: Vec<&str> = report.subjects.iter().map(|subject| subject.name.as_str()).collect();
    let mut pairs: Vec<(&str, &str)> = Vec::new();
    for own in names.iter().copied().filter(|name| is_own(name)) {
        pairs.extend(compared_with(report, own).into_iter().map(|other| (own, other)));
    }
    pairs.retain(|(own, other)| {
        figures.iter().any(|figure| figure.of(own).is_some_and(|one| one.ratios.iter().any(|ratio| ratio.to == *other)))
    });
    let mut out = "<div class=\"wide\"><table><thead><tr><th>figure".to_owned();
    for name in &names {
        // Writing to a string cannot fail.
        let _ = write!(out, "<th>{}", escape(name));
    }
    for (own, other) in &pairs {
        let _ = write!(out, "<th>{} ÷ {}", escape(own), escape(other));
    }
    out.push_str("</thead><tbody>\n");
    for figure in figures {
        let more = if figure.better == Better::Higher { " ↑" } else { "" };
        let _ = write!(
            out,
            "<tr><th><a href=\"#{}\">{}</a> <small>{}{more}</small>",
            id(ROUNDS, &[&figure.step, &figure.name]),
            escape(&figure.name),
            escape(&figure.unit)
        );
        for name in &names {
            out.push_str("<td>");
            match figure.of(name) {
                None => out.push('–'),
                Some(one) => cell(&mut out, report, one),
            }
        }
        for (own, other) in &pairs {
            out.push_str("<td>");
            let one = figure.of(own);
            match one.and_then(|one| Some((one, one.ratios.iter().find(|ratio| ratio.to == *other)?))) {
                None => out.push('–'),
                Some((one, known)) => {
                    let _ = write!(out, "{}</b>", ratio(figure, one, known));
                }
            }
        }
        out.push('\n');
    }
    out.push_str("</tbody></table></div>\n");
    out
}

fn cell(out: &mut String, report: &Report, one: &Summary) {
    out.push_str(&number(one.median));
    out.push_str(mark(report, one));
    if one.min < one.max {
        let _ = write!(out, "<small>{} – {}</small>", number(one.min), number(one.max));
    }
    if one.values.len() < one.of_rounds {
        let _ = write!(out, "<small>{} of {}</small>", one.values.len(), count(one.of_rounds, "round"));
    }
}

/// The values of each round: a block for each figure, a row for each subject.
pub(super) fn rounds(report: &Report, step: &StepInfo, figures: &[&Figure]) -> String {
    let mut out = format!("<details><summary>Every round of {}</summary>\n", escape(&step.name));
    out.push_str("<div class=\"wide\"><table><thead><tr><th>");
    for round in 1..=report.rounds {
        let _ = write!(out, "<th>{round}");
    }
    out.push_str("</thead>\n");
    let columns = report.rounds + 1;
    if let Some(began) = began(report, step) {
        let _ = writeln!(out, "<tbody><tr><th colspan=\"{columns}\">began, UTC\n{began}</tbody>");
    }
    for figure in figures {
        let _ = writeln!(
            out,
            "<tbody id=\"{}\"><tr><th colspan=\"{columns}\">{} <small>{}</small>",
            id(ROUNDS, &[&figure.step, &figure.name]),
            escape(&figure.name),
            escape(&figure.unit),
        );
        for one in &figure.subjects {
            let _ = write!(out, "<tr><td>{}", escape(&one.subject));
            for round in 1..=report.rounds {
                // Reports of the first versions don't say which rounds a figure comes from. It comes from all of them
                // then.
                let index = if one.rounds.is_empty() {
                    Some(round - 1)
                } else {
                    one.rounds.iter().position(|known| *known == round)
                };
                let value = index.and_then(|index| one.values.get(index));
                let _ = write!(out, "<td>{}", value.map_or_else(|| "–".to_owned(), |value| number(*value)));
            }
            out.push('\n');
        }
        out.push_str("</tbody>\n");
    }
    out.push_str("</table></div></details>\n");
    out
}

/// When each turn of a step began, a row for each subject. `None` in reports of versions that did not record it.
fn began(report: &Report, step: &StepInfo) -> Option<String> {
    let loads = report.results.iter().map(|one| (&one.step, &one.subject, one.round, one.started.as_str()));
    let phases = report.churn.iter().map(|one| (&one.step, &one.subject, one.round, one.started.as_str()));
    let turns: Vec<_> =
        loads.chain(phases).filter(|(name, .., started)| **name == step.name && !started.is_empty()).collect();
    if turns.is_empty() {
        return None;
    }
    let mut out = String::new();
    for subject in &report.subjects {
        let _ = write!(out, "<tr><td>{}", escape(&subject.name));
        for round in 1..=report.rounds {
            let turn = turns.iter().find(|(_, name, number, _)| **name == subject.name && *number == round);
            let _ = write!(out, "<td>{}", turn.map_or("–", |(.., started)| clock(started)));
        }
        out.push('\n');
    }
    Some(out)
}
