//! Gateways of a cluster: what a waypoint consists of is made, and what became of each is written into its status.
//!
//! One replica does both, the one that leads.

mod parts;
mod written;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use leno_control::Controller;
use leno_control::gateway_status::{self, Status};
use leno_objects::{Gateway, GatewayClass, Kind, Object, ObjectKey, ObjectStore, WAYPOINT_CLASS};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use crate::resource::Resource;
use crate::{Client, Error, Patch};

/// How long changes are gathered before anything is written.
const PAUSE: Duration = Duration::from_millis(200);
/// How often the parts of waypoints are made sure of, in case somebody removed one.
const AGAIN: Duration = Duration::from_secs(60);
/// How soon what failed is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// Where the parts of a waypoint come from.
#[derive(Debug, Clone)]
pub struct WaypointTemplate {
    /// A YAML list of objects. It is read again whenever parts are made, because an upgrade changes it.
    pub file: PathBuf,
    /// The mesh's root certificates, a PEM bundle.
    pub roots: watch::Receiver<Arc<str>>,
}

/// Makes waypoints and tells what became of Gateways.
#[derive(Debug)]
pub struct GatewayKeeper {
    client: Client,
    controller: Controller,
    /// `None` if somebody else makes waypoints.
    template: Option<WaypointTemplate>,
    told: BTreeMap<ObjectKey, (Status, Arc<Object>)>,
    /// What was made for each Gateway, and when.
    made: BTreeMap<ObjectKey, (Vec<Value>, Instant)>,
    /// Why the parts of a Gateway could not be made.
    failed: BTreeMap<ObjectKey, String>,
}

impl GatewayKeeper {
    /// A keeper of what `controller` knows. Without a template it makes nothing, and only tells.
    pub fn new(client: Client, controller: Controller, template: Option<WaypointTemplate>) -> Self {
        let (told, made, failed) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { client, controller, template, told, made, failed }
    }

    /// Works while `leads` says that this replica does. Never returns.
    pub async fn run(mut self, mut leads: watch::Receiver<bool>) {
        self.controller.ready().await;
        let mut applied = self.controller.applied();
        loop {
            if !*leads.borrow_and_update() {
                // Whoever writes meanwhile may write something else.
                (self.told, self.made) = (BTreeMap::new(), BTreeMap::new());
                if leads.wait_for(|leads| *leads).await.is_err() {
                    return std::future::pending().await;
                }
            }
            applied.mark_unchanged();
            let sound = self.pass().await;
            let next = Instant::now() + if sound { AGAIN } else { RETRY };
            tokio::select! {
                _ = applied.changed() => sleep(PAUSE).await,
                _ = leads.changed() => {}
                () = sleep_until(next) => {}
            }
        }
    }

    /// Looks at all Gateways once. Returns whether all that was to be written is.
    async fn pass(&mut self) -> bool {
        let known = self.controller.known_of_gateways();
        let store = known.store();
        let mut sound = self.make_class(store).await;
        let objects: Vec<Arc<Object>> =
            gateway_status::KINDS.iter().flat_map(|kind| store.of_kind(*kind)).cloned().collect();
        let there: Vec<ObjectKey> = objects.iter().map(|object| object.key()).collect();
        self.told.retain(|key, _| there.contains(key));
        self.made.retain(|key, _| there.contains(key));
        self.failed.retain(|key, _| there.contains(key));
        for object in objects {
            let key = object.key();
            if let Some(gateway) = Gateway::of(&object) {
                let class = GatewayClass::get(store, "", &gateway.spec.gateway_class_name);
                let deleted = gateway.metadata.deletion_timestamp.is_some();
                if gateway.is_waypoint(class) && gateway_status::refusal(gateway, class).is_none() && !deleted {
                    match self.make(&key, gateway).await {
                        Ok(()) => drop(self.failed.remove(&key)),
                        Err(why) => {
                            if self.failed.get(&key) != Some(&why) {
                                tracing::warn!("{key}: the waypoint can't be made: {why}");
                            }
                            self.failed.insert(key.clone(), why);
                            sound = false;
                        }
                    }
                }
            }
            let Some(mut status) = gateway_status::of_object(&known, &object) else { continue };
            if let (Status::Gateway(status), Some(why)) = (&mut status, self.failed.get(&key)) {
                status.cannot_be_made(why);
            }
            if self.told.get(&key).is_some_and(|(told, about)| *told == status && **about == *object) {
                continue;
            }
            match self.tell(&key, &status).await {
                Ok(()) => drop(self.told.insert(key, (status, object))),
                Err(error) if error.is_not_found() => {}
                Err(error) => {
                    tracing::debug!("{key}: its status can't be written yet: {error}");
                    sound = false;
                }
            }
        }
        sound
    }

    /// Makes the class of waypoints where nobody has one of that name. Returns whether nothing is left to do.
    async fn make_class(&self, store: &ObjectStore) -> bool {
        if self.template.is_none() || GatewayClass::get(store, "", WAYPOINT_CLASS).is_some() {
            return true;
        }
        for resource in Resource::versions(Kind::GatewayClass) {
            match self.client.create::<Value>(&resource.path(), &parts::class(resource.version)).await {
                Ok(_) => return true,
                // The definition may be an older one, or not there.
                Err(error) if error.is_not_found() => {}
                // It is on its way to us.
                Err(error) if error.is_conflict() => return true,
                Err(error) => {
                    tracing::debug!("the GatewayClass {WAYPOINT_CLASS} can't be made yet: {error}");
                    return false;
                }
            }
        }
        true
    }

    async fn make(&mut self, key: &ObjectKey, gateway: &Gateway) -> Result<(), String> {
        let Some(template) = &self.template else { return Ok(()) };
        let text = std::fs::read_to_string(&template.file)
            .map_err(|error| format!("its template {} can't be read: {error}", template.file.display()))?;
        let roots = template.roots.borrow().clone();
        let parts = parts::parts(&text, gateway, &roots)?;
        let fresh = |(made, at): &(Vec<Value>, Instant)| *made == parts && at.elapsed() < AGAIN;
        if self.made.get(key).is_some_and(fresh) {
            return Ok(());
        }
        for part in &parts {
            self.apply(gateway, part).await?;
        }
        self.made.insert(key.clone(), (parts, Instant::now()));
        Ok(())
    }

    /// Writes one part, unless something else has its name.
    async fn apply(&self, gateway: &Gateway, part: &Value) -> Result<(), String> {
        let path = parts::path(part)?;
        let before: Option<Value> = self.client.find(&path).await.map_err(|error| error.to_string())?;
        if before.is_some_and(|before| !parts::is_owned(&before, gateway)) {
            let kind = part["kind"].as_str().unwrap_or_default();
            return Err(format!(
                "there is a {kind} of that name which is not the waypoint's; rename the Gateway, or remove the {kind}"
            ));
        }
        let path = format!("{path}?fieldManager=leno-waypoint&force=true");
        self.client.patch(&path, Patch::Apply, part).await.map_err(|error| error.to_string())
    }

    async fn tell(&self, key: &ObjectKey, status: &Status) -> Result<(), Error> {
        let mut last = None;
        for resource in Resource::versions(key.kind) {
            let path = resource.object(key);
            let object: Value = match self.client.get(&path).await {
                Ok(object) => object,
                Err(error) if error.is_not_found() => {
                    last = Some(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let Some(patch) = written::patch(&object, status) else { return Ok(()) };
            return self.client.patch(&format!("{path}/status"), Patch::Merge, &patch).await;
        }
        last.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
#[path = "gateways_tests.rs"]
mod tests;
