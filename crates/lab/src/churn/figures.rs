//! From raw results to figures.

use super::phase::{Kind, Phase};
use super::result::PhaseResult;
use crate::load::LatencyRecorder;
use crate::stats::{Better, Value};

const KIB: f64 = 1024.0;
const MIB: f64 = 1024.0 * 1024.0;
/// Remarks begin when other programs use this many cores, and when changes take this many seconds longer than planned.
const QUIET: f64 = 0.15;
const LATE: f64 = 1.0;

/// The figures of a phase. `all` are the results of all phases, because some figures compare phases.
pub(crate) fn values(result: &PhaseResult, all: &[PhaseResult]) -> Vec<Value> {
    use Better::Lower;
    let Some(phase) = Phase::of(&result.step) else { return Vec::new() };
    let cpu = result.cpu.seconds();
    let (changes, proxies) = (result.changes.max(1) as f64, result.proxies.max(1) as f64);
    let rss = |value: u64| value as f64 / MIB;
    let workloads = result.shape.workloads().max(1) as f64;
    let mut values: Vec<Value> = Vec::new();
    match phase {
        Phase::Start => values.extend([
            ("CPU until all is published", "s", Lower, cpu),
            ("time until all is published", "s", Lower, result.seconds),
            ("RSS without proxies", "MiB", Lower, rss(result.after.rss_bytes)),
            ("memory per workload", "KiB", Lower, result.after.rss_bytes as f64 / KIB / workloads),
            ("peak RSS", "MiB", Lower, rss(result.after.peak_bytes)),
        ]),
        Phase::Ready => values.extend([
            ("CPU until ready and at rest", "s", Lower, cpu),
            ("time until ready", "s", Lower, result.seconds),
            ("RSS without proxies", "MiB", Lower, rss(result.after.rss_bytes)),
            ("memory per workload", "KiB", Lower, result.after.rss_bytes as f64 / KIB / workloads),
            ("peak RSS", "MiB", Lower, rss(result.after.peak_bytes)),
        ]),
        Phase::Alone(_) => {
            values.push(("CPU per change", "ms", Lower, cpu * 1e3 / changes));
            values.extend(per_pod(result));
            values.push(("RSS", "MiB", Lower, rss(result.after.rss_bytes)));
        }
        Phase::FirstSync => values.extend([
            ("CPU of the first sync of all", "s", Lower, cpu),
            ("time of the first sync of all", "s", Lower, result.seconds),
            ("peak RSS", "MiB", Lower, rss(result.after.peak_bytes)),
            ("RSS with all in sync", "MiB", Lower, rss(result.after.rss_bytes)),
            (
                "memory per proxy in sync",
                "KiB",
                Lower,
                (result.after.rss_bytes as f64 - result.before.rss_bytes as f64) / KIB / proxies,
            ),
            ("sent to each proxy", "MB", Lower, result.bytes as f64 / 1e6 / proxies),
        ]),
        Phase::Idle => values.push(("CPU while idle", "% of a core", Lower, cpu * 100.0 / result.seconds.max(1e-9))),
        Phase::Churn(kind) => {
            values.extend([
                ("CPU per change", "ms", Lower, cpu * 1e3 / changes),
                ("CPU per proxy and change", "µs", Lower, proxies_share(result, kind, all) * 1e6 / changes / proxies),
            ]);
            values.extend(per_pod(result));
            values.push(("CPU per minute", "s", Lower, cpu * 60.0 / result.seconds.max(1e-9)));
            if let Some(latency) = &result.latency {
                values.extend([
                    ("fed to seen p50", "ms", Lower, latency.p50_us / 1e3),
                    ("fed to seen p99", "ms", Lower, latency.p99_us / 1e3),
                    ("fed to seen max", "ms", Lower, latency.max_us / 1e3),
                ]);
            }
            values.extend([
                ("sent per proxy and change", "B", Lower, result.bytes as f64 / changes / proxies),
                ("responses per proxy and change", "", Lower, result.responses as f64 / changes / proxies),
                ("RSS", "MiB", Lower, rss(result.after.rss_bytes)),
                ("peak RSS", "MiB", Lower, rss(result.after.peak_bytes)),
            ]);
        }
        Phase::Reconnect => values.extend([
            ("CPU until all are in sync again", "s", Lower, cpu),
            ("time until all are in sync again", "s", Lower, result.seconds),
            ("sent again to each proxy", "kB", Lower, result.bytes as f64 / 1e3 / proxies),
            ("RSS", "MiB", Lower, rss(result.after.rss_bytes)),
            ("peak RSS", "MiB", Lower, rss(result.after.peak_bytes)),
        ]),
    }
    if matches!(phase, Phase::FirstSync | Phase::Reconnect) {
        values.push(("refused while they connected", "connections", Lower, result.again as f64));
    }
    if phase.needs_proxies() || phase == Phase::FirstSync {
        values.push(("CPU of the proxies", "s", Lower, result.lab_cpu.seconds()));
    }
    values
}

