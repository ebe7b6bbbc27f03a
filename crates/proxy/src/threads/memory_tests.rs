use std::cell::Cell;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::*;

thread_local! {
    static TRIMS: Cell<usize> = const { Cell::new(0) };
}

fn trims() -> usize {
    TRIMS.get()
}

/// This thread and what lives on it.
struct Thread {
    memory: Arc<Memory>,
    live: Vec<Lives>,
}

impl Thread {
    fn start() -> Self {
        Self { memory: Memory::new(Handle::current(), || TRIMS.set(TRIMS.get() + 1)), live: Vec::new() }
    }

    fn begin(&mut self, count: usize) {
        self.live.extend((0..count).map(|_| self.memory.begun()));
    }

    fn end(&mut self, count: usize) {
        self.live.truncate(self.live.len() - count);
    }
}

/// Until nothing waits for anything any more: paused time runs to the end of it all at once.
async fn long() {
    sleep(Duration::from_secs(3600)).await;
}

#[tokio::test(start_paused = true)]
async fn a_burst_that_has_gone_is_given_back_and_its_tunnels_too() {
    let mut thread = Thread::start();
    thread.begin(1000);
    long().await;
    assert_eq!(trims(), 0, "they live");
    thread.end(700);
    long().await;
    assert_eq!(trims(), 0, "most of them live");
    thread.end(100);
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
    let mut thread = Thread::start();
    thread.begin(1000);
    thread.end(1000);
    let end = Instant::now() + Duration::from_secs(60);
    while Instant::now() < end {
        thread.begin(100);
        sleep(Duration::from_millis(500)).await;
        thread.end(100);
    }
    assert_eq!(trims(), 0);
    long().await;
    assert_eq!(trims(), 1 + TUNNELS.len());
}

#[tokio::test(start_paused = true)]
async fn a_burst_while_tunnels_are_waited_for_has_its_own_turn() {
    let mut thread = Thread::start();
    thread.begin(1000);
    thread.end(1000);
    sleep(LULL + Duration::from_secs(1)).await;
    assert_eq!(trims(), 1);
    thread.begin(500);
    thread.end(500);
    long().await;
    assert_eq!(trims(), 2 + TUNNELS.len());
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_is_busy_with_few_at_a_time_is_left_alone() {
    let mut thread = Thread::start();
    thread.begin(1000);
    thread.end(1000);
    sleep(LULL + Duration::from_millis(10)).await;
    assert_eq!(trims(), 1);
    let end = Instant::now() + 2 * TUNNELS.iter().sum::<Duration>();
    while Instant::now() < end {
        thread.begin(20);
        thread.end(20);
        sleep(Duration::from_millis(500)).await;
    }
    assert_eq!(trims(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_few_connections_are_not_worth_it() {
    let mut thread = Thread::start();
    thread.begin(BURST - 1);
    thread.end(BURST - 1);
    long().await;
    assert_eq!(trims(), 0);
}

#[tokio::test(start_paused = true)]
async fn one_connection_that_carried_much_is_worth_it() {
    let mut thread = Thread::start();
    thread.begin(1);
    thread.live[0].carried(MUCH - 1);
    thread.end(1);
    long().await;
    assert_eq!(trims(), 0);
    thread.begin(1);
    thread.live[0].carried(MUCH);
    thread.end(1);
    sleep(LULL + Duration::from_millis(10)).await;
    assert_eq!(trims(), 1);
    long().await;
    assert_eq!(trims(), 1 + TUNNELS.len());
    long().await;
    assert_eq!(trims(), 1 + TUNNELS.len(), "once");
}

#[tokio::test(start_paused = true)]
async fn memory_is_looked_for_after_much_configuration_and_not_for_what_comes_bit_by_bit() {
    let heard = watch::Sender::new(0);
    let told = heard.clone();
    tokio::spawn(after_configuration(heard.subscribe(), || TRIMS.set(TRIMS.get() + 1)));
    let more = |bytes| told.send_modify(|heard| *heard += bytes);
    for _ in 0..100 {
        more(MUCH_CONFIGURATION / 10);
        sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(trims(), 0, "as much as ten bursts, but over 100 s");
    for _ in 0..10 {
        more(MUCH_CONFIGURATION / 2);
        sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(trims(), 0, "more may come");
    long().await;
    assert_eq!(trims(), 1);
    more(MUCH_CONFIGURATION);
    long().await;
    assert_eq!(trims(), 2);
}
