//! A ratio, and a mark of doubt, as they stand in cards and tables.

use super::Report;
use super::verdict::{Outcome, few_rounds, is_own, outcome};
use crate::stats::{Figure, Ratio, Summary};

/// A ratio in the colour of what it shows. Only Leno's are good or bad.
pub(super) fn ratio(figure: &Figure, one: &Summary, ratio: &Ratio) -> String {
    let (class, sign) = match outcome(figure.better, ratio) {
        Outcome::NotToldApart => (" class=\"alike\"", "≈ "),
        _ if !is_own(&one.subject) => ("", ""),
        Outcome::Better => (" class=\"good\"", ""),
        Outcome::Worse => (" class=\"bad\"", ""),
    };
    format!("<b{class}>{sign}{:.2}×", ratio.ratio)
}

/// The mark of a figure that carries no claim. Where all of the report has too few rounds, that is said once instead.
pub(super) fn mark(report: &Report, one: &Summary) -> &'static str {
    if one.doubt.is_some() && few_rounds(report).is_none() { "<i>?</i>" } else { "" }
}
