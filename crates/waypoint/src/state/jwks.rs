//! The keys by which issuers sign tokens: those that a RequestAuthentication holds, and those that are read from an address.
//!
//! A waypoint reads an address itself, so an address that a user names is reached from that user's own waypoint and with its
//! rights, never with the control plane's. It is read when the first token comes that needs it, and then again every few
//! minutes as long as tokens come, or at once for a key that is not among them. Only requests whose token needs the keys wait
//! for that, and no longer than the rule says.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Uri;
use leno_model::Name;
use leno_model::http::TokenKeys;
use leno_policy::http::Keys;
use leno_policy::http::token::{Token, TokenError};
use leno_tls::jwk::{Algorithm, KeySet};
use leno_tunnel::timers;
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

/// Keys that were read so long ago are read again, beside the requests.
const REFRESH: Duration = Duration::from_secs(300);

/// Keys that were read so long ago are used no more: one of them may have been withdrawn.
const KEEP: Duration = Duration::from_secs(3600);

/// An address is not read again sooner, whoever asks.
const PAUSE: Duration = Duration::from_secs(5);

/// The same after failures: the pause doubles up to this.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// An address that nobody has asked for so long is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(2 * 3600);

/// Something to be read outside of the mesh, by the control thread: names are looked up there.
pub(crate) struct Errand {
    pub(crate) uri: Uri,
    pub(crate) answer: oneshot::Sender<Result<Bytes, String>>,
}

/// All keys of a waypoint.
#[derive(Default)]
pub(crate) struct KeyStore {
    inline: Mutex<HashMap<Name, Arc<Result<KeySet, String>>>>,
    remote: Mutex<HashMap<Name, Arc<Remote>>>,
}

/// The keys at one address.
struct Remote {
    state: Mutex<State>,
    /// How often it has been read, with success or not.
    reads: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    keys: Option<(Arc<KeySet>, Instant)>,
    /// Why the last attempt failed.
    error: Option<String>,
    failures: u32,
    /// When the last attempt began.
    begun: Option<Instant>,
    running: bool,
    asked: Option<Instant>,
}

/// Inline key sets that are kept. More are a change of policies that is over.
const MOST_INLINE: usize = 256;

impl KeyStore {
    fn inline(&self, text: &Name) -> Arc<Result<KeySet, String>> {
        let mut known = self.inline.lock();
        if let Some(found) = known.get(text) {
            return found.clone();
        }
        if known.len() >= MOST_INLINE {
            known.clear();
        }
        let read = Arc::new(KeySet::parse(text.as_bytes()).map_err(|error| error.to_string()));
        known.insert(text.clone(), read.clone());
        read
    }

    fn remote(&self, uri: &Name) -> Arc<Remote> {
        let mut known = self.remote.lock();
        if let Some(found) = known.get(uri) {
            return found.clone();
        }
        known.retain(|_, remote| remote.state.lock().asked.is_some_and(|asked| asked.elapsed() < FORGOTTEN));
        let remote = Arc::new(Remote { state: Mutex::default(), reads: watch::Sender::new(0) });
        known.insert(uri.clone(), remote.clone());
        remote
    }
}

/// Looks for keys, and remembers which addresses have to be read for a better answer.
pub(crate) struct Lookup<'s> {
    store: &'s KeyStore,
    wanted: RefCell<Vec<(Name, Duration, Why)>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    /// There are no keys.
    Missing,
    /// The token names a key that is not among them.
    Unknown,
    /// They are old, and good for now.
    Old,
}

impl<'s> Lookup<'s> {
    pub(crate) fn new(store: &'s KeyStore) -> Self {
        Self { store, wanted: RefCell::default() }
    }

    /// Reads what is wanted by `fetch`, which gives the text at an address. Returns whether another look may have another result.
    /// Whose answer is `good` waits for nothing.
    pub(crate) async fn improve<F>(self, good: bool, fetch: impl Fn(Name) -> F) -> bool
    where
        F: Future<Output = Result<Bytes, String>> + Send + 'static,
    {
        let mut again = false;
        for (uri, timeout, why) in self.wanted.into_inner() {
            let remote = self.store.remote(&uri);
            let Some(mut reads) = remote.begin(&uri, (timeout, why), &fetch) else { continue };
            if good || why == Why::Old {
                continue;
            }
            again |= timers::timeout(timeout, reads.changed()).await.is_ok();
        }
        again
    }
}

