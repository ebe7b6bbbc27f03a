use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use super::*;

fn poll<F: Future>(future: F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

#[tokio::test(start_paused = true)]
async fn who_comes_late_waits_no_longer_than_the_one_before_may_go_undisturbed() {
    let unproven = Unproven::new(2);
    let begun = Instant::now();
    let first = unproven.place().await;
    tokio::time::advance(UNDISTURBED / 2).await;
    let second = unproven.place().await;
    assert_eq!(begun.elapsed(), UNDISTURBED / 2, "there was room");
    let third = unproven.place().await;
    assert!(begun.elapsed() >= UNDISTURBED && begun.elapsed() < UNDISTURBED + Duration::from_millis(10));
    assert!(poll(first.turned_away()).is_ready());
    assert!(poll(second.turned_away()).is_pending() && poll(third.turned_away()).is_pending());
    // Its place is the third's: it frees none.
    drop(first);
    assert!(unproven.take().is_err());
    assert_eq!(unproven.taken.lock().places.len(), 2);
    drop((second, third));
    assert_eq!(unproven.taken.lock().places.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn who_proves_itself_makes_room_at_once() {
    let unproven = Unproven::new(2);
    let (first, second) = (unproven.place().await, unproven.place().await);
    let begun = Instant::now();
    let mut next = Box::pin(unproven.place());
    assert!(poll(next.as_mut()).is_pending());
    drop(second);
    let _third = next.await;
    assert_eq!(begun.elapsed(), Duration::ZERO);
    assert!(poll(first.turned_away()).is_pending());
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_for_nothing_are_left_alone() {
    let unproven = Unproven::new(2);
    let (first, second) = (unproven.place().await, unproven.place().await);
    tokio::time::advance(UNDISTURBED * 100).await;
    assert!(poll(first.turned_away()).is_pending() && poll(second.turned_away()).is_pending());
}
