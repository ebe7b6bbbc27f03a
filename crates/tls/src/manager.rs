//! The certificates of all identities on a node: requested once per identity, renewed, and shared by every connection.

mod kept;
mod upkeep;

use std::collections::HashMap;
use std::collections::hash_map::Entry as MapEntry;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::future::BoxFuture;
use leno_model::Identity;
use parking_lot::RwLock;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::certificate::parse_pem_certificates;
use crate::verify::Roots;
use crate::{ALPN_H2, CertificateError, Clock, Error, IssueError, MeshIdentity, WorkloadCertificate};
pub use kept::CertificateStore;
use upkeep::{Entry, Shared, State};

/// Signs certificates: the mesh's control plane, or an authority in this process.
pub trait Issuer: Send + Sync + 'static {
    /// Signs `csr_pem` for `identity`. Returns the leaf, its intermediates, and last the root bundle, each in PEM.
    fn issue(
        &self,
        identity: &Identity,
        csr_pem: String,
        ttl: Duration,
    ) -> BoxFuture<'_, Result<Vec<String>, IssueError>>;
}

/// Parameters of a manager.
#[derive(Debug, Clone)]
pub struct Options {
    /// Lifetime to request; 24 h, the default of Istio's `SECRET_TTL`.
    pub ttl: Duration,
    /// Most requests at a time; 8, as in ztunnel.
    pub parallel: usize,
    /// How long the first connection of an identity waits for its certificate.
    pub first_use_timeout: Duration,
    /// Pause after the first failure. It doubles up to `retry_max`. It is short because the usual first failure is a
    /// control plane that does not know yet that the pod is on this node.
    pub retry_min: Duration,
    /// Longest pause between attempts.
    pub retry_max: Duration,
    /// Application protocols of the identities' handshakes, in order of preference.
    pub alpn: Vec<Vec<u8>>,
    /// The wall clock.
    pub clock: Clock,
    /// Where certificates outlast the process. A new one is requested all the same; until then, and while none is issued,
    /// the kept one is used as long as it is valid.
    pub store: Option<Arc<dyn CertificateStore>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(24 * 3600),
            parallel: 8,
            first_use_timeout: Duration::from_secs(10),
            retry_min: Duration::from_millis(100),
            retry_max: Duration::from_secs(150),
            alpn: vec![ALPN_H2.to_vec()],
            clock: Clock::system(),
            store: None,
        }
    }
}

/// Keeps one certificate per identity.
///
/// Each identity has a task of its own, so that a slow or refused request delays no other. A certificate is renewed at
/// half its life, plus or minus 5 %, so that a node's identities are not all renewed together. If renewal fails, the
/// old certificate is used as long as it is valid, and no longer.
#[derive(Clone)]
pub struct CertificateManager {
    shared: Arc<Shared>,
    entries: Arc<RwLock<HashMap<Identity, Arc<Entry>>>>,
}

/// State of an identity's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CertificateState {
    /// There is a valid one.
    Available,
    /// The first one was requested.
    Initializing,
    /// There is no valid one, for this reason.
    Unavailable(String),
}

/// One identity's certificate, for the configuration dump.
#[derive(Debug, Clone)]
pub struct CertificateStatus {
    /// The identity.
    pub identity: Identity,
    /// Whether the certificate can be used.
    pub state: CertificateState,
    /// The certificate, if there is one.
    pub certificate: Option<Arc<WorkloadCertificate>>,
    /// Failures in a row.
    pub failures: u32,
    /// The error of the last failure since the last success.
    pub last_error: Option<String>,
    /// When the issuer will be asked next.
    pub next_attempt: Option<SystemTime>,
}

impl CertificateManager {
    /// A manager whose tasks run on the calling runtime, whichever runtime its users are on. The data path waits for
    /// certificates but does no work for them.
    ///
    /// # Panics
    /// Outside a Tokio runtime.
    pub fn new(issuer: Arc<dyn Issuer>, options: Options) -> Self {
        let parallel = options.parallel.max(1);
        // A quarter of the slots is reserved for identities that somebody waits for.
        let background = (parallel - parallel / 4).max(1);
        Self {
            shared: Arc::new(Shared {
                issuer,
                options,
                runtime: Handle::current(),
                slots: Semaphore::new(parallel),
                background: Semaphore::new(background),
                trust: RwLock::new(Vec::new().into()),
            }),
            entries: Arc::default(),
        }
    }