impl Keys for Lookup<'_> {
    fn made(&self, keys: &TokenKeys, token: &Token<'_>) -> Result<bool, TokenError> {
        let algorithm = Algorithm::named(&token.algorithm);
        let algorithm = algorithm.ok_or_else(|| TokenError::Algorithm(token.algorithm.chars().take(32).collect()))?;
        let id = token.key.as_deref();
        let verifies = |keys: &KeySet| keys.verifies(algorithm, id, token.message, &token.signature);
        match keys {
            TokenKeys::None => {
                let why = "the RequestAuthentication names none for this issuer (jwks or jwksUri)";
                Err(TokenError::NoKeys(why.to_owned()))
            }
            TokenKeys::Inline(text) => match &*self.store.inline(text) {
                Ok(keys) => Ok(verifies(keys)),
                Err(why) => Err(TokenError::NoKeys(why.clone())),
            },
            TokenKeys::At { uri, timeout } => {
                let remote = self.store.remote(uri);
                let (keys, error) = {
                    let mut state = remote.state.lock();
                    let now = Instant::now();
                    state.asked = Some(now);
                    let fresh = state.keys.clone().filter(|(_, read)| now - *read < KEEP);
                    (fresh, state.error.clone())
                };
                let want = |why| self.wanted.borrow_mut().push((uri.clone(), *timeout, why));
                let Some((keys, read)) = keys else {
                    want(Why::Missing);
                    let why = error.unwrap_or_else(|| format!("{uri} has not answered yet"));
                    return Err(TokenError::NoKeys(why));
                };
                if id.is_some_and(|id| !keys.has(id)) {
                    want(Why::Unknown);
                } else if read.elapsed() >= REFRESH {
                    want(Why::Old);
                }
                Ok(verifies(&keys))
            }
        }
    }
}

impl Remote {
    /// Begins to read the address, unless that is under way or was done lately. Returns what tells when it is done.
    fn begin<F>(
        self: &Arc<Self>,
        uri: &Name,
        (timeout, why): (Duration, Why),
        fetch: &impl Fn(Name) -> F,
    ) -> Option<watch::Receiver<u64>>
    where
        F: Future<Output = Result<Bytes, String>> + Send + 'static,
    {
        let reads = {
            let mut state = self.state.lock();
            let reads = self.reads.subscribe();
            if state.running {
                return (why != Why::Old).then_some(reads);
            }
            let pause = (PAUSE * 2u32.saturating_pow(state.failures.min(8))).min(LONGEST_PAUSE);
            let pause = if state.failures == 0 { PAUSE } else { pause };
            if state.begun.is_some_and(|begun| begun.elapsed() < pause) {
                return None;
            }
            state.running = true;
            state.begun = Some(Instant::now());
            reads
        };
        let (this, fetching, uri) = (Running(self.clone()), fetch(uri.clone()), uri.clone());
        tokio::spawn(async move {
            let read = timers::timeout(timeout, fetching).await;
            let read = read.unwrap_or_else(|_| Err(format!("it has not answered within {timeout:?}")));
            let read = read.and_then(|text| KeySet::parse(&text).map_err(|error| error.to_string()));
            this.done(&uri, read);
        });
        Some(reads)
    }
}

/// An attempt. Dropping it ends it, however it ends.
struct Running(Arc<Remote>);

impl Running {
    fn done(&self, uri: &Name, read: Result<KeySet, String>) {
        let mut state = self.0.state.lock();
        match read {
            Ok(keys) => {
                for why in keys.skipped() {
                    tracing::debug!(%uri, why, "a key of this set is not used");
                }
                tracing::info!(%uri, "the keys of an issuer of tokens have been read");
                state.keys = Some((Arc::new(keys), Instant::now()));
                (state.error, state.failures) = (None, 0);
            }
            Err(error) => {
                tracing::warn!(%uri, error, "the keys of an issuer of tokens can't be read; its tokens are refused without them");
                state.error = Some(format!("{uri}: {error}"));
                state.failures = state.failures.saturating_add(1);
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.state.lock().running = false;
        self.0.reads.send_modify(|reads| *reads += 1);
    }
}
