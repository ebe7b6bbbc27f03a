//! The files of an authority that are not on this machine's disk, such as those in a cluster's Secret.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tokio::sync::watch;

/// What is added to a file's name for the entry that says when it was written, in seconds since 1970.
const WRITTEN: &str = ".written";

/// The files of an authority, as `cacerts` has them, in memory. Somebody else keeps them for good: whoever opens an
/// authority with them writes down what it changes, and hands it what others changed. Clones share the files.
#[derive(Clone)]
pub struct AuthorityFiles {
    inner: Arc<Inner>,
}

struct Inner {
    name: String,
    files: Mutex<BTreeMap<String, String>>,
    /// How often the authority wrote.
    written: watch::Sender<u64>,
}

impl AuthorityFiles {
    /// These files, by name. `name` is what errors call the place where they are kept.
    pub fn new(name: impl Into<String>, files: BTreeMap<String, String>) -> Self {
        let inner = Inner { name: name.into(), files: Mutex::new(files), written: watch::Sender::new(0) };
        Self { inner: Arc::new(inner) }
    }

    /// The files as they are now.
    pub fn contents(&self) -> BTreeMap<String, String> {
        self.inner.files.lock().clone()
    }

    /// The files are others now. The authority notices at its next [`reload`](crate::CertificateAuthority::reload).
    pub fn replace(&self, files: BTreeMap<String, String>) {
        *self.inner.files.lock() = files;
    }

    /// Wakes when the authority has written a file. Several are written one after the other: wait a moment before you
    /// take them.
    pub fn written(&self) -> watch::Receiver<u64> {
        self.inner.written.subscribe()
    }

    pub(crate) fn name(&self) -> &str {
        &self.inner.name
    }

    pub(crate) fn read(&self, name: &str) -> Option<String> {
        self.inner.files.lock().get(name).cloned()
    }

    /// When the authority wrote a file; `None` if that is not known.
    pub(crate) fn written_at(&self, name: &str) -> Option<SystemTime> {
        let seconds = self.read(&format!("{name}{WRITTEN}"))?.trim().parse().ok()?;
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
    }

    pub(crate) fn write(&self, name: &str, text: &str, dated: bool) {
        {
            let mut files = self.inner.files.lock();
            files.insert(name.to_owned(), text.to_owned());
            if dated {
                let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                files.insert(format!("{name}{WRITTEN}"), now.as_secs().to_string());
            }
        }
        self.inner.written.send_modify(|count| *count += 1);
    }
}

/// Without the files, among which are keys.
impl fmt::Debug for AuthorityFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthorityFiles").field("name", &self.inner.name).finish_non_exhaustive()
    }
}
