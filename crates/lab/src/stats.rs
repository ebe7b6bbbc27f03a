//! From rounds to figures: medians, spreads, ratios, and whether they support a claim.

use serde::{Deserialize, Serialize};

/// If the rounds of a figure differ by more than this part of their median, it supports no claim.
pub const WIDE: f64 = 0.25;
/// Fewer rounds than this show no meaningful spread.
pub const FEW: usize = 3;

/// Which way a figure is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Better {
    /// More is better.
    Higher,
    /// Less is better.
    Lower,
}

/// One figure of one step: all subjects.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Step of the scenario.
    pub step: String,
    /// What it is, for people.
    pub name: String,
    /// Its unit.
    pub unit: String,
    /// Which way it is better.
    pub better: Better,
    /// One entry per subject that has it.
    pub subjects: Vec<Summary>,
}

/// One figure of one subject over all rounds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The subject.
    pub subject: String,
    /// The value of each round that has one, in order.
    pub values: Vec<f64>,
    /// The rounds of these values.
    #[serde(default)]
    pub rounds: Vec<usize>,
    /// Rounds that the subject was measured in.
    #[serde(default)]
    pub of_rounds: usize,
    /// Middle one.
    pub median: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
    /// Why the figure can't support a claim. `None` if it can.
    pub doubt: Option<String>,
    /// How it compares with each other subject.
    pub ratios: Vec<Ratio>,
}

/// A comparison of medians.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// The other subject.
    pub to: String,
    /// This subject's median divided by the other's.
    pub ratio: f64,
    /// Whether the ranges overlap. Then the rounds show no difference.
    pub overlap: bool,
}

/// A value of a step: name, unit, which way is better, value.
pub(crate) type Value = (&'static str, &'static str, Better, f64);

/// The values of one subject's turn at a step.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Found<'a> {
    /// Step.
    pub(crate) step: &'a str,
    /// Subject.
    pub(crate) subject: &'a str,
    /// Round, from 1.
    pub(crate) round: usize,
    /// The numbers.
    pub(crate) values: Vec<Value>,
}

/// The values of a subject, by round.
type Known = Vec<(usize, f64)>;

/// Sums up all rounds, in the order in which they were measured.
pub(crate) fn sum_up(all: &[Found<'_>]) -> Vec<Figure> {
    let mut figures: Vec<Figure> = Vec::new();
    let mut rounds: Vec<Vec<(String, Known)>> = Vec::new();
    for found in all {
        for &(name, unit, better, value) in &found.values {
            let known = figures.iter().position(|figure| figure.step == found.step && figure.name == name);
            let index = known.unwrap_or_else(|| {
                figures.push(Figure {
                    step: found.step.to_owned(),
                    name: name.to_owned(),
                    unit: unit.to_owned(),
                    better,
                    subjects: Vec::new(),
                });
                rounds.push(Vec::new());
                figures.len() - 1
            });
            match rounds[index].iter_mut().find(|(subject, _)| *subject == found.subject) {
                Some((_, values)) => values.push((found.round, value)),
                None => rounds[index].push((found.subject.to_owned(), vec![(found.round, value)])),
            }
        }
    }
    for (figure, rounds) in figures.iter_mut().zip(rounds) {
        let turns =
            |subject: &str| all.iter().filter(|turn| turn.step == figure.step && turn.subject == subject).count();
        figure.subjects =
            rounds.into_iter().map(|(subject, known)| Summary::new(&subject, known, turns(&subject))).collect();
        figure.compare();
    }
    // Steps in order, and within one the figures in the order of the turn that has most of them. Without proxies there
    // are fewer.
    let place = |figure: &Figure| {
        let step = all.iter().position(|found| found.step == figure.step);
        let fullest = all.iter().filter(|found| found.step == figure.step).max_by_key(|found| found.values.len());
        (step, fullest.and_then(|found| found.values.iter().position(|(name, ..)| *name == figure.name)))
    };
    figures.sort_by_cached_key(place);
    figures
}

/// The middle value, or the mean of the two middle ones. 0 for an empty list.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        length if length % 2 == 1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}

impl Summary {
    /// Sums up one subject: its rounds and their values, and the number of rounds in which it was measured.
    #[must_use]
    pub fn new(subject: &str, known: Vec<(usize, f64)>, of_rounds: usize) -> Self {
        let (rounds, values): (Vec<usize>, Vec<f64>) = known.into_iter().unzip();
        let min = values.iter().copied().fold(f64::INFINITY, f64::min);
        let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let median = median(&values);
        let spread = (max - min) / median.abs();
        let mut doubts = Vec::new();
        if values.len() < of_rounds {
            doubts.push(format!("known of {} of {of_rounds} rounds", values.len()));
        }
        if values.len() < FEW {
            doubts.push(format!(
                "only {} round{}: no spread is known",
                values.len(),
                if values.len() == 1 { "" } else { "s" }
            ));
        } else if max > min && (median == 0.0 || spread > WIDE) {
            let wide = if median == 0.0 { "without bound".to_owned() } else { format!("{:.0} %", spread * 100.0) };
            doubts.push(format!("the rounds lie {wide} of their median apart: too wide to carry a claim"));
        }
        let doubt = (!doubts.is_empty()).then(|| doubts.join("; "));
        Self { subject: subject.to_owned(), values, rounds, of_rounds, median, min, max, doubt, ratios: Vec::new() }
    }

    #[cfg(test)]
    pub(crate) fn of_all_rounds(subject: &str, values: &[f64]) -> Self {
        Self::new(subject, (1..).zip(values.iter().copied()).collect(), values.len())
    }
}

impl Figure {
    /// Compares every subject with every other. Differences below zero, where the noise is larger, have no ratio.
    pub fn compare(&mut self) {
        let all: Vec<(String, f64, f64, f64)> =
            self.subjects.iter().map(|one| (one.subject.clone(), one.median, one.min, one.max)).collect();
        for one in &mut self.subjects {
            one.ratios = all
                .iter()
                .filter(|(to, median, ..)| *to != one.subject && *median > 0.0 && one.median >= 0.0)
                .map(|(to, median, min, max)| Ratio {
                    to: to.clone(),
                    ratio: one.median / median,
                    overlap: one.min <= *max && *min <= one.max,
                })
                .collect();
        }
    }

    /// The entry of a subject.
    #[must_use]
    pub fn of(&self, subject: &str) -> Option<&Summary> {
        self.subjects.iter().find(|one| one.subject == subject)
    }
}

/// A number with three significant digits, or with all digits before the point.
pub(crate) fn number(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return if value == 0.0 { "0".to_owned() } else { "–".to_owned() };
    }
    let digits = 2 - value.abs().log10().floor() as i32;
    // Above 10 000, grouping makes the number readable, and all digits are kept.
    if digits <= 0 { group(value.round()) } else { format!("{value:.*}", digits.min(6) as usize) }
}

