//! All proxies.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leno_tls::{ControlConnector, RootSource};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::mesh::Mesh;
use super::phase::Shape;
use super::plane::Plane;
use super::proxy::{self, Shared, Told};
use super::state::{Held, Names, Watched};
use crate::Error;

/// How often it is looked whether all have seen what they should.
const LOOK: Duration = Duration::from_millis(5);

/// The proxies, connected or not. Dropping it ends them.
pub(super) struct Crowd {
    shape: Shape,
    held: Arc<Vec<Mutex<Held>>>,
    watched: Arc<Watched>,
    shared: Option<Arc<Shared>>,
    tasks: JoinSet<String>,
}

impl Crowd {
    /// Proxies that will know `mesh`. None is connected yet.
    pub(super) fn new(shape: Shape, mesh: &Mesh) -> Self {
        let names = Arc::new(Names::new(mesh.services().chain(mesh.workloads().into_keys()).collect()));
        let watched = Arc::new(Watched::default());
        let held = |number| Mutex::new(Held::new(names.clone(), watched.clone(), mesh.resources(), number == 0));
        let held = Arc::new((0..shape.proxies).map(held).collect());
        Self { shape, held, watched, shared: None, tasks: JoinSet::new() }
    }

    /// Connects all, and waits until each is in sync and has seen as many changes as were `missed`.
    pub(super) async fn come(
        &mut self,
        plane: &Plane,
        told: Option<Told>,
        missed: usize,
        patience: Duration,
    ) -> Result<(), Error> {
        let (address, root) = plane.listening()?;
        let (there, mut coming) = watch::channel(0);
        let shared = Arc::new(Shared {
            address,
            connector: ControlConnector::new(RootSource::Pem(root)),
            tokens: plane.tokens().to_vec(),
            places: Semaphore::new(self.shape.arriving.max(1)),
            held: self.held.clone(),
            missed,
            bytes: AtomicU64::new(0),
            responses: AtomicU64::new(0),
            again: AtomicU64::new(0),
            there,
        });
        self.shared = Some(shared.clone());
        for number in 0..self.shape.proxies {
            self.tasks.spawn(proxy::run(shared.clone(), number, told.clone()));
        }
        let wanted = self.shape.proxies;
        let all = async {
            // The sender lives in `shared`.
            let _ = coming.wait_for(|there| *there == wanted).await;
        };
        tokio::select! {
            () = all => Ok(()),
            lost = lost(&mut self.tasks) => Err(plane.broken(lost)),
            () = tokio::time::sleep(patience) => {
                let there = *shared.there.borrow();
                let most = self.each().map(|held| held.count()).max().unwrap_or(0);
                Err(plane.broken(format!(
                    "{there} of {wanted} proxies are in sync after {} s; none holds more than {most} resources",
                    patience.as_secs()
                )))
            }
        }
    }

    /// Disconnects all. What they hold stays.
    pub(super) async fn leave(&mut self) {
        self.tasks.shutdown().await;
        self.shared = None;
    }

    /// Changes from `number` on are watched, and those before forgotten.
    pub(super) fn watch(&self, number: u32) -> &Watched {
        for mut held in self.each() {
            held.begin();
        }
        self.watched.begin(number);
        &self.watched
    }

    /// The watched state.
    pub(super) fn watched(&self) -> &Watched {
        &self.watched
    }

    /// Waits until every proxy has seen this many changes.
    pub(super) async fn see(&mut self, plane: &Plane, changes: usize, patience: Duration) -> Result<(), Error> {
        let wanted = (changes * self.shape.proxies) as u64;
        let watched = self.watched.clone();
        let seeing = async {
            while watched.seen() < wanted {
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::select! {
            () = seeing => Ok(()),
            lost = lost(&mut self.tasks) => Err(plane.broken(lost)),
            () = tokio::time::sleep(patience) => {
                let behind = self.each().filter(|held| held.changes_seen() < changes).count();
                Err(plane.broken(format!(
                    "{behind} of {} proxies have not seen all of {changes} changes after {} s",
                    self.shape.proxies,
                    patience.as_secs()
                )))
            }
        }
    }

    /// Waits, unless a proxy is lost.
    pub(super) async fn rest(&mut self, plane: &Plane, time: Duration) -> Result<(), Error> {
        tokio::select! {
            () = tokio::time::sleep(time) => Ok(()),
            lost = lost(&mut self.tasks) => Err(plane.broken(lost)),
        }
    }

    /// Bytes and responses that have come since all were connected.
    pub(super) fn received(&self) -> (u64, u64) {
        let of =
            |shared: &Arc<Shared>| (shared.bytes.load(Ordering::Relaxed), shared.responses.load(Ordering::Relaxed));
        self.shared.as_ref().map(of).unwrap_or_default()
    }

    /// How often proxies had to come again since, before they were in sync.
    pub(super) fn again(&self) -> u64 {
        self.shared.as_ref().map_or(0, |shared| shared.again.load(Ordering::Relaxed))
    }

    /// The state of each proxy.
    pub(super) fn each(&self) -> impl Iterator<Item = MutexGuard<'_, Held>> {
        self.held.iter().map(Mutex::lock)
    }
}

/// Returns when a proxy's connection has ended, which it should not: why.
async fn lost(tasks: &mut JoinSet<String>) -> String {
    match tasks.join_next().await {
        Some(Ok(reason)) => reason,
        Some(Err(error)) => error.to_string(),
        None => std::future::pending().await,
    }
}
