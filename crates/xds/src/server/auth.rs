//! Who is calling the control plane.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use http::{Extensions, HeaderMap};
use tonic::{Code, Status};

use super::places::Place;

/// A caller whose token was found good.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Caller {
    /// Namespace of the token's service account.
    pub namespace: String,
    /// The token's service account.
    pub service_account: String,
    /// The node the token's pod runs on, if the token says so.
    pub node: Option<String>,
    /// The token's pod, if it is bound to one.
    pub pod: Option<String>,
    /// That pod's UID.
    pub pod_uid: Option<String>,
    /// The cluster the caller says it is of.
    pub cluster_id: String,
}

/// Why a token wasn't accepted.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AuthError {
    /// It is wrong, expired, or not meant for us.
    #[error("the token was not accepted: {0}")]
    Invalid(String),
    /// It could not be checked just now.
    #[error("the token could not be checked: {0}")]
    Unavailable(String),
}

impl AuthError {
    /// Whether the same token can be accepted later.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unavailable(_))
    }
}

/// Checks tokens: against the Kubernetes API server, or a secret of the control plane's own.
pub trait Authenticator: Send + Sync + 'static {
    /// Whose token this is. `cluster_id` is the caller's word, unchecked.
    fn authenticate<'a>(&'a self, token: &'a str, cluster_id: &'a str) -> BoxFuture<'a, Result<Caller, AuthError>>;
}

/// Finds out who sent a request. A good token makes its connection one that keeps its place.
pub(crate) async fn authenticate(
    authenticator: &Arc<dyn Authenticator>,
    headers: &HeaderMap,
    extensions: &Extensions,
) -> Result<Caller, Status> {
    let caller = caller_of(authenticator, headers).await?;
    if let Some(place) = extensions.get::<Arc<Place>>() {
        place.prove(&caller).map_err(|refusal| Status::resource_exhausted(refusal.to_string()))?;
    }
    Ok(caller)
}

async fn caller_of(authenticator: &Arc<dyn Authenticator>, headers: &HeaderMap) -> Result<Caller, Status> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let token = text("authorization").and_then(|value| value.strip_prefix("Bearer ")).ok_or_else(|| {
        Status::unauthenticated("no token: send `authorization: Bearer <service account token>`; is the token mounted?")
    })?;
    let cluster_id = text("clusterid").unwrap_or_default();
    authenticator.authenticate(token.trim(), cluster_id).await.map_err(|error| {
        let code = if error.is_retryable() { Code::Unavailable } else { Code::Unauthenticated };
        Status::new(code, error.to_string())
    })
}
