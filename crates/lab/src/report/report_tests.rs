use super::*;
use crate::load::{HttpLoad, HttpOutcome, LatencyRecorder, Load, Outcome, Pace, Reuse};
use crate::measure::MachineCpu;
use crate::results::LoadResult;
use crate::scenario::{Size, find};
use crate::stats::Summary;

fn report() -> Report {
    let scenario = find("latency", Size::Quick).unwrap();
    let mut results = Vec::new();
    for round in 1..=3 {
        for (subject, micros) in [("none", 100), ("leno <&\"'>", 300)] {
            let mut recorder = LatencyRecorder::new();
            for request in 0..5000 {
                recorder.record(std::time::Duration::from_micros(micros + request / 10 + round));
            }
            let load = HttpLoad {
                target: "10.0.0.1:8080".parse().unwrap(),
                path: "/".into(),
                connections: 1,
                pace: Pace::Open { per_second: 450.0 },
                reuse: Reuse::Kept,
                workers: 1,
                timeout_seconds: 1.0,
            };
            let outcome =
                HttpOutcome { achieved_per_second: 450.0, latency: recorder.finish(), ..HttpOutcome::default() };
            results.push(StepResult {
                step: scenario.steps[1].name.clone(),
                subject: subject.into(),
                round: round as usize,
                seconds: 1.0,
                loads: vec![LoadResult {
                    placed: crate::scenario::Placed { load: Load::Http(load), ..scenario.steps[1].loads[0].clone() },
                    outcome: Outcome::Http(outcome),
                }],
                proxies: Vec::new(),
                others_seconds: 0.0,
                machine: MachineCpu { user_seconds: 1.0, all_seconds: 1.0, ..MachineCpu::default() },
            });
        }
    }
    let subject = |name: &str| Identified { name: name.into(), programs: Vec::new(), encrypts: false };
    let mut report = Report {
        version: VERSION,
        program_version: "0".into(),
        commit: Some("0123abc".into()),
        command: "leno lab run latency </script>".into(),
        started: String::new(),
        ended: String::new(),
        machine: Machine::describe(),
        scenario: scenario.name.into(),
        about: scenario.about.into(),
        steps: Vec::new(),
        rounds: 3,
        seconds: 1.0,
        subjects: vec![subject("none"), subject("leno <&\"'>")],
        warnings: vec!["the machine is not quiet".into()],
        figures: Vec::new(),
        results,
        churn: Vec::new(),
    };
    report.conclude(&scenario);
    report
}

/// Every element that is opened is closed, nothing is fetched, and no text of a subject becomes markup.
#[test]
fn the_page_is_whole_and_alone() {
    let page = html(&report()).unwrap();
    for tag in ["svg", "table", "details", "ul", "h2", "div", "script", "style", "small", "text"] {
        let (opened, closed) = (page.matches(&format!("<{tag}")).count(), page.matches(&format!("</{tag}>")).count());
        assert_eq!(opened, closed, "<{tag}>");
        assert!(opened > 0, "<{tag}>");
    }
    for outside in ["http:", "https:", "src=", "href=", "url(", "@import"] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(!page.contains("leno <&") || page.find("leno <&").unwrap() > page.find("application/json").unwrap());
    assert!(page.contains("leno &lt;&amp;&quot;&#39;&gt;"));
    assert!(
        page.contains("Shulyak") && page.contains("no mutual TLS") && page.contains("30.4"),
        "published figures and faults"
    );
    assert!(!page.contains("NaN") && !page.contains("inf"), "a number went wrong");
}

/// The JSON in the page is the report: nothing of it is lost.
#[test]
fn raw_results_are_in_the_page() {
    let report = report();
    let page = html(&report).unwrap();
    let (_, rest) = page.split_once("id=\"report\">").unwrap();
    let (json, _) = rest.split_once("</script>").unwrap();
    let back: Report = serde_json::from_str(json).unwrap();
    assert_eq!((back.results.len(), &back.command, &back.figures.len()), (6, &report.command, &report.figures.len()));
    assert!(back.results[5].loads[0].outcome == report.results[5].loads[0].outcome);
}

#[test]
fn curves_end_where_the_data_ends() {
    let page = html(&report()).unwrap();
    let line = page.split("class=\"l s1\" d=\"").nth(1).unwrap().split('"').next().unwrap();
    let points: Vec<(f64, f64)> = line
        .trim_start_matches('M')
        .split('L')
        .map(|point| point.split_once(' ').unwrap())
        .map(|(x, y)| (x.parse().unwrap(), y.parse().unwrap()))
        .collect();
    assert!(
        points.len() > 30 && points.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 >= pair[1].1),
        "{points:?}"
    );
    assert!(page.contains(">99.9 %<") && !page.contains(">99.999 %<"), "15 000 requests know no more than four nines");
}

#[test]
fn a_table_for_the_terminal() {
    let text = text(&report());
    assert!(text.contains("latency p50 [µs]") && text.contains("warning: the machine is not quiet"), "{text}");
    let line = text.lines().find(|line| line.contains("latency p50")).unwrap();
    assert!(line.contains("1.5") && line.contains('×'), "the ratio to the first subject: {line}");
    assert!(text.contains("(0123abc)") && !text.contains("> by"), "{text}");

    // With a third subject there is more to compare than with the first.
    let mut report = report();
    let floor = report.results.iter().filter(|one| one.subject == "none").cloned();
    let floor: Vec<_> = floor.map(|one| StepResult { subject: "floor".into(), ..one }).collect();
    report.results.extend(floor);
    report.subjects.push(Identified { name: "floor".into(), programs: Vec::new(), encrypts: false });
    report.conclude(&find("latency", Size::Quick).unwrap());
    let text = super::text(&report);
    let (_, ratios) = text.split_once("leno <&\"'> by").unwrap();
    let head = ratios.lines().next().unwrap();
    assert_eq!(head.split_whitespace().collect::<Vec<_>>(), ["none", "floor"]);
    let line = ratios.lines().find(|line| line.contains("latency p50")).unwrap();
    assert_eq!(line.split_whitespace().collect::<Vec<_>>(), ["latency", "p50", "1.57×", "1.57×"]);
}

/// A bar for each subject, a whisker for each spread, and no picture where there is nothing to see.
#[test]
fn bars_show_differences() {
    let subjects = ["none".to_owned(), "leno".to_owned()];
    let bars = |leno: [f64; 3]| {
        let figure = Figure {
            step: "s".into(),
            name: "n".into(),
            unit: "u".into(),
            better: crate::stats::Better::Lower,
            subjects: vec![
                Summary::of_all_rounds(&subjects[0], &[1000.0; 3]),
                Summary::of_all_rounds(&subjects[1], &leno),
            ],
        };
        svg::bars(&figure, &subjects)
    };
    let shown = bars([900.0, 1000.0, 500.0]);
    assert_eq!((shown.matches("<rect").count(), shown.matches("class=\"w\"").count()), (2, 2));
    assert!(shown.contains("900 ?"), "a wide spread is marked: {shown}");
    assert_eq!(bars([1000.0; 3]), "");
}
