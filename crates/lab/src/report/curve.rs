//! The latency plot, drawn by hand, because a report must open without a network, and after years.

use std::fmt::Write as _;

use super::markup::{colour, escape};

/// A subject's index, its name, and its points: quantile and microseconds.
pub(super) type Curve = (usize, String, Vec<(f64, f64)>);

/// Height of the plot and room below it for the percentiles, in CSS pixels. Its width is the page's.
const HEIGHT: f64 = 260.0;
const BELOW: f64 = 24.0;
/// The lines are drawn in a square of this size, which is stretched.
const SQUARE: f64 = 1000.0;
/// The percentiles with a label. On a phone, every second one has room.
const NAMED: [(f64, &str); 6] =
    [(0.5, "50 %"), (0.9, "90 %"), (0.99, "99 %"), (0.999, "99.9 %"), (0.9999, "99.99 %"), (0.99999, "99.999 %")];

/// One line per subject: latency (logarithmic) over percentile (logarithmic towards the tail). Empty without points.
pub(super) fn percentiles(curves: &[Curve]) -> String {
    let points = || curves.iter().flat_map(|(_, _, curve)| curve).filter(|(_, latency)| *latency > 0.0);
    let (low, high) =
        points().fold((f64::INFINITY, 0.0_f64), |(low, high), (_, latency)| (low.min(*latency), high.max(*latency)));
    let tail = points().map(|(quantile, _)| 1.0 / (1.0 - quantile)).fold(10.0_f64, f64::max);
    if !low.is_finite() {
        return String::new();
    }
    let (from, to) = (low.log10().floor(), high.log10().ceil().max(low.log10().floor() + 1.0));
    let right = |quantile: f64| (1.0 / (1.0 - quantile)).log10() / tail.log10();
    let down = |latency: f64| 1.0 - (latency.log10() - from) / (to - from);
    let title = "latency by percentile, all rounds together";
    let mut out = format!("<figure><figcaption>{title}<span class=\"legend\">");
    for (index, name, _) in curves {
        // Writing to a string cannot fail.
        let _ = write!(
            out,
            "<span><svg width=\"12\" height=\"12\"><rect class=\"{}\" width=\"12\" height=\"12\"/></svg>{}</span>",
            colour(*index),
            escape(name)
        );
    }
    out.push_str("</span></figcaption>\n");
    // The labels come last, so they are above the curves.
    let mut labels = String::new();
    let _ =
        write!(out, r#"<svg class="plot" width="100%" height="{}" role="img" aria-label="{title}">"#, HEIGHT + BELOW);
    for decade in from as i32..=to as i32 {
        let at = down(10_f64.powi(decade)) * HEIGHT;
        // Above its line, the topmost label would be cut off.
        let text = if at < 14.0 { at + 13.0 } else { at - 4.0 };
        let _ = write!(out, r#"<line class="g" x1="0" x2="100%" y1="{at:.1}" y2="{at:.1}"/>"#);
        let _ = write!(labels, r#"<text x="2" y="{text:.1}">{}</text>"#, scale(decade));
    }
    let named = NAMED.into_iter().take_while(|(quantile, _)| 1.0 / (1.0 - quantile) <= tail * 1.001);
    for (index, (quantile, label)) in named.enumerate() {
        let at = right(quantile) * 100.0;
        let anchor = if at > 95.0 { "end" } else { "middle" };
        let class = if index % 2 == 0 { r#" class="wide-only""# } else { "" };
        let _ = write!(
            out,
            r#"<line class="g" x1="{at:.2}%" x2="{at:.2}%" y1="0" y2="{HEIGHT}"/><text x="{at:.2}%" y="{:.1}" text-anchor="{anchor}"{class}>{label}</text>"#,
            HEIGHT + BELOW - 7.0
        );
    }
    let _ = write!(
        out,
        r#"<svg width="100%" height="{HEIGHT}" viewBox="0 0 {SQUARE} {SQUARE}" preserveAspectRatio="none">"#
    );
    for (index, _, curve) in curves {
        let mut path = String::new();
        for (number, (quantile, latency)) in curve.iter().filter(|(_, latency)| *latency > 0.0).enumerate() {
            let letter = if number == 0 { 'M' } else { 'L' };
            let _ = write!(path, "{letter}{:.1} {:.1}", right(*quantile) * SQUARE, down(*latency) * SQUARE);
        }
        let _ = write!(out, r#"<path class="l {}" d="{path}"/>"#, colour(*index));
    }
    let _ = writeln!(out, "</svg>{labels}</svg></figure>");
    out
}

/// Ten to the power of `decade` microseconds.
fn scale(decade: i32) -> String {
    match decade {
        ..3 => format!("{} µs", 10_f64.powi(decade)),
        3..6 => format!("{} ms", 10_f64.powi(decade - 3)),
        _ => format!("{} s", 10_f64.powi(decade - 6)),
    }
}
