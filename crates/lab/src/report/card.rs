//! One figure of all subjects: for each a bar, its median, and its ratio to no mesh and to its peers.

use std::fmt::Write as _;

use super::Report;
use super::markup::{ROUNDS, colour, escape, id};
use super::ratio::{mark, ratio};
use super::verdict::{compared_with, is_alike, is_own};
use crate::stats::{Better, Figure, Summary, number};

/// A card with a link to the figure's rounds. `with_step` says whether the page has several steps, so that the card must name
/// its own.
pub(super) fn card(report: &Report, figure: &Figure, with_step: bool) -> String {
    let mut out = String::new();
    let mut about: Vec<String> = Vec::new();
    if with_step {
        about.push(figure.step.clone());
    }
    if !figure.unit.is_empty() {
        about.push(figure.unit.clone());
    }
    about.push(if figure.better == Better::Higher { "more is better" } else { "less is better" }.to_owned());
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "<section class=\"card\"><h3><a href=\"#{}\">{}</a></h3><p class=\"dim\">{}</p>",
        id(ROUNDS, &[&figure.step, &figure.name]),
        escape(&figure.name),
        escape(&about.join(" · ")),
    );
    let top = figure.subjects.iter().map(|one| one.max).fold(0.0, f64::max);
    // Bars show differences. With one subject, or equal values, there is none.
    let has_bars = figure.subjects.len() > 1 && !is_alike(figure) && top > 0.0;
    for (index, subject) in report.subjects.iter().enumerate() {
        let Some(one) = figure.of(&subject.name) else { continue };
        let own = if is_own(&subject.name) { " own" } else { "" };
        let doubt = mark(report, one);
        let _ = write!(
            out,
            "<div class=\"line{own}\"><span class=\"name\">{}</span><span class=\"num\">{}{doubt}</span>",
            escape(&subject.name),
            number(one.median),
        );
        if has_bars {
            out.push_str(&bar(one, top, &colour(index)));
        }
        out.push_str(&ratios(report, figure, one));
        out.push_str("</div>\n");
    }
    out.push_str("</section>\n");
    out
}

/// A bar up to the median, with a whisker from the smallest to the largest round. Its width is that of the page, so lengths
/// are percentages.
fn bar(one: &Summary, top: f64, colour: &str) -> String {
    let at = |value: f64| value.max(0.0) / top * 100.0;
    let mut svg = format!(
        r#"<svg class="bar" width="100%" height="14" role="img" aria-label="{} of {}"><rect class="{colour}" width="{:.2}%" height="14"/>"#,
        number(one.median),
        number(top),
        at(one.median),
    );
    if one.min < one.max {
        let (from, to) = (at(one.min), at(one.max));
        let _ = write!(
            svg,
            r#"<g class="w"><line x1="{from:.2}%" x2="{to:.2}%" y1="7" y2="7"/><line x1="{from:.2}%" x2="{from:.2}%" y1="3" y2="11"/><line x1="{to:.2}%" x2="{to:.2}%" y1="3" y2="11"/></g>"#
        );
    }
    svg.push_str("</svg>");
    svg
}

/// A subject's ratios to those it is compared with.
fn ratios(report: &Report, figure: &Figure, one: &Summary) -> String {
    let mut out = String::new();
    for other in compared_with(report, &one.subject) {
        if let Some(known) = one.ratios.iter().find(|ratio| ratio.to == other) {
            let _ = write!(out, "{} {}</b>", ratio(figure, one, known), escape(other));
        }
    }
    if out.is_empty() { out } else { format!("<span class=\"ratio\">{out}</span>") }
}
