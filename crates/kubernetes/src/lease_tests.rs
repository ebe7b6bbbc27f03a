use leno_testkit::api_server::ApiServer;

use super::*;

fn candidate(server: &ApiServer, name: &str) -> Candidate {
    Candidate::new(Client::anonymous(&server.url()).expect("a URL"), "leno-system", name)
}

fn holder(server: &ApiServer) -> Option<String> {
    let lease = server.get("coordination.k8s.io/v1", "leases", "leno-system", LEASE)?;
    lease["spec"]["holderIdentity"].as_str().map(str::to_owned)
}

#[tokio::test]
async fn one_holds_it_until_it_gives_it_back() {
    let server = ApiServer::start().await;
    let (a, b) = (candidate(&server, "a"), candidate(&server, "b"));
    let (mut seen_by_a, mut seen_by_b) = (None, None);
    assert!(a.attempt(&mut seen_by_a).await.expect("reached"));
    a.set(true);
    assert!(!b.attempt(&mut seen_by_b).await.expect("reached"));
    assert!(a.attempt(&mut seen_by_a).await.expect("reached"), "it renews its own");
    assert_eq!(holder(&server).as_deref(), Some("a"));
    a.resign().await;
    assert!(!*a.leads().borrow());
    assert!(b.attempt(&mut seen_by_b).await.expect("reached"));
    assert!(!a.attempt(&mut seen_by_a).await.expect("reached"));
    let lease = server.get("coordination.k8s.io/v1", "leases", "leno-system", LEASE).expect("there");
    assert_eq!(lease["spec"]["leaseTransitions"], 1);
}

/// By this machine's own time, whatever the times in the Lease say.
#[tokio::test]
async fn one_that_is_not_renewed_is_taken() {
    let server = ApiServer::start().await;
    let (a, b) = (candidate(&server, "a"), candidate(&server, "b"));
    assert!(a.attempt(&mut None).await.expect("reached"));
    let mut seen = None;
    assert!(!b.attempt(&mut seen).await.expect("reached"));
    // As if it had been seen long ago.
    let before = seen.as_mut().expect("it was seen");
    before.since = Instant::now().checked_sub(DURATION).expect("the machine runs for longer");
    assert!(b.attempt(&mut seen).await.expect("reached"));
    assert_eq!(holder(&server).as_deref(), Some("b"));
}

#[tokio::test]
async fn who_cannot_renew_it_stops_writing_before_another_may_begin() {
    assert!(DEADLINE + PERIOD < DURATION);
    let mut server = ApiServer::start().await;
    let a = std::sync::Arc::new(candidate(&server, "a"));
    let mut leads = a.leads();
    let running = tokio::spawn({
        let a = a.clone();
        async move { a.run().await }
    });
    leads.wait_for(|leads| *leads).await.expect("it runs");
    server.stop().await;
    let begun = Instant::now();
    leads.wait_for(|leads| !*leads).await.expect("it runs");
    assert!(begun.elapsed() < DURATION, "{:?}", begun.elapsed());
    running.abort();
}

#[test]
fn times_are_kubernetes() {
    let now = timestamp();
    assert_eq!(now.len(), "2026-01-02T03:04:05.678901Z".len(), "{now}");
}
