//! A ratio, and a mark of doubt, as they stand in cards and tables.

use super::Report;
use super::verdict::{Outcome, few_rounds, is_own, outcome};
use crate::stats::{Figure, Ratio, Summary};

/// A ratio, coloured as better or worse. Only Leno's ratios are coloured, and none of a figure that supports no claim.
pub(super) fn ratio(figure: &Figure, one: &Summary, ratio: &Ratio) -> String {
    let (class, sign) = match outcome(figure.better, ratio) {
        Outcome::NotToldApart => (" class=\"alike\"", "≈ "),
        _ if !is_own(&one.subject) || one.doubt.is_some() => ("", ""),
        Outcome::Better => (" class=\"good\"", ""),
        Outcome::Worse => (" class=\"bad\"", ""),
    };
    format!("<b{class}>{sign}{:.2}×", ratio.ratio)
}

/// The mark of a figure that supports no claim. If all of the report has too few rounds, that is said once instead.
pub(super) fn mark(report: &Report, one: &Summary) -> &'static str {
    if one.doubt.is_some() && few_rounds(report).is_none() { "<i>?</i>" } else { "" }
}
