use std::time::Duration;

use super::*;
use crate::load::{Direction, StreamLoad, Undisturbed};
use crate::measure::{Cpu, MachineCpu};
use crate::scenario::Placed;

fn placed(load: Load, measured: bool) -> Placed {
    Placed { from: "client".into(), to: "server-far".into(), measured, load }
}

fn machine(busy: f64, softirq: f64) -> MachineCpu {
    let (user_seconds, all_seconds) = (busy - softirq, busy + 1.0);
    MachineCpu { user_seconds, softirq_seconds: softirq, idle_seconds: 1.0, all_seconds, ..MachineCpu::default() }
}

fn proxy(seconds: f64, before: u64, during: u64) -> ProxyUse {
    let memory = |mib: u64| Memory { rss_bytes: mib << 20, anonymous_bytes: 0, descriptors: mib };
    ProxyUse {
        node: "node-1".into(),
        cpu: Cpu { user_seconds: seconds / 2.0, system_seconds: seconds / 2.0 },
        fresh: memory(before - 2),
        before: memory(before),
        during: memory(during),
        after: memory(before + 1),
        given_back_seconds: None,
    }
}

fn stream_result(subject: &str, round: usize, gigabytes: f64, cpu: Option<f64>) -> StepResult {
    let target = "10.0.0.1:5201".parse().unwrap();
    let load = Load::Stream(StreamLoad { target, streams: 2, direction: Direction::Send, read_limit: None });
    let bytes = (gigabytes * GIGA / 2.0) as u64;
    let outcome = StreamOutcome { seconds: 2.0, bytes: vec![bytes, bytes], ..StreamOutcome::default() };
    StepResult {
        step: "bulk".into(),
        subject: subject.into(),
        round,
        started: String::new(),
        seconds: 2.0,
        loads: vec![LoadResult { placed: placed(load, true), outcome: Outcome::Stream(outcome) }],
        proxies: cpu.map(|seconds| vec![proxy(seconds, 10, 12), proxy(seconds, 10, 14)]).unwrap_or_default(),
        machine: machine(4.0, 1.0),
        others_seconds: 0.1,
    }
}

fn value(result: &StepResult, name: &str) -> Option<f64> {
    values(result).into_iter().find(|(known, ..)| *known == name).map(|(.., value)| value)
}

#[test]
fn bulk_bytes_by_hand() {
    let result = stream_result("leno", 1, 4.0, Some(1.0));
    assert_eq!(value(&result, "throughput"), Some(16.0));
    assert_eq!(value(&result, "CPU of both proxies"), Some(0.5), "2 s for 4 GB");
    assert_eq!(value(&result, "CPU of the whole machine"), Some(1.0));
    assert_eq!(value(&result, "of that softirq"), Some(0.25));
    assert_eq!(value(&result, "fastest stream by the slowest"), Some(1.0));
    assert_eq!(value(&result, "RSS under load, per proxy"), Some(13.0));
    assert_eq!(value(&stream_result("none", 1, 4.0, None), "CPU of both proxies"), None);
}

fn http_result(pace: Pace, reuse: Reuse, path: &str, pods: usize) -> StepResult {
    let target = "10.0.0.1:8080".parse().unwrap();
    let mut recorder = LatencyRecorder::new();
    for milliseconds in 1..=100 {
        recorder.record(Duration::from_millis(milliseconds));
    }
    let outcome = HttpOutcome {
        seconds: 2.0,
        planned: 2000,
        answered: 2000,
        achieved_per_second: 1000.0,
        body_bytes: 500_000_000,
        errors: [("timeout".to_owned(), 3)].into(),
        latency: recorder.finish(),
        ..HttpOutcome::default()
    };
    let load = HttpLoad::new(target, path, 4, pace, reuse);
    let one = LoadResult { placed: placed(Load::Http(load), true), outcome: Outcome::Http(outcome) };
    StepResult { loads: vec![one; pods], ..stream_result("leno", 1, 1.0, Some(1.0)) }
}