fn per_pod(result: &PhaseResult) -> Option<Value> {
    let per_pod = || result.cpu.seconds() * 1e6 / result.touched as f64;
    (result.touched > result.changes).then(|| ("CPU per pod changed", "µs", Better::Lower, per_pod()))
}

/// Processor time that changes cost because of proxies: the time without proxies, if it was measured in the same round,
/// is subtracted.
fn proxies_share(result: &PhaseResult, kind: Kind, all: &[PhaseResult]) -> f64 {
    let step = Phase::Alone(kind).name();
    let alone = all.iter().find(|other| {
        other.step == step && other.subject == result.subject && other.round == result.round && other.changes > 0
    });
    let of_changes = alone.map_or(0.0, |alone| alone.cpu.seconds() / alone.changes as f64 * result.changes as f64);
    (result.cpu.seconds() - of_changes).max(0.0)
}

/// The most important numbers of a phase, in words.
pub(crate) fn headline(result: &PhaseResult) -> String {
    let mut values = values(result, std::slice::from_ref(result));
    // If proxies see the changes, the delay comes first.
    values.sort_by_key(|(name, ..)| *name != "CPU per change" && *name != "fed to seen p99");
    let shown =
        values.iter().take(2).map(|(name, unit, _, value)| format!("{name} {} {unit}", crate::stats::number(*value)));
    shown.collect::<Vec<_>>().join(", ")
}

/// Remarks on a result that a reader of its figures needs.
pub(crate) fn remarks(result: &PhaseResult) -> Vec<String> {
    let mut remarks = Vec::new();
    let at = format!("{} with {}, round {}", result.step, result.subject, result.round);
    let others = result.others_seconds / result.seconds.max(1e-9);
    if others > QUIET {
        remarks.push(format!("{at}: programs that are no part of this used {others:.2} cores meanwhile"));
    }
    let planned = result.changes as f64 / result.shape.changes;
    if matches!(Phase::of(&result.step), Some(Phase::Churn(_))) && result.seconds > planned + LATE {
        remarks.push(format!(
            "{at}: {} changes were to take {planned:.0} s, and took {:.0} until all proxies had seen them",
            result.changes, result.seconds
        ));
    }
    remarks
}

/// How long proxies took to see changes in a step, over all rounds with one subject, for the percentile curve.
pub(crate) fn pooled_curve(results: &[PhaseResult], step: &str, subject: &str) -> Vec<(f64, f64)> {
    let mut pooled = LatencyRecorder::new();
    let results = results.iter().filter(|result| result.step == step && result.subject == subject);
    for latency in results.filter_map(|result| result.latency.as_ref()?.recorder().ok()) {
        pooled.add(&latency);
    }
    pooled.finish().curve()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::churn::{PlaneMemory, Shape};
    use crate::measure::{Cpu, MachineCpu};

    fn result(phase: Phase, cpu: f64, changes: usize, proxies: usize) -> PhaseResult {
        PhaseResult {
            step: phase.name().to_owned(),
            subject: "leno".to_owned(),
            round: 1,
            started: String::new(),
            shape: Shape { proxies, ..Shape::QUICK },
            seconds: 10.0,
            changes,
            touched: changes,
            proxies,
            cpu: Cpu { user_seconds: cpu, system_seconds: 0.0 },
            lab_cpu: Cpu::default(),
            before: PlaneMemory { rss_bytes: 10 << 20, ..PlaneMemory::default() },
            after: PlaneMemory { rss_bytes: 12 << 20, peak_bytes: 40 << 20, descriptors: 9 },
            bytes: 0,
            responses: 0,
            again: 0,
            latency: None,
            machine: MachineCpu::default(),
            others_seconds: 0.0,
        }
    }

    fn value(result: &PhaseResult, all: &[PhaseResult], name: &str) -> f64 {
        values(result, all).into_iter().find(|(known, ..)| *known == name).unwrap().3
    }

    #[test]
    fn the_cost_without_proxies_is_subtracted() {
        let kind = Kind::ReplacePod;
        let (alone, churn) = (result(Phase::Alone(kind), 1.0, 100, 0), result(Phase::Churn(kind), 3.0, 100, 20));
        assert!((value(&churn, &[], "CPU per proxy and change") - 1500.0).abs() < 1e-6);
        let all = [alone, churn.clone()];
        assert!((value(&churn, &all, "CPU per proxy and change") - 1000.0).abs() < 1e-6);
        assert!((value(&churn, &all, "CPU per change") - 30.0).abs() < 1e-6);
        let others = PhaseResult { round: 2, ..churn };
        assert!((value(&others, &all, "CPU per proxy and change") - 1500.0).abs() < 1e-6, "another round");
    }

    #[test]
    fn memory_is_divided_by_workloads_and_proxies() {
        let sync = result(Phase::FirstSync, 1.0, 0, 16);
        assert!((value(&sync, &[], "memory per proxy in sync") - 128.0).abs() < 1e-6);
        let start = result(Phase::Start, 1.0, 0, 0);
        assert!((value(&start, &[], "memory per workload") - 61.44).abs() < 1e-6);
    }
}
