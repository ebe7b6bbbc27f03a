use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::*;
use crate::{CaOptions, CertificateAuthority};

const HOUR: Duration = Duration::from_secs(3600);

fn id(account: &str) -> Identity {
    Identity::new("cluster.local", "a", account).unwrap()
}

/// Wall-clock time that follows Tokio's, which the tests advance.
fn test_clock() -> Clock {
    clock_off_by(0)
}

/// The same clock, this many minutes ahead of the others (or behind).
fn clock_off_by(minutes: i64) -> Clock {
    let (wall, start) = (SystemTime::now(), Instant::now());
    let off = Duration::from_secs(60 * minutes.unsigned_abs());
    Clock::new(move || {
        let now = wall + start.elapsed();
        if minutes < 0 { now - off } else { now + off }
    })
}

struct Authority {
    ca: CertificateAuthority,
    clock: Clock,
    requests: Mutex<Vec<(Identity, Instant)>>,
    refuse: Mutex<HashSet<Identity>>,
    latency: Mutex<Duration>,
    running: AtomicUsize,
    peak: AtomicUsize,
}

impl Authority {
    fn new(clock: Clock) -> Arc<Self> {
        let options = CaOptions { clock: clock.clone(), ..CaOptions::default() };
        Arc::new(Self {
            clock,
            ca: CertificateAuthority::ephemeral("cluster.local", options).unwrap(),
            requests: Mutex::default(),
            refuse: Mutex::default(),
            latency: Mutex::new(Duration::from_millis(10)),
            running: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
        })
    }

    fn ca_now(&self) -> SystemTime {
        self.clock.now()
    }

    fn requests_for(&self, identity: &Identity) -> Vec<Instant> {
        self.requests.lock().iter().filter(|(who, _)| who == identity).map(|(_, when)| *when).collect()
    }
}

impl Issuer for Authority {
    fn issue(
        &self,
        identity: &Identity,
        csr_pem: String,
        ttl: Duration,
    ) -> BoxFuture<'_, Result<Vec<String>, IssueError>> {
        let identity = identity.clone();
        Box::pin(async move {
            self.requests.lock().push((identity.clone(), Instant::now()));
            let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
            self.peak.fetch_max(running, Ordering::SeqCst);
            let latency = *self.latency.lock();
            tokio::time::sleep(latency).await;
            self.running.fetch_sub(1, Ordering::SeqCst);
            if self.refuse.lock().contains(&identity) {
                return Err(IssueError { message: "no such pod on this node".to_owned(), retryable: false });
            }
            self.ca.sign(&csr_pem, &identity, ttl).map_err(|e| IssueError { message: e.to_string(), retryable: false })
        })
    }
}

fn setup() -> (Arc<Authority>, CertificateManager) {
    let clock = test_clock();
    let authority = Authority::new(clock.clone());
    let manager = CertificateManager::new(authority.clone(), Options { clock, ..Options::default() });
    (authority, manager)
}

#[tokio::test(start_paused = true)]
async fn one_request_serves_everybody_who_waits() {
    let (authority, manager) = setup();
    let alice = id("alice");
    let all = futures_util::future::join_all((0..50).map(|_| manager.identity(&alice))).await;
    let first = all[0].as_ref().unwrap();
    assert!(all.iter().all(|one| Arc::ptr_eq(one.as_ref().unwrap(), first)));
    assert_eq!(authority.requests.lock().len(), 1);
    assert_eq!(first.identity(), &alice);
}

