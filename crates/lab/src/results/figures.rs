//! From raw results to figures.

use super::{LoadResult, ProxyUse, StepResult};
use crate::load::{
    HttpLoad, HttpOutcome, IdleOutcome, Latency, LatencyRecorder, Load, Outcome, Pace, Reuse, StreamOutcome,
};
use crate::measure::{Cpu, Memory};
use crate::scenario::HOP;
use crate::stats::{Better, Figure, Found, Value, number, sum_up};
use crate::subject::WITHOUT_MESH;

const GIGA: f64 = 1e9;
const MIB: f64 = (1 << 20) as f64;

/// Bodies of at least so many bytes are also counted as bytes.
const LARGE: u64 = 16 << 10;

/// A machine is not quiet if other programs use more than this part of a core.
pub(crate) const QUIET: f64 = 0.15;

/// With fewer requests than this, the 99.9th percentile is the slowest one or two.
const ENOUGH_FOR_P999: u64 = 3_000;

/// With fewer requests than this, the 99th percentile depends on the slowest ten.
const ENOUGH_FOR_P99: u64 = 1_000;

/// A remark is made if a hypervisor takes more cores than this.
const TAKEN: f64 = 0.05;

/// If fewer of the idle connections than this part were opened, no figure is divided by their number.
const MOST_OPENED: f64 = 0.99;

/// Latencies to which a mesh adds, and the names of the added parts.
const ADDED: [(&str, &str); 4] = [
    ("latency p50", "latency p50 added to none"),
    ("latency p99", "latency p99 added to none"),
    (UNDISTURBED_P50, "latency p50 added to none, undisturbed"),
    (UNDISTURBED_P99, "latency p99 added to none, undisturbed"),
];
const UNDISTURBED_P50: &str = "latency p50, undisturbed";
const UNDISTURBED_P99: &str = "latency p99, undisturbed";

/// Sums up all rounds, in the order of the results.
#[must_use]
pub fn figures(results: &[StepResult]) -> Vec<Figure> {
    let found = results.iter().map(|result| Found {
        step: &result.step,
        subject: &result.subject,
        round: result.round,
        values: with_added(result, results),
    });
    sum_up(&found.collect::<Vec<_>>())
}

/// The values of a result. For open loops they include the latency that the subject adds to that of no mesh in the same
/// round. This difference excludes the network, the program and the generator.
fn with_added(result: &StepResult, results: &[StepResult]) -> Vec<Value> {
    let mut found = values(result);
    let is_open = |load: &LoadResult| {
        load.placed.measured && matches!(&load.placed.load, Load::Http(HttpLoad { pace: Pace::Open { .. }, .. }))
    };
    let without = results
        .iter()
        .find(|other| other.subject == WITHOUT_MESH && (&other.step, other.round) == (&result.step, result.round));
    let Some(without) = without.filter(|_| result.subject != WITHOUT_MESH && result.loads.iter().any(is_open)) else {
        return found;
    };
    let without = values(without);
    let after = found.iter().rposition(|(name, ..)| name.starts_with("latency ")).map_or(0, |last| last + 1);
    for (of, name) in ADDED.into_iter().rev() {
        let value = |values: &[Value]| values.iter().find(|(known, ..)| *known == of).map(|(.., value)| *value);
        if let (Some(with), Some(without)) = (value(&found), value(&without)) {
            found.insert(after, (name, "µs", Better::Lower, with - without));
        }
    }
    found
}

/// The main number of a step, in words.
pub(crate) fn headline(result: &StepResult) -> String {
    let shown = |(name, unit, _, value): &Value| format!("{name} {} {unit}", number(*value));
    let values = values(result);
    let errors = values.iter().find(|(name, _, _, value)| *name == "errors" && *value > 0.0);
    let first: Vec<String> = values.iter().take(2).chain(errors).map(shown).collect();
    first.join(", ")
}

