//! Who may have which certificate?
//!
//! A node proxy requests certificates for the pods on its node, with keys that it generated itself. It gets those and
//! no others. So an attacker who takes over a node can act as the pods that run there, but not as the rest of the mesh.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use leno_model::Identity;
use leno_tls::CertificateAuthority;
use leno_xds::server::{Caller, SignError, Signer};
use tokio::time::timeout;

use crate::controller::Controller;
use crate::translate::Translator;
use leno_objects::ObjectStore;
use leno_objects::{Pod, PodPhase};

/// The service accounts of node proxies that are trusted by default: Leno's, and Istio's, so that a real ztunnel works
/// too (`CA_TRUSTED_NODE_ACCOUNTS` in Istio's chart).
pub const DEFAULT_NODE_ACCOUNTS: [&str; 2] = ["leno-system/leno-node", "istio-system/ztunnel"];

/// How long a request waits for its pod to become known. A proxy may hear of a pod from the node before this control
/// plane hears of it from its feed. Waiting spares the proxy a refusal, and the pod the proxy's back-off.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// The default limits of a certificate's lifetime. Clocks may be five minutes apart, and a proxy renews at half of the
/// remaining life. With less than a quarter of an hour, some peer would see an expired certificate.
pub const DEFAULT_TTL: RangeInclusive<Duration> = Duration::from_secs(15 * 60)..=Duration::from_secs(24 * 3600);

/// Signs certificates for callers that may have them.
#[derive(Debug)]
pub struct CertificatePolicy {
    controller: Controller,
    authority: Arc<CertificateAuthority>,
    /// `namespace/account`.
    node_accounts: Vec<String>,
    patience: Duration,
    ttl: RangeInclusive<Duration>,
}

impl CertificatePolicy {
    /// Signs with `authority` for the pods that `controller` knows, for callers with one of the
    /// [`DEFAULT_NODE_ACCOUNTS`].
    pub fn new(controller: Controller, authority: Arc<CertificateAuthority>) -> Self {
        let node_accounts = DEFAULT_NODE_ACCOUNTS.map(str::to_owned).to_vec();
        Self { controller, authority, node_accounts, patience: PATIENCE, ttl: DEFAULT_TTL }
    }

    /// Trusts these service accounts instead, each `namespace/account`.
    #[must_use]
    pub fn with_node_accounts(mut self, accounts: Vec<String>) -> Self {
        self.node_accounts = accounts;
        self
    }

    /// Sets how long a request waits for its pod to become known before it is refused.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Sets the limits of a certificate's lifetime. A request for a longer or shorter one is not refused but gets the
    /// limit.
    #[must_use]
    pub fn with_ttl(mut self, ttl: RangeInclusive<Duration>) -> Self {
        self.ttl = ttl;
        self
    }

    /// Whether `caller` may have a certificate for `identity`.
    ///
    /// # Errors
    /// If it may not. The text says why and what to do about it.
    pub async fn authorize(&self, caller: &Caller, identity: &Identity) -> Result<(), SignError> {
        let own_domain = self.authority.trust_domain();
        if identity.trust_domain() != own_domain {
            return Err(SignError::Denied(format!(
                "{identity} is of another trust domain; this control plane's is {own_domain}: give the proxy and the \
                 control plane the same one"
            )));
        }
        if **identity.namespace() == *caller.namespace && **identity.service_account() == *caller.service_account {
            return Ok(());
        }
        let account = format!("{}/{}", caller.namespace, caller.service_account);
        if !self.node_accounts.contains(&account) {
            return Err(SignError::Denied(format!(
                "account {account} asked for {identity}, but may only ask for its own identity; node proxies run as {}: \
                 run the proxy as one of these, or start the control plane with --node-account {account} \
                 (CA_TRUSTED_NODE_ACCOUNTS)",
                self.node_accounts.join(" or ")
            )));
        }
        let mut applied = self.controller.applied();
        let known = async {
            loop {
                let (caller, identity) = (caller.clone(), identity.clone());
                let there = self.look(move |objects| runs_on_node(objects, &caller, &identity)).await;
                if matches!(there, Ok(true)) || applied.changed().await.is_err() {
                    return;
                }
            }
        };
        // Whether or not the wait timed out, the state as of now decides.
        let _ = timeout(self.patience, known).await;
        let (caller, identity) = (caller.clone(), identity.clone());
        self.look(move |objects| match runs_on_node(objects, &caller, &identity) {
            Ok(true) => Ok(()),
            Ok(false) => Err(not_there(objects.store(), &caller, &identity)),
            Err(error) => Err(error),
        })
        .await
    }

