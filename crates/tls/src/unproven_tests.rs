use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::time::{advance, pause};

use super::*;

async fn take(places: &Arc<Unproven<u8>>, count: usize, source: impl Fn(u8) -> u8) -> Vec<UnprovenPlace<u8>> {
    let mut out = Vec::new();
    for n in 0..u8::try_from(count).unwrap() {
        out.push(places.place(source(n)).await.unwrap_or_else(|error| panic!("{n}: {error}")));
    }
    out
}

fn lost(place: &UnprovenPlace<u8>) -> bool {
    let lost = place.gave_way().now_or_never().is_some();
    assert_eq!(lost, !place.is_held());
    lost
}

#[tokio::test(start_paused = true)]
async fn a_source_with_more_than_its_share_gives_way_to_others_at_once() {
    let places = Unproven::new(8, 4);
    let greedy = take(&places, 8, |_| 1).await;
    let begin = Instant::now();
    let others = take(&places, 4, |_| 2).await;
    assert_eq!(begin.elapsed(), Duration::ZERO);
    assert_eq!(greedy.iter().map(lost).collect::<Vec<_>>(), [true, true, true, true, false, false, false, false]);
    assert!(!others.iter().any(lost));
    // Both have their share now: neither takes the other's, and fresh ones stay.
    for source in [1, 2] {
        assert_eq!(places.place(source).await.err(), Some(OverShare));
    }
    advance(UNDISTURBED).await;
    let _newer = places.place(1).await.expect("its own oldest is old");
    assert!(greedy[4].gave_way().now_or_never().is_some() && !others.iter().any(lost));
}

#[tokio::test(start_paused = true)]
async fn among_many_sources_the_oldest_gives_way_after_a_second() {
    let places = Unproven::new(8, 4);
    let crowd = take(&places, 8, |n| n).await;
    let begin = Instant::now();
    let late = places.place(100).await;
    assert!(late.is_ok());
    assert!(begin.elapsed() >= UNDISTURBED && begin.elapsed() < UNDISTURBED + Duration::from_millis(10));
    assert!(lost(&crowd[0]) && !lost(&crowd[1]));
    // Its place is another's: given back, it frees none.
    let mut crowd = crowd.into_iter();
    drop(crowd.next());
    assert_eq!(places.taken.lock().places.len(), 8);
}

#[tokio::test]
async fn a_place_that_is_given_back_is_another_s_at_once() {
    pause();
    let places = Unproven::unshared(2);
    let mut crowd = take(&places, 2, |_| 1).await;
    let begin = Instant::now();
    let mut waiting = Box::pin(places.place(1));
    assert!(waiting.as_mut().now_or_never().is_none());
    let proven = crowd.pop().unwrap();
    assert!(proven.leave() && !proven.leave());
    assert!(waiting.await.is_ok());
    assert_eq!(begin.elapsed(), Duration::ZERO);
    assert!(!lost(&crowd[0]));
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_for_nothing_are_left_alone() {
    let places = Unproven::new(8, 4);
    let crowd = take(&places, 8, |n| n).await;
    advance(UNDISTURBED * 100).await;
    assert!(!crowd.iter().any(lost));
    drop(crowd);
    assert!(places.taken.lock().sources.is_empty());
}
