//! The report as one file that opens offline: no scripts, no fonts, nothing fetched.

use std::fmt::Write as _;

use super::card::card;
use super::curve::{Curve, percentiles};
use super::markup::{STEP, count, escape, id, minute};
use super::published::study;
use super::verdict::{few_rounds, is_alike, key_figures, proviso, standings, telling};
use super::{Report, StepInfo, remarks, tables};
use crate::results::pooled_curve;
use crate::stats::{Figure, number};
use crate::subject::WITHOUT_MESH;

const STYLE: &str = include_str!("style.css");

/// The whole page: verdict, summary, steps, and how it was measured. The raw results are in it as JSON, at the end.
///
/// # Errors
/// When the report can't be written as JSON.
pub fn html(report: &Report) -> Result<String, serde_json::Error> {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>leno lab: {scenario}</title>\n<style>\n{STYLE}</style>\n<main>\n<h1>leno lab: {scenario}</h1>\n\
         <p class=\"dim\">{about}<br>{started} UTC, {rounds} of {seconds} s.</p>\n",
        scenario = escape(&report.scenario),
        about = escape(&report.about),
        started = minute(&report.started),
        rounds = count(report.rounds, "round"),
        seconds = report.seconds,
    );
    let keys = key_figures(report);
    summary(&mut out, report, &keys);
    for step in &report.steps {
        self::step(&mut out, report, step, &keys);
    }
    how(&mut out, report);
    // Only the beginning of the end tag could end the element early.
    let json = serde_json::to_string(report)?.replace("</", "<\\/");
    let _ = writeln!(out, "</main>\n{RAW_BEGIN}{json}{RAW_END}\n</html>");
    Ok(out)
}

/// The markup around the raw results in the page.
const RAW_BEGIN: &str = "<script type=\"application/json\" id=\"report\">";
const RAW_END: &str = "</script>";

/// The raw results in a page that [`html`] has written; `None` if it is no such page.
#[must_use]
pub fn raw_json(page: &str) -> Option<&str> {
    let (_, rest) = page.split_once(RAW_BEGIN)?;
    Some(rest.split_once(RAW_END)?.0)
}

/// The verdict in words, and a card for each figure that it is based on.
fn summary(out: &mut String, report: &Report, keys: &[&Figure]) {
    out.push_str("<h2 id=\"summary\">Summary</h2>\n");
    let standings = standings(report, keys);
    if standings.is_empty() {
        out.push_str("<p class=\"verdict\">Nothing is compared with Leno here.</p>\n");
    } else {
        out.push_str("<ul class=\"verdict\">\n");
        for standing in &standings {
            let (own, other) = (escape(standing.own), escape(standing.other));
            let about = match standing.other {
                WITHOUT_MESH => "<small>no mesh: the pods talk to each other</small>",
                "floor" => "<small>two relays that only copy: no encryption, no policy</small>",
                _ => "",
            };
            let _ = writeln!(
                out,
                "<li><b>{own}</b> beside <b>{other}</b>: {}{}.{about}",
                standing.words(),
                proviso(report)
            );
        }
        out.push_str("</ul>\n");
    }
    if let Some(text) = few_rounds(report) {
        let _ = writeln!(out, "<p class=\"warn\">{text}</p>");
    }
    out.push_str("<div class=\"cards\">\n");
    for figure in keys {
        out.push_str(&card(report, figure, report.steps.len() > 1));
    }
    out.push_str("</div>\n<p class=\"dim\">");
    if few_rounds(report).is_none() {
        out.push_str(
            "Medians; whiskers reach from the smallest to the largest round. \
             “?” marks a figure whose rounds are too far apart, or known of too few rounds, to carry a claim. ",
        );
    }
    if !standings.is_empty() {
        out.push_str("× is a ratio of medians; “≈” marks one whose ranges overlap, so that no difference is shown. ");
    }
    out.push_str("Each name leads to every round behind its figure.");
    match report.warnings.len() {
        0 => {}
        1 => out.push_str(" <a class=\"warn\" href=\"#remarks\">1 remark</a> on this run."),
        many => {
            let _ = write!(out, " <a class=\"warn\" href=\"#remarks\">{many} remarks</a> on this run.");
        }
    }
    out.push_str("</p>\n");
}

fn step(out: &mut String, report: &Report, step: &StepInfo, keys: &[&Figure]) {
    let name = escape(&step.name);
    let _ = write!(
        out,
        "<h2 id=\"{}\">{name}</h2>\n<p class=\"dim\">{}</p>\n",
        id(STEP, &[&step.name]),
        escape(&step.about)
    );
    out.push_str(&percentiles(&curves(report, step)));
    let is_shown = |figure: &Figure| keys.iter().any(|key| std::ptr::eq(*key, figure));
    // With one subject, or equal values, a picture shows no difference, and the table is enough.
    let drawn = telling(report, &step.name)
        .filter(|figure| !is_shown(figure) && figure.subjects.len() > 1 && !is_alike(figure));
    let cards: String = drawn.map(|figure| card(report, figure, false)).collect();
    if !cards.is_empty() {
        let _ = write!(out, "<div class=\"cards\">\n{cards}</div>\n");
    }
    let figures: Vec<&Figure> = report.figures.iter().filter(|figure| figure.step == step.name).collect();
    out.push_str(&tables::figures(report, &figures));
    out.push_str(&tables::rounds(report, step, &figures));
    published(out, step);
}

