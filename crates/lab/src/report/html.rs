//! The report as one file that opens offline: no scripts, no fonts, nothing fetched.

use std::fmt::Write as _;

use super::markup::escape;
use super::published::study;
use super::{Report, StepInfo, svg};
use crate::identity::Program;
use crate::results::pooled_curve;
use crate::stats::{Better, Figure, Summary, number};

const STYLE: &str = include_str!("style.css");

/// The whole page. The raw results are in it as JSON, at the end.
///
/// # Errors
/// When the report can't be written as JSON.
pub fn html(report: &Report) -> Result<String, serde_json::Error> {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>leno lab: {scenario}</title>\n<style>\n{STYLE}</style>\n<h1>leno lab: {scenario}</h1>\n<p>{about}</p>\n",
        scenario = escape(&report.scenario),
        about = escape(&report.about),
    );
    head(&mut out, report);
    for step in &report.steps {
        self::step(&mut out, report, step);
    }
    out.push_str(if report.churn.is_empty() { HOW } else { HOW_CHURN });
    // The only thing that could end the element early is the end tag's beginning.
    let json = serde_json::to_string(report)?.replace("</", "<\\/");
    let _ = writeln!(out, "<script type=\"application/json\" id=\"report\">{json}</script>\n</html>");
    Ok(out)
}

const HOW: &str = "<h2>How to read this</h2>\n<ul>\n\
<li>Subjects take turns in every round (A B C A B C …), each on a fresh stage, so that what drifts on the machine drifts for all. \
Figures are medians over the rounds with the smallest and largest. \
No round is left out for what it found; where a figure can’t be known of a round, it says of how many it is known (undisturbed requests, and processor \
time of the whole machine, while the hypervisor took time).</li>\n\
<li>Absolute figures belong to this machine. Ratios are what carries over. A ratio whose ranges overlap shows no difference; it is \
marked “≈”.</li>\n\
<li>A “?” in a plot, and the words in the table, mark a figure of too few rounds, of rounds too far apart to carry a claim, or known of some rounds only.</li>\n\
<li>Latency added to none is a subject’s percentile less that without a mesh in the same round.</li>\n\
<li>Undisturbed, on a virtual machine: of the requests that were due while the hypervisor took no time from it, nor in the 200 ms \
before or the 100 ms after. Which these are does not depend on how long they took.</li>\n\
<li>Memory afterwards is taken 60 s (with --quick 5 s) after the last of the idle connections has gone, or as soon as all is given back.</li>\n\
<li>Open loop: requests are sent at planned times whether or not earlier ones were answered, and latency counts from the planned time. \
Closed loops only serve to find a maximum.</li>\n\
<li>Load, servers and proxies share the machine's cores: where nothing is idle, throughput is cores divided by the processor time of all.</li>\n\
<li>Processor time of proxies is that of their processes; packets that the kernel handles in interrupts are in the machine's numbers only.</li>\n\
<li>Encryption between the nodes, and within a node where a step stays in one, is verified in every round by watching the link.</li>\n\
</ul>\n";

const HOW_CHURN: &str = "<h2>How to read this</h2>\n<ul>\n\
<li>Subjects take turns in every round, each a process of its own that starts with nothing. Figures are medians over the rounds with the smallest and largest.</li>\n\
<li>Absolute figures belong to this machine. Ratios are what carries over. A ratio whose ranges overlap shows no difference; it is marked “≈”.</li>\n\
<li>The control plane is fed with Kubernetes objects as JSON, and decoding them is in its processor time. The proxies are connections of one process, \
each over TLS with a token, that acknowledges what comes; they share the machine's cores with the control plane.</li>\n\
<li>Fed to seen: from when a change was about to be written to the control plane until a proxy had all pods of it, for every change and proxy.</li>\n\
<li>Processor time per proxy and change is without what the same change costs while no proxy is connected, where that was measured in the same round.</li>\n\
<li>After each step every proxy must hold what the mesh is: of one proxy every field is compared with the mesh, of the others a digest of each resource with that one's. \
A control plane of which that is not so is not reported.</li>\n\
<li>Memory is that of the whole process, program included, two seconds after the step.</li>\n\
</ul>\n";

