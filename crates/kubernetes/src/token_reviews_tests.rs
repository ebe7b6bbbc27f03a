use futures_util::future::join_all;
use http::StatusCode;
use leno_testkit::api_server::ApiServer;
use serde_json::Value;

use super::*;
use crate::token_claims::token;

const FAR: u64 = 4_000_000_000;

fn status() -> Value {
    json!({
        "authenticated": true,
        "audiences": ["istio-ca"],
        "user": {
            "username": "system:serviceaccount:leno-system:leno-node",
            "extra": {
                "authentication.kubernetes.io/node-name": ["node-1"],
                "authentication.kubernetes.io/pod-name": ["leno-node-x"],
                "authentication.kubernetes.io/pod-uid": ["u"],
            },
        },
    })
}

fn named(subject: &str) -> String {
    token(&json!({"aud": ["istio-ca"], "exp": FAR, "sub": subject}))
}

async fn server_and_reviews() -> (ApiServer, TokenReviews) {
    let server = ApiServer::start().await;
    let reviews = TokenReviews::new(Client::anonymous(&server.url()).expect("a URL"));
    (server, reviews)
}

#[tokio::test]
async fn the_api_server_says_whose_token_it_is_and_is_asked_once() {
    let (server, reviews) = server_and_reviews().await;
    let good = named("good");
    server.set_token(&good, status());
    let answers = join_all((0..50).map(|_| reviews.authenticate(&good, "Kubernetes"))).await;
    for caller in answers {
        let caller = caller.expect("good");
        assert_eq!((caller.namespace.as_str(), caller.service_account.as_str()), ("leno-system", "leno-node"));
        assert_eq!((caller.node.as_deref(), caller.pod.as_deref()), (Some("node-1"), Some("leno-node-x")));
        assert_eq!((caller.pod_uid.as_deref(), caller.cluster_id.as_str()), (Some("u"), "Kubernetes"));
    }
    let asked = server.requests().len();
    assert!(asked <= QUESTIONS, "{asked} questions about one token");
    reviews.authenticate(&good, "").await.expect("remembered");
    assert_eq!(server.requests().len(), 0);
}

#[tokio::test]
async fn bad_tokens_are_refused_and_remembered_too() {
    let (server, reviews) = server_and_reviews().await;
    for _ in 0..2 {
        let error = reviews.authenticate(&named("bad"), "").await.expect_err("unknown");
        assert!(!error.is_retryable() && error.to_string().contains("invalid bearer token"), "{error}");
    }
    assert_eq!(server.requests().len(), 1);
    // What can't be a good token is not asked about.
    for bad in ["", "not-a-jwt", &token(&json!({"aud": ["kubernetes"], "exp": FAR}))] {
        assert!(reviews.authenticate(bad, "").await.is_err_and(|error| !error.is_retryable()));
    }
    assert_eq!(server.requests().len(), 0);
    // Who is authenticated may still be nobody we know.
    let refused = [
        (json!({"authenticated": true, "user": {"username": "system:serviceaccount:a:b"}}), "did not confirm"),
        (
            json!({"authenticated": true, "audiences": ["istio-ca"], "user": {"username": "admin"}}),
            "not a service account",
        ),
    ];
    for (status, why) in refused {
        let other = named(why);
        server.set_token(&other, status);
        let error = reviews.authenticate(&other, "").await.expect_err(why).to_string();
        assert!(error.contains(why), "{error}");
    }
}

#[tokio::test]
async fn while_the_api_server_is_away_nobody_new_is_let_in() {
    let (mut server, reviews) = server_and_reviews().await;
    let (known, new) = (named("known"), named("new"));
    server.set_token(&known, status());
    server.set_token(&new, status());
    reviews.authenticate(&known, "").await.expect("good");
    server.refuse_next([(StatusCode::SERVICE_UNAVAILABLE, None)]);
    assert!(reviews.authenticate(&new, "").await.is_err_and(|error| error.is_retryable()));
    server.stop().await;
    assert!(reviews.authenticate(&new, "").await.is_err_and(|error| error.is_retryable()));
    reviews.authenticate(&known, "").await.expect("remembered");
    server.restart().await;
    reviews.authenticate(&new, "").await.expect("a failure to ask says nothing about the token");
}

#[tokio::test(start_paused = true)]
async fn answers_are_remembered_for_a_short_time_and_in_bounds() {
    let mut remembered = Remembered::default();
    let far = SystemTime::now() + Duration::from_secs(3600);
    let caller: Result<Arc<Caller>, Arc<str>> = Ok(Arc::default());
    remembered.put("good".into(), &caller, far);
    remembered.put("bad".into(), &Err("no".into()), far);
    remembered.put("ends".into(), &caller, SystemTime::now());
    assert!(remembered.get(&"ends".into()).is_none(), "not longer than it lives");
    tokio::time::advance(BAD_FOR).await;
    assert!(remembered.get(&"bad".into()).is_none());
    assert!(remembered.get(&"good".into()).is_some());
    tokio::time::advance(GOOD_FOR - BAD_FOR).await;
    assert!(remembered.get(&"good".into()).is_none());
    remembered.put("good".into(), &caller, far);
    for i in 0..REMEMBERED * 2 {
        remembered.put(i.to_string(), &Err("no".into()), far);
    }
    assert!(remembered.bad.len() <= REMEMBERED);
    assert!(remembered.get(&"good".into()).is_some(), "a flood of bad tokens makes no good one be forgotten");
}