fn group(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = if value < 0.0 { "-".to_owned() } else { String::new() };
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && digits.len() > 4 && (digits.len() - index).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn doubt_is_said() {
        let doubt = |values: &[f64]| Summary::of_all_rounds("a", values).doubt;
        assert_eq!(doubt(&[100.0, 110.0, 105.0]), None);
        assert!(doubt(&[100.0, 150.0, 105.0]).unwrap().contains("48 %"));
        assert!(doubt(&[100.0]).unwrap().contains("only 1 round"));
        assert_eq!(doubt(&[0.0, 0.0, 0.0]), None);
        assert!(doubt(&[0.0, 0.0, 1.0]).is_some());
    }

    #[test]
    fn missing_rounds_are_reported() {
        let some = Summary::new("a", vec![(2, 100.0), (3, 110.0), (5, 105.0)], 5);
        assert_eq!((some.rounds, some.of_rounds), (vec![2, 3, 5], 5));
        assert_eq!(some.doubt.unwrap(), "known of 3 of 5 rounds");
        let wide = Summary::new("a", vec![(1, 100.0), (2, 150.0), (3, 105.0)], 4).doubt.unwrap();
        assert!(wide.contains("3 of 4 rounds; the rounds lie 48 %"), "{wide}");
    }

    #[test]
    fn ratios_say_whether_ranges_overlap() {
        let mut figure = Figure {
            step: "s".into(),
            name: "n".into(),
            unit: "u".into(),
            better: Better::Lower,
            subjects: vec![
                Summary::of_all_rounds("leno", &[1.0, 1.1, 0.9]),
                Summary::of_all_rounds("ztunnel", &[2.0, 2.1, 1.9]),
                Summary::of_all_rounds("floor", &[0.8, 0.95, 0.9]),
                Summary::of_all_rounds("zero", &[0.0, 0.0, 0.0]),
                Summary::of_all_rounds("noise", &[-0.2, -0.1, 0.1]),
            ],
        };
        figure.compare();
        let leno = figure.of("leno").unwrap();
        let to: Vec<_> = leno.ratios.iter().map(|ratio| (ratio.to.as_str(), ratio.ratio, ratio.overlap)).collect();
        assert_eq!(to, [("ztunnel", 0.5, false), ("floor", 1.0 / 0.9, true)]);
    }

    #[test]
    fn numbers() {
        let cases = [
            (0.0, "0"),
            (0.001234, "0.00123"),
            (0.5, "0.500"),
            (1.66, "1.66"),
            (16.78, "16.8"),
            (263.4, "263"),
            (3500.0, "3500"),
            (78123.4, "78\u{202f}123"),
            (1234567.0, "1\u{202f}234\u{202f}567"),
            (f64::NAN, "–"),
        ];
        for (value, text) in cases {
            assert_eq!(number(value), text);
        }
    }
}
