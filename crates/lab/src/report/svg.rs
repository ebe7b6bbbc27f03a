//! Plots, drawn by hand: a report must open without a network, and for years.

use std::fmt::Write as _;

use super::markup::escape;
use crate::stats::{Figure, number};

/// One class per subject; the style sheet gives it a colour in both light and dark.
fn class(index: usize) -> String {
    format!("s{}", index % COLOURS)
}

/// How many colours the style sheet has.
pub(super) const COLOURS: usize = 8;

/// A bar per subject up to its median, with a whisker from its smallest to its largest round. Empty if that shows nothing.
pub(super) fn bars(figure: &Figure, subjects: &[String]) -> String {
    const LABEL: f64 = 130.0;
    const BAR: f64 = 380.0;
    const LINE: f64 = 24.0;
    const WIDTH: f64 = 620.0;
    let rows: Vec<_> =
        subjects.iter().enumerate().filter_map(|(index, name)| Some((index, figure.of(name)?))).collect();
    let top = rows.iter().map(|(_, one)| one.max).fold(0.0, f64::max);
    // Where all are alike there is nothing to see.
    let alike = rows.len() > 1 && rows.iter().all(|(_, one)| one.min == top && one.max == top);
    if top <= 0.0 || alike {
        return String::new();
    }
    let height = LINE * rows.len() as f64 + 26.0;
    let title = format!("{} [{}]", figure.name, figure.unit);
    let mut svg = open(WIDTH, height, &title);
    let _ = write!(svg, r#"<text class="t" x="0" y="14">{}</text>"#, escape(&title));
    for (row, (index, one)) in rows.iter().enumerate() {
        let y = 22.0 + LINE * row as f64;
        let at = |value: f64| LABEL + value.max(0.0) / top * BAR;
        let middle = y + 8.0;
        let doubt = if one.doubt.is_some() { " ?" } else { "" };
        let _ = write!(
            svg,
            r#"<text x="{:.1}" y="{:.1}" text-anchor="end">{}</text><rect class="{}" x="{LABEL}" y="{y:.1}" width="{:.1}" height="16"/><path class="w" d="M{:.1} {:.1}v8m0-4H{:.1}m0-4v8"/><text x="{:.1}" y="{:.1}">{}{doubt}</text>"#,
            LABEL - 6.0,
            y + 12.0,
            escape(&short(&one.subject)),
            class(*index),
            at(one.median) - LABEL,
            at(one.min),
            middle - 4.0,
            at(one.max),
            at(one.max) + 8.0,
            y + 12.0,
            number(one.median),
        );
    }
    svg.push_str("</svg>");
    svg
}

/// A subject's place among the subjects, its name, and its points: quantile and microseconds.
pub(super) type Curve = (usize, String, Vec<(f64, f64)>);

/// A line per subject: latency (logarithmic) over percentile (logarithmic towards the tail).
pub(super) fn percentiles(curves: &[Curve]) -> String {
    const LEFT: f64 = 70.0;
    const TOP: f64 = 24.0;
    const WIDTH: f64 = 460.0;
    const HEIGHT: f64 = 220.0;
    let points = || curves.iter().flat_map(|(_, _, curve)| curve).filter(|(_, latency)| *latency > 0.0);
    let (low, high) =
        points().fold((f64::INFINITY, 0.0_f64), |(low, high), (_, latency)| (low.min(*latency), high.max(*latency)));
    let tail = points().map(|(quantile, _)| 1.0 / (1.0 - quantile)).fold(10.0_f64, f64::max);
    if !low.is_finite() {
        return String::new();
    }
    let (from, to) = (low.log10().floor(), high.log10().ceil().max(low.log10().floor() + 1.0));
    let x = |quantile: f64| LEFT + (1.0 / (1.0 - quantile)).log10() / tail.log10() * WIDTH;
    let y = |latency: f64| TOP + HEIGHT - (latency.log10() - from) / (to - from) * HEIGHT;
    let title = "latency by percentile, all rounds together";
    let mut svg = open(700.0, TOP + HEIGHT + 30.0, title);
    let _ = write!(svg, r#"<text class="t" x="0" y="14">{title}</text>"#);
    for decade in from as i32..=to as i32 {
        let at = y(10_f64.powi(decade));
        let label = match decade {
            ..3 => format!("{} µs", 10_f64.powi(decade)),
            3..6 => format!("{} ms", 10_f64.powi(decade - 3)),
            _ => format!("{} s", 10_f64.powi(decade - 6)),
        };
        let _ = write!(
            svg,
            r#"<path class="g" d="M{LEFT} {at:.1}h{WIDTH}"/><text x="{:.1}" y="{:.1}" text-anchor="end">{label}</text>"#,
            LEFT - 6.0,
            at + 4.0
        );
    }
    for (quantile, label) in [
        (0.0, "0"),
        (0.5, "50 %"),
        (0.9, "90 %"),
        (0.99, "99 %"),
        (0.999, "99.9 %"),
        (0.9999, "99.99 %"),
        (0.99999, "99.999 %"),
    ] {
        if 1.0 / (1.0 - quantile) > tail * 1.001 {
            break;
        }
        let at = x(quantile);
        let _ = write!(
            svg,
            r#"<path class="g" d="M{at:.1} {TOP}v{HEIGHT}"/><text x="{at:.1}" y="{:.1}" text-anchor="middle">{label}</text>"#,
            TOP + HEIGHT + 16.0
        );
    }
    for (row, (index, name, curve)) in curves.iter().enumerate() {
        let mut path = String::new();
        for (number, (quantile, latency)) in curve.iter().filter(|(_, latency)| *latency > 0.0).enumerate() {
            let _ = write!(path, "{}{:.1} {:.1}", if number == 0 { 'M' } else { 'L' }, x(*quantile), y(*latency));
        }
        let legend = TOP + 14.0 + 18.0 * row as f64;
        let _ = write!(
            svg,
            r#"<path class="l {class}" d="{path}"/><rect class="{class}" x="{:.1}" y="{:.1}" width="12" height="12"/><text x="{:.1}" y="{:.1}">{}</text>"#,
            LEFT + WIDTH + 16.0,
            legend - 10.0,
            LEFT + WIDTH + 34.0,
            legend,
            escape(&short(name)),
            class = class(*index),
        );
    }
    svg.push_str("</svg>");
    svg
}

/// The end of a name that has no room: subjects are told apart by the ends of their paths.
fn short(name: &str) -> String {
    const ROOM: usize = 18;
    let letters = name.chars().count();
    if letters <= ROOM {
        name.to_owned()
    } else {
        format!("…{}", name.chars().skip(letters + 1 - ROOM).collect::<String>())
    }
}

fn open(width: f64, height: f64, title: &str) -> String {
    format!(
        r#"<svg viewBox="0 0 {width:.0} {height:.0}" width="{width:.0}" role="img" aria-label="{}">"#,
        escape(title)
    )
}
