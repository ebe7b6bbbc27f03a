use leno_objects::{Change, Kind, ObjectKey};
use leno_tls::{CaOptions, certificate_request};

use super::*;
use crate::Feed;
use crate::testing::{fed, upserts};

const OBJECTS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web-1, namespace: shop}
spec: {nodeName: node-1, serviceAccountName: web, containers: [{name: c}]}
---
apiVersion: v1
kind: Pod
metadata: {name: db-1, namespace: shop}
spec: {nodeName: node-2, serviceAccountName: db, containers: [{name: c}]}
---
apiVersion: v1
kind: Pod
metadata: {name: job-1, namespace: shop}
spec: {nodeName: node-1, serviceAccountName: job, containers: [{name: c}]}
status: {phase: Failed}
---
apiVersion: v1
kind: Pod
metadata: {name: proxy-1, namespace: leno-system, uid: uid-1}
spec: {nodeName: node-1, serviceAccountName: leno-node, containers: [{name: c}]}
";

fn policy() -> CertificatePolicy {
    let (controller, _) = fed(OBJECTS);
    let authority = CertificateAuthority::ephemeral("cluster.local", CaOptions::default()).expect("keys can be made");
    CertificatePolicy::new(controller, Arc::new(authority)).with_patience(Duration::ZERO)
}

fn caller(account: &str, node: Option<&str>, pod: Option<&str>) -> Caller {
    let (namespace, service_account) = account.split_once('/').expect("two parts");
    Caller {
        namespace: namespace.to_owned(),
        service_account: service_account.to_owned(),
        node: node.map(str::to_owned),
        pod: pod.map(str::to_owned),
        ..Caller::default()
    }
}

fn identity(uri: &str) -> Identity {
    uri.parse().expect("sound")
}

