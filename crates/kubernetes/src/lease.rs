//! Which of several control planes writes.
//!
//! Every replica serves. Only one writes to the API server, or they would overwrite each other: the one whose name is in
//! the Lease. It renews the Lease; if it does not for long enough, another takes it.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::named::Named;
use crate::now::timestamp;
use crate::{Client, Error};

/// The Lease's name.
pub(crate) const LEASE: &str = "leno-control";

/// How long the Lease holds without being renewed.
const DURATION: Duration = Duration::from_secs(15);
/// How often it is renewed, and how often the others look at it.
const PERIOD: Duration = Duration::from_secs(4);
/// Who could not renew it for this long stops writing, before another may begin.
const DEADLINE: Duration = Duration::from_secs(10);

/// Takes part in the election of who writes.
#[derive(Debug)]
pub struct Candidate {
    client: Client,
    lease: Named,
    /// Its name. Replicas have different ones.
    identity: String,
    leads: watch::Sender<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    holder_identity: Option<String>,
    lease_duration_seconds: Option<u64>,
    acquire_time: Option<String>,
    renew_time: Option<String>,
    lease_transitions: Option<u64>,
}

/// The Lease as it was seen last, and since when. Clocks of other machines are not believed.
struct Seen {
    spec: Spec,
    since: Instant,
}

impl Candidate {
    /// A candidate called `identity`, such as the pod's name, for the Lease of `namespace`.
    pub fn new(client: Client, namespace: &str, identity: impl Into<String>) -> Self {
        let identity = identity.into();
        Self { client, lease: Named::lease(namespace, LEASE), identity, leads: watch::Sender::new(false) }
    }

    /// Whether this one writes.
    pub fn leads(&self) -> watch::Receiver<bool> {
        self.leads.subscribe()
    }

    /// Takes part. Never returns.
    pub async fn run(&self) {
        let mut seen: Option<Seen> = None;
        let mut renewed: Option<Instant> = None;
        let mut failing = false;
        loop {
            match self.attempt(&mut seen).await {
                Ok(true) => {
                    renewed = Some(Instant::now());
                    failing = false;
                    self.set(true);
                }
                Ok(false) => {
                    renewed = None;
                    failing = false;
                    self.set(false);
                }
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!("the Lease {LEASE} can't be renewed or taken: {error}");
                    }
                    if renewed.is_none_or(|at| at.elapsed() + PERIOD >= DEADLINE) {
                        self.set(false);
                    }
                }
            }
            sleep(PERIOD.mul_f64(rand::random_range(0.9..1.1))).await;
        }
    }

    fn set(&self, leads: bool) {
        let changed = self.leads.send_if_modified(|before| std::mem::replace(before, leads) != leads);
        if changed {
            tracing::info!(leads, "{}", if leads { "this replica writes" } else { "another replica writes" });
        }
    }

    /// Renews the Lease, or takes it if it is free. Returns whether it is held.
    async fn attempt(&self, seen: &mut Option<Seen>) -> Result<bool, Error> {
        let now = timestamp();
        let Some(mut lease) = self.lease.get(&self.client).await? else {
            let spec = self.spec(&now, &now, 0);
            let lease = json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": {"name": LEASE}, "spec": spec,
            });
            return held(self.client.create::<Value>(&self.lease.collection, &lease).await);
        };
        let spec: Spec = serde_json::from_value(lease["spec"].take()).unwrap_or_default();
        let since = match seen {
            Some(before) if before.spec == spec => before.since,
            _ => {
                *seen = Some(Seen { spec: spec.clone(), since: Instant::now() });
                Instant::now()
            }
        };
        let holder = spec.holder_identity.as_deref().filter(|holder| !holder.is_empty());
        let transitions = spec.lease_transitions.unwrap_or_default();
        let acquired = spec.acquire_time.as_deref().unwrap_or(&now);
        let duration = spec.lease_duration_seconds.map_or(DURATION, Duration::from_secs);
        let next = match holder {
            Some(holder) if holder == self.identity => self.spec(acquired, &now, transitions),
            Some(_) if since.elapsed() < duration => return Ok(false),
            _ => self.spec(&now, &now, transitions + 1),
        };
        // With the version that was read: of two who want it, one fails.
        lease["spec"] = json!(next);
        held(self.client.replace::<Value>(&self.lease.path(), &lease).await)
    }

    /// Gives the Lease back, so that another need not wait until it expires.
    pub async fn resign(&self) {
        if !*self.leads.borrow() {
            return;
        }
        self.set(false);
        let resigned = async {
            let Some(mut lease) = self.lease.get(&self.client).await? else { return Ok(()) };
            if lease["spec"]["holderIdentity"].as_str() == Some(&self.identity) {
                lease["spec"]["holderIdentity"] = "".into();
                self.client.replace::<Value>(&self.lease.path(), &lease).await?;
            }
            Ok::<_, Error>(())
        };
        if let Err(error) = resigned.await {
            tracing::debug!("the Lease {LEASE} is not given back, it expires by itself: {error}");
        }
    }

    fn spec(&self, acquired: &str, renewed: &str, transitions: u64) -> Spec {
        Spec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(DURATION.as_secs()),
            acquire_time: Some(acquired.to_owned()),
            renew_time: Some(renewed.to_owned()),
            lease_transitions: Some(transitions),
        }
    }
}

/// A conflict means that another one was first.
fn held(written: Result<Value, Error>) -> Result<bool, Error> {
    match written {
        Ok(_) => Ok(true),
        Err(error) if error.is_conflict() => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
#[path = "lease_tests.rs"]
mod tests;
