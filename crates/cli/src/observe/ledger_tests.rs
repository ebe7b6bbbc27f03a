use super::*;
use crate::observe::testing::connection;

fn of_source() -> Connection {
    let mut source = connection();
    source.reporter = "source".to_owned();
    source.service = Some("asked.shop.svc.cluster.local".to_owned());
    source
}

fn ended(ledger: &mut Ledger, now: Instant) -> Vec<Shown> {
    ledger.take_ended(now).iter().filter_map(Entry::shown).collect()
}

#[test]
fn two_words_of_one_connection_are_one_row() {
    let (mut ledger, now) = (Ledger::default(), Instant::now());
    let mut denied = connection();
    (denied.verdict, denied.reason) = (Verdict::Denied, Some("by shop/p".to_owned()));
    let mut refused = of_source();
    (refused.verdict, refused.reason) = (Verdict::Denied, Some("denied by its policies (401)".to_owned()));
    assert!(ledger.note("node-1", refused, true, now), "it is new");
    assert!(ended(&mut ledger, now).is_empty(), "the other is waited for");
    assert!(!ledger.note("node-2", denied, true, now));
    let [shown] = &ended(&mut ledger, now)[..] else { panic!("one row") };
    assert_eq!(shown.nodes, ["node-1", "node-2"]);
    assert_eq!(shown.connection.reporter, "both");
    assert_eq!(shown.connection.reason.as_deref(), Some("by shop/p"), "who decided knows why");
    assert_eq!(shown.connection.service.as_deref(), Some("asked.shop.svc.cluster.local"), "who asked knows what for");
}

#[test]
fn an_endpoint_behind_a_waypoint_has_not_proved_the_waypoints_account() {
    let (mut ledger, now) = (Ledger::default(), Instant::now());
    let mut to_waypoint = of_source();
    to_waypoint.destination.pod = Some("waypoint-1".to_owned());
    to_waypoint.destination.identity = Some("spiffe://cluster.local/ns/shop/sa/waypoint".to_owned());
    let mut passed = connection();
    (passed.reporter, passed.destination.identity) = ("waypoint".to_owned(), None);
    ledger.note("node-1", to_waypoint, true, now);
    ledger.note("shop/waypoint-1", passed, true, now);
    let [shown] = &ended(&mut ledger, now)[..] else { panic!("one row") };
    let destination = &shown.connection.destination;
    assert_eq!((destination.pod.as_deref(), destination.identity.as_deref()), (Some("db-1"), None));
}

#[test]
fn one_word_is_shown_when_the_other_does_not_come_and_never_twice() {
    let (mut ledger, now) = (Ledger::default(), Instant::now());
    ledger.note("node-1", of_source(), true, now);
    let [shown] = &ended(&mut ledger, now + PATIENCE)[..] else { panic!("one row") };
    assert_eq!((shown.connection.reporter.as_str(), shown.state), ("source", State::Ended));
    ledger.note("node-2", connection(), true, now + PATIENCE);
    assert!(ended(&mut ledger, now + 2 * PATIENCE).is_empty());
}

#[test]
fn what_only_one_proxy_sees_waits_for_nobody() {
    let (mut ledger, now) = (Ledger::default(), Instant::now());
    let mut plain = connection();
    plain.trace = None;
    ledger.note("node-2", plain.clone(), true, now);
    plain.source.address = Some("10.0.0.1:4001".parse().unwrap());
    ledger.note("node-2", plain, true, now);
    assert_eq!(ended(&mut ledger, now).len(), 2);
}

#[test]
fn an_open_connection_is_open_until_one_says_that_it_ended() {
    let (mut ledger, now) = (Ledger::default(), Instant::now());
    ledger.note("node-1", of_source(), false, now);
    ledger.note("node-2", connection(), false, now);
    assert!(ended(&mut ledger, now + PATIENCE).is_empty());
    assert!(ledger.entries().all(|entry| entry.is_open()));
    let mut more = connection();
    more.bytes_received = 5000;
    ledger.note("node-2", more, true, now);
    // A look at what was open before.
    ledger.note("node-2", connection(), false, now);
    let shown: Vec<_> = ledger.entries().filter_map(|entry| entry.shown()).collect();
    assert_eq!((shown[0].state, shown[0].connection.bytes_received), (State::Ended, 5000));
}

#[test]
fn with_a_proxy_goes_what_it_said_was_open() {
    let (mut ledger, now) = (Ledger::default(), Instant::now());
    ledger.note("node-1", of_source(), false, now);
    ledger.note("node-2", connection(), false, now);
    ledger.gone("node-1");
    assert_eq!(ledger.entries().count(), 1);
    ledger.gone("node-2");
    assert_eq!(ledger.entries().count(), 0);
}