fn curves(report: &Report, step: &StepInfo) -> Vec<Curve> {
    let subjects = report.subjects.iter().enumerate();
    let curve = |(index, subject): (usize, &crate::identity::Identified)| {
        let name = subject.name.clone();
        let of_loads = pooled_curve(&report.results, &step.name, &name);
        let of_changes = || crate::churn::pooled_curve(&report.churn, &step.name, &name);
        (index, name.clone(), if of_loads.is_empty() { of_changes() } else { of_loads })
    };
    subjects.map(curve).filter(|(_, _, curve)| !curve.is_empty()).collect()
}

/// The machine, the programs, remarks, and how to read all this.
fn how(out: &mut String, report: &Report) {
    let machine = &report.machine;
    let gib = machine.memory_bytes as f64 / f64::from(1 << 30);
    let cluster = report.cluster.iter().map(|cluster| ("cluster", escape(&cluster.in_words())));
    let mut facts: Vec<(&str, String)> = cluster.collect();
    facts.extend([
        (
            if report.cluster.is_some() { "machine of the lab" } else { "machine" },
            format!(
                "{}, {}{}, {gib:.0} GiB, Linux {}{}",
                escape(&machine.processor),
                count(machine.cores, "core"),
                if machine.is_virtual { " (virtual machine)" } else { "" },
                escape(&machine.kernel),
                machine.governor.as_deref().map(|name| format!(", governor {}", escape(name))).unwrap_or_default(),
            ),
        ),
        (
            "before",
            format!(
                "{:.2} cores at work, load average {:.2}; {} descriptors per process",
                machine.busy_cores,
                machine.load_average[0],
                number(machine.descriptors as f64)
            ),
        ),
        ("time", format!("{} to {} UTC", minute(&report.started), minute(&report.ended))),
        (
            "measured by",
            format!(
                "Leno {}{}",
                escape(&report.program_version),
                report.commit.as_deref().map(|commit| format!(", commit {}", escape(commit))).unwrap_or_default()
            ),
        ),
        ("command", format!("<code>{}</code>", escape(&report.command))),
    ]);
    facts.extend(programs(report));
    out.push_str("<h2 id=\"how\">How it was measured</h2>\n<dl>\n");
    for (name, text) in facts {
        let _ = writeln!(out, "<dt>{name}<dd>{text}");
    }
    out.push_str("</dl>\n");
    out.push_str(&remarks::html(&report.warnings));
    let is_many_svc = report.scenario == "many-svc";
    match (report.churn.is_empty(), is_many_svc) {
        (true, _) => out.push_str(READ),
        (false, true) => out.push_str(&READ_CHURN.replace("{FED}", WATCHED).replace("{FROM}", FROM_THE_LAST_EVENT)),
        (false, false) => out.push_str(&READ_CHURN.replace("{FED}", FED).replace("{FROM}", FROM_THE_CHANGE)),
    }
    out.push_str(RAW);
}

/// The subjects, grouped by program, so that a shared program is described once.
fn programs(report: &Report) -> Vec<(&'static str, String)> {
    let mut groups: Vec<(Vec<String>, String)> = Vec::new();
    for subject in &report.subjects {
        // Control planes carry no traffic of programs.
        let carries = match (report.churn.is_empty(), subject.encrypts) {
            (false, _) => "",
            (true, true) => "encrypted between the nodes",
            (true, false) => "in the clear",
        };
        let mut text = carries.to_owned();
        for program in &subject.programs {
            let _ = write!(
                text,
                "<br>{}: {}<br><small>{} bytes, SHA-256 <code>{}</code></small>",
                escape(&program.path),
                escape(program.version.as_deref().unwrap_or("version unknown")),
                number(program.bytes as f64),
                escape(&program.sha256),
            );
        }
        match groups.iter_mut().find(|(_, known)| *known == text) {
            Some((names, _)) => names.push(escape(&subject.name)),
            None => groups.push((vec![escape(&subject.name)], text)),
        }
    }
    groups.into_iter().map(|(names, text)| ("subject", format!("<b>{}</b>: {text}", names.join(", ")))).collect()
}

