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
        for (subject, micros) in [("none", 100), ("leno=<&\"'>", 300)] {
            let mut recorder = LatencyRecorder::new();
            for request in 0..5000 {
                recorder.record(std::time::Duration::from_micros(micros + request / 10 + round));
            }
            let target = "10.0.0.1:8080".parse().unwrap();
            let load = HttpLoad::new(target, "/", 1, Pace::Open { per_second: 450.0 }, Reuse::Kept);
            let outcome =
                HttpOutcome { achieved_per_second: 450.0, latency: recorder.finish(), ..HttpOutcome::default() };
            results.push(StepResult {
                step: scenario.steps[1].name.clone(),
                subject: subject.into(),
                round: round as usize,
                started: format!("2026-11-22T18:48:0{round}Z"),
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
        started: "2026-11-22T18:48:00.960974942Z".into(),
        ended: String::new(),
        machine: Machine::describe(),
        cluster: None,
        scenario: scenario.name.into(),
        about: scenario.about.into(),
        steps: Vec::new(),
        rounds: 3,
        seconds: 1.0,
        subjects: vec![subject("none"), subject("leno=<&\"'>")],
        warnings: vec!["the machine is not quiet".into()],
        figures: Vec::new(),
        results,
        churn: Vec::new(),
    };
    report.conclude(&scenario);
    report.ended = "2026-11-22T18:53:04.49111839Z".into();
    report
}

/// The page without the raw results.
fn shown(report: &Report) -> String {
    let page = html(report).unwrap();
    page.split_once("<script type=\"application/json\"").unwrap().0.to_owned()
}

/// The ids and the local links of a page.
fn ids_and_links(page: &str) -> (Vec<String>, Vec<String>) {
    let values = |name: &str| page.split(name).skip(1).map(|rest| rest.split('"').next().unwrap().to_owned()).collect();
    (values(" id=\""), values(" href=\"#"))
}

/// All elements are closed, nothing is fetched, and no subject's text becomes markup.
#[test]
fn the_page_is_complete_and_fetches_nothing() {
    let page = html(&report()).unwrap();
    for tag in [
        "svg", "table", "thead", "tbody", "details", "ul", "h2", "h3", "div", "section", "figure", "script", "style",
        "small", "text", "a", "b", "span", "g",
    ] {
        let opened = page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
        let closed = page.matches(&format!("</{tag}>")).count();
        assert_eq!(opened, closed, "<{tag}>");
        assert!(opened > 0, "<{tag}>");
    }
    for outside in ["http:", "https:", "src=", "url(", "@import"] {
        assert!(!page.contains(outside), "{outside}");
    }
    let (ids, links) = ids_and_links(&page);
    assert_eq!(page.matches("href=").count(), links.len(), "every link stays in the page");
    for link in &links {
        assert_eq!(ids.iter().filter(|id| *id == link).count(), 1, "{link} among {ids:?}");
    }
    assert!(!page.contains("leno=<&") || page.find("leno=<&").unwrap() > page.find("application/json").unwrap());
    assert!(page.contains("leno=&lt;&amp;&quot;&#39;&gt;"));
    assert!(
        page.contains("Shulyak") && page.contains("no mutual TLS") && page.contains("30.4"),
        "published figures and faults"
    );
    assert!(!page.contains("NaN") && !page.contains("inf"), "a number went wrong");
}

/// The JSON in the page is the complete report.
#[test]
fn the_page_contains_the_raw_results() {
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
    assert!(text.contains(" beside none: worse in "), "{text}");
    let line = text.lines().find(|line| line.starts_with("  latency p50 [")).unwrap();
    assert!(line.contains("1.5") && line.contains('×'), "the ratio to the first subject: {line}");
    assert!(text.contains("(0123abc)") && !text.contains("> by"), "{text}");

    // With a third subject there is more to compare than the first.
    let mut report = report();
    let floor = report.results.iter().filter(|one| one.subject == "none").cloned();
    let floor: Vec<_> = floor.map(|one| StepResult { subject: "floor".into(), ..one }).collect();
    report.results.extend(floor);
    report.subjects.push(Identified { name: "floor".into(), programs: Vec::new(), encrypts: false });
    report.conclude(&find("latency", Size::Quick).unwrap());
    let text = super::text(&report);
    let (_, ratios) = text.split_once("leno=<&\"'> by").unwrap();
    let head = ratios.lines().next().unwrap();
    assert_eq!(head.split_whitespace().collect::<Vec<_>>(), ["none", "floor"]);
    let line = ratios.lines().find(|line| line.starts_with("  latency p50 ")).unwrap();
    assert_eq!(line.split_whitespace().collect::<Vec<_>>(), ["latency", "p50", "1.57×", "1.57×"]);
}

/// The way from a claim to its basis: verdict, summary, then every round of each figure with its time.
#[test]
fn from_the_verdict_to_the_rounds() {
    let page = shown(&report());
    let at = |text: &str| page.find(text).unwrap_or_else(|| panic!("no {text:?} in {page}"));
    let own = "leno=&lt;&amp;&quot;&#39;&gt;";
    assert!(at("id=\"summary\"") < at(&format!("<b>{own}</b> beside <b>none</b>: worse in ")), "verdict first");
    assert!(at(" beside <b>none</b>") < at("class=\"card\""), "then the figures");
    assert!(at("class=\"card\"") < at("id=\"step-open-loop-450-per-second\""), "then the steps");
    assert!(at("<table>") < at("id=\"how\""), "what was measured on comes after what was found");

    let summary = &page[at("id=\"summary\"")..at("id=\"step-")];
    let cards: Vec<&str> = summary.split("<section").skip(1).collect();
    assert!((1..=verdict::FIVE).contains(&cards.len()));
    for card in cards {
        let rounds = card.split("href=\"#").nth(1).unwrap().split('"').next().unwrap();
        let body = page.split(&format!("<tbody id=\"{rounds}\">")).nth(1).unwrap().split("</tbody>").next().unwrap();
        let rows: Vec<&str> = body.split("<tr>").skip(2).collect();
        assert_eq!(rows.len(), card.matches("class=\"line").count(), "a row for each subject of the card");
        assert!(rows.iter().all(|row| row.matches("<td>").count() == 1 + 3), "{body}");
    }
    assert!(page.contains("<td>18:48:01<td>18:48:02<td>18:48:03"), "when each turn began");
    assert!(page.contains("2026-11-22 18:48 to 2026-11-22 18:53 UTC") && !page.contains("960974942"));
}

/// What holds for all is said once instead of beside each figure.
#[test]
fn common_remarks_are_said_once() {
    let mut report = report();
    assert!(!shown(&report).contains("carries a claim by itself"));
    report.rounds = 1;
    report.results.retain(|result| result.round == 1);
    report.conclude(&find("latency", Size::Quick).unwrap());
    let page = shown(&report);
    assert_eq!(page.matches("One round only").count(), 1);
    assert!(!page.contains("<i>?</i>") && !page.contains(" – "), "no doubt and no range of one round");
    assert!(!page.contains("class=\"w\""), "nor a whisker");
    for text in ["Less is better, except", "Absolute figures belong to this machine"] {
        assert_eq!(page.matches(text).count(), 1, "{text}");
    }
}

fn figure(subjects: &[(&str, [f64; 3])]) -> Figure {
    let mut figure = Figure {
        step: "s".into(),
        name: "n".into(),
        unit: "u".into(),
        better: crate::stats::Better::Lower,
        subjects: subjects.iter().map(|(name, values)| Summary::of_all_rounds(name, values)).collect(),
    };
    figure.compare();
    figure
}

/// One bar per subject, one whisker per spread, and no bar if nothing is compared.
#[test]
fn bars_show_differences() {
    let mut report = report();
    report.subjects[1].name = "leno".into();
    let card = |none: [f64; 3], leno: [f64; 3]| card::card(&report, &figure(&[("none", none), ("leno", leno)]), false);
    let shown = card([1000.0; 3], [900.0, 1000.0, 500.0]);
    assert_eq!((shown.matches("<rect").count(), shown.matches("class=\"w\"").count()), (2, 1));
    assert!(shown.contains("width=\"100.00%\"") && shown.contains("width=\"90.00%\""), "{shown}");
    assert!(shown.contains("900<i>?</i>"), "a wide spread is marked: {shown}");
    assert!(shown.contains("<b class=\"alike\">≈ 0.90× none</b>"), "{shown}");
    assert!(card([1000.0; 3], [300.0; 3]).contains("<b class=\"good\">0.30× none</b>"));
    assert!(card([1000.0; 3], [3000.0; 3]).contains("<b class=\"bad\">3.00× none</b>"));
    assert!(!card([1000.0; 3], [1000.0; 3]).contains("<rect"), "all are alike");
    let alone = card::card(&report, &figure(&[("leno", [1.0, 2.0, 3.0])]), false);
    assert!(!alone.contains("<rect") && alone.contains(">2.00"), "one subject is compared with nothing: {alone}");
}

#[test]
fn standings_count_what_the_rounds_show() {
    let mut report = report();
    report.subjects = ["none", "floor", "leno", "ztunnel"]
        .map(|name| Identified { name: name.into(), programs: Vec::new(), encrypts: false })
        .into();
    let better = figure(&[("none", [1.0; 3]), ("leno", [2.0; 3]), ("ztunnel", [3.0; 3])]);
    let alike = figure(&[("leno", [2.0, 3.0, 4.0]), ("ztunnel", [3.0, 4.0, 5.0])]);
    let told: Vec<_> = verdict::standings(&report, &[&better, &alike])
        .into_iter()
        .map(|standing| format!("{} by {}: {}", standing.own, standing.other, standing.words()))
        .collect();
    assert_eq!(
        told,
        ["leno by ztunnel: better in 1 of 2 figures, not told apart in 1", "leno by none: worse in 1 of 1 figure"],
        "peers first, and nobody who has no figure in common"
    );

    report.subjects[3].name = "leno+ztunnel".into();
    report.subjects[1].name = "leno=/old".into();
    let two_builds = figure(&[("leno=/old", [2.0; 3]), ("leno", [1.0; 3])]);
    report.subjects.retain(|subject| subject.name.starts_with("leno") && !subject.name.contains('+'));
    let told = verdict::standings(&report, &[&two_builds]);
    assert_eq!(told.len(), 1, "two builds are compared once: {told:?}");
    assert_eq!((told[0].own, told[0].other, told[0].worse), ("leno=/old", "leno", 1));
}
