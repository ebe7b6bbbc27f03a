//! The upkeep of one identity's certificate.

use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use leno_model::Identity;
use parking_lot::RwLock;
use rustls_pki_types::CertificateDer;
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore, SemaphorePermit, watch};
use tokio::task::AbortHandle;

use super::kept::KeptCertificate;
use crate::{CertificateError, Error, Issuer, MeshIdentity, Options, WorkloadCertificate, certificate_request};

/// How often a sleeping task checks the wall clock. A suspended machine or a corrected clock changes the wall clock,
/// but not the timer.
const CLOCK_CHECK: Duration = Duration::from_secs(30);
/// A waiting connection may shorten a pause between attempts to this.
const DEMAND_RETRY: Duration = Duration::from_secs(1);
/// Time limit of one request. The issuer has limits of its own. This one keeps a lost request from holding one of the
/// few slots.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// State shared by all identities of a manager.
pub(crate) struct Shared {
    pub(crate) issuer: Arc<dyn Issuer>,
    pub(crate) options: Options,
    pub(crate) runtime: Handle,
    pub(crate) slots: Semaphore,
    /// Also held by requests that nobody waits for.
    pub(crate) background: Semaphore,
    /// Roots that are trusted besides those that came with certificates.
    pub(crate) trust: RwLock<Arc<[CertificateDer<'static>]>>,
}

impl Shared {
    fn ready(&self, certificate: WorkloadCertificate) -> Result<Arc<MeshIdentity>, Error> {
        let alpn: Vec<&[u8]> = self.options.alpn.iter().map(Vec::as_slice).collect();
        MeshIdentity::with_alpn(Arc::new(certificate), &alpn).map(Arc::new)
    }

    /// The identity, with the roots that are trusted now.
    fn trusting(&self, identity: Arc<MeshIdentity>) -> Arc<MeshIdentity> {
        let roots = self.trust.read().clone();
        match identity.certificate.trusting(&roots).and_then(|fresh| fresh.map(|fresh| self.ready(fresh)).transpose()) {
            Ok(fresh) => fresh.unwrap_or(identity),
            Err(error) => {
                tracing::warn!(identity = %identity.identity(), %error, "new roots can't be used with this certificate");
                identity
            }
        }
    }
}

#[derive(Clone, Default)]
pub(crate) struct State {
    pub(crate) current: Option<Arc<MeshIdentity>>,
    pub(crate) last_error: Option<String>,
    pub(crate) failures: u32,
    pub(crate) next_attempt: Option<SystemTime>,
}

pub(crate) struct Entry {
    state: watch::Receiver<State>,
    /// Gone when the upkeep has ended.
    publish: Weak<watch::Sender<State>>,
    demand: Arc<Notify>,
    task: AbortHandle,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Entry {
    pub(crate) fn start(shared: &Arc<Shared>, identity: &Identity) -> Arc<Self> {
        let (publish, state) = watch::channel(State::default());
        let publish = Arc::new(publish);
        let published = Arc::downgrade(&publish);
        let demand = Arc::new(Notify::new());
        let upkeep = Upkeep { shared: shared.clone(), identity: identity.clone(), publish, demand: demand.clone() };
        let task = shared.runtime.spawn(upkeep.run()).abort_handle();
        Arc::new(Self { state, publish: published, demand, task })
    }

    /// Updates the held certificate with [`Shared::trust`].
    pub(crate) fn trust(&self, shared: &Shared) {
        if let Some(publish) = self.publish.upgrade() {
            publish.send_modify(|state| state.current = state.current.take().map(|current| shared.trusting(current)));
        }
    }

    pub(crate) fn state(&self) -> State {
        self.state.borrow().clone()
    }

    pub(crate) fn current(&self, shared: &Shared) -> Option<Arc<MeshIdentity>> {
        let state = self.state.borrow();
        state.current.as_ref().filter(|c| c.certificate.is_valid_at(shared.options.clock.now())).cloned()
    }

    pub(crate) async fn wait(
        &self,
        shared: &Shared,
        identity: &Identity,
    ) -> Result<Arc<MeshIdentity>, CertificateError> {
        let limit = shared.options.first_use_timeout;
        let deadline = tokio::time::Instant::now() + limit;
        let mut updates = self.state.clone();
        let failures_before = updates.borrow_and_update().failures;
        self.demand.notify_one();
        loop {
            if let Some(current) = self.current(shared) {
                return Ok(current);
            }
            let changed = tokio::time::timeout_at(deadline, updates.changed()).await;
            let state = updates.borrow_and_update().clone();
            let next = state.next_attempt.and_then(|next| next.duration_since(shared.options.clock.now()).ok());
            let next = next.unwrap_or_default();
            let late = match changed {
                Ok(Ok(())) => {
                    // Waiting is useless when our own attempt has failed and the next one is too far off.
                    state.failures > failures_before && tokio::time::Instant::now() + next > deadline
                }
                Ok(Err(_)) => return Err(CertificateError::Forgotten(identity.clone())),
                Err(_) => true,
            };
            if late && self.current(shared).is_none() {
                let identity = identity.clone();
                return Err(match state.last_error {
                    None => CertificateError::Timeout { identity, waited: limit },
                    Some(reason) => CertificateError::Unavailable { identity, reason, attempts: state.failures, next },
                });
            }
        }
    }

    /// Ends the upkeep and tells those that wait.
    pub(crate) fn stop(&self) {
        self.task.abort();
    }
}

struct Upkeep {
    shared: Arc<Shared>,
    identity: Identity,
    publish: Arc<watch::Sender<State>>,
    demand: Arc<Notify>,
}

impl Upkeep {
    async fn run(self) {
        if let Some(kept) = self.kept() {
            tracing::debug!(identity = %self.identity, serial = kept.certificate.serial(), "the certificate of the process before");
            self.publish.send_modify(|state| state.current = Some(self.shared.trusting(kept)));
        }
        let mut failures = 0u32;
        loop {
            let pause = match self.attempt().await {
                Ok(fresh) => {
                    failures = 0;
                    let next = self.refresh_at(&fresh);
                    tracing::debug!(identity = %self.identity, serial = fresh.certificate.serial(), "new certificate");
                    // With the lock held. Otherwise roots that come at this moment would be missed.
                    self.publish.send_modify(|state| {
                        *state = State {
                            current: Some(self.shared.trusting(fresh)),
                            last_error: None,
                            failures: 0,
                            next_attempt: Some(next),
                        };
                    });
                    self.sleep_until(next).await;
                    continue;
                }
                Err(error) => {
                    failures = failures.saturating_add(1);
                    let pause = self.pause_after(failures);
                    tracing::warn!(identity = %self.identity, %error, failures, retry_in = ?pause, "no new certificate");
                    let next = self.now() + pause;
                    self.publish.send_modify(|state| {
                        state.last_error = Some(error);
                        state.failures = failures;
                        state.next_attempt = Some(next);
                    });
                    pause
                }
            };
            self.sleep_or_demand(pause).await;
        }
    }

