//! Which thread carries a connection that a program opens.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;

use crate::pod::Worker;

/// A connection that has carried so much, so fast, bytes and bytes per second: a few dozen of these are all that a thread
/// can do. Small messages, however many, are far from it.
const BULK: (u64, f64) = (32 << 20, 32e6);

/// Destinations of bulk that are remembered of a pod; then the one known longest is forgotten.
const REMEMBERED: usize = 64;

/// Where a pod's connections are carried: by the worker that accepts them, for what many send at a time leaves in one record
/// and one system call. But bulk is spread over all workers: eight streams on one thread and one tunnel are no faster than
/// one, on two they are a fifth faster. Both in lab/results/experiments.md.
///
/// Nothing tells of a connection that opens which it will be. So it is taken for what the last one was that ended and went
/// to the same destination.
pub(crate) struct Places {
    workers: Vec<Worker>,
    /// Connections of each that were spread.
    spread: Box<[AtomicUsize]>,
    bulk: Mutex<Vec<SocketAddr>>,
    /// Whether there are any, so that whoever has no bulk takes no lock.
    knows_bulk: AtomicBool,
}

impl Places {
    pub(crate) fn new(workers: &[Worker]) -> Arc<Self> {
        Arc::new(Self {
            workers: workers.to_vec(),
            spread: workers.iter().map(|_| AtomicUsize::new(0)).collect(),
            bulk: Mutex::default(),
            knows_bulk: AtomicBool::new(false),
        })
    }

    /// A place for a connection that worker `own` has accepted. Another worker's costs it a way to that thread.
    /// `destination` is asked only where it matters.
    pub(crate) fn take(self: &Arc<Self>, own: usize, destination: impl FnOnce() -> Option<SocketAddr>) -> Place {
        let is_bulk = self.knows_bulk.load(Relaxed)
            && destination().is_some_and(|destination| self.bulk.lock().contains(&destination));
        let load = |index: &usize| (self.spread[*index].load(Relaxed), *index != own);
        let index = if is_bulk { (0..self.workers.len()).min_by_key(load).unwrap_or(own) } else { own };
        if is_bulk {
            self.spread[index].fetch_add(1, Relaxed);
        }
        Place { places: self.clone(), index, spread: is_bulk }
    }

    fn learn(&self, destination: SocketAddr, is_bulk: bool) {
        if !is_bulk && !self.knows_bulk.load(Relaxed) {
            return;
        }
        let mut bulk = self.bulk.lock();
        let known = bulk.iter().position(|known| *known == destination);
        match (known, is_bulk) {
            (Some(index), false) => drop(bulk.remove(index)),
            (None, true) => {
                if bulk.len() == REMEMBERED {
                    bulk.remove(0);
                }
                bulk.push(destination);
            }
            _ => {}
        }
        self.knows_bulk.store(!bulk.is_empty(), Relaxed);
    }
}

/// One connection's place; free again once dropped.
pub(crate) struct Place {
    places: Arc<Places>,
    pub(crate) index: usize,
    spread: bool,
}

impl Place {
    pub(crate) fn worker(&self) -> &Worker {
        &self.places.workers[self.index]
    }

    /// The connection has ended: so many bytes, both ways, in so much time.
    pub(crate) fn ended(&self, destination: SocketAddr, bytes: u64, lasted: Duration) {
        let (size, rate) = BULK;
        self.places.learn(destination, bytes >= size && bytes as f64 >= rate * lasted.as_secs_f64());
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.spread {
            self.places.spread[self.index].fetch_sub(1, Relaxed);
        }
    }
}

#[cfg(test)]
#[path = "places_tests.rs"]
mod tests;