    async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Translator) -> Result<T, SignError> + Send + 'static,
    ) -> Result<T, SignError> {
        let looked = self.controller.look(look).await;
        looked.unwrap_or_else(|| Err(SignError::Unavailable("the control plane is shutting down".to_owned())))
    }
}

/// The node that the caller serves.
fn node_of(store: &ObjectStore, caller: &Caller) -> Option<String> {
    let of_pod = || {
        let pod = Pod::get(store, &caller.namespace, caller.pod.as_deref()?)?;
        // A later pod may have the same name, on another node.
        let is_it = caller.pod_uid.as_ref().is_none_or(|uid| *uid == pod.metadata.uid);
        is_it.then(|| pod.spec.node_name.to_string())
    };
    caller.node.clone().filter(|node| !node.is_empty()).or_else(of_pod).filter(|node| !node.is_empty())
}

fn has_identity(pod: &Pod, identity: &Identity) -> bool {
    let ended = matches!(pod.status.phase, PodPhase::Failed | PodPhase::Succeeded);
    *pod.metadata.namespace == **identity.namespace() && *pod.spec.account() == **identity.service_account() && !ended
}

/// Whether the caller's node has a pod with that identity.
fn runs_on_node(objects: &Translator, caller: &Caller, identity: &Identity) -> Result<bool, SignError> {
    let node = node_of(objects.store(), caller).ok_or_else(|| {
        SignError::Denied(format!(
            "node proxy {}/{} asked for {identity}, but its token does not say which node it serves: use a \
             token that is bound to the proxy's pod",
            caller.namespace, caller.service_account
        ))
    })?;
    Ok(objects.pods_on(&node).any(|pod| has_identity(pod, identity)))
}

/// Why a certificate is refused: no pod of the node has that identity.
fn not_there(store: &ObjectStore, caller: &Caller, identity: &Identity) -> SignError {
    let account = format!("{}/{}", identity.namespace(), identity.service_account());
    // The only look at a whole namespace, once for each refusal.
    let hint = match Pod::list(store, identity.namespace()).filter(|pod| has_identity(pod, identity)).last() {
        Some(pod) => format!(
            "such pods (e.g. {}) run on other nodes only; if one was just bound to this node, this resolves \
             itself: retry",
            pod.metadata.name
        ),
        None => "if the pod was just created, this resolves itself: retry; else check the pod's \
                 serviceAccountName"
            .to_owned(),
    };
    SignError::Denied(format!(
        "node {} asked for {identity}, but no pod with service account {account} runs there; {hint}",
        node_of(store, caller).unwrap_or_default()
    ))
}

impl Signer for CertificatePolicy {
    fn sign<'a>(
        &'a self,
        caller: &'a Caller,
        csr_pem: &'a str,
        impersonated: Option<Identity>,
        ttl: Duration,
    ) -> BoxFuture<'a, Result<Vec<String>, SignError>> {
        Box::pin(async move {
            let identity = match impersonated {
                Some(identity) => identity,
                None => Identity::new(
                    self.authority.trust_domain().clone(),
                    caller.namespace.as_str(),
                    caller.service_account.as_str(),
                )
                .map_err(|error| SignError::Invalid(error.to_string()))?,
            };
            self.authorize(caller, &identity).await?;
            let granted = ttl.max(*self.ttl.start()).min(*self.ttl.end());
            if granted != ttl {
                tracing::info!(%identity, asked = ?ttl, ?granted, "a certificate's life is not what was asked for");
            }
            self.authority.sign(csr_pem, &identity, granted).map_err(|error| match error {
                leno_tls::Error::Request(_) | leno_tls::Error::Malformed { .. } => {
                    SignError::Invalid(error.to_string())
                }
                other => SignError::Unavailable(other.to_string()),
            })
        })
    }
}

#[cfg(test)]
#[path = "certificates_tests.rs"]
mod tests;