fn head(out: &mut String, report: &Report) {
    let machine = &report.machine;
    let gib = machine.memory_bytes as f64 / f64::from(1 << 30);
    let _ = writeln!(
        out,
        "<p class=\"dim\">{processor}, {cores} cores{kind}, {gib:.0} GiB, Linux {kernel}{governor}; before: {busy:.2} cores at \
         work, load average {load:.2}; {descriptors} descriptors per process<br>\
         {started} to {ended}; {rounds} round{s} of {seconds} s; measured by Leno {version}{commit}<br><code>{command}</code></p>",
        processor = escape(&machine.processor),
        cores = machine.cores,
        kind = if machine.is_virtual { " (virtual machine)" } else { "" },
        kernel = escape(&machine.kernel),
        load = machine.load_average[0],
        started = escape(&report.started),
        ended = escape(&report.ended),
        rounds = report.rounds,
        s = if report.rounds == 1 { "" } else { "s" },
        seconds = report.seconds,
        version = escape(&report.program_version),
        commit = report.commit.as_deref().map(|commit| format!(", commit {}", escape(commit))).unwrap_or_default(),
        governor = machine.governor.as_deref().map(|name| format!(", governor {}", escape(name))).unwrap_or_default(),
        busy = machine.busy_cores,
        descriptors = number(machine.descriptors as f64),
        command = escape(&report.command),
    );
    out.push_str("<table><tr><th>subject<th>between the nodes<th>program\n");
    for subject in &report.subjects {
        let programs: Vec<String> = subject.programs.iter().map(program).collect();
        let programs = if programs.is_empty() { "–".to_owned() } else { programs.concat() };
        let encrypts = if subject.encrypts { "encrypted" } else { "in the clear" };
        let _ = writeln!(out, "<tr><td>{}<td>{encrypts}<td>{programs}", escape(&subject.name));
    }
    out.push_str("</table>\n");
    if !report.warnings.is_empty() {
        let _ = writeln!(out, "<details open><summary class=\"warn\">{} remarks</summary><ul>", report.warnings.len());
        for warning in &report.warnings {
            let _ = writeln!(out, "<li>{}", escape(warning));
        }
        out.push_str("</ul></details>\n");
    }
}

fn program(program: &Program) -> String {
    format!(
        "{}<small>{}</small><small>{} bytes, SHA-256 <code>{}</code></small>",
        escape(&program.path),
        escape(program.version.as_deref().unwrap_or("version unknown")),
        number(program.bytes as f64),
        escape(&program.sha256),
    )
}

fn step(out: &mut String, report: &Report, step: &StepInfo) {
    let _ = write!(out, "<h2>{}</h2>\n<p class=\"about\">{}</p>\n", escape(&step.name), escape(&step.about));
    let names: Vec<String> = report.subjects.iter().map(|subject| subject.name.clone()).collect();
    let figures: Vec<&Figure> = report.figures.iter().filter(|figure| figure.step == step.name).collect();
    let curves: Vec<_> = names
        .iter()
        .enumerate()
        .map(|(index, name)| {
            let of_loads = pooled_curve(&report.results, &step.name, name);
            let of_changes = crate::churn::pooled_curve(&report.churn, &step.name, name);
            (index, name.clone(), if of_loads.is_empty() { of_changes } else { of_loads })
        })
        .filter(|(_, _, curve)| !curve.is_empty())
        .collect();
    out.push_str(&svg::percentiles(&curves));
    // What a step is about comes first; then what it cost.
    let telling = figures.first().into_iter().chain(figures.iter().filter(|figure| is_cost(figure)));
    for figure in telling {
        out.push_str(&svg::bars(figure, &names));
    }
    out.push_str("<div class=\"wide\"><table><tr><th>");
    for name in &names {
        let _ = write!(out, "<th>{}", escape(name));
    }
    out.push('\n');
    for figure in figures {
        row(out, figure, &names);
    }
    out.push_str("</table></div>\n");
    published(out, step);
}

fn is_cost(figure: &Figure) -> bool {
    [
        "CPU of both proxies",
        "CPU per proxy and change",
        "memory per ",
        "fed to seen p99",
        "RSS afterwards, ",
        "latency p50 added",
        "latency p99 added",
    ]
    .iter()
    .any(|start| figure.name.starts_with(start))
}

fn row(out: &mut String, figure: &Figure, names: &[String]) {
    let better = if figure.better == Better::Higher { "more is better" } else { "less is better" };
    let unit = if figure.unit.is_empty() { String::new() } else { format!("{}; ", escape(&figure.unit)) };
    let _ = write!(out, "<tr><td>{}<small>{unit}{better}</small>", escape(&figure.name));
    for name in names {
        out.push_str("<td>");
        match figure.of(name) {
            None => out.push('–'),
            Some(one) => cell(out, one),
        }
    }
    out.push('\n');
}

fn cell(out: &mut String, one: &Summary) {
    let _ = write!(out, "{}<small>{} – {}</small>", number(one.median), number(one.min), number(one.max));
    for ratio in &one.ratios {
        let sign = if ratio.overlap { "≈ " } else { "" };
        let _ = write!(out, "<small>{sign}{:.2}× {}</small>", ratio.ratio, escape(&ratio.to));
    }
    if let Some(doubt) = &one.doubt {
        let _ = write!(out, "<small class=\"warn\">{}</small>", escape(doubt));
    }
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
        "<details><summary>Published: {}</summary>\n<p class=\"dim\">{}</p>\n<div class=\"wide\"><table><tr><th>",
        escape(study.title),
        escape(study.method)
    );
    for (metric, unit) in &metrics {
        let _ = write!(out, "<th>{} [{}]", escape(metric), escape(unit));
    }
    for system in systems {
        let _ = write!(out, "\n<tr><td>{}", escape(system));
        for (metric, _) in &metrics {
            let value = step.published.iter().find(|one| one.system == system && one.metric == *metric);
            let _ = write!(out, "<td>{}", value.map_or_else(|| "–".to_owned(), |one| number(one.value)));
        }
    }
    out.push_str("\n</table></div>\n<p>Other machines, networks and programs: compare proportions, not numbers. Known faults:</p><ul>\n");
    for fault in study.faults {
        let _ = writeln!(out, "<li>{}", escape(fault));
    }
    out.push_str("</ul></details>\n");
}
