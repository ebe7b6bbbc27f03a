//! The mesh's certificate authority in a cluster: its files are a Secret, shared by all replicas of the control plane.
//!
//! The Secret `leno-ca` is made by whichever replica comes first. If there is a Secret `cacerts`, as people make it for
//! Istio or as cert-manager writes it, its authority is used instead, and `leno-ca` holds only what must outlive a restart
//! during a change of roots. The roots that proxies trust are published in the ConfigMap `leno-ca-root`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use leno_telemetry::ReadyTask;
use leno_tls::{AuthorityFiles, CaOptions, CertificateAuthority};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::backoff::Backoff;
use crate::named::Named;
use crate::{Client, Error};

/// The Secret that this control plane makes.
pub(crate) const SECRET: &str = "leno-ca";
/// The Secret in which users bring their own authority.
pub(crate) const USERS_SECRET: &str = "cacerts";
/// The ConfigMap of the roots that proxies trust.
pub(crate) const ROOTS: &str = "leno-ca-root";
/// The key of the roots in [`ROOTS`], PEM.
pub(crate) const ROOTS_KEY: &str = "root-cert.pem";

/// What is of the authority itself. All other files say how far a change of roots has come.
const CONFIGURED: [&str; 5] = ["root-cert.pem", "root-key.pem", "ca-cert.pem", "ca-key.pem", "cert-chain.pem"];
/// The authority writes several files one after the other.
const SETTLE: Duration = Duration::from_millis(500);
/// How long a failed write waits.
const PAUSE: Duration = Duration::from_secs(2);

/// Why the authority can't be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthorityError {
    /// What the Secret holds can't be used.
    #[error("{0}; see the Secrets {SECRET} and {USERS_SECRET}")]
    Contents(#[from] leno_tls::Error),
    /// The user's Secret lacks something.
    #[error(
        "the Secret {USERS_SECRET} has no {0}; it must have ca-cert.pem, ca-key.pem, root-cert.pem and cert-chain.pem, or tls.crt, tls.key and ca.crt"
    )]
    Incomplete(&'static str),
}

impl AuthorityError {
    /// Whether the same can succeed later without a change of the Secrets.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Contents(error) => error.is_retryable(),
            Self::Incomplete(_) => false,
        }
    }
}

type Files = BTreeMap<String, String>;

/// The authority whose files are in Secrets.
#[derive(Debug)]
pub struct ClusterAuthority {
    client: Client,
    namespace: String,
    files: AuthorityFiles,
    authority: Arc<CertificateAuthority>,
    seen: Mutex<Seen>,
}

/// What the Secrets held when they were read last.
#[derive(Default)]
struct Seen {
    own: Option<Files>,
    users: Option<Files>,
    /// What the authority had written when its Secret was written last, as [`AuthorityFiles::written`] counts.
    kept: u64,
}

impl std::fmt::Debug for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seen").field("own", &self.own.is_some()).field("users", &self.users.is_some()).finish()
    }
}

impl ClusterAuthority {
    /// Opens the authority of the control plane in `namespace`, or makes it. Waits while the API server can't be asked,
    /// and says so to `ready`.
    ///
    /// # Errors
    /// If what the Secrets hold can't be used.
    pub async fn open(
        client: Client,
        namespace: &str,
        trust_domain: &str,
        options: CaOptions,
        mut ready: ReadyTask,
    ) -> Result<Self, AuthorityError> {
        let mut backoff = Backoff::new();
        loop {
            let error = match Self::attempt(&client, namespace, trust_domain, &options).await? {
                Ok(authority) => {
                    ready.ready();
                    return Ok(authority);
                }
                // Another replica was first: its authority is everybody's.
                Err(error) if error.is_conflict() => continue,
                Err(error) => error,
            };
            ready.not_ready(error.to_string());
            if backoff.failures() == 0 {
                tracing::warn!("the certificate authority can't be read or made, so nothing is served yet: {error}");
            }
            sleep(backoff.wait(error.retry_after())).await;
        }
    }

    async fn attempt(
        client: &Client,
        namespace: &str,
        trust_domain: &str,
        options: &CaOptions,
    ) -> Result<Result<Self, Error>, AuthorityError> {
        let read = async |name: &str| Named::secret(namespace, name).get(client).await;
        let (own, users) = match (read(SECRET).await, read(USERS_SECRET).await) {
            (Ok(own), Ok(users)) => (own, users),
            (Err(error), _) | (_, Err(error)) => return Ok(Err(error)),
        };
        let own = own.as_ref().map(data);
        let users = users.as_ref().map(|secret| as_istio(data(secret))).transpose()?;
        let name = if users.is_some() { USERS_SECRET } else { SECRET };
        let files = AuthorityFiles::new(format!("Secret {namespace}/{name}"), together(own.as_ref(), users.as_ref()));
        let authority = CertificateAuthority::open_elsewhere(files.clone(), trust_domain, options.clone())?;
        let missing = own.is_none();
        // A Secret that exists may lack what opening has changed.
        let kept = if missing { *files.written().borrow() } else { 0 };
        let seen = Mutex::new(Seen { own, users, kept });
        let opened = Self {
            client: client.clone(),
            namespace: namespace.to_owned(),
            files,
            authority: Arc::new(authority),
            seen,
        };
        Ok(if missing { opened.create().await.map(|()| opened) } else { Ok(opened) })
    }

