//! Who owns a bearer token, by the API server's word.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::future::BoxFuture;
use leno_xds::server::{AuthError, Authenticator, Caller};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use crate::{Client, token_claims};

/// The audience of a token for a mesh's control plane. It is Istio's, so that a ztunnel works as well.
pub(crate) const AUDIENCE: &str = "istio-ca";

/// How long a token that was found good is not asked about again. A token that is bound to a deleted pod is good for
/// this much longer.
const GOOD_FOR: Duration = Duration::from_secs(30);
/// How long a token that was found bad is not asked about again.
const BAD_FOR: Duration = Duration::from_secs(10);
/// Remembered answers of each sort. A node's proxy has one token at a time.
const REMEMBERED: usize = 16_384;
/// Questions at a time. Whoever can connect can make this program ask.
const QUESTIONS: usize = 32;
/// How long a question may take, with the wait for its turn.
const PATIENCE: Duration = Duration::from_secs(10);

const PATH: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// Asks the API server whose a token is (`TokenReview`), and remembers the answer for a short time. While it can't be
/// asked, tokens that are not remembered are not accepted.
pub struct TokenReviews {
    client: Client,
    questions: Semaphore,
    remembered: Mutex<Remembered>,
}

/// The hash of a token: what is in memory can't be presented as one.
type Key = String;

#[derive(Default)]
struct Remembered {
    good: HashMap<Key, (Instant, Arc<Caller>)>,
    // Apart, so that a flood of bad tokens makes no good one be asked about again.
    bad: HashMap<Key, (Instant, Arc<str>)>,
}

#[derive(Deserialize)]
struct Review {
    #[serde(default)]
    status: ReviewStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ReviewStatus {
    authenticated: bool,
    audiences: Vec<String>,
    error: String,
    user: User,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct User {
    username: String,
    extra: HashMap<String, Vec<String>>,
}

impl TokenReviews {
    /// Asks by `client`.
    pub fn new(client: Client) -> Self {
        Self { client, questions: Semaphore::new(QUESTIONS), remembered: Mutex::default() }
    }

    async fn owner(&self, token: &str) -> Result<Arc<Caller>, AuthError> {
        let invalid = |why: &str| AuthError::Invalid(why.to_owned());
        let expiry = token_claims::expiry(token, AUDIENCE, SystemTime::now()).map_err(AuthError::Invalid)?;
        let unavailable = |why: String| AuthError::Unavailable(why);
        let key: Key = leno_tls::sha256(token.as_bytes()).map_err(|error| unavailable(error.to_string()))?;
        if let Some(known) = self.remembered.lock().get(&key) {
            return known.map_err(|why| invalid(&why));
        }
        let question = async {
            // It is never closed.
            let _turn = self.questions.acquire().await.map_err(|error| unavailable(error.to_string()))?;
            // Others may have asked the same during the wait.
            if let Some(known) = self.remembered.lock().get(&key) {
                return known.map_err(|why| invalid(&why));
            }
            let answer = self.ask(token).await?;
            let answer = answer.map(Arc::new).map_err(Arc::<str>::from);
            self.remembered.lock().put(key, &answer, expiry);
            answer.map_err(|why| invalid(&why))
        };
        let late = |_| unavailable(format!("the API server did not answer within {} s", PATIENCE.as_secs()));
        timeout(PATIENCE, question).await.map_err(late)?
    }

    /// Asks the API server.
    async fn ask(&self, token: &str) -> Result<Result<Caller, String>, AuthError> {
        let question = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [AUDIENCE]},
        });
        let answer: Result<Review, _> = self.client.create(PATH, &question).await;
        // Whatever went wrong, it says nothing about the token.
        answer.map(|review| caller(review.status)).map_err(|error| AuthError::Unavailable(error.to_string()))
    }
}

/// The token's owner, if it is a service account's.
fn caller(status: ReviewStatus) -> Result<Caller, String> {
    if !status.authenticated {
        return Err(if status.error.is_empty() { "the API server does not know it".to_owned() } else { status.error });
    }
    // An API server that knows nothing of audiences answers without any, and would accept every token of the cluster.
    if !status.audiences.iter().any(|audience| audience == AUDIENCE) {
        return Err(format!("the API server did not confirm that it is for {AUDIENCE:?}"));
    }
    let account = status.user.username.strip_prefix(SERVICE_ACCOUNT).and_then(|rest| rest.split_once(':'));
    let Some((namespace, service_account)) = account else {
        return Err(format!("{} is not a service account", status.user.username));
    };
    let extra = |name: &str| {
        let values = status.user.extra.get(&format!("authentication.kubernetes.io/{name}"))?;
        // Several would be ambiguous.
        (values.len() == 1).then(|| values.first().cloned()).flatten().filter(|value| !value.is_empty())
    };
    Ok(Caller {
        namespace: namespace.to_owned(),
        service_account: service_account.to_owned(),
        node: extra("node-name"),
        pod: extra("pod-name"),
        pod_uid: extra("pod-uid"),
        cluster_id: String::new(),
    })
}

impl Remembered {
    fn get(&self, key: &Key) -> Option<Result<Arc<Caller>, Arc<str>>> {
        let now = Instant::now();
        if let Some((until, caller)) = self.good.get(key) {
            return (now < *until).then(|| Ok(caller.clone()));
        }
        let (until, why) = self.bad.get(key)?;
        (now < *until).then(|| Err(why.clone()))
    }

    fn put(&mut self, key: Key, answer: &Result<Arc<Caller>, Arc<str>>, expiry: SystemTime) {
        let now = Instant::now();
        self.good.remove(&key);
        self.bad.remove(&key);
        match answer {
            Ok(caller) => {
                let left = expiry.duration_since(SystemTime::now()).unwrap_or_default();
                make_room(&mut self.good, now);
                self.good.insert(key, (now + GOOD_FOR.min(left), caller.clone()));
            }
            Err(why) => {
                make_room(&mut self.bad, now);
                self.bad.insert(key, (now + BAD_FOR, why.clone()));
            }
        }
    }
}

/// Drops what is out of date once there is no more room; if that is not enough, everything. Then the API server is asked
/// again.
fn make_room<T>(remembered: &mut HashMap<Key, (Instant, T)>, now: Instant) {
    if remembered.len() < REMEMBERED {
        return;
    }
    remembered.retain(|_, (until, _)| now < *until);
    if remembered.len() >= REMEMBERED {
        remembered.clear();
    }
}

impl Authenticator for TokenReviews {
    fn authenticate<'a>(&'a self, token: &'a str, cluster_id: &'a str) -> BoxFuture<'a, Result<Caller, AuthError>> {
        Box::pin(async move {
            let owner = self.owner(token).await?;
            Ok(Caller { cluster_id: cluster_id.to_owned(), ..(*owner).clone() })
        })
    }
}

impl fmt::Debug for TokenReviews {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenReviews").field("client", &self.client).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "token_reviews_tests.rs"]
mod tests;
