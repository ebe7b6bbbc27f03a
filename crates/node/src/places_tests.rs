#![allow(clippy::unwrap_used, reason = "test code")]

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const MUCH: u64 = 100 << 20;

fn places() -> Arc<Places> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let handles = vec![runtime.handle().clone(); 2];
    Places::new(&crate::pod::workers(&handles, &leno_tunnel::Settings::default()))
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
    ends(&places, 1, 1000, SECOND);
    assert_eq!(placed(&places, 1, 8), [0; 8], "no longer");
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
