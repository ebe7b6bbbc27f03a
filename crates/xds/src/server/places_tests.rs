use super::*;

const LIMITS: Limits =
    Limits { unproven: 8, unproven_per_address: 4, proven: 3, first_request: Duration::from_secs(10) };

fn address(last: u8) -> IpAddr {
    [10, 0, 0, last].into()
}

async fn take(places: &Arc<Places>, count: usize, peer: impl Fn(u8) -> IpAddr) -> Vec<Place> {
    let mut out = Vec::new();
    for n in 0..u8::try_from(count).unwrap() {
        out.push(places.take(peer(n)).await.unwrap_or_else(|refusal| panic!("{n}: {refusal}")));
    }
    out
}

fn lost(place: &Place) -> bool {
    use futures_util::FutureExt as _;
    place.gave_way.notified().now_or_never().is_some()
}

#[tokio::test(start_paused = true)]
async fn an_address_with_more_than_its_share_gives_way_to_others_at_once() {
    let places = Places::new(LIMITS);
    let greedy = take(&places, 8, |_| address(1)).await;
    let begin = Instant::now();
    let others = take(&places, 4, |_| address(2)).await;
    assert_eq!(begin.elapsed(), Duration::ZERO);
    assert_eq!(greedy.iter().map(lost).collect::<Vec<_>>(), [true, true, true, true, false, false, false, false]);
    assert!(!others.iter().any(lost));
    // Both have their share now: neither takes the other's, and fresh ones stay.
    for peer in [address(1), address(2)] {
        assert_eq!(places.take(peer).await.err(), Some(Refusal::Share));
    }
    tokio::time::advance(UNDISTURBED).await;
    let _newer = places.take(address(1)).await.map_err(|refusal| refusal.to_string()).expect("its own oldest is old");
    assert!(lost(&greedy[4]) && !others.iter().any(lost));
}

#[tokio::test(start_paused = true)]
async fn among_many_addresses_the_oldest_gives_way_after_a_second() {
    let places = Places::new(LIMITS);
    let crowd = take(&places, 8, address).await;
    let begin = Instant::now();
    let late = places.take(address(100)).await;
    assert!(late.is_ok());
    assert_eq!(begin.elapsed().as_millis(), UNDISTURBED.as_millis());
    assert!(lost(&crowd[0]) && !lost(&crowd[1]));
}

#[tokio::test(start_paused = true)]
async fn a_place_that_is_given_back_is_another_s_at_once() {
    let places = Places::new(LIMITS);
    let mut crowd = take(&places, 8, address).await;
    let waiting = tokio::spawn({
        let places = places.clone();
        async move { places.take(address(100)).await.is_ok() }
    });
    tokio::task::yield_now().await;
    drop(crowd.pop());
    let begin = Instant::now();
    assert!(waiting.await.unwrap());
    assert_eq!(begin.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn who_has_proved_itself_stays_and_takes_no_other_s_place() {
    let places = Places::new(LIMITS);
    let proxies = take(&places, 3, |_| address(1)).await;
    let deadline = Instant::now() + LIMITS.first_request;
    for proxy in &proxies {
        assert_eq!((proxy.prove(), proxy.prove()), (Ok(()), Ok(())));
    }
    let crowd = take(&places, 8, |_| address(1)).await;
    assert_eq!(crowd[7].prove(), Err(Refusal::Full));
    let waited = tokio::time::timeout(LIMITS.first_request * 1000, proxies[0].lost(deadline)).await;
    assert!(waited.is_err(), "it keeps its place for ever");
    assert_eq!(crowd[0].lost(deadline).await, Refusal::NoRequest);
    let _other = places.take(address(2)).await;
    assert_eq!(crowd[0].prove(), Err(Refusal::GaveWay), "the place is another's");
    assert_eq!(crowd[0].lost(deadline).await, Refusal::GaveWay);
    drop(proxies);
    assert_eq!(crowd[7].prove(), Ok(()));
}

#[test]
fn an_ipv6_network_is_one_address() {
    let source = |text: &str| one_host(text.parse().unwrap()).to_string();
    assert_eq!(source("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
    assert_eq!(source("::ffff:10.0.0.1"), "10.0.0.1");
    assert_eq!(source("10.0.0.1"), "10.0.0.1");
}

#[test]
fn limits_fit_the_descriptors() {
    let limits = Limits::default();
    assert_eq!(limits.within(1 << 20), limits);
    let few = limits.within(1024);
    assert_eq!((few.unproven, few.proven), (128, 768));
}
