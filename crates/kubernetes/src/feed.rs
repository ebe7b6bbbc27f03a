//! The objects of a cluster, as a feed of a control plane.

use std::sync::Arc;

use futures_util::future::{join_all, try_join_all};
use leno_control::{Controller, Feed};
use leno_objects::{Change, Kind, Object, ObjectKey};
use leno_telemetry::{Readiness, ReadyTask};

use crate::reflector::{Reflector, Sink};
use crate::resource::KINDS;
use crate::{Client, Error};

/// Brings the objects of a cluster to a control plane.
#[derive(Debug)]
pub struct ClusterFeed {
    client: Client,
    controller: Controller,
    feed: Feed,
    ready: Vec<(Kind, ReadyTask)>,
}

impl ClusterFeed {
    /// Announces the [`KINDS`] to `controller`. Each keeps `readiness` waiting until all its objects have come.
    pub fn announce(client: Client, controller: Controller, readiness: &Readiness) -> Self {
        let feed = Feed::announce(controller.clone(), KINDS);
        let ready = KINDS.iter().map(|kind| {
            let mut task = readiness.task(format!("list of {}", kind.plural()));
            task.not_ready("the API server has not answered yet");
            (*kind, task)
        });
        let ready = ready.collect();
        Self { client, controller, feed, ready }
    }

    /// Follows the cluster. Never returns.
    ///
    /// What the API server tells is read on the caller's thread.
    pub async fn run(self) {
        let Self { client, controller, feed, ready } = self;
        let sink = Plane { controller, feed };
        let each = ready.into_iter().map(|(kind, ready)| Reflector::new(&client, &sink, kind, ready).run());
        join_all(each).await;
    }
}

/// Brings the objects of a cluster to a controller once, as they are now, and publishes them there.
///
/// # Errors
/// If the API server can't be reached, or whoever asks may not list one of the [`KINDS`]. Nothing is tried again.
pub async fn read_objects(client: &Client, controller: &Controller) -> Result<(), Error> {
    let feed = Feed::announce(controller.clone(), KINDS);
    let sink = Plane { controller: controller.clone(), feed };
    let readiness = Readiness::default();
    let each = KINDS.iter().map(|kind| Reflector::new(client, &sink, *kind, readiness.task(kind.plural())).list_once());
    try_join_all(each).await?;
    controller.publish();
    Ok(())
}

/// A control plane takes in the objects.
struct Plane {
    controller: Controller,
    feed: Feed,
}

impl Sink for Plane {
    /// Of objects that did not change, what is known already is kept, so that a list costs no second copy of everything.
    fn page(&self, objects: Vec<Object>, first: bool) -> Vec<Arc<Object>> {
        if !first {
            return self.controller.with_store(|store| {
                let kept = objects.into_iter().map(|object| match store.get(&object.key()) {
                    Some(held) if **held == object => held.clone(),
                    _ => Arc::new(object),
                });
                kept.collect()
            });
        }
        // Nothing is published yet, so the first list need not be taken in as a whole. In the store, its objects
        // share their equal parts.
        let keys: Vec<ObjectKey> = objects.iter().map(Object::key).collect();
        self.feed.apply(objects.into_iter().map(Change::upsert));
        self.controller.with_store(|store| keys.iter().filter_map(|key| store.get(key)).cloned().collect())
    }

    fn complete(&self, kind: Kind, all: Vec<Arc<Object>>) {
        self.feed.list(kind, all);
    }

    fn changed(&self, changes: Vec<Change>) {
        self.feed.apply(changes);
    }

    fn holds(&self, kind: Kind) -> bool {
        self.controller.with_store(|store| store.of_kind(kind).next().is_some())
    }
}
