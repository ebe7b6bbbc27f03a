//! Whose turn it is to change an installation. Of two commands at once the last would win, and nobody would be told what the
//! first had chosen.
//!
//! A command holds a Lease and renews it. It is in `default`, which every cluster has: the installation's namespace comes and
//! goes with the installation. A command that was killed renews nothing, so its Lease is free after [`LASTS`].

use std::sync::Arc;
use std::time::Duration;

use leno_kubernetes::Client;
use leno_kubernetes::now::timestamp;
use serde_json::{Value, json};
use tokio::sync::{Mutex, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::ClusterError;
use super::error::doing;

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases/leno-install";

/// How long a Lease holds without being renewed.
const LASTS: Duration = Duration::from_secs(8);
/// How often it is renewed.
const PERIOD: Duration = Duration::from_secs(2);
/// How often somebody else's is looked at.
const INTERVAL: Duration = Duration::from_millis(200);
/// A Lease is given back within this time, or expires by itself.
const GIVING_BACK: Duration = Duration::from_secs(2);

/// The turns that one process takes.
#[derive(Debug)]
pub struct Turns {
    /// What is being done and by whom, as others are told.
    who: String,
    /// Those that renew Leases and give them back.
    keepers: Arc<Mutex<JoinSet<()>>>,
}

impl Turns {
    /// Of `who`, such as "`leno upgrade` by ann@laptop, process 4711".
    pub fn of(who: impl Into<String>) -> Self {
        Self { who: who.into(), keepers: Arc::default() }
    }

    /// Does `work` while nobody else's is done. If this is dropped before it is ready, [`Turns::given_back`] tells when others
    /// may begin.
    ///
    /// # Errors
    ///
    /// Those of the work; [`ClusterError::Busy`] if another command is at it; [`ClusterError::TurnLost`] if another one took the
    /// turn, because this process stood still.
    pub async fn alone<T, E: From<ClusterError>>(
        &self,
        client: &Client,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let lease = take(client, &self.who).await?;
        // Dropped with this future, wherever that ends.
        let (holds, dropped) = oneshot::channel::<()>();
        let (lose, lost) = oneshot::channel();
        self.keepers.lock().await.spawn(keep(client.clone(), lease, dropped, lose));
        let done = tokio::select! {
            biased;
            done = work => done,
            Ok(()) = lost => Err(ClusterError::TurnLost.into()),
        };
        drop(holds);
        self.given_back().await;
        done
    }

    /// Returns once all turns are given back, or after a short time.
    pub async fn given_back(&self) {
        let mut keepers = self.keepers.lock().await;
        let all = async { while keepers.join_next().await.is_some() {} };
        // What is not given back expires.
        let _ = timeout(GIVING_BACK, all).await;
    }
}

/// Takes the Lease: at once if there is none, or once it is clear that whoever held it does not live. Clocks of other machines
/// are not believed.
async fn take(client: &Client, who: &str) -> Result<Value, ClusterError> {
    const TAKING: &str = "seeing to it that no other command changes the installation (Lease leno-install in default)";
    let mut seen: Option<(Value, Instant)> = None;
    loop {
        let found = client.find::<Value>(LEASE).await.map_err(doing(TAKING))?;
        let taken = match found {
            None => client.create::<Value>(LEASES, &lease(who, None)).await,
            Some(there) => {
                let version = &there["metadata"]["resourceVersion"];
                match &seen {
                    Some((before, _)) if before != version => return Err(busy(&there)),
                    Some((_, since)) if since.elapsed() >= lasts(&there) => {
                        client.replace::<Value>(LEASE, &lease(who, Some(version))).await
                    }
                    Some(_) => {
                        sleep(INTERVAL).await;
                        continue;
                    }
                    None => {
                        seen = Some((version.clone(), Instant::now()));
                        continue;
                    }
                }
            }
        };
        match taken {
            Ok(lease) => return Ok(lease),
            // Another one was first. What is there now is renewed, or it is free again.
            Err(error) if error.is_conflict() || error.is_not_found() => {}
            Err(error) => return Err(doing(TAKING)(error)),
        }
    }
}

/// Renews the Lease until `dropped`, and then gives it back.
async fn keep(client: Client, mut lease: Value, mut dropped: oneshot::Receiver<()>, lose: oneshot::Sender<()>) {
    loop {
        tokio::select! {
            _ = &mut dropped => break,
            () = sleep(PERIOD) => {}
        }
        lease["spec"]["renewTime"] = timestamp().into();
        match client.replace::<Value>(LEASE, &lease).await {
            Ok(renewed) => lease = renewed,
            Err(error) if error.is_conflict() || error.is_not_found() => {
                let _ = lose.send(());
                return;
            }
            // The API server is away for a moment, and nobody else can take anything there meanwhile.
            Err(_) => {}
        }
    }
    // Only the one that was held: by its version it is known whether another one has it.
    let held = client.find::<Value>(LEASE).await.ok().flatten();
    if held.is_some_and(|there| there["metadata"]["resourceVersion"] == lease["metadata"]["resourceVersion"]) {
        // What is not given back expires.
        let _ = client.delete(LEASE).await;
    }
}

fn lease(who: &str, version: Option<&Value>) -> Value {
    let now = timestamp();
    let mut lease = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "leno-install", "namespace": "default", "labels": {"app.kubernetes.io/part-of": "leno"}},
        "spec": {
            "holderIdentity": who,
            "leaseDurationSeconds": LASTS.as_secs(),
            "acquireTime": now,
            "renewTime": now,
        },
    });
    if let Some(version) = version {
        lease["metadata"]["resourceVersion"] = version.clone();
    }
    lease
}

/// How long this one holds. No version of this program makes one that keeps others away for long.
fn lasts(lease: &Value) -> Duration {
    lease["spec"]["leaseDurationSeconds"].as_u64().map_or(LASTS, Duration::from_secs).min(4 * LASTS)
}

fn busy(lease: &Value) -> ClusterError {
    let text = |field: &str, unknown: &str| lease["spec"][field].as_str().unwrap_or(unknown).to_owned();
    ClusterError::Busy { who: text("holderIdentity", "another command"), since: text("acquireTime", "an unknown time") }
}

#[cfg(test)]
#[path = "turn_tests.rs"]
mod tests;