/// Remarks on a result that a reader of its figures needs.
pub(crate) fn remarks(result: &StepResult) -> Vec<String> {
    let mut remarks = Vec::new();
    let at = format!("{} with {}, round {}", result.step, result.subject, result.round);
    for load in result.loads.iter().filter(|load| load.placed.measured) {
        match (&load.placed.load, &load.outcome) {
            (Load::Http(HttpLoad { pace: Pace::Open { per_second }, .. }), Outcome::Http(outcome)) => {
                if outcome.achieved_per_second < 0.99 * per_second {
                    let rate = outcome.achieved_per_second;
                    remarks.push(format!(
                        "{at}: only {rate:.0} of {per_second:.0} requests per second were answered in time"
                    ));
                }
                let (lag, p99) = (outcome.lag.p99_us, outcome.latency.p99_us);
                if lag > p99 / 2.0 {
                    remarks.push(format!(
                        "{at}: the load generator itself was up to {lag:.0} µs late (p99), which is in the p99 of {p99:.0} µs: \
                         the machine is too busy, or its cores take that long to wake, to tell more"
                    ));
                }
            }
            (_, Outcome::Stream(outcome)) => {
                for (reason, count) in &outcome.errors {
                    remarks.push(format!("{at}: {count} streams failed: {reason}"));
                }
            }
            (Load::Idle(load), Outcome::Idle(outcome)) => {
                let (asked, opened, alive) = (load.connections as u64, outcome.opened, outcome.alive);
                if opened < asked {
                    remarks.push(format!(
                        "{at}: only {opened} of {asked} idle connections could be opened: {:?}",
                        outcome.errors
                    ));
                }
                if alive < opened {
                    remarks.push(format!("{at}: only {alive} of {opened} idle connections lived to the end"));
                }
            }
            _ => {}
        }
        if let Outcome::Http(outcome) = &load.outcome
            && outcome.error_count() > 0
        {
            remarks.push(format!("{at}: {} requests failed: {:?}", outcome.error_count(), outcome.errors));
        }
    }
    let others = result.others_seconds / result.seconds.max(1e-9);
    if others > QUIET {
        remarks.push(format!("{at}: programs that are no part of this used {others:.2} cores meanwhile"));
    }
    remarks
}

/// The time that a hypervisor took during each step. One sentence per step, because on some machines it takes time in
/// every turn.
pub(crate) fn taken(results: &[StepResult]) -> Vec<String> {
    let share = |result: &StepResult| result.machine.steal_seconds / result.seconds.max(1e-9);
    let mut remarks = Vec::new();
    for (step, turns) in by_step(results) {
        let Some(worst) = turns.iter().max_by(|one, other| share(one).total_cmp(&share(other))) else { continue };
        let of = turns.len();
        let many = turns.iter().filter(|turn| share(turn) > TAKEN).count();
        if many > 0 {
            let mut remark = format!(
                "{step}: the hypervisor took more than {TAKEN} cores away in {many} of {of} turns, most of it ({:.2}) from {} in round {}",
                share(worst),
                worst.subject,
                worst.round
            );
            let unknown = turns.iter().filter(|turn| turn.machine.busy_seconds().is_none()).count();
            if unknown > 0 {
                remark += &format!("; in {unknown} it was so much that what the whole machine did is not known");
            }
            remarks.push(remark);
        }
    }
    remarks
}

/// The results of each step, in their order.
fn by_step(results: &[StepResult]) -> Vec<(&str, Vec<&StepResult>)> {
    let mut steps: Vec<(&str, Vec<&StepResult>)> = Vec::new();
    for result in results {
        match steps.iter_mut().find(|(step, _)| *step == result.step) {
            Some((_, turns)) => turns.push(result),
            None => steps.push((&result.step, vec![result])),
        }
    }
    steps
}

