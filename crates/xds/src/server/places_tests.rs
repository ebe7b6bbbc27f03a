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

#[tokio::test(start_paused = true)]
async fn who_has_proved_itself_stays_and_takes_no_other_s_place() {
    let places = Places::new(LIMITS, ControlMetrics::default());
    let caller = Caller::default();
    let proxies = take(&places, 3, |_| address(1)).await;
    let deadline = Instant::now() + LIMITS.first_request;
    for proxy in &proxies {
        assert_eq!((proxy.prove(&caller), proxy.prove(&caller)), (Ok(()), Ok(())));
    }
    let crowd = take(&places, 8, |_| address(1)).await;
    assert_eq!(crowd[7].prove(&caller), Err(Refusal::Full));
    let waited = tokio::time::timeout(LIMITS.first_request * 1000, proxies[0].lost(deadline)).await;
    assert!(waited.is_err(), "it keeps its place for ever");
    assert_eq!(crowd[0].lost(deadline).await, Refusal::NoRequest);
    let _other = places.take(address(2)).await;
    assert_eq!(crowd[0].prove(&caller), Err(Refusal::GaveWay), "the place is another's");
    assert_eq!(crowd[0].lost(deadline).await, Refusal::GaveWay);
    drop(proxies);
    assert_eq!(crowd[7].prove(&caller), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn one_client_keeps_no_other_out() {
    let places = Places::new(Limits { unproven: 64, proven: 32, ..LIMITS }, ControlMetrics::default());
    let on_node = |node: &str| Caller { node: Some(node.into()), ..Caller::default() };
    let deadline = Instant::now() + LIMITS.first_request;
    let greedy = take(&places, 32, |_| address(1)).await;
    assert!(greedy.iter().all(|place| place.prove(&on_node("a")).is_ok()));
    let others = take(&places, 16, |_| address(1)).await;
    for (number, place) in others.iter().enumerate() {
        assert_eq!(place.prove(&on_node(&format!("b{}", number / 2))), Ok(()));
    }
    assert_eq!(greedy[31].lost(deadline).await, Refusal::ClientShare);
    assert_eq!(Instant::now(), deadline - LIMITS.first_request, "at once");
    let waited = tokio::time::timeout(LIMITS.first_request * 2, others[15].lost(deadline)).await;
    assert!(waited.is_err());
}

#[test]
fn limits_fit_the_descriptors() {
    let limits = Limits::default();
    assert_eq!(limits.within(1 << 20), limits);
    let few = limits.within(1024);
    assert_eq!((few.unproven, few.proven), (128, 768));
}
