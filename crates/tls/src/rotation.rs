//! Which root signs, and which roots are trusted, during a change of roots?
//!
//! 1. A new root is *announced*: everybody should trust it besides the old one, which still signs.
//! 2. It signs when all trust it.
//! 3. The old one is dropped when everything that it signed has expired.

use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use rustls_pki_types::CertificateDer;
use tokio::sync::watch;

use crate::Error;
use crate::signing::{Root, Signing, bundle_pem};

pub(crate) struct Rotation {
    state: Mutex<State>,
    trust: watch::Sender<Arc<str>>,
}

struct State {
    /// The root that was configured last.
    root: Root,
    signing: Arc<Signing>,
    /// Expiry of the last certificate that `signing` has signed.
    signed_until: SystemTime,
    announced: Option<Announced>,
    former: Vec<Former>,
    /// How many roots have signed before.
    number: u64,
}

struct Announced {
    signing: Arc<Signing>,
    /// Until then, somebody may have a certificate that came without the new root.
    unknown_until: SystemTime,
}

/// A root that no longer signs.
struct Former {
    root: CertificateDer<'static>,
    /// Expiry of the last certificate below it.
    until: SystemTime,
}

impl Rotation {
    /// Everything that `signing` has signed before expires by `signed_until`.
    pub(crate) fn new(root: Root, signing: Signing, signed_until: SystemTime) -> Self {
        let state =
            State { root, signing: Arc::new(signing), signed_until, announced: None, former: Vec::new(), number: 0 };
        let trust = watch::Sender::new(state.bundle());
        Self { state: Mutex::new(state), trust }
    }

    pub(crate) fn trust(&self) -> watch::Receiver<Arc<str>> {
        self.trust.subscribe()
    }

    pub(crate) fn signing(&self) -> Arc<Signing> {
        self.state.lock().signing.clone()
    }

    pub(crate) fn number(&self) -> u64 {
        self.state.lock().number
    }

    /// Trusts `roots`, which signed before this process began, until the given time.
    pub(crate) fn remember(&self, roots: Vec<CertificateDer<'static>>, until: SystemTime) {
        let former = roots.into_iter().map(|root| Former { root, until });
        self.state.lock().former.extend(former);
    }

    pub(crate) fn announces(&self) -> bool {
        self.state.lock().announced.is_some()
    }

    /// Whether these roots and this signing certificate were configured last.
    pub(crate) fn is_of(&self, roots: &[CertificateDer<'_>], signing: Option<&CertificateDer<'_>>) -> bool {
        let state = self.state.lock();
        let latest = state.announced.as_ref().map_or(&state.signing, |announced| &announced.signing);
        state.root.certificates == roots && signing.is_some_and(|signing| latest.is(signing))
    }

    /// Whether signing certificates are made from this root.
    pub(crate) fn is_below(&self, root: Option<&CertificateDer<'_>>) -> bool {
        self.state.lock().root.certificates.first() == root
    }

    /// Replaces the signing certificate by another one of the same root, if `wanted` is true.
    pub(crate) fn renew(
        &self,
        wanted: impl FnOnce(&Signing, &Root) -> bool,
        make: impl FnOnce(&Root) -> Result<Signing, Error>,
    ) -> Result<(), Error> {
        let mut state = self.state.lock();
        // The announced one will sign soon enough, and the key of the one before it is gone.
        if state.announced.is_none() && wanted(&state.signing, &state.root) {
            state.signing = Arc::new(make(&state.root)?);
        }
        Ok(())
    }

    /// Notes the expiry of a certificate that `by` signs.
    pub(crate) fn signs_until(&self, by: &Arc<Signing>, end: SystemTime) {
        let mut state = self.state.lock();
        if state.signing.root == by.root {
            state.signed_until = state.signed_until.max(end);
        }
        // `by` may have been replaced meanwhile.
        if let Some(former) = state.former.iter_mut().find(|former| former.root == by.root) {
            former.until = former.until.max(end);
        }
    }

    /// Trusts `root`, and lets `signing` sign when all do.
    pub(crate) fn announce(&self, root: Root, signing: Signing) {
        let mut state = self.state.lock();
        tracing::info!(roots = root.certificates.len(), "the certificate authority has new certificates");
        state.root = root;
        if state.signing.root == signing.root {
            state.signing = Arc::new(signing);
            state.announced = None;
        } else {
            let unknown_until = state.signed_until;
            state.announced = Some(Announced { signing: Arc::new(signing), unknown_until });
        }
        self.publish(&state);
    }

    /// As [`Self::announce`], for a signing certificate below the root that is configured already. Until
    /// `unknown_until`, somebody may have a certificate that came without that root.
    pub(crate) fn announce_again(&self, signing: Signing, unknown_until: SystemTime) {
        let mut state = self.state.lock();
        tracing::info!("a root waited to be trusted when this process began, and goes on to");
        state.announced = Some(Announced { signing: Arc::new(signing), unknown_until });
        self.publish(&state);
    }

    pub(crate) fn sign_with_the_next(&self) {
        let mut state = self.state.lock();
        state.advance();
        self.publish(&state);
    }

    /// Returns whether a root was dropped.
    pub(crate) fn tick(&self, now: SystemTime) -> bool {
        let mut state = self.state.lock();
        let due = state.announced.as_ref().is_some_and(|announced| announced.unknown_until <= now);
        if due || state.signing.not_after <= now {
            state.advance();
        }
        let before = state.bundle();
        state.former.retain(|former| former.until > now);
        self.publish(&state);
        // The bundle gets shorter only if a root was dropped.
        state.bundle().len() < before.len()
    }

    /// Called with `state` locked, so that the latest version is published last.
    fn publish(&self, state: &State) {
        let bundle = state.bundle();
        self.trust.send_if_modified(|trust| {
            let changed = *trust != bundle;
            *trust = bundle;
            changed
        });
    }
}

impl State {
    fn advance(&mut self) {
        let Some(announced) = self.announced.take() else { return };
        let before = std::mem::replace(&mut self.signing, announced.signing);
        // It may have signed before, and those certificates are still valid.
        let signed_before = self.former.iter().filter(|former| former.root == self.signing.root);
        let next_until = signed_before.map(|former| former.until).max().unwrap_or(SystemTime::UNIX_EPOCH);
        let until = std::mem::replace(&mut self.signed_until, next_until);
        tracing::info!(old_root_trusted_until = ?until, "the new root signs");
        self.number += 1;
        self.former.retain(|former| former.root != self.signing.root);
        self.former.push(Former { root: before.root.clone(), until });
    }

    /// The trusted roots. The root of the signing certificate is the first one.
    fn bundle(&self) -> Arc<str> {
        let announced = self.announced.iter().map(|announced| &announced.signing.root);
        let former = self.former.iter().map(|former| &former.root);
        let all = std::iter::once(&self.signing.root).chain(&self.root.certificates).chain(announced).chain(former);
        let mut bundle: Vec<CertificateDer<'static>> = Vec::new();
        for root in all {
            if !bundle.contains(root) {
                bundle.push(root.clone());
            }
        }
        bundle_pem(&bundle).into()
    }
}

#[cfg(test)]
#[path = "rotation_tests.rs"]
mod tests;