#[test]
fn requests_by_hand() {
    let open = http_result(Pace::Open { per_second: 1000.0 }, Reuse::Kept, "/bytes/250000", 1);
    assert!((value(&open, "latency p90").unwrap() - 90_000.0).abs() < 200.0);
    assert_eq!(value(&open, "answered"), Some(1000.0));
    assert_eq!(value(&open, "errors"), Some(3.0));
    assert_eq!(value(&open, "CPU of both proxies"), Some(10.0), "2 s for 2 000 requests");
    assert_eq!(value(&open, "CPU of both proxies per GB"), Some(4.0));
    assert_eq!(values(&open)[0].0, "latency p50", "what an open loop is about comes first");

    let fresh = http_result(Pace::Closed, Reuse::PerRequest, "/", 1);
    assert_eq!((values(&fresh)[0].0, value(&fresh, "CPU of both proxies")), ("answered", Some(1.0)));
    assert!(
        values(&fresh).iter().any(|(name, unit, ..)| *name == "CPU of both proxies" && *unit == "s/1 000 connections")
    );

    let crowd = http_result(Pace::Open { per_second: 1000.0 }, Reuse::Kept, "/", 5);
    assert_eq!(value(&crowd, "answered"), Some(5000.0));
    assert_eq!(value(&crowd, "worst pod's p99 by the best pod's"), Some(1.0));
    assert_eq!(value(&crowd, "answered for the worst pod"), Some(1000.0));
    // Five equal distributions merge into the same distribution, with a longer tail.
    let (one, five) = (pooled_curve(&[open], "bulk", "leno"), pooled_curve(&[crowd], "bulk", "leno"));
    assert!(five.len() > one.len() && five.starts_with(&one));
}

/// Added latency is computed per round, and only if latency counts from a planned time.
#[test]
fn added_latency_by_hand() {
    let one = |subject: &str, round: usize, factor: u64, pace| {
        let mut result = http_result(pace, Reuse::Kept, "/", 1);
        let mut recorder = LatencyRecorder::new();
        for milliseconds in 1..=100 {
            recorder.record(Duration::from_millis(milliseconds * factor));
        }
        if let Outcome::Http(outcome) = &mut result.loads[0].outcome {
            outcome.latency = recorder.finish();
        }
        StepResult { subject: subject.into(), round, ..result }
    };
    let open = Pace::Open { per_second: 1000.0 };
    // The second round is slower for both, and the added latency is the same.
    let rounds = [("none", 1, 1), ("leno", 1, 3), ("ztunnel", 1, 5), ("none", 2, 4), ("leno", 2, 6), ("ztunnel", 2, 8)];
    let results: Vec<_> = rounds.map(|(subject, round, factor)| one(subject, round, factor, open)).into();
    let figures = figures(&results);
    let added = figures.iter().find(|figure| figure.name == "latency p50 added to none").unwrap();
    assert!(added.of("none").is_none());
    for value in &added.of("leno").unwrap().values {
        assert!((value - 100_000.0).abs() < 500.0, "{value}");
    }
    let ratio = &added.of("leno").unwrap().ratios[0];
    assert!(ratio.to == "ztunnel" && (ratio.ratio - 0.5).abs() < 0.01, "{ratio:?}");
    let names: Vec<_> = figures.iter().map(|figure| figure.name.as_str()).collect();
    assert_eq!(names[4..7], ["latency p50 added to none", "latency p99 added to none", "answered"], "{names:?}");

    let mut guest = results;
    for result in &mut guest {
        // In the first round, one of them has few undisturbed requests.
        let few = result.round == 1 && result.subject == "leno";
        if let Outcome::Http(outcome) = &mut result.loads[0].outcome {
            let mut recorder = LatencyRecorder::new();
            (0..if few { 999 } else { 1000 })
                .for_each(|_| recorder.record(Duration::from_micros(outcome.latency.p50_us as u64 / 10)));
            outcome.undisturbed = Some(Undisturbed { seconds: 1.0, latency: recorder.finish() }.into());
        }
    }
    let figures = super::figures(&guest);
    let added = figures.iter().find(|figure| figure.name == "latency p99 added to none, undisturbed").unwrap();
    let of = |subject| added.of(subject).map(|one| one.values.iter().map(|us| (us / 1e3).round()).collect::<Vec<_>>());
    assert_eq!((of("none"), of("leno"), of("ztunnel")), (None, Some(vec![10.0]), Some(vec![20.0, 20.0])));

    let closed = [one("none", 1, 1, Pace::Closed), one("leno", 1, 3, Pace::Closed)];
    assert!(super::figures(&closed).iter().all(|figure| !figure.name.contains("added")));
}