fn published(out: &mut String, step: &StepInfo) {
    let Some(study) = step.published.first().and_then(|figure| study(&figure.key)) else { return };
    let mut metrics: Vec<(&str, &str)> = Vec::new();
    let mut systems: Vec<&str> = Vec::new();
    for figure in &step.published {
        if !metrics.contains(&(&figure.metric, &figure.unit)) {
            metrics.push((&figure.metric, &figure.unit));
        }
        if !systems.contains(&figure.system.as_str()) {
            systems.push(&figure.system);
        }
    }
    let _ = write!(
        out,
        "<details><summary>Published: {}</summary>\n<p class=\"dim\">{}</p>\n<div class=\"wide\"><table><thead><tr><th>",
        escape(study.title),
        escape(study.method)
    );
    for (metric, unit) in &metrics {
        let _ = write!(out, "<th>{} <small>{}</small>", escape(metric), escape(unit));
    }
    out.push_str("</thead><tbody>");
    for system in systems {
        let _ = write!(out, "\n<tr><th>{}", escape(system));
        for (metric, _) in &metrics {
            let value = step.published.iter().find(|one| one.system == system && one.metric == *metric);
            let _ = write!(out, "<td>{}", value.map_or_else(|| "–".to_owned(), |one| number(one.value)));
        }
    }
    out.push_str("\n</tbody></table></div>\n<p>Other machines, networks and programs: compare proportions, not numbers. Known faults:</p><ul>\n");
    for fault in study.faults {
        let _ = writeln!(out, "<li>{}", escape(fault));
    }
    out.push_str("</ul></details>\n");
}

const READ: &str = "<h2 id=\"read\">How to read this</h2>\n<ul>\n\
<li>Less is better, except where a table has ↑.</li>\n\
<li>Subjects take turns in every round (A B C A B C …), each on a fresh stage, so that what drifts on the machine drifts for all. \
No round is left out for what it found.</li>\n\
<li>Absolute figures belong to this machine. Ratios are what carries over.</li>\n\
<li>Latency added to none is a subject’s percentile less that without a mesh in the same round.</li>\n\
<li>Undisturbed, on a virtual machine: of the requests that were due while the hypervisor took no time from it, nor in the 200 ms \
before or the 100 ms after. The choice does not depend on how long requests took. \
A round that has too few of them has no such figure; nor has one a figure of the whole machine’s processor time if the hypervisor took much.</li>\n\
<li>Memory afterwards is taken 60 s (with --quick 5 s) after the last of the idle connections has gone, or as soon as all is given back.</li>\n\
<li>Open loop: requests are sent at planned times whether or not earlier ones were answered, and latency counts from the planned time. \
Closed loops only serve to find a maximum.</li>\n\
<li>Load, servers and proxies share the machine’s cores: where nothing is idle, throughput is cores divided by the processor time of all.</li>\n\
<li>Processor time of proxies is that of their processes. Packets that the kernel handles in interrupts are in the machine’s figures only.</li>\n\
<li>Encryption between the nodes, and within a node where a step stays in one, is verified in every round by watching the link.</li>\n\
</ul>\n";

const FED: &str =
    "The control plane is fed with Kubernetes objects as JSON. Decoding them is part of its processor time.";
const WATCHED: &str = "The control planes watch an API server that the lab plays. It sends all of them the same objects as JSON. \
Decoding them is part of their processor time.";

const FROM_THE_CHANGE: &str = "from when a change was about to be written to the control plane";
const FROM_THE_LAST_EVENT: &str = "from the last event of a change, which makes the new pods ready or deletes pods,";

/// With `{FED}`, one of [`FED`] and [`WATCHED`], and `{FROM}`, where `fed to seen` begins.
const READ_CHURN: &str = "<h2 id=\"read\">How to read this</h2>\n<ul>\n\
<li>Less is better in all figures.</li>\n\
<li>Subjects take turns in every round, each a process of its own that starts with nothing.</li>\n\
<li>Absolute figures belong to this machine. Ratios are what carries over.</li>\n\
<li>{FED} The proxies are connections of one process, \
each over TLS with a token, that acknowledges what comes; they share the machine’s cores with the control plane.</li>\n\
<li>Fed to seen: {FROM} until a proxy had all pods of it, for every change and proxy.</li>\n\
<li>Processor time per proxy and change is without what the same change costs while no proxy is connected, where that was measured in the same round.</li>\n\
<li>After each step every proxy must hold what the mesh is: of one proxy every field is compared with the mesh, of the others a digest of each resource with that one’s. \
A control plane that fails this is not reported.</li>\n\
<li>Memory is that of the whole process, program included, two seconds after the step.</li>\n\
</ul>\n";

const RAW: &str = "<h2 id=\"raw\">Raw results</h2>\n\
<p>This page holds every raw result as JSON. <code>leno lab report THIS-PAGE.html -o json</code> prints it: <code>.figures</code> has what the tables show, \
<code>.results</code> (<code>.churn</code> for control planes) what each turn found, by step, subject and round.</p>\n";
