//! Follows one object by its name.

use std::time::Duration;

use bytes::BytesMut;
use http_body_util::BodyExt;
use serde_json::Value;
use tokio::time::{sleep, timeout};

use crate::backoff::Backoff;
use crate::lines::Lines;
use crate::{Client, Error};

/// Seconds after which the API server ends a watch.
const WATCH: u64 = 290;
/// A watch without a sign of life for this long is dead.
const SILENCE: Duration = Duration::from_secs(150);
/// The shortest time between two looks at the object, so that a watch that does not work costs little.
const PAUSE: Duration = Duration::from_secs(1);

/// An object of a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named {
    /// Path of the objects of its kind in its namespace.
    pub(crate) collection: String,
    pub(crate) name: String,
}

impl Named {
    pub(crate) fn secret(namespace: &str, name: &str) -> Self {
        Self { collection: format!("/api/v1/namespaces/{namespace}/secrets"), name: name.to_owned() }
    }

    pub(crate) fn config_map(namespace: &str, name: &str) -> Self {
        Self { collection: format!("/api/v1/namespaces/{namespace}/configmaps"), name: name.to_owned() }
    }

    pub(crate) fn lease(namespace: &str, name: &str) -> Self {
        Self {
            collection: format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"),
            name: name.to_owned(),
        }
    }

    pub(crate) fn path(&self) -> String {
        format!("{}/{}", self.collection, self.name)
    }

    /// The object as it is now; `None` if there is none.
    pub(crate) async fn get(&self, client: &Client) -> Result<Option<Value>, Error> {
        client.find(&self.path()).await
    }

    /// Waits until the object may have changed since `version`; without a version, until it may be there. Whoever calls
    /// this in a loop looks at the object after each return.
    async fn changed(&self, client: &Client, version: Option<&str>) -> Result<(), Error> {
        let mut path = format!(
            "{}?watch=1&allowWatchBookmarks=true&timeoutSeconds={WATCH}&fieldSelector=metadata.name%3D{}",
            self.collection, self.name
        );
        if let Some(version) = version {
            path.push_str("&resourceVersion=");
            path.push_str(version);
        }
        let mut body = client.stream(&path).await?;
        let mut lines = Lines::default();
        // Any event but a bookmark is a reason to look.
        while let Ok(Some(frame)) = timeout(SILENCE, body.frame()).await {
            lines.push(&frame.map_err(|error| client.unreachable(error))?.into_data().unwrap_or_default());
            while let Some(line) = lines.next() {
                if !is_bookmark(&line) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Calls `each` with the object as it is, now and whenever it may have changed. Never returns.
    pub(crate) async fn follow(&self, client: &Client, mut each: impl AsyncFnMut(Option<Value>)) {
        let mut backoff = Backoff::new();
        loop {
            let looked = async {
                let object = self.get(client).await?;
                let version = object.as_ref().and_then(|object| object["metadata"]["resourceVersion"].as_str());
                let version = version.map(str::to_owned);
                each(object).await;
                backoff.reset();
                self.changed(client, version.as_deref()).await
            };
            match looked.await {
                Ok(()) => sleep(PAUSE).await,
                Err(error) if error.is_expired() => sleep(PAUSE).await,
                Err(error) => {
                    if backoff.failures() == 0 {
                        tracing::warn!("{} can't be followed, what is known of it stays: {error}", self.path());
                    }
                    sleep(backoff.wait(error.retry_after())).await;
                }
            }
        }
    }
}

fn is_bookmark(line: &BytesMut) -> bool {
    #[derive(serde::Deserialize)]
    struct Kind<'a> {
        r#type: &'a str,
    }
    serde_json::from_slice::<Kind<'_>>(line).is_ok_and(|event| event.r#type == "BOOKMARK")
}