#[test]
fn remarks_say_what_readers_must_know() {
    let late = http_result(Pace::Open { per_second: 2000.0 }, Reuse::Kept, "/", 1);
    let remarks = remarks(&late);
    assert!(remarks.iter().any(|remark| remark.contains("only 1000 of 2000 requests per second")), "{remarks:?}");
    assert!(
        remarks.iter().any(|remark| remark.contains("3 requests failed") && remark.contains("timeout")),
        "{remarks:?}"
    );
    let quiet = stream_result("leno", 1, 1.0, None);
    assert!(super::remarks(&quiet).is_empty());
    let disturbed = StepResult { others_seconds: 1.0, ..quiet };
    assert!(super::remarks(&disturbed)[0].contains("used 0.50 cores meanwhile"));
    let taken = |round, steal_seconds| {
        let result = stream_result("leno", round, 1.0, None);
        StepResult { machine: MachineCpu { steal_seconds, ..result.machine }, ..result }
    };
    assert_eq!(super::taken(&[taken(1, 0.1), taken(2, 0.0)]), Vec::<String>::new());
    let said = super::taken(&[taken(1, 0.2), taken(2, 0.0), taken(3, 1.0)]);
    let expected = "more than 0.05 cores away in 2 of 3 turns, most of it (0.50) from leno in round 3; \
                    in 1 it was so much that what the whole machine did is not known";
    assert!(said.len() == 1 && said[0].starts_with("bulk: ") && said[0].ends_with(expected), "{said:?}");
}

#[test]
fn idle_connections_by_hand() {
    let load = Load::Idle(crate::load::IdleLoad { target: "10.0.0.1:5203".parse().unwrap(), connections: 1024 });
    let outcome =
        IdleOutcome { opened: 1024, alive: 1000, open_seconds: 0.5, errors: [("reset".to_owned(), 24)].into() };
    let result = StepResult {
        loads: vec![LoadResult { placed: placed(load, true), outcome: Outcome::Idle(outcome) }],
        ..stream_result("leno", 1, 1.0, Some(0.01))
    };
    assert_eq!(value(&result, "memory per connection, per proxy"), Some(5.0), "4 and 6 MiB for 1 024 connections");
    assert_eq!(value(&result, "descriptors left afterwards, per proxy"), Some(1.0));
    assert_eq!(value(&result, "CPU of both proxies while idle"), Some(1.0));
    assert_eq!(value(&result, "RSS fresh, per proxy"), Some(8.0));
    assert_eq!(value(&result, "RSS afterwards by fresh"), Some(11.0 / 8.0));
    assert_eq!(value(&result, "failed"), Some(24.0));
    assert_eq!(value(&result, "time until RSS is near fresh"), None, "one that never was is no zero");
    let mut back = result.clone();
    for (proxy, seconds) in back.proxies.iter_mut().zip([2.0, 5.0]) {
        proxy.given_back_seconds = Some(seconds);
    }
    assert_eq!(value(&back, "time until RSS is near fresh"), Some(5.0));
    assert!(remarks(&result)[0].contains("only 1000 of 1024"));

    let Outcome::Idle(few) = &mut back.loads[0].outcome else { panic!() };
    (few.opened, few.alive) = (200, 200);
    assert_eq!(value(&back, "opened"), Some(200.0));
    assert_eq!(value(&back, "memory per connection, per proxy"), None, "most could not be opened");
    let said = remarks(&back);
    assert!(
        said[0].contains("only 200 of 1024 idle connections could be opened") && said[0].contains("reset"),
        "{said:?}"
    );
}

#[test]
fn rounds_come_together() {
    let results = [
        stream_result("none", 1, 8.0, None),
        stream_result("leno", 1, 4.0, Some(1.0)),
        stream_result("none", 2, 8.2, None),
        stream_result("leno", 2, 4.2, Some(1.0)),
        stream_result("none", 3, 7.8, None),
        stream_result("leno", 3, 3.8, Some(1.0)),
    ];
    let figures = figures(&results);
    let throughput = figures.iter().find(|figure| figure.name == "throughput").unwrap();
    let (none, leno) = (throughput.of("none").unwrap(), throughput.of("leno").unwrap());
    assert_eq!((none.values.len(), none.median, leno.median), (3, 32.0, 16.0));
    assert_eq!((leno.ratios[0].to.as_str(), leno.ratios[0].ratio, leno.ratios[0].overlap), ("none", 0.5, false));
    let names: Vec<_> = figures.iter().map(|figure| figure.name.as_str()).collect();
    assert_eq!(
        names[..3],
        ["throughput", "CPU of both proxies", "CPU of the whole machine"],
        "the first subject has no proxies"
    );
    let cpu = figures.iter().find(|figure| figure.name == "CPU of both proxies").unwrap();
    assert!(cpu.of("none").is_none() && cpu.of("leno").is_some());
}
