#![allow(clippy::unwrap_used, reason = "test code")]

use leno_proxy::threads::Workers;

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const MUCH: u64 = 100 << 20;

fn places() -> Arc<Places> {
    let keeper = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let workers = Workers::start(2, || (), keeper.handle()).unwrap();
    Places::new(&crate::lanes::lanes(workers.all(), &leno_tunnel::Settings::default()))
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], port))
}

/// Where `count` connections to a port that are open at once go.
fn placed(places: &Arc<Places>, port: u16, count: usize) -> Vec<usize> {
    let taken: Vec<_> = (0..count).map(|_| places.take(0, || Some(address(port)))).collect();
    taken.iter().map(|place| place.index).collect()
}

fn ends(places: &Arc<Places>, port: u16, bytes: u64, lasted: Duration) {
    places.take(0, || None).ended(address(port), bytes, lasted);
}

#[test]
fn connections_stay_where_they_came() {
    let places = places();
    assert_eq!(placed(&places, 1, 20), [0; 20]);
    assert_eq!(places.take(1, || unreachable!("no bulk is known")).index, 1);
}

#[test]
fn bulk_is_spread_where_bulk_went_before() {
    let places = places();
    ends(&places, 1, MUCH, SECOND);
    assert_eq!(placed(&places, 1, 8), [0, 1, 0, 1, 0, 1, 0, 1]);
    assert_eq!(placed(&places, 1, 1), [0], "places are free again");
    assert_eq!(placed(&places, 2, 8), [0; 8], "another destination");
}

#[test]
fn pods_share_the_threads() {
    let places = places();
    let other = Places::new(&places.lanes);
    ends(&places, 1, MUCH, SECOND);
    ends(&other, 1, MUCH, SECOND);
    let _one = places.take(0, || Some(address(1)));
    assert_eq!(placed(&other, 1, 2), [1, 0]);
}

#[test]
fn a_destination_is_one_of_bulk_until_others_have_outnumbered_it() {
    let places = places();
    ends(&places, 1, MUCH, SECOND);
    for _ in 0..1000 {
        // What controls others, or looks whether anybody is there.
        ends(&places, 1, 5000, 10 * SECOND);
    }
    assert_eq!(placed(&places, 1, 2), [0, 1]);
    for _ in 1..PATIENCE {
        ends(&places, 1, 100_000, SECOND);
    }
    assert_eq!(placed(&places, 1, 2), [0, 1]);
    ends(&places, 1, 100_000, SECOND);
    assert_eq!(placed(&places, 1, 2), [0, 0]);
    assert!(!places.knows_bulk.load(Relaxed));
}

#[test]
fn after_a_failure_the_next_one_stays() {
    let places = places();
    ends(&places, 1, MUCH, SECOND);
    let place = places.take(0, || Some(address(1)));
    place.failed(address(1));
    assert_eq!(placed(&places, 1, 2), [0, 0]);
    drop(place);
    assert_eq!(places.lanes.iter().map(|worker| worker.bulk.load(Relaxed)).sum::<usize>(), 0);
}

#[test]
fn neither_little_nor_slow_is_bulk() {
    let places = places();
    ends(&places, 1, 1 << 20, Duration::from_millis(1));
    ends(&places, 2, MUCH, 100 * SECOND);
    assert!(!places.knows_bulk.load(Relaxed));
}

#[test]
fn few_destinations_are_remembered() {
    let places = places();
    for port in 0..1000 {
        ends(&places, port, MUCH, SECOND);
    }
    assert_eq!(places.bulk.lock().len(), REMEMBERED);
    assert_eq!(placed(&places, 999, 2), [0, 1]);
    assert_eq!(placed(&places, 0, 2), [0, 0]);
}