    fn now(&self) -> SystemTime {
        self.shared.options.clock.now()
    }

    async fn attempt(&self) -> Result<Arc<MeshIdentity>, String> {
        let _slots = self.slots().await;
        let options = &self.shared.options;
        let (key, request) = certificate_request(&self.identity).map_err(|e| e.to_string())?;
        let issuing = self.shared.issuer.issue(&self.identity, request, options.ttl);
        let chain = tokio::time::timeout(REQUEST_TIMEOUT, issuing)
            .await
            .map_err(|_| format!("the certificate authority did not answer within {} s", REQUEST_TIMEOUT.as_secs()))?
            .map_err(|e| e.to_string())?;
        let issued = KeptCertificate::new(key, chain);
        let text = options.store.as_ref().and_then(|store| Some((store, issued.text()?)));
        let fresh = self.accept(issued).map_err(|e| e.to_string())?;
        if let Some((store, text)) = text {
            store.save(&self.identity, &text);
        }
        Ok(fresh)
    }

    /// Checks a certificate and makes it ready for handshakes.
    fn accept(&self, issued: KeptCertificate) -> Result<Arc<MeshIdentity>, Error> {
        let (key, chain) = issued.into_parts();
        self.shared.ready(WorkloadCertificate::from_issued_at(self.identity.clone(), key, &chain, self.now())?)
    }

    /// The certificate that the process before has left, if it is still valid.
    fn kept(&self) -> Option<Arc<MeshIdentity>> {
        let store = self.shared.options.store.as_ref()?;
        let kept = KeptCertificate::read(&store.load(&self.identity)?)?;
        let kept = self.accept(kept).map_err(|error| error.to_string());
        match kept.and_then(|kept| {
            if kept.certificate.is_valid_at(self.now()) { Ok(kept) } else { Err("it has ended".to_owned()) }
        }) {
            Ok(kept) => Some(kept),
            Err(error) => {
                tracing::info!(identity = %self.identity, %error, "the kept certificate is of no use any more");
                store.remove(&self.identity);
                None
            }
        }
    }

    /// Permission for a request: one of the few slots; while nobody waits, one of the fewer background slots first.
    async fn slots(&self) -> (Option<SemaphorePermit<'_>>, Option<SemaphorePermit<'_>>) {
        // The semaphores are never closed, so an error can't happen. Without a permit there would merely be no limit.
        let background = tokio::select! {
            biased;
            () = self.demand.notified() => None,
            permit = self.shared.background.acquire() => permit.ok(),
        };
        (background, self.shared.slots.acquire().await.ok())
    }

    /// Half of the remaining life, ± 5 %. It is counted from now, because the start of validity is back-dated: a short
    /// life would always be over.
    fn refresh_at(&self, fresh: &MeshIdentity) -> SystemTime {
        let now = self.now();
        let left = fresh.certificate.not_after().duration_since(now).unwrap_or_default();
        now + left.mul_f64(rand::random_range(0.45..0.55)).max(Duration::from_secs(1))
    }

    fn pause_after(&self, failures: u32) -> Duration {
        let options = &self.shared.options;
        let doubled = options.retry_min.saturating_mul(1u32 << failures.saturating_sub(1).min(20));
        let pause = doubled.min(options.retry_max).mul_f64(rand::random_range(0.8..1.2));
        // Never sleep through the end of a certificate that is still valid.
        let current = self.publish.borrow().current.clone();
        let left = current.and_then(|c| c.certificate.not_after().duration_since(self.now()).ok());
        match left {
            Some(left) => pause.min(left.max(DEMAND_RETRY)),
            None => pause,
        }
    }

    async fn sleep_until(&self, at: SystemTime) {
        // From before the clock is read: no change of it is missed.
        let mut changes = self.shared.options.clock.changes();
        while let Ok(left) = at.duration_since(self.now()) {
            if left.is_zero() {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(left.min(CLOCK_CHECK)) => {}
                () = changes.next() => {}
            }
        }
    }

    async fn sleep_or_demand(&self, pause: Duration) {
        let at_least = pause.min(DEMAND_RETRY);
        tokio::time::sleep(at_least).await;
        let rest = self.sleep_until(self.now() + (pause - at_least));
        tokio::select! {
            () = rest => {}
            () = self.demand.notified(), if !self.holds_valid() => self.demand.notify_one(),
        }
    }

    fn holds_valid(&self) -> bool {
        self.publish.borrow().current.as_ref().is_some_and(|c| c.certificate.is_valid_at(self.now()))
    }
}
