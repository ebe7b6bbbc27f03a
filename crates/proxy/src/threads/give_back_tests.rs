use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::*;

thread_local! {
    static TRIMS: Cell<usize> = const { Cell::new(0) };
}

fn trims() -> usize {
    TRIMS.get()
}

fn start() {
    by(|| TRIMS.set(TRIMS.get() + 1));
}

fn times(count: usize, what: fn()) {
    (0..count).for_each(|_| what());
}

/// Until nothing waits for anything any more: paused time runs to the end of it all at once.
async fn long() {
    sleep(Duration::from_secs(3600)).await;
}

#[tokio::test(start_paused = true)]
async fn a_burst_that_has_gone_is_given_back_and_its_tunnels_too() {
    start();
    times(1000, begun);
    long().await;
    assert_eq!(trims(), 0, "they live");
    times(700, ended);
    long().await;
    assert_eq!(trims(), 0, "most of them live");
    times(100, ended);
    sleep(LULL - Duration::from_millis(10)).await;
    assert_eq!(trims(), 0, "others may come");
    sleep(Duration::from_millis(20)).await;
    assert_eq!(trims(), 1);
    long().await;
    assert_eq!(trims(), 1 + TUNNELS.len());
    long().await;
    assert_eq!(trims(), 1 + TUNNELS.len(), "there is nothing more to give back");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_given_back_while_connections_come_and_go() {
    start();
    times(1000, begun);
    times(1000, ended);
    let end = Instant::now() + Duration::from_secs(60);
    while Instant::now() < end {
        times(100, begun);
        sleep(Duration::from_millis(500)).await;
        times(100, ended);
    }
    assert_eq!(trims(), 0);
    long().await;
    assert_eq!(trims(), 1 + TUNNELS.len());
}

#[tokio::test(start_paused = true)]
async fn a_burst_while_tunnels_are_waited_for_has_its_own_turn() {
    start();
    times(1000, begun);
    times(1000, ended);
    sleep(LULL + Duration::from_secs(1)).await;
    assert_eq!(trims(), 1);
    times(500, begun);
    times(500, ended);
    long().await;
    assert_eq!(trims(), 2 + TUNNELS.len());
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_is_busy_with_few_at_a_time_is_left_alone() {
    start();
    times(1000, begun);
    times(1000, ended);
    sleep(LULL + Duration::from_millis(10)).await;
    assert_eq!(trims(), 1);
    let end = Instant::now() + 2 * TUNNELS.iter().sum::<Duration>();
    while Instant::now() < end {
        times(20, begun);
        times(20, ended);
        sleep(Duration::from_millis(500)).await;
    }
    assert_eq!(trims(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_few_connections_are_not_worth_it() {
    start();
    times(BURST - 1, begun);
    times(BURST - 1, ended);
    long().await;
    assert_eq!(trims(), 0);
}

#[tokio::test(start_paused = true)]
async fn one_connection_that_carried_much_is_worth_it() {
    start();
    begun();
    carried(MUCH - 1);
    ended();
    long().await;
    assert_eq!(trims(), 0);
    begun();
    carried(MUCH);
    ended();
    sleep(LULL + Duration::from_millis(10)).await;
    assert_eq!(trims(), 1);
    long().await;
    assert_eq!(trims(), 1 + TUNNELS.len());
    long().await;
    assert_eq!(trims(), 1 + TUNNELS.len(), "once");
}
