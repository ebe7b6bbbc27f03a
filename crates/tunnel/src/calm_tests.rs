//! What counts as a flood, and what does not.

use super::*;

const MOST: u32 = 100_000;

const SECOND: Duration = Duration::from_secs(1);

/// Whether a peer may do `each` this many times a second for half a minute.
async fn is_borne(times: u32, mut each: impl FnMut(&mut Calm) -> bool) -> bool {
    let mut calm = Calm::bearing(MOST);
    for _ in 0..30 {
        // A second's worth at once, as after a time in which the thread served others.
        if !(0..times).all(|_| each(&mut calm)) {
            return false;
        }
        tokio::time::advance(SECOND).await;
    }
    true
}

#[tokio::test(start_paused = true)]
async fn a_flood_is_one_whatever_came_before() {
    for quiet in [Duration::ZERO, 100 * WITHIN] {
        let mut calm = Calm::bearing(MOST);
        tokio::time::advance(quiet).await;
        let borne = (0..).take_while(|_| calm.spend(1)).count();
        assert!((MOST as usize - 1..2 * MOST as usize).contains(&borne), "{borne}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_takes_its_time_is_borne_for_ever() {
    let mut calm = Calm::bearing(MOST);
    for _ in 0..100 {
        assert!((0..MOST / 4).all(|_| calm.spend(1)));
        tokio::time::advance(WITHIN / 2).await;
    }
}

#[tokio::test(start_paused = true)]
async fn programs_that_say_little_at_a_time_are_borne() {
    // Requests of a cache's client without pipelining: the shortest has 14 bytes, its answer 5 to 7.
    assert!(
        is_borne(150_000, |calm| {
            calm.sent(7);
            calm.received(14)
        })
        .await
    );
    assert!(
        is_borne(150_000, |calm| {
            calm.sent(14);
            calm.received(5)
        })
        .await
    );
    // Small one-way messages of gRPC: two frame headers, a message header and a few bytes, and WINDOW_UPDATEs of the peer.
    assert!(is_borne(150_000, |calm| calm.received(9 + 5 + 4)).await);
    assert!(
        is_borne(150_000, |calm| {
            calm.sent(9 + 5 + 4);
            calm.spend(2)
        })
        .await
    );
    // Two hundred people who type, with and without an echo.
    assert!(
        is_borne(200 * 30, |calm| {
            calm.sent(1);
            calm.received(1)
        })
        .await
    );
    assert!(is_borne(200 * 30, |calm| calm.received(1)).await);
    // A program that writes byte by byte. The proxy finds several bytes at each read.
    assert!(is_borne(300_000, |calm| calm.received(4)).await);
    // Connections without data that open their window.
    assert!(
        is_borne(10_000, |calm| {
            calm.opened();
            calm.spend(1) && calm.spend(1)
        })
        .await
    );
    // A program that is refused and tries again at once.
    assert!(is_borne(4_000, |calm| calm.spend(1) && calm.spend(1)).await);
}

#[tokio::test(start_paused = true)]
async fn tiny_frames_without_end_are_a_flood() {
    // In a second, a thread can process millions of these.
    assert!(!is_borne(1_000_000, |calm| calm.received(1)).await);
    assert!(!is_borne(2_000_000, |calm| calm.received(4)).await);
    // Requests, all of which are refused.
    assert!(!is_borne(15_000, |calm| calm.spend(1)).await);
    // DATA earns by its bytes only.
    assert!(!is_borne(20_000, |calm| calm.received(8) && calm.spend(1)).await);
}