#[tokio::test]
async fn who_gets_what() {
    let policy = policy();
    let node = |account, node| caller(account, Some(node), None);
    let web = "spiffe://cluster.local/ns/shop/sa/web";
    let db = "spiffe://cluster.local/ns/shop/sa/db";
    let bound =
        |uid: &str| Caller { pod_uid: Some(uid.to_owned()), ..caller("leno-system/leno-node", None, Some("proxy-1")) };
    let cases: [(&str, Caller, &str, Option<&str>); 14] = [
        ("its pod", node("leno-system/leno-node", "node-1"), web, None),
        ("as ztunnel", node("istio-system/ztunnel", "node-1"), web, None),
        ("node by pod", caller("leno-system/leno-node", None, Some("proxy-1")), web, None),
        ("node by the very pod", bound("uid-1"), web, None),
        ("node by a pod that had this name", bound("uid-0"), web, Some("does not say which node it serves")),
        ("itself", node("leno-system/leno-node", "node-1"), "spiffe://cluster.local/ns/leno-system/sa/leno-node", None),
        ("anybody, itself", caller("shop/web", None, None), web, None),
        (
            "another node's pod",
            node("leno-system/leno-node", "node-1"),
            db,
            Some(
                "node node-1 asked for spiffe://cluster.local/ns/shop/sa/db, but no pod with service account shop/db runs \
                 there; such pods (e.g. db-1) run on other nodes only",
            ),
        ),
        (
            "nobody's",
            node("leno-system/leno-node", "node-1"),
            "spiffe://cluster.local/ns/shop/sa/nobody",
            Some("if the pod was just created, this resolves itself: retry"),
        ),
        (
            "another namespace's",
            node("leno-system/leno-node", "node-1"),
            "spiffe://cluster.local/ns/default/sa/web",
            Some("no pod with service account default/web runs there"),
        ),
        (
            "failed pod",
            node("leno-system/leno-node", "node-1"),
            "spiffe://cluster.local/ns/shop/sa/job",
            Some("shop/job"),
        ),
        (
            "foreign trust domain",
            node("leno-system/leno-node", "node-1"),
            "spiffe://example.org/ns/shop/sa/web",
            Some("is of another trust domain; this control plane's is cluster.local"),
        ),
        (
            "no node proxy",
            node("shop/db", "node-1"),
            web,
            Some("account shop/db asked for spiffe://cluster.local/ns/shop/sa/web, but may only"),
        ),
        (
            "unknown node",
            caller("leno-system/leno-node", None, Some("gone")),
            web,
            Some("does not say which node it serves"),
        ),
    ];
    for (what, caller, uri, refusal) in cases {
        let got = policy.authorize(&caller, &identity(uri)).await;
        match (refusal, got) {
            (None, Ok(())) => {}
            (Some(words), Err(error)) => {
                assert!(error.to_string().contains(words), "{what}: {error}");
                assert!(matches!(error, SignError::Denied(_)) && error.is_retryable(), "{what}");
            }
            (_, got) => panic!("{what}: {got:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_not_known_yet_is_waited_for() {
    let policy = policy().with_patience(PATIENCE);
    let proxy = caller("leno-system/leno-node", Some("node-1"), None);
    let db = identity("spiffe://cluster.local/ns/shop/sa/db");
    let feed = Feed::announce(policy.controller.clone(), Kind::ALL);
    let bind = async {
        tokio::time::sleep(PATIENCE / 2).await;
        feed.apply(upserts(&OBJECTS.replace("node-2", "node-1")));
    };
    let (granted, ()) = tokio::join!(policy.authorize(&proxy, &db), bind);
    assert!(granted.is_ok(), "{granted:?}");
    feed.apply([Change::Remove(ObjectKey::new(Kind::Pod, "shop", "db-1"))]);
    assert!(policy.authorize(&proxy, &db).await.is_err());
}

#[tokio::test]
async fn signs_what_it_allows() {
    let policy = policy();
    let proxy = caller("leno-system/leno-node", Some("node-1"), None);
    let web = identity("spiffe://cluster.local/ns/shop/sa/web");
    let (key, request) = certificate_request(&web).expect("a key");
    let ttl = Duration::from_secs(3600);
    let chain = policy.sign(&proxy, &request, Some(web.clone()), ttl).await.expect("granted");
    assert_eq!(chain.last(), Some(&policy.authority.root_pem()));
    let certificate = leno_tls::WorkloadCertificate::from_issued(web.clone(), key, &chain).expect("sound");
    assert_eq!(*certificate.identity(), web);

    // The request names one identity, the caller asks for another.
    let own = policy.sign(&proxy, &request, None, ttl).await.expect_err("not its own");
    assert!(matches!(own, SignError::Invalid(_)), "{own:?}");
    let garbage = policy.sign(&proxy, "no request", Some(web), ttl).await.expect_err("garbage");
    assert!(matches!(garbage, SignError::Invalid(_)) && !garbage.is_retryable(), "{garbage:?}");
}

/// A thread that serves all proxies must not wait while a large edit is being translated.
#[tokio::test]
async fn a_request_that_waits_for_a_translation_holds_up_nobody_else() {
    let policy = policy();
    let (locked, is_locked) = tokio::sync::oneshot::channel();
    let (ran, has_run) = std::sync::mpsc::channel();
    let controller = policy.controller.clone();
    let translation = std::thread::spawn(move || {
        controller.with_store(|_| {
            locked.send(()).expect("the test waits");
            // A thread that waits for this lock can't say anything.
            has_run.recv_timeout(Duration::from_secs(20)).is_ok()
        })
    });
    is_locked.await.expect("locked");
    let node = caller("leno-system/leno-node", Some("node-1"), None);
    let web = identity("spiffe://cluster.local/ns/shop/sa/web");
    let asking = policy.authorize(&node, &web);
    let others = async { ran.send(()).expect("the lock is held") };
    let (granted, ()) = tokio::join!(biased; asking, others);
    assert!(granted.is_ok());
    assert!(translation.join().expect("no panic"), "the request blocked the thread");
}

#[tokio::test]
async fn a_life_is_a_day_at_most_and_a_quarter_of_an_hour_at_least() {
    const HOUR: Duration = Duration::from_secs(3600);
    let node = caller("leno-system/leno-node", Some("node-1"), None);
    let web = identity("spiffe://cluster.local/ns/shop/sa/web");
    let life = async |policy: &CertificatePolicy, asked| {
        let (key, csr) = certificate_request(&web).expect("a key");
        let chain = policy.sign(&node, &csr, Some(web.clone()), asked).await.expect("granted");
        let certificate = leno_tls::WorkloadCertificate::from_issued(web.clone(), key, &chain).expect("sound");
        let left = certificate.not_after().duration_since(std::time::SystemTime::now()).expect("not over");
        left.as_secs_f64() / 3600.0
    };
    let policy = policy();
    for (asked, granted) in [(HOUR * 24 * 90, 24.0), (HOUR, 1.0), (Duration::from_secs(1), 0.25)] {
        let got = life(&policy, asked).await;
        assert!((got - granted).abs() < 0.05, "asked for {asked:?}, got {got} h");
    }
    let policy = policy.with_ttl(HOUR..=HOUR * 2);
    assert!((life(&policy, HOUR * 24).await - 2.0).abs() < 0.05);
    assert!((life(&policy, HOUR / 60).await - 1.0).abs() < 0.05);
}