    /// The authority.
    pub fn authority(&self) -> &Arc<CertificateAuthority> {
        &self.authority
    }

    /// Keeps Secrets, authority and ConfigMap in agreement. Writes only while `leads` says that this replica does. Never
    /// returns.
    ///
    /// The authority looks at its files by itself, if [`leno_control::roots::follow`] runs.
    pub async fn run(&self, leads: watch::Receiver<bool>) {
        tokio::join!(
            self.follow_own(&leads),
            self.follow_users(&leads),
            self.write_back(leads.clone()),
            self.publish_roots(leads.clone())
        );
    }

    async fn follow_own(&self, leads: &watch::Receiver<bool>) {
        let secret = Named::secret(&self.namespace, SECRET);
        let each = async |object: Option<Value>| match object {
            Some(object) => {
                self.seen.lock().own = Some(data(&object));
                self.take(*leads.borrow());
            }
            None => {
                tracing::warn!("the Secret {}/{SECRET} is gone; it is made again", self.namespace);
                if let Err(error) = self.create().await
                    && !error.is_conflict()
                {
                    tracing::warn!(
                        "the Secret {SECRET} can't be made again, and must not be missing when this program restarts: {error}"
                    );
                }
            }
        };
        secret.follow(&self.client, each).await;
    }

    async fn follow_users(&self, leads: &watch::Receiver<bool>) {
        let secret = Named::secret(&self.namespace, USERS_SECRET);
        let each = async |object: Option<Value>| match object.map(|object| as_istio(data(&object))).transpose() {
            Ok(Some(files)) => {
                self.seen.lock().users = Some(files);
                self.take(*leads.borrow());
            }
            // Mostly a slip, or about to be replaced.
            Ok(None) if self.seen.lock().users.is_some() => {
                tracing::warn!("the Secret {USERS_SECRET} is gone; what it held goes on until this program restarts");
            }
            Ok(None) => {}
            Err(error) => tracing::warn!("{error}; what was read before goes on"),
        };
        secret.follow(&self.client, each).await;
    }

    /// Hands the authority what the Secrets hold. What it has changed itself and this replica is about to write down is
    /// not overwritten.
    fn take(&self, leads: bool) {
        let seen = self.seen.lock();
        let mut files = together(seen.own.as_ref(), seen.users.as_ref());
        if *self.files.written().borrow() != seen.kept {
            let ours = self.files.contents().into_iter();
            let from_user = seen.users.is_some();
            files.extend(ours.filter(|(name, _)| !CONFIGURED.contains(&name.as_str()) || (leads && !from_user)));
        }
        self.files.replace(files);
    }