#[tokio::test(start_paused = true)]
async fn rotates_at_half_life_with_jitter() {
    let (authority, manager) = setup();
    let identities: Vec<_> = (0..8).map(|n| id(&format!("sa-{n}"))).collect();
    let mut serials = HashSet::new();
    for identity in &identities {
        serials.insert(manager.identity(identity).await.unwrap().certificate.serial().to_owned());
    }
    tokio::time::sleep(HOUR * 55).await;
    let mut first_rotations = HashSet::new();
    for identity in &identities {
        let requests = authority.requests_for(identity);
        assert!(requests.len() >= 5, "at least three rotations in 55 h, got {}", requests.len() - 1);
        for two in requests.windows(2) {
            let gap = two[1] - two[0];
            assert!(gap > HOUR * 10 && gap < HOUR * 14, "half of 24 h, give or take: {gap:?}");
        }
        first_rotations.insert((requests[1] - requests[0]).as_secs());
        let current = manager.current(identity).expect("never without a valid one");
        assert!(serials.insert(current.certificate.serial().to_owned()), "a new certificate");
    }
    assert!(first_rotations.len() > 1, "not all at once");
}

#[tokio::test(start_paused = true)]
async fn a_refused_identity_recovers_fast() {
    let (authority, manager) = setup();
    let alice = id("alice");
    // The control plane learns of the pod 400 ms after its first connection.
    authority.refuse.lock().insert(alice.clone());
    let late = authority.clone();
    let start = Instant::now();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(400)).await;
        late.refuse.lock().clear();
    });
    manager.identity(&alice).await.unwrap();
    assert!(start.elapsed() < Duration::from_millis(1000), "{:?}", start.elapsed());
    assert_eq!(manager.statuses()[0].state, CertificateState::Available);
    assert_eq!(manager.statuses()[0].last_error, None);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_told_within_bounds() {
    let (authority, manager) = setup();
    let alice = id("alice");
    authority.refuse.lock().insert(alice.clone());
    let start = Instant::now();
    let error = manager.identity(&alice).await.unwrap_err();
    assert!(start.elapsed() <= Duration::from_secs(10), "{:?}", start.elapsed());
    assert!(error.to_string().contains("no such pod on this node"), "{error}");
    assert!(matches!(&manager.statuses()[0].state, CertificateState::Unavailable(why) if why.contains("no such pod")));

    // Left alone, attempts get rarer, up to the limit.
    tokio::time::sleep(HOUR).await;
    let requests = authority.requests_for(&alice);
    let last = requests[requests.len() - 1] - requests[requests.len() - 2];
    assert!(last > Duration::from_secs(110) && last < Duration::from_secs(190), "{last:?}");
    // A connection that needs it now is served soon after the cause is gone.
    authority.refuse.lock().clear();
    let start = Instant::now();
    manager.identity(&alice).await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_outage_keeps_the_old_one_until_it_expires_and_no_longer() {
    let (authority, manager) = setup();
    let alice = id("alice");
    let old = manager.identity(&alice).await.unwrap();
    authority.refuse.lock().insert(alice.clone());
    tokio::time::sleep(HOUR * 23).await;
    assert!(Arc::ptr_eq(&manager.identity(&alice).await.unwrap(), &old));
    assert_eq!(manager.statuses()[0].state, CertificateState::Available);
    assert!(manager.statuses()[0].last_error.is_some());
    tokio::time::sleep(HOUR).await;
    let error = manager.identity(&alice).await.unwrap_err();
    assert!(matches!(error, CertificateError::Unavailable { .. }), "{error}");
    assert!(manager.current(&alice).is_none());
    authority.refuse.lock().clear();
    let new = manager.identity(&alice).await.unwrap();
    assert_ne!(new.certificate.serial(), old.certificate.serial());
}

#[tokio::test(start_paused = true)]
async fn one_slow_identity_delays_no_other_and_requests_are_few_at_a_time() {
    let (authority, manager) = setup();
    *authority.latency.lock() = Duration::from_secs(5);
    for n in 0..100 {
        manager.warm(&id(&format!("warm-{n}")));
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    let start = Instant::now();
    manager.identity(&id("urgent")).await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(6), "not behind the warm-ups: {:?}", start.elapsed());
    tokio::time::sleep(HOUR / 10).await;
    assert!(manager.statuses().iter().all(|s| s.state == CertificateState::Available));
    assert_eq!(manager.statuses().len(), 101);
    assert!(authority.peak.load(Ordering::SeqCst) <= 8);
}

#[tokio::test(start_paused = true)]
async fn an_issuer_that_never_answers_times_out() {
    let (authority, manager) = setup();
    *authority.latency.lock() = HOUR * 1000;
    let start = Instant::now();
    let error = manager.identity(&id("alice")).await.unwrap_err();
    assert!(matches!(error, CertificateError::Timeout { .. }), "{error}");
    assert_eq!(start.elapsed().as_secs(), 10);
    *authority.latency.lock() = Duration::ZERO;
    tokio::time::sleep(Duration::from_secs(60)).await;
    manager.identity(&id("alice")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn forgotten_is_left_alone() {
    let (authority, manager) = setup();
    let alice = id("alice");
    let held = manager.identity(&alice).await.unwrap();
    manager.forget(&alice);
    assert!(manager.statuses().is_empty());
    tokio::time::sleep(HOUR * 48).await;
    assert_eq!(authority.requests.lock().len(), 1);
    assert_eq!(held.identity(), &alice);

    *authority.latency.lock() = Duration::from_secs(5);
    let bob = id("bob");
    let waiting = tokio::spawn({
        let (manager, bob) = (manager.clone(), bob.clone());
        async move { manager.identity(&bob).await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    manager.forget(&bob);
    assert!(matches!(waiting.await.unwrap(), Err(CertificateError::Forgotten(_))));
}

#[tokio::test(start_paused = true)]
async fn a_short_life_is_no_storm() {
    let clock = test_clock();
    let authority = Authority::new(clock.clone());
    let options = Options { ttl: Duration::from_secs(10), clock, ..Options::default() };
    let manager = CertificateManager::new(authority.clone(), options);
    manager.identity(&id("alice")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let requests = authority.requests.lock().len();
    assert!((11..=15).contains(&requests), "every 4.5 to 5.5 s: {requests}");
    assert!(manager.current(&id("alice")).is_some());
}

/// The shortest life that a control plane grants (`leno control --min-certificate-ttl`): for
/// longer ones everything below holds all the more.
#[tokio::test(start_paused = true)]
async fn clocks_five_minutes_apart_work() {
    const MINUTE: Duration = Duration::from_secs(60);
    // The authority's clock, the holder's, a peer's: in minutes off, no two more than five apart.
    for [authority, holder, peer] in
        [[0, -5, 0], [0, 5, 0], [0, 0, -5], [0, 0, 5], [5, 0, 0], [-5, 0, 0], [0, -2, 3], [0, 2, -3]]
    {
        let case = format!("authority {authority}, holder {holder}, peer {peer}");
        let (clock, peers) = (clock_off_by(holder), clock_off_by(peer));
        let issuer = Authority::new(clock_off_by(authority));
        let options = Options { ttl: MINUTE * 15, clock: clock.clone(), ..Options::default() };
        let manager = CertificateManager::new(issuer.clone(), options);
        let alice = id("alice");
        manager.identity(&alice).await.unwrap_or_else(|error| panic!("{case}: {error}"));
        for minute in 0..120 {
            let held = manager.current(&alice).unwrap_or_else(|| panic!("{case}: no certificate after {minute} min"));
            held.certificate
                .check_at(peers.now())
                .unwrap_or_else(|error| panic!("{case}, after {minute} min: {error}"));
            tokio::time::sleep(MINUTE).await;
        }
        let requests = issuer.requests.lock().len();
        assert!(requests < 120 / 3, "{case}: {requests} requests in two hours");
    }
}

/// Istio's authority back-dates by two minutes.
#[test]
fn a_certificate_that_begins_in_five_minutes_is_taken_and_one_in_six_is_not() {
    let options = |minutes| CaOptions { clock: clock_ahead(minutes), ..CaOptions::default() };
    let issue = |minutes| {
        let ca = CertificateAuthority::ephemeral("cluster.local", options(minutes)).unwrap();
        let (key, csr) = crate::certificate_request(&id("alice")).unwrap();
        WorkloadCertificate::from_issued(id("alice"), key, &ca.sign(&csr, &id("alice"), HOUR).unwrap())
    };
    issue(10 + 5).unwrap();
    let error = issue(10 + 7).unwrap_err();
    assert!(error.to_string().contains("becomes valid only"), "{error}");
}

fn clock_ahead(minutes: u64) -> Clock {
    Clock::new(move || SystemTime::now() + Duration::from_secs(60 * minutes))
}

#[tokio::test(start_paused = true)]
async fn a_new_root_is_believed_at_once_and_with_every_later_certificate() {
    let (authority, manager) = setup();
    let (alice, bob) = (id("alice"), id("bob"));
    let before = manager.identity(&alice).await.unwrap();
    let mut roots = 1;
    for rotation in 1..=3 {
        authority.ca.rotate_root().unwrap();
        manager.trust(&authority.ca.root_pem()).unwrap();
        authority.ca.all_trust_it();
        // Somebody else's, of the new root.
        let (key, csr) = crate::certificate_request(&bob).unwrap();
        let chain = authority.ca.sign(&csr, &bob, HOUR).unwrap();
        let theirs = WorkloadCertificate::from_issued_at(bob.clone(), key, &chain, authority.ca_now()).unwrap();
        let held = manager.current(&alice).unwrap();
        assert_eq!(held.certificate.serial(), before.certificate.serial(), "no new certificate was asked for");
        theirs.check_with(&held.certificate, authority.ca_now()).unwrap();
        roots += 1;
        assert_eq!(held.certificate.roots().len(), roots, "after {rotation} rotations");
    }
    assert!(manager.trust("no certificate").is_err());
    tokio::time::sleep(HOUR * 14).await;
    let renewed = manager.current(&alice).unwrap();
    assert_ne!(renewed.certificate.serial(), before.certificate.serial());
    assert_eq!(renewed.certificate.roots().len(), roots);
    // An identity that comes later.
    assert_eq!(manager.identity(&bob).await.unwrap().certificate.roots().len(), roots);
}

/// Certificates of a process, for the next.
#[derive(Debug, Default)]
struct Kept(Mutex<HashMap<Identity, String>>);

impl CertificateStore for Kept {
    fn load(&self, identity: &Identity) -> Option<String> {
        self.0.lock().get(identity).cloned()
    }

    fn save(&self, identity: &Identity, text: &str) {
        self.0.lock().insert(identity.clone(), text.to_owned());
    }

    fn remove(&self, identity: &Identity) {
        self.0.lock().remove(identity);
    }
}

#[tokio::test(start_paused = true)]
async fn a_kept_certificate_is_used_while_none_is_issued_and_as_long_as_it_is_valid() {
    let clock = test_clock();
    let (authority, store) = (Authority::new(clock.clone()), Arc::new(Kept::default()));
    let manager = || {
        let options = Options { clock: clock.clone(), store: Some(store.clone()), ..Options::default() };
        CertificateManager::new(authority.clone(), options)
    };
    let (alice, bob) = (id("alice"), id("bob"));
    let first = manager();
    let before = first.identity(&alice).await.unwrap();
    first.identity(&bob).await.unwrap();
    first.forget(&bob);
    assert_eq!(store.load(&bob), None, "nobody here has that identity any more");
    drop(first);

    authority.refuse.lock().insert(alice.clone());
    let next = manager();
    let held = next.identity(&alice).await.unwrap();
    assert_eq!(held.certificate.serial(), before.certificate.serial());
    tokio::time::sleep(HOUR * 25).await;
    assert!(next.current(&alice).is_none(), "it has ended");
    authority.refuse.lock().clear();
    let fresh = next.identity(&alice).await.unwrap();
    assert_ne!(fresh.certificate.serial(), before.certificate.serial());
    drop(next);

    // One that is issued takes the place of the kept one at once.
    let last = manager();
    last.identity(&alice).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_ne!(last.current(&alice).unwrap().certificate.serial(), fresh.certificate.serial());
    // Another identity's is not taken.
    let stolen = store.load(&alice).unwrap();
    store.save(&bob, &stolen);
    authority.refuse.lock().insert(bob.clone());
    assert!(last.identity(&bob).await.is_err());
}
