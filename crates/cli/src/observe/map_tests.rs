use std::time::Instant;

use super::*;
use crate::observe::ledger::Ledger;
use crate::observe::testing::{connection, request};

/// Counts all that is in the ledger.
fn count(map: &mut Map, ledger: &mut Ledger) -> Vec<Line> {
    for mut entry in ledger.take_ended(Instant::now()) {
        let shown = entry.shown().unwrap();
        map.count(&mut entry, &shown);
    }
    for entry in ledger.entries() {
        let shown = entry.shown().unwrap();
        map.count(entry, &shown);
    }
    map.lines()
}

#[test]
fn rates_are_of_what_was_carried_meanwhile() {
    let (mut ledger, mut map) = (Ledger::default(), Map::new(2, 1.0));
    let mut seen = connection();
    (seen.bytes_sent, seen.bytes_received, seen.trace) = (1000, 10, None);
    ledger.note("node-2", seen.clone(), false, Instant::now());
    let lines = count(&mut map, &mut ledger);
    let [line] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!((line.source.as_str(), line.destination.as_str()), ("shop/web", "shop/db-svc"));
    assert_eq!((line.open, line.connections_per_second, line.sent_per_second), (1, 1.0, 1000.0));
    assert_eq!(line.encrypted, Some(true));
    // It carries 500 more, and ends.
    seen.bytes_sent = 1500;
    ledger.note("node-2", seen, true, Instant::now());
    let line = &count(&mut map, &mut ledger)[0];
    assert_eq!((line.open, line.connections_per_second, line.sent_per_second), (0, 0.5, 750.0));
    // The first moment is over.
    let line = &count(&mut map, &mut ledger)[0];
    assert_eq!((line.connections_per_second, line.sent_per_second), (0.0, 250.0));
}

#[test]
fn denials_and_what_went_in_the_clear_stand_out() {
    let (mut ledger, mut map) = (Ledger::default(), Map::new(1, 1.0));
    for port in 1..=3 {
        let mut seen = connection();
        (seen.trace, seen.source.address) = (None, Some(([10, 0, 0, 1], port).into()));
        if port == 1 {
            (seen.verdict, seen.encrypted) = (Verdict::Denied, Some(false));
        }
        ledger.note("node-2", seen, true, Instant::now());
    }
    let lines = count(&mut map, &mut ledger);
    assert_eq!((lines[0].denied, lines[0].failed, lines[0].encrypted), (1, 0, None));
    let text = text(&lines, Paint::none());
    assert!(text.contains("shop/web") && text.contains("some"), "{text}");
}

#[test]
fn requests_have_rates_error_shares_and_percentiles() {
    let (mut ledger, mut map) = (Ledger::default(), Map::new(1, 2.0));
    for number in 0..100_u64 {
        let mut seen = connection();
        seen.trace = Some("the same for all".to_owned());
        let status = if number < 5 { 503 } else { 200 };
        seen.request = Some(request(number, status, if number == 99 { 900_000 } else { 1_000 + number }));
        assert!(ledger.note("shop/waypoint-1", seen, true, Instant::now()), "each is one of its own");
    }
    let mut open = connection();
    open.request = Some(request(1000, 0, 0));
    ledger.note("shop/waypoint-1", open, false, Instant::now());
    let lines = count(&mut map, &mut ledger);
    let [line] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!((line.requests_per_second, line.error_share), (50.0, Some(0.05)));
    assert_eq!((line.connections_per_second, line.sent_per_second, line.open), (0.0, 0.0, 0));
    let near = |ms: Option<f64>, expected: f64| ms.is_some_and(|ms| (ms / expected - 1.0).abs() < 0.05);
    assert!(near(line.p50_ms, 1.05) && near(line.p99_ms, 1.1), "{line:?}");
    let text = text(&lines, Paint::none());
    assert!(text.contains("50.0") && text.contains("5.0 %"), "{text}");
}
