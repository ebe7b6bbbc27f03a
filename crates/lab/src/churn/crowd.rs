//! All proxies of a run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leno_tls::{ControlConnector, RootSource};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::phase::Shape;
use super::proxy::{self, Shared, Told};
use super::state::{Held, Names, Watched};
use super::world::{Inventory, Listening, World};
use crate::Error;

/// How often is checked whether all have seen what they should.
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
    /// Makes proxies that will know `inventory`. None is connected yet.
    pub(super) fn new(shape: Shape, inventory: &Inventory) -> Self {
        let names =
            Arc::new(Names::new(inventory.services.iter().chain(inventory.workloads.keys()).cloned().collect()));
        let watched = Arc::new(Watched::default());
        let held = |number| Mutex::new(Held::new(names.clone(), watched.clone(), inventory.resources(), number == 0));
        let held = Arc::new((0..shape.proxies).map(held).collect());
        Self { shape, held, watched, shared: None, tasks: JoinSet::new() }
    }

    /// Connects all, and waits until each is in sync and has seen `missed` changes.
    pub(super) async fn come(
        &mut self,
        world: &impl World,
        told: Option<Told>,
        missed: usize,
        patience: Duration,
    ) -> Result<(), Error> {
        let Listening { address, name, root } = world.listening()?;
        let (there, mut coming) = watch::channel(0);
        let shared = Arc::new(Shared {
            address,
            name,
            connector: ControlConnector::new(RootSource::Pem(root)),
            tokens: world.tokens().to_vec(),
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
            // `shared` holds the sender, so the channel can't be closed.
            let _ = coming.wait_for(|there| *there == wanted).await;
        };
        tokio::select! {
            () = all => Ok(()),
            lost = lost(&mut self.tasks) => Err(world.process().broken(lost)),
            () = tokio::time::sleep(patience) => {
                let there = *shared.there.borrow();
                let most = self.each().map(|held| held.count()).max().unwrap_or(0);
                Err(world.process().broken(format!(
                    "{there} of {wanted} proxies are in sync after {} s; none holds more than {most} resources",
                    patience.as_secs()
                )))
            }
        }
    }

    /// Disconnects all. They keep their resources.
    pub(super) async fn leave(&mut self) {
        self.tasks.shutdown().await;
        self.shared = None;
    }

    /// From now on watches changes from `number` on, and forgets those before.
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
    pub(super) async fn see(&mut self, world: &impl World, changes: usize, patience: Duration) -> Result<(), Error> {
        let wanted = (changes * self.shape.proxies) as u64;
        let watched = self.watched.clone();
        let seeing = async {
            while watched.seen() < wanted {
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::select! {
            () = seeing => Ok(()),
            lost = lost(&mut self.tasks) => Err(world.process().broken(lost)),
            () = tokio::time::sleep(patience) => {
                let behind = self.each().filter(|held| held.changes_seen() < changes).count();
                Err(world.process().broken(format!(
                    "{behind} of {} proxies have not seen all of {changes} changes after {} s",
                    self.shape.proxies,
                    patience.as_secs()
                )))
            }
        }
    }

    /// Waits, and fails if a proxy loses its connection.
    pub(super) async fn rest(&mut self, world: &impl World, time: Duration) -> Result<(), Error> {
        tokio::select! {
            () = tokio::time::sleep(time) => Ok(()),
            lost = lost(&mut self.tasks) => Err(world.process().broken(lost)),
        }
    }

    /// Bytes and responses received since all were connected.
    pub(super) fn received(&self) -> (u64, u64) {
        let of =
            |shared: &Arc<Shared>| (shared.bytes.load(Ordering::Relaxed), shared.responses.load(Ordering::Relaxed));
        self.shared.as_ref().map(of).unwrap_or_default()
    }

    /// How often proxies had to connect again before they were in sync.
    pub(super) fn again(&self) -> u64 {
        self.shared.as_ref().map_or(0, |shared| shared.again.load(Ordering::Relaxed))
    }

    /// The state of each proxy.
    pub(super) fn each(&self) -> impl Iterator<Item = MutexGuard<'_, Held>> {
        self.held.iter().map(Mutex::lock)
    }
}

/// Returns the reason when a proxy's connection has ended, which should not happen.
async fn lost(tasks: &mut JoinSet<String>) -> String {
    match tasks.join_next().await {
        Some(Ok(reason)) => reason,
        Some(Err(error)) => error.to_string(),
        None => std::future::pending().await,
    }
}