fn values(result: &StepResult) -> Vec<Value> {
    let measured: Vec<&LoadResult> = result.loads.iter().filter(|load| load.placed.measured).collect();
    let https: Vec<(&HttpLoad, &HttpOutcome)> = measured
        .iter()
        .filter_map(|load| match (&load.placed.load, &load.outcome) {
            (Load::Http(load), Outcome::Http(outcome)) => Some((load, outcome)),
            _ => None,
        })
        .collect();
    if !https.is_empty() {
        return http(result, &https);
    }
    match measured.first().map(|load| (&load.placed.load, &load.outcome)) {
        Some((_, Outcome::Stream(outcome))) => stream(result, outcome),
        Some((Load::Idle(load), Outcome::Idle(outcome))) => idle(result, load.connections, outcome),
        _ => Vec::new(),
    }
}

fn proxies_cpu(result: &StepResult) -> Option<f64> {
    let total = result.proxies.iter().fold(Cpu::default(), |total, proxy| total + proxy.cpu);
    (!result.proxies.is_empty()).then(|| total.seconds())
}

/// Processor time per unit of work: of both proxies, of the machine, and the machine's softirq part.
fn costs(result: &StepResult, names: [&'static str; 3], unit: &'static str, work: f64) -> Vec<Value> {
    if work <= 0.0 {
        return Vec::new();
    }
    let machine = &result.machine;
    let names = for_so_many(names, result.proxies.len());
    let seconds = [proxies_cpu(result), machine.busy_seconds(), machine.believed_softirq_seconds()];
    let known = names.into_iter().zip(seconds).filter_map(|(name, seconds)| Some((name, seconds?)));
    known.map(|(name, seconds)| (name, unit, Better::Lower, seconds / work)).collect()
}

const COSTS: [&str; 3] = ["CPU of both proxies", "CPU of the whole machine", "of that softirq"];
const BODY_COSTS: [&str; 3] =
    ["CPU of both proxies per GB", "CPU of the whole machine per GB", "of that softirq, per GB"];

/// The same names, where there are not two proxies.
fn for_so_many(names: [&'static str; 3], proxies: usize) -> [&'static str; 3] {
    let [both, machine, softirq] = names;
    let per_gb = both.ends_with("per GB");
    let name = match (proxies, per_gb) {
        (1, false) => "CPU of the proxy",
        (1, true) => "CPU of the proxy per GB",
        (3.., false) => "CPU of proxies and waypoint",
        (3.., true) => "CPU of proxies and waypoint per GB",
        _ => both,
    };
    [name, machine, softirq]
}

fn http(result: &StepResult, loads: &[(&HttpLoad, &HttpOutcome)]) -> Vec<Value> {
    use Better::{Higher, Lower};
    let latency = pooled(loads.iter().map(|(_, outcome)| &outcome.latency));
    let undisturbed: Option<Vec<&Latency>> =
        loads.iter().map(|(_, outcome)| outcome.undisturbed.as_ref().map(|some| &some.latency)).collect();
    let undisturbed = undisturbed.map(pooled).filter(|latency| latency.count >= ENOUGH_FOR_P99);
    let rate: f64 = loads.iter().map(|(_, outcome)| outcome.achieved_per_second).sum();
    let errors: u64 = loads.iter().map(|(_, outcome)| outcome.error_count()).sum();
    let bodies: u64 = loads.iter().map(|(_, outcome)| outcome.body_bytes).sum();
    let (first, _) = loads[0];
    let mut latencies = vec![
        ("latency p50", "µs", Lower, latency.p50_us),
        ("latency p90", "µs", Lower, latency.p90_us),
        ("latency p99", "µs", Lower, latency.p99_us),
        ("latency p99.9", "µs", Lower, latency.p999_us),
        ("latency max", "µs", Lower, latency.max_us),
    ];
    if latency.count < ENOUGH_FOR_P999 {
        latencies.remove(3);
    }
    if let Some(latency) = undisturbed {
        latencies.push((UNDISTURBED_P50, "µs", Lower, latency.p50_us));
        latencies.push((UNDISTURBED_P99, "µs", Lower, latency.p99_us));
    }
    let rate_value = ("answered", "requests/s", Higher, rate);
    let mut values = Vec::new();
    if matches!(first.pace, Pace::Open { .. }) {
        values.extend(latencies);
        values.push(rate_value);
    } else {
        values.push(rate_value);
        values.extend(latencies);
    }
    values.push(("errors", "requests", Lower, errors as f64));
    let done = rate * result.seconds;
    values.extend(match first.reuse {
        Reuse::Kept => costs(result, COSTS, "s/10 000 requests", done / 1e4),
        Reuse::PerRequest => costs(result, COSTS, "s/1 000 connections", done / 1e3),
    });
    if size_of_answer(first).is_some_and(|size| size >= LARGE) {
        values.push(("bodies", "GB/s", Higher, bodies as f64 / GIGA / result.seconds.max(1e-9)));
        values.extend(costs(result, BODY_COSTS, "s/GB", bodies as f64 / GIGA));
    }
    if loads.len() > 1 {
        let p99s = || loads.iter().map(|(_, outcome)| outcome.latency.p99_us);
        let (least, most) = (p99s().fold(f64::INFINITY, f64::min), p99s().fold(0.0, f64::max));
        values.push(("worst pod's p99 by the best pod's", "×", Lower, most / least.max(1.0)));
        let slowest = loads.iter().map(|(_, outcome)| outcome.achieved_per_second).fold(f64::INFINITY, f64::min);
        values.push(("answered for the worst pod", "requests/s", Higher, slowest));
    }
    values.extend(memory_under_load(result));
    if first.walk.is_some() {
        values.extend(of_the_largest(result));
    }
    if result.proxies.first().is_some_and(|proxy| proxy.node == HOP || proxy.node == "waypoint") {
        let all = result.proxies.iter().map(|proxy| proxy.fresh.rss_bytes as f64 / MIB);
        values.push(("RSS fresh, per proxy", "MiB", Lower, all.sum::<f64>() / count(result)));
    }
    values
}

/// The length of the body that a path asks for, bytes.
fn size_of_answer(load: &HttpLoad) -> Option<u64> {
    load.path.rsplit_once("/bytes/").and_then(|(_, size)| size.parse().ok())
}

/// What Kinvolk's harness shows of a mesh: the greatest value of any of its proxies, not the sum.
fn of_the_largest(result: &StepResult) -> Vec<Value> {
    if result.proxies.is_empty() {
        return Vec::new();
    }
    let most = |of: &dyn Fn(&ProxyUse) -> f64| result.proxies.iter().map(of).fold(0.0, f64::max);
    let cores = most(&|proxy| proxy.cpu.seconds() / result.seconds.max(1e-9));
    let memory = most(&|proxy| proxy.during.rss_bytes as f64 / MIB);
    vec![
        ("CPU of the busiest proxy", "cores", Better::Lower, cores),
        ("RSS of the largest proxy", "MiB", Better::Lower, memory),
    ]
}

/// All requests of several loads, merged.
fn pooled<'a>(latencies: impl IntoIterator<Item = &'a Latency>) -> Latency {
    let mut pooled = LatencyRecorder::new();
    for recorder in latencies.into_iter().filter_map(|latency| latency.recorder().ok()) {
        pooled.add(&recorder);
    }
    pooled.finish()
}

fn memory_under_load(result: &StepResult) -> Option<Value> {
    let all = result.proxies.iter().map(|proxy| proxy.during.rss_bytes as f64 / MIB);
    (!result.proxies.is_empty())
        .then(|| ("RSS under load, per proxy", "MiB", Better::Lower, all.sum::<f64>() / count(result)))
}

fn count(result: &StepResult) -> f64 {
    result.proxies.len() as f64
}

fn stream(result: &StepResult, outcome: &StreamOutcome) -> Vec<Value> {
    use Better::{Higher, Lower};
    let bytes: u64 = outcome.bytes.iter().sum();
    let mut values = vec![("throughput", "Gbit/s", Higher, bytes as f64 * 8.0 / outcome.seconds.max(1e-9) / GIGA)];
    values.extend(costs(result, COSTS, "s/GB", bytes as f64 / GIGA));
    values.push(("failed streams", "streams", Lower, outcome.errors.values().sum::<u64>() as f64));
    if let (Some(least), Some(most)) = (outcome.bytes.iter().min(), outcome.bytes.iter().max())
        && outcome.bytes.len() > 1
    {
        values.push(("fastest stream by the slowest", "×", Lower, *most as f64 / (*least).max(1) as f64));
    }
    values.extend(memory_under_load(result));
    values
}

fn idle(result: &StepResult, asked: usize, outcome: &IdleOutcome) -> Vec<Value> {
    use Better::{Higher, Lower};
    let failed = outcome.errors.values().sum::<u64>() as f64;
    let mut values = vec![
        ("opened", "connections", Higher, outcome.opened as f64),
        ("failed", "connections", Lower, failed),
        ("time to open all", "s", Lower, outcome.open_seconds),
    ];
    // If many connections are missing, the proxies' memory does not belong to the full number.
    if result.proxies.is_empty() || (outcome.opened as f64) < MOST_OPENED * asked as f64 {
        return values;
    }
    let mean = |of: &dyn Fn(&ProxyUse) -> f64| result.proxies.iter().map(of).sum::<f64>() / count(result);
    let mib = |memory: &Memory| memory.rss_bytes as f64 / MIB;
    let opened = outcome.opened.max(1) as f64;
    let idle_cpu = proxies_cpu(result).unwrap_or_default() / result.seconds.max(1e-9) * 100.0;
    values.extend([
        (
            "memory per connection, per proxy",
            "KiB",
            Lower,
            // Relative to a fresh proxy: otherwise memory that an earlier step left would count as free.
            mean(&|proxy| (mib(&proxy.during) - mib(&proxy.fresh)) * 1024.0 / opened),
        ),
        ("RSS fresh, per proxy", "MiB", Lower, mean(&|proxy| mib(&proxy.fresh))),
        ("RSS before, per proxy", "MiB", Lower, mean(&|proxy| mib(&proxy.before))),
        ("RSS with all open, per proxy", "MiB", Lower, mean(&|proxy| mib(&proxy.during))),
        ("RSS afterwards, per proxy", "MiB", Lower, mean(&|proxy| mib(&proxy.after))),
        (
            "RSS afterwards by fresh",
            "×",
            Lower,
            mean(&|proxy| proxy.after.rss_bytes as f64 / proxy.fresh.rss_bytes.max(1) as f64),
        ),
        (
            "descriptors per connection, per proxy",
            "",
            Lower,
            mean(&|proxy| (proxy.during.descriptors as f64 - proxy.before.descriptors as f64) / opened),
        ),
        (
            "descriptors left afterwards, per proxy",
            "",
            Lower,
            mean(&|proxy| (proxy.after.descriptors as f64 - proxy.before.descriptors as f64).max(0.0)),
        ),
        ("CPU of both proxies while idle", "% of a core", Lower, idle_cpu),
    ]);
    // A result that does not exist has no number.
    let back: Option<Vec<f64>> = result.proxies.iter().map(|proxy| proxy.given_back_seconds).collect();
    if let Some(seconds) = back {
        values.push(("time until RSS is near fresh", "s", Lower, seconds.into_iter().fold(0.0, f64::max)));
    }
    values
}

/// The merged latencies of a step over all rounds with one subject, for the percentile curve.
pub(crate) fn pooled_curve(results: &[StepResult], step: &str, subject: &str) -> Vec<(f64, f64)> {
    let results = results.iter().filter(|result| result.step == step && result.subject == subject);
    let loads = results.flat_map(|result| result.loads.iter().filter(|load| load.placed.measured));
    pooled(loads.filter_map(|load| match &load.outcome {
        Outcome::Http(outcome) => Some(&outcome.latency),
        _ => None,
    }))
    .curve()
}

#[cfg(test)]
#[path = "figures_tests.rs"]
mod tests;