    /// Makes the Secret.
    async fn create(&self) -> Result<(), Error> {
        let secret = Named::secret(&self.namespace, SECRET);
        let object = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": {"name": SECRET, "labels": {"app.kubernetes.io/part-of": "leno"}},
            "data": encoded(&self.to_keep(None)),
        });
        self.client.create::<Value>(&secret.collection, &object).await.map(drop)
    }

    /// What the Secret should hold, given what it holds.
    fn to_keep(&self, held: Option<&Files>) -> Files {
        let from_user = self.seen.lock().users.is_some();
        let now = self.files.contents();
        let mut out = held.cloned().unwrap_or_default();
        // Somebody else's new root is not overwritten: this replica is about to hear of it.
        let same_root = held.is_none_or(|held| held.get("root-cert.pem") == now.get("root-cert.pem"));
        for (name, text) in now {
            let configured = CONFIGURED.contains(&name.as_str());
            if !configured || (!from_user && same_root) {
                out.insert(name, text);
            }
        }
        out
    }

    /// Writes down what the authority changes.
    async fn write_back(&self, mut leads: watch::Receiver<bool>) {
        let mut written = self.files.written();
        // What it changed when it was opened.
        written.mark_changed();
        loop {
            // The senders live as long as this.
            if leads.wait_for(|leads| *leads).await.is_err() || written.changed().await.is_err() {
                return std::future::pending().await;
            }
            sleep(SETTLE).await;
            written.mark_unchanged();
            while let Err(error) = self.keep().await {
                if !*leads.borrow() {
                    break;
                }
                if !error.is_conflict() {
                    tracing::warn!(
                        "what the certificate authority changed can't be written to the Secret {SECRET} yet: {error}"
                    );
                }
                sleep(PAUSE).await;
            }
        }
    }

    async fn keep(&self) -> Result<(), Error> {
        let secret = Named::secret(&self.namespace, SECRET);
        let written = *self.files.written().borrow();
        let Some(mut object) = secret.get(&self.client).await? else { return self.create().await };
        let held = data(&object);
        let wanted = self.to_keep(Some(&held));
        if wanted != held {
            object["data"] = encoded(&wanted);
            self.client.replace::<Value>(&secret.path(), &object).await?;
        }
        {
            let mut seen = self.seen.lock();
            seen.own = Some(wanted);
            seen.kept = written;
        }
        // Another root may have come from somebody else meanwhile.
        self.take(true);
        Ok(())
    }

    /// Publishes the trusted roots, and puts them back if somebody changes them.
    async fn publish_roots(&self, leads: watch::Receiver<bool>) {
        let map = Named::config_map(&self.namespace, ROOTS);
        let mut trust = self.authority.trust();
        let mut may = leads.clone();
        let on_change = async {
            loop {
                trust.mark_unchanged();
                if *may.borrow_and_update()
                    && let Err(error) = self.publish(&map, map.get(&self.client).await).await
                {
                    tracing::warn!("the roots can't be written to the ConfigMap {ROOTS} yet: {error}");
                    sleep(PAUSE).await;
                    continue;
                }
                tokio::select! {
                    _ = trust.changed() => {}
                    _ = may.changed() => {}
                }
            }
        };
        let each = async |object: Option<Value>| {
            if *leads.borrow()
                && let Err(error) = self.publish(&map, Ok(object)).await
            {
                tracing::debug!("the ConfigMap {ROOTS} can't be put back yet: {error}");
            }
        };
        tokio::join!(on_change, map.follow(&self.client, each));
    }

    async fn publish(&self, map: &Named, held: Result<Option<Value>, Error>) -> Result<(), Error> {
        let roots = self.authority.root_pem();
        let written = match held? {
            Some(object) if object["data"][ROOTS_KEY].as_str() == Some(&roots) => return Ok(()),
            Some(mut object) => {
                object["data"][ROOTS_KEY] = roots.into();
                self.client.replace::<Value>(&map.path(), &object).await
            }
            None => {
                let object = json!({
                    "apiVersion": "v1", "kind": "ConfigMap",
                    "metadata": {"name": ROOTS, "labels": {"app.kubernetes.io/part-of": "leno"}},
                    "data": {ROOTS_KEY: roots},
                });
                self.client.create::<Value>(&map.collection, &object).await
            }
        };
        match written {
            // It has just been changed, and the next look follows.
            Err(error) if error.is_conflict() => Ok(()),
            other => other.map(drop),
        }
    }
}

/// The files of a Secret. What is not text is no file of an authority.
fn data(secret: &Value) -> Files {
    let entries = secret["data"].as_object().into_iter().flatten();
    let decoded = entries.filter_map(|(name, value)| {
        let bytes = STANDARD.decode(value.as_str()?).ok()?;
        Some((name.clone(), String::from_utf8(bytes).ok()?))
    });
    decoded.collect()
}

fn encoded(files: &Files) -> Value {
    files
        .iter()
        .map(|(name, text)| (name.clone(), Value::from(STANDARD.encode(text))))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// The files of the user's Secret, in Istio's layout. cert-manager has names of its own.
fn as_istio(mut files: Files) -> Result<Files, AuthorityError> {
    let mut rename = |from: &str, to: &str| {
        if !files.contains_key(to)
            && let Some(text) = files.get(from).cloned()
        {
            files.insert(to.to_owned(), text);
        }
    };
    // Of cert-manager's tls.crt, the first certificate signs, and the rest leads to the root.
    for (from, to) in [
        ("tls.crt", "ca-cert.pem"),
        ("tls.crt", "cert-chain.pem"),
        ("tls.key", "ca-key.pem"),
        ("ca.crt", "root-cert.pem"),
    ] {
        rename(from, to);
    }
    for needed in ["ca-cert.pem", "ca-key.pem", "root-cert.pem"] {
        if !files.contains_key(needed) {
            return Err(AuthorityError::Incomplete(needed));
        }
    }
    files.retain(|name, _| CONFIGURED.contains(&name.as_str()));
    Ok(files)
}

/// What the authority works with.
fn together(own: Option<&Files>, users: Option<&Files>) -> Files {
    let mut out = own.cloned().unwrap_or_default();
    if let Some(users) = users {
        out.retain(|name, _| !CONFIGURED.contains(&name.as_str()));
        out.extend(users.clone());
    }
    out
}

#[cfg(test)]
#[path = "authority_tests.rs"]
mod tests;
