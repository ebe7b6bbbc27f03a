//! The callers of the control plane, and how they are authenticated.

use futures_util::future::BoxFuture;

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
    /// The cluster that the caller claims to belong to.
    pub cluster_id: String,
}

/// Why a token wasn't accepted.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AuthError {
    /// The token is wrong, expired, or not meant for this control plane.
    #[error("the token was not accepted: {0}")]
    Invalid(String),
    /// The token could not be checked now.
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
    /// Finds the owner of a token. `cluster_id` is the caller's claim, unchecked.
    fn authenticate<'a>(&'a self, token: &'a str, cluster_id: &'a str) -> BoxFuture<'a, Result<Caller, AuthError>>;
}