    /// The current certificate of `identity`, ready for handshakes. The first call for an identity starts its upkeep
    /// and waits for the issuer's answer.
    ///
    /// # Errors
    /// If there is no valid certificate and none is obtained in time. The caller must refuse the connection.
    pub async fn identity(&self, identity: &Identity) -> Result<Arc<MeshIdentity>, CertificateError> {
        let entry = self.entry(identity);
        if let Some(current) = entry.current(&self.shared) {
            return Ok(current);
        }
        entry.wait(&self.shared, identity).await
    }

    /// The current certificate, if there is a valid one. Starts nothing.
    pub fn current(&self, identity: &Identity) -> Option<Arc<MeshIdentity>> {
        self.entries.read().get(identity)?.current(&self.shared)
    }

    /// Starts the upkeep of `identity` in the background.
    pub fn warm(&self, identity: &Identity) {
        self.entry(identity);
    }

    /// Ends the upkeep of `identity`, because no workload here has it any more. Connections that hold the certificate
    /// keep it.
    pub fn forget(&self, identity: &Identity) {
        let removed = self.entries.write().remove(identity);
        if let Some(entry) = removed {
            entry.stop();
        }
        if let Some(store) = &self.shared.options.store {
            store.remove(identity);
        }
    }

    /// All identities, sorted.
    pub fn statuses(&self) -> Vec<CertificateStatus> {
        let now = self.shared.options.clock.now();
        let mut statuses: Vec<_> =
            self.entries.read().iter().map(|(identity, entry)| status(identity, &entry.state(), now)).collect();
        statuses.sort_by(|a, b| a.identity.cmp(&b.identity));
        statuses
    }

    /// Also trusts peers whose certificates chain to one of these roots, besides the roots that came with each
    /// certificate. This holds from the time the call returns. A later call replaces these roots.
    ///
    /// # Errors
    /// If one of the roots can't be read. Then nothing changes.
    pub fn trust(&self, roots_pem: &str) -> Result<(), Error> {
        let roots = parse_pem_certificates(roots_pem)?;
        Roots::all_of(&roots)?;
        *self.shared.trust.write() = roots.into();
        let entries: Vec<_> = self.entries.read().values().cloned().collect();
        for entry in entries {
            entry.trust(&self.shared);
        }
        Ok(())
    }

    fn entry(&self, identity: &Identity) -> Arc<Entry> {
        if let Some(entry) = self.entries.read().get(identity) {
            return entry.clone();
        }
        match self.entries.write().entry(identity.clone()) {
            MapEntry::Occupied(entry) => entry.get().clone(),
            MapEntry::Vacant(slot) => slot.insert(Entry::start(&self.shared, identity)).clone(),
        }
    }
}

impl fmt::Debug for CertificateManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificateManager").field("identities", &self.entries.read().len()).finish_non_exhaustive()
    }
}

fn status(identity: &Identity, state: &State, now: SystemTime) -> CertificateStatus {
    let valid = state.current.as_ref().is_some_and(|current| current.certificate.is_valid_at(now));
    CertificateStatus {
        identity: identity.clone(),
        state: match (&state.last_error, valid) {
            (_, true) => CertificateState::Available,
            (Some(error), false) => CertificateState::Unavailable(error.clone()),
            (None, false) if state.current.is_some() => {
                CertificateState::Unavailable("the certificate has expired".to_owned())
            }
            (None, false) => CertificateState::Initializing,
        },
        certificate: state.current.as_ref().map(|current| current.certificate.clone()),
        failures: state.failures,
        last_error: state.last_error.clone(),
        next_attempt: state.next_attempt,
    }
}

#[cfg(test)]
#[path = "manager_tests.rs"]
mod tests;
