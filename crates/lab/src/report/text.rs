//! The report on a terminal.

use std::fmt::Write as _;

use super::Report;
use super::markup::minute;
use super::verdict::{is_own, key_figures, proviso, standings};
use crate::cluster_info::ClusterInfo;
use crate::stats::number;

/// Leno's comparison with the others, and a table for each step: a line per figure, a column per subject with median
/// and range, and the ratio to the first subject.
#[must_use]
pub fn text(report: &Report) -> String {
    let mut out = String::new();
    let machine = &report.machine;
    let gib = machine.memory_bytes as f64 / f64::from(1 << 30);
    let place = report.cluster.as_ref().map_or_else(
        || format!("{}, {} cores, {gib:.0} GiB, Linux {}", machine.processor, machine.cores, machine.kernel),
        ClusterInfo::in_words,
    );
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "{}: {} round{} of {} s; {place}",
        report.scenario,
        report.rounds,
        if report.rounds == 1 { "" } else { "s" },
        report.seconds,
    );
    let commit = report.commit.as_deref().unwrap_or("of an unknown commit");
    let _ = writeln!(out, "measured by Leno {} ({commit}), {} UTC", report.program_version, minute(&report.started));
    for subject in &report.subjects {
        for program in &subject.programs {
            let version = program.version.as_deref().unwrap_or("version unknown");
            let sum = program.sha256.get(..12).unwrap_or("unknown");
            let _ = writeln!(out, "  {}: {version}; SHA-256 {sum}…", subject.name);
        }
    }
    let keys = key_figures(report);
    let standings = standings(report, &keys);
    if !standings.is_empty() {
        let names: Vec<String> = keys.iter().map(|figure| format!("{} of {}", figure.name, figure.step)).collect();
        let _ = writeln!(out, "\nin {}:", names.join("; "));
    }
    for standing in &standings {
        let _ = writeln!(out, "  {} beside {}: {}{}", standing.own, standing.other, standing.words(), proviso(report));
    }
    for step in &report.steps {
        let mut rows = vec![vec![String::new()]];
        rows[0].extend(report.subjects.iter().map(|subject| subject.name.clone()));
        let mut doubtful = false;
        for figure in report.figures.iter().filter(|figure| figure.step == step.name) {
            let mut row = vec![format!("{} [{}]", figure.name, figure.unit).replace(" []", "")];
            for subject in &report.subjects {
                row.push(figure.of(&subject.name).map_or_else(
                    || "–".to_owned(),
                    |one| {
                        let mark = if one.doubt.is_some() { "?" } else { "" };
                        doubtful |= one.doubt.is_some();
                        let first = report.subjects.first().map(|subject| subject.name.as_str());
                        let ratio = one.ratios.iter().find(|ratio| Some(ratio.to.as_str()) == first);
                        let ratio = ratio.map(|ratio| format!(" {:.2}×", ratio.ratio)).unwrap_or_default();
                        let (known, turns) = (one.values.len(), one.of_rounds);
                        let of = if known < turns { format!("; {known} of {turns}") } else { String::new() };
                        format!("{}{mark} ({}–{}{of}){ratio}", number(one.median), number(one.min), number(one.max))
                    },
                ));
            }
            rows.push(row);
        }
        let _ = writeln!(out, "\n{}", step.name);
        out.push_str(&table(&rows));
        for subject in report.subjects.iter().filter(|subject| is_own(&subject.name)) {
            out.push_str(&ratios(report, &step.name, &subject.name));
        }
        if doubtful {
            out.push_str("  ?: too few rounds, or too far apart, to carry a claim; or known of some rounds only\n");
        }
    }
    if let Some(first) = report.subjects.first()
        && report.subjects.len() > 1
    {
        let _ = writeln!(
            out,
            "\nmedian (min–max), and the ratio of medians to {}; ≈: the ranges overlap, no difference is shown",
            first.name
        );
    }
    for warning in &report.warnings {
        let _ = writeln!(out, "warning: {warning}");
    }
    out
}

/// A subject's comparison with each other one. Empty if there is only the first, which the figures already compare.
fn ratios(report: &Report, step: &str, subject: &str) -> String {
    let others: Vec<&str> =
        report.subjects.iter().map(|other| other.name.as_str()).filter(|other| *other != subject).collect();
    if others.len() < 2 {
        return String::new();
    }
    let mut rows = vec![vec![format!("{subject} by")]];
    rows[0].extend(others.iter().map(|other| (*other).to_owned()));
    for figure in report.figures.iter().filter(|figure| figure.step == step) {
        let Some(own) = figure.of(subject).filter(|own| !own.ratios.is_empty()) else { continue };
        let mut row = vec![figure.name.clone()];
        row.extend(others.iter().map(|other| {
            own.ratios.iter().find(|ratio| ratio.to == *other).map_or_else(
                || "–".to_owned(),
                |ratio| format!("{}{:.2}×", if ratio.overlap { "≈" } else { "" }, ratio.ratio),
            )
        }));
        rows.push(row);
    }
    table(&rows)
}

fn table(rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..rows.first().map_or(0, Vec::len)).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::from(" ");
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, " {cell:<width$} ", width = *width);
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}
