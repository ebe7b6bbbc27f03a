//! The figures of a report's summary, and how the subjects compare in them.

use super::Report;
use crate::stats::{Better, FEW, Figure, Ratio, Summary};
use crate::subject::WITHOUT_MESH;

/// The number of figures in a summary.
pub(super) const FIVE: usize = 5;

/// The figures of the summary, most important first. Each entry is a step and alternative names of a figure; the first
/// name that was measured is used. Step names are unique over all scenarios, so one list serves all.
const TELLING: [(&str, &[&str]); 33] = [
    ("across-nodes/1-stream/send", &["CPU of both proxies"]),
    ("across-nodes/1-stream/send", &["throughput"]),
    ("across-nodes/8-streams/send", &["CPU of both proxies"]),
    ("across-nodes/8-streams/send", &["throughput"]),
    ("across-nodes/8-streams/send", &["RSS under load, per proxy"]),
    ("open-loop/3500-per-second", &ADDED_P50),
    ("open-loop/3500-per-second", &ADDED_P99),
    ("open-loop/3500-per-second", &["CPU of both proxies"]),
    ("closed-loop/64-connections", &["answered"]),
    ("closed-loop/64-connections", &["CPU of both proxies"]),
    ("open-loop/3500-per-second", &["RSS under load, per proxy"]),
    ("idle/10000", &["memory per connection, per proxy"]),
    ("per-request/closed-loop", &["answered"]),
    ("per-request/closed-loop", &["CPU of both proxies"]),
    ("per-request/300-per-second", &ADDED_P99),
    ("idle/10000", &["RSS fresh, per proxy"]),
    ("idle/10000", &["RSS afterwards, per proxy"]),
    ("idle/10000", &["CPU of both proxies while idle"]),
    ("idle/10000", &["time to open all"]),
    ("slow-reader/with", &ADDED_P99),
    ("messages/1-MiB", &["CPU of both proxies per GB"]),
    ("messages/64-KiB", &ADDED_P99),
    ("crowd/5-busy", &["worst pod's p99 by the best pod's"]),
    ("crowd/5-busy", &["RSS under load, per proxy"]),
    ("churn/rescale", &["peak RSS"]),
    ("churn/rescale", &["CPU per minute"]),
    ("churn/rescale", &["fed to seen p99"]),
    ("first-sync", &["CPU of the first sync of all"]),
    ("first-sync", &["memory per proxy in sync"]),
    ("churn/replace-pod", &["CPU per proxy and change"]),
    ("churn/replace-pod", &["fed to seen p99"]),
    ("reconnect", &["CPU until all are in sync again"]),
    ("first-sync", &["peak RSS"]),
];
const ADDED_P50: [&str; 3] = ["latency p50 added to none, undisturbed", "latency p50 added to none", "latency p50"];
const ADDED_P99: [&str; 3] = ["latency p99 added to none, undisturbed", "latency p99 added to none", "latency p99"];

/// Names of figures that begin like this are costs.
const COSTS: [&str; 8] = [
    "CPU of both proxies",
    "CPU per proxy and change",
    "memory per ",
    "fed to seen p99",
    "RSS afterwards, ",
    "RSS under load",
    "latency p50 added",
    "latency p99 added",
];

/// The figures of the summary, at most [`FIVE`], most important first. A figure that is equal for all subjects is left
/// out.
pub(super) fn key_figures(report: &Report) -> Vec<&Figure> {
    let mut keys: Vec<&Figure> = Vec::new();
    let listed = TELLING.iter().filter_map(|(step, names)| {
        names.iter().find_map(|name| report.figures.iter().find(|figure| figure.step == *step && figure.name == *name))
    });
    let first_of_steps = report.steps.iter().flat_map(|step| telling(report, &step.name));
    for figure in listed.chain(first_of_steps).chain(&report.figures).filter(|figure| !is_alike(figure)) {
        if keys.len() == FIVE {
            break;
        }
        if !keys.iter().any(|known| std::ptr::eq(*known, figure)) {
            keys.push(figure);
        }
    }
    keys
}

/// The figures of a step that are drawn: its main figure first, and its cost.
pub(super) fn telling<'a>(report: &'a Report, step: &'a str) -> impl Iterator<Item = &'a Figure> {
    let figures = report.figures.iter().filter(move |figure| figure.step == step);
    figures
        .enumerate()
        .filter(|(index, figure)| *index == 0 || COSTS.iter().any(|start| figure.name.starts_with(start)))
        .map(|(_, figure)| figure)
}

/// Whether all subjects have the same value in all rounds.
pub(super) fn is_alike(figure: &Figure) -> bool {
    let Some(first) = figure.subjects.first() else { return true };
    // A single subject is compared with nothing. Its value is still of interest unless it is zero.
    let is_same = |one: &Summary| one.min == first.median && one.max == first.median;
    figure.subjects.iter().all(is_same) && (figure.subjects.len() > 1 || first.median == 0.0)
}

