//! The lab's namespace in a cluster. It has everything that a run makes.
//!
//! A run writes the time into an annotation of the namespace, again and again. By that, another run knows whether the
//! namespace is in use or was left by a lab that was killed.

use std::time::Duration;

use leno_kubernetes::{Client, Patch};
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::time::Instant;

use crate::Error;
use crate::measure::now;
use crate::run::Progress;

/// Its name.
pub(super) const NAMESPACE: &str = "leno-lab";
/// On everything of the lab's.
pub(super) const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
pub(super) const LAB: &str = "leno-lab";
/// The service account of the lab's pods.
pub(super) const ACCOUNT: &str = "lab";
/// When the run lived, RFC 3339.
const ALIVE: &str = "leno-lab/alive";
const BEAT: Duration = Duration::from_secs(10);
/// A run that was silent for longer has ended. Clocks of two machines may differ.
const SILENT: Duration = Duration::from_secs(60);
/// For a namespace with its pods to be removed.
const GONE: Duration = Duration::from_secs(180);
const LOOK: Duration = Duration::from_millis(250);

/// What a namespace of the lab's name means.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// Another run is at work, or was until so many seconds ago.
    Busy(u64),
    /// A run left it.
    Left,
    /// Somebody else's.
    Foreign,
}

impl Found {
    fn of(namespace: &Value, now: OffsetDateTime) -> Self {
        let metadata = &namespace["metadata"];
        if metadata["labels"][MANAGED_BY] != LAB {
            return Self::Foreign;
        }
        let beat = metadata["annotations"][ALIVE].as_str().and_then(|text| OffsetDateTime::parse(text, &Rfc3339).ok());
        let age = beat.map(|beat| (now - beat).abs().unsigned_abs());
        match age.filter(|age| *age < SILENT && metadata["deletionTimestamp"].is_null()) {
            Some(age) => Self::Busy(age.as_secs()),
            None => Self::Left,
        }
    }
}

/// Makes sure that there is no namespace of the lab's name.
///
/// # Errors
/// If another run uses it, or it is somebody else's.
pub(super) async fn vacate(client: &Client, progress: &mut dyn FnMut(Progress)) -> Result<(), Error> {
    let Some(namespace) = find(client).await? else { return Ok(()) };
    match Found::of(&namespace, OffsetDateTime::now_utc()) {
        Found::Busy(age) => Err(Error::Unfit(format!(
            "another lab is at work in this cluster (namespace {NAMESPACE}; it gave a sign of life {age} s ago), and both would \
             measure each other: wait until it has ended. If it was killed, `leno lab clean` removes what it left"
        ))),
        Found::Foreign => Err(foreign()),
        Found::Left => {
            let text = format!("namespace {NAMESPACE}, which an earlier lab left, is removed");
            progress(Progress::Warning { text });
            delete(client).await
        }
    }
}

/// `leno lab clean`: removes the namespace, whether or not a run uses it. Returns whether there was one.
///
/// # Errors
/// If it is somebody else's, or it can't be removed.
pub(super) async fn clean(client: &Client) -> Result<bool, Error> {
    let Some(namespace) = find(client).await? else { return Ok(false) };
    if Found::of(&namespace, OffsetDateTime::now_utc()) == Found::Foreign {
        return Err(foreign());
    }
    delete(client).await.map(|()| true)
}

fn foreign() -> Error {
    Error::Unfit(format!(
        "namespace {NAMESPACE} is not the lab's (it lacks the label {MANAGED_BY}={LAB}), and the lab needs this name; nothing was \
         changed"
    ))
}

fn path() -> String {
    format!("/api/v1/namespaces/{NAMESPACE}")
}

async fn find(client: &Client) -> Result<Option<Value>, Error> {
    client.find(&path()).await.map_err(Error::cluster(format!("cannot look for namespace {NAMESPACE}")))
}

/// Deletes it, and waits until it is gone.
async fn delete(client: &Client) -> Result<(), Error> {
    let what = || format!("cannot remove namespace {NAMESPACE} (`kubectl delete namespace {NAMESPACE}` does)");
    match client.delete(&path()).await {
        Err(error) if !error.is_not_found() && !error.is_conflict() => return Err(Error::cluster(what())(error)),
        _ => {}
    }
    let begun = Instant::now();
    while let Some(namespace) = find(client).await? {
        if begun.elapsed() > GONE {
            let conditions = namespace["status"]["conditions"].as_array().into_iter().flatten();
            let mut stuck = conditions.filter(|condition| condition["status"] == "True");
            let why =
                stuck.find_map(|condition| condition["message"].as_str()).unwrap_or("Kubernetes does not say why");
            return Err(Error::Unfit(format!("{}: after {} s it is still there: {why}", what(), GONE.as_secs())));
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}

/// The namespace of this run.
pub(super) struct Space {
    client: Client,
}

impl Space {
    /// Makes it, with the service account of its pods.
    pub(super) async fn create(client: &Client) -> Result<Self, Error> {
        let labels = json!({MANAGED_BY: LAB});
        let namespace = json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": NAMESPACE, "labels": labels, "annotations": {ALIVE: now()}},
        });
        let what = || format!("cannot make namespace {NAMESPACE}");
        client.create::<Value>("/api/v1/namespaces", &namespace).await.map_err(Error::cluster(what()))?;
        let space = Self { client: client.clone() };
        // Kubernetes makes the account `default` a moment later, and refuses pods until then.
        let account = json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": ACCOUNT, "labels": labels}, "automountServiceAccountToken": false,
        });
        let made = client.create::<Value>(&format!("{}/serviceaccounts", path()), &account).await;
        if let Err(error) = made {
            space.remove().await?;
            return Err(Error::cluster("cannot make the service account of the lab's pods")(error));
        }
        Ok(space)
    }

    /// Gives signs of life until the namespace is gone.
    pub(super) async fn keep_alive(&self) -> Error {
        loop {
            tokio::time::sleep(BEAT).await;
            let beat = json!({"metadata": {"annotations": {ALIVE: now()}}});
            match self.client.patch(&path(), Patch::Merge, &beat).await {
                Err(error) if error.is_not_found() => {
                    return Error::Unfit(format!("somebody has removed namespace {NAMESPACE} meanwhile"));
                }
                // While the API server is away, loads go on. What needs it says so.
                _ => {}
            }
        }
    }

    /// Removes it with all that it has.
    pub(super) async fn remove(self) -> Result<(), Error> {
        delete(&self.client).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(label: &str, beat: &str) -> Found {
        let at = OffsetDateTime::parse("2026-11-25T10:00:00Z", &Rfc3339).unwrap();
        let namespace = json!({"metadata": {"labels": {MANAGED_BY: label}, "annotations": {ALIVE: beat}}});
        Found::of(&namespace, at)
    }

    #[test]
    fn a_namespace_is_in_use_left_or_somebody_elses() {
        assert_eq!(found(LAB, "2026-11-25T09:59:30Z"), Found::Busy(30));
        assert_eq!(found(LAB, "2026-11-25T10:00:20Z"), Found::Busy(20), "another machine's clock");
        assert_eq!(found(LAB, "2026-11-25T09:58:59Z"), Found::Left);
        assert_eq!(found(LAB, "yesterday"), Found::Left);
        assert_eq!(found("helm", "2026-11-25T09:59:30Z"), Found::Foreign);
    }
}
