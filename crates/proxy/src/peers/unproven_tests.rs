use futures_util::FutureExt as _;

use super::*;

fn peer(host: u8, port: u16) -> SocketAddr {
    ([10, 0, 0, host], port).into()
}

#[tokio::test(start_paused = true)]
async fn who_connects_to_every_pod_takes_the_places_of_the_proxy_from_itself() {
    let all = AllUnproven(Places::new(64, 4));
    let pods: Vec<Unproven> = (0..64).map(|_| Unproven::new(8, &all)).collect();
    let mut greedy = Vec::new();
    for (port, pod) in (0..).zip(&pods) {
        greedy.push(pod.place(peer(1, port)).await.unwrap());
    }
    // No pod has more than one of its eight places taken, and yet the proxy has no more for this address.
    let refused = pods[0].place(peer(1, 1000)).await.err().expect("a refusal").to_string();
    assert!(refused.contains("10.0.0.1:1000") && refused.contains("64"), "{refused}");
    let others = [pods[0].place(peer(2, 1)).await, pods[1].place(peer(3, 1)).await];
    assert!(others.iter().all(Result::is_ok));
    let turned_away = greedy[0].turned_away().now_or_never().expect("the first of the greedy").to_string();
    assert!(turned_away.contains("LENO_MAX_UNPROVEN_PEERS_TOTAL"), "{turned_away}");
    assert!(greedy[1].turned_away().now_or_never().is_some() && greedy[2].turned_away().now_or_never().is_none());
    assert!(others.iter().flatten().all(|place| place.turned_away().now_or_never().is_none()));
}

#[tokio::test(start_paused = true)]
async fn a_pod_has_places_of_its_own() {
    let all = AllUnproven(Places::new(64, 64));
    let (flooded, other) = (Unproven::new(2, &all), Unproven::new(2, &all));
    let silent = [flooded.place(peer(1, 1)).await.unwrap(), flooded.place(peer(1, 2)).await.unwrap()];
    let begun = tokio::time::Instant::now();
    assert!(other.place(peer(2, 1)).await.is_ok());
    assert!(begun.elapsed().is_zero());
    // Who comes gets the place that was taken first, in time.
    assert!(flooded.place(peer(2, 2)).await.is_ok());
    assert!(begun.elapsed() < std::time::Duration::from_millis(1100));
    let turned_away = silent[0].turned_away().now_or_never().expect("the first").to_string();
    assert!(turned_away.contains("all 2 places") && turned_away.contains("(LENO_MAX_UNPROVEN_PEERS)"), "{turned_away}");
}