/// Whether a subject is Leno, on one node at least.
pub(super) fn is_own(subject: &str) -> bool {
    let name = subject.split('=').next().unwrap_or_default();
    name.split('+').any(|part| part == "leno")
}

/// The subjects that `subject` is compared with. For Leno those are all others that are not Leno, or other builds if
/// there are none. For a peer it is no mesh.
pub(super) fn compared_with<'a>(report: &'a Report, subject: &str) -> Vec<&'a str> {
    let others: Vec<&str> =
        report.subjects.iter().map(|other| other.name.as_str()).filter(|other| *other != subject).collect();
    if !is_own(subject) {
        return others.into_iter().filter(|other| *other == WITHOUT_MESH).collect();
    }
    let peers: Vec<&str> = others.iter().copied().filter(|other| !is_own(other)).collect();
    if peers.is_empty() { others } else { peers }
}

/// The result of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Better in all rounds.
    Better,
    /// Worse in all rounds.
    Worse,
    /// The ranges of the rounds overlap: no difference is shown.
    NotToldApart,
}

/// What a ratio says about its subject.
pub(super) fn outcome(better: Better, ratio: &Ratio) -> Outcome {
    let is_better = if better == Better::Higher { ratio.ratio > 1.0 } else { ratio.ratio < 1.0 };
    match (ratio.overlap || ratio.ratio == 1.0, is_better) {
        (true, _) => Outcome::NotToldApart,
        (false, true) => Outcome::Better,
        (false, false) => Outcome::Worse,
    }
}

/// The comparison of Leno with another subject in the figures of the summary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Standing<'a> {
    /// Leno's name in the run.
    pub(super) own: &'a str,
    /// The other subject.
    pub(super) other: &'a str,
    /// Figures in which it is better.
    pub(super) better: usize,
    /// Figures in which it is worse.
    pub(super) worse: usize,
    /// Figures that show no difference.
    pub(super) alike: usize,
}

/// The comparison of each Leno with each other subject, peers first. Pairs without common figures are left out.
pub(super) fn standings<'a>(report: &'a Report, keys: &[&Figure]) -> Vec<Standing<'a>> {
    let mut standings = Vec::new();
    let own = || report.subjects.iter().map(|subject| subject.name.as_str()).filter(|name| is_own(name));
    for own in own() {
        for other in compared_with(report, own) {
            // Two builds are compared once: the one named first with the other.
            let is_told = standings.iter().any(|known: &Standing<'_>| known.own == other && known.other == own);
            let mut standing = Standing { own, other, better: 0, worse: 0, alike: 0 };
            for figure in keys {
                let ratio = figure.of(own).and_then(|one| one.ratios.iter().find(|ratio| ratio.to == other));
                match ratio.map(|ratio| outcome(figure.better, ratio)) {
                    Some(Outcome::Better) => standing.better += 1,
                    Some(Outcome::Worse) => standing.worse += 1,
                    Some(Outcome::NotToldApart) => standing.alike += 1,
                    None => {}
                }
            }
            if !is_told && standing.compared() > 0 {
                standings.push(standing);
            }
        }
    }
    standings.sort_by_key(|standing| match standing.other {
        WITHOUT_MESH => 2,
        "floor" => 1,
        _ => 0,
    });
    standings
}

impl Standing<'_> {
    /// The number of figures that both have.
    pub(super) fn compared(&self) -> usize {
        self.better + self.worse + self.alike
    }

    /// The comparison in words, without the names: "better in 3 of 5 figures, worse in 1, not told apart in 1".
    pub(super) fn words(&self) -> String {
        let all = self.compared();
        let parts = [("better", self.better), ("worse", self.worse), ("not told apart", self.alike)];
        let mut words = String::new();
        for (word, count) in parts.into_iter().filter(|(_, count)| *count > 0) {
            words.push_str(&if words.is_empty() {
                format!("{word} in {count} of {all} figure{}", if all == 1 { "" } else { "s" })
            } else {
                format!(", {word} in {count}")
            });
        }
        words
    }
}

/// What is added to a comparison of so few rounds that it proves nothing.
pub(super) fn proviso(report: &Report) -> &'static str {
    if report.rounds == 1 { " (one round: no claim)" } else { "" }
}

/// The reason why all figures of a report are doubtful: too few rounds.
pub(super) fn few_rounds(report: &Report) -> Option<String> {
    (report.rounds < FEW).then(|| {
        let rounds = if report.rounds == 1 { "One round".to_owned() } else { format!("{} rounds", report.rounds) };
        format!("{rounds} only: how far rounds lie apart is not known, so no figure here carries a claim by itself.")
    })
}
