//! Which thread carries a connection that a program opens?

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;

use crate::lanes::Lane;

/// When a connection counts as bulk: bytes carried, and bytes per second of its life. A thread can do a hundred times
/// this rate. Small messages over one connection are a tenth of it.
const BULK: (u64, f64) = (32 << 20, 8e6);

/// Connections that carry fewer bytes say nothing about their destination: probes, and control connections.
const SAYS_NOTHING: u64 = 64 << 10;

/// After this many connections in a row that were not bulk, a destination no longer counts as one of bulk.
const PATIENCE: u8 = 8;

/// Most destinations of bulk remembered for a pod. Beyond this, the oldest is forgotten.
const REMEMBERED: usize = 64;

/// Where a pod's connections are carried. Normally it is the worker that accepts them, because what many of them send
/// at the same time leaves in one record and one system call. Bulk is spread over all workers: eight streams on one
/// thread and one tunnel are no faster than one, and on two they are a fifth faster. Both are in
/// lab/results/experiments.md.
///
/// Nothing tells which kind a new connection will be. So it is treated like earlier ones to the same destination.
pub(crate) struct Places {
    lanes: Vec<Lane>,
    /// Destinations of bulk, each with the number of further connections after which it is forgotten unless one is
    /// bulk.
    bulk: Mutex<Vec<(SocketAddr, u8)>>,
    /// Whether there are any. Without any, no lock is taken.
    knows_bulk: AtomicBool,
}

impl Places {
    pub(crate) fn new(lanes: &[Lane]) -> Arc<Self> {
        Arc::new(Self { lanes: lanes.to_vec(), bulk: Mutex::default(), knows_bulk: AtomicBool::new(false) })
    }

    /// A place for a connection that worker `own` has accepted. If it is another worker's, the connection has to be
    /// moved to that thread. `destination` is called only if it matters.
    pub(crate) fn take(self: &Arc<Self>, own: usize, destination: impl FnOnce() -> Option<SocketAddr>) -> Place {
        let is_bulk =
            self.knows_bulk.load(Relaxed) && destination().is_some_and(|destination| self.is_bulk(destination));
        let load = |index: &usize| (self.lanes[*index].bulk.load(Relaxed), *index != own);
        let index = if is_bulk { (0..self.lanes.len()).min_by_key(load).unwrap_or(own) } else { own };
        if is_bulk {
            self.lanes[index].bulk.fetch_add(1, Relaxed);
        }
        Place { places: self.clone(), index, spread: is_bulk }
    }

    fn is_bulk(&self, destination: SocketAddr) -> bool {
        self.bulk.lock().iter().any(|(known, _)| *known == destination)
    }

    /// Remembers the destination for `patience` further connections.
    fn learn(&self, destination: SocketAddr, patience: impl FnOnce(u8) -> u8) {
        let mut bulk = self.bulk.lock();
        let known = bulk.iter().position(|(known, _)| *known == destination);
        let patience = patience(known.map_or(0, |index| bulk[index].1));
        match known {
            Some(index) if patience == 0 => drop(bulk.remove(index)),
            Some(index) => bulk[index].1 = patience,
            None if patience == 0 => {}
            None => {
                if bulk.len() == REMEMBERED {
                    bulk.remove(0);
                }
                bulk.push((destination, patience));
            }
        }
        self.knows_bulk.store(!bulk.is_empty(), Relaxed);
    }
}

/// A connection's place. Dropping it frees it.
pub(crate) struct Place {
    places: Arc<Places>,
    pub(crate) index: usize,
    spread: bool,
}

impl Place {
    pub(crate) fn lane(&self) -> &Lane {
        &self.places.lanes[self.index]
    }

    /// The connection has ended, after this many bytes in both directions and this much time.
    pub(crate) fn ended(&self, destination: SocketAddr, bytes: u64, lasted: Duration) {
        let (size, rate) = BULK;
        if bytes >= size && bytes as f64 >= rate * lasted.as_secs_f64() {
            self.places.learn(destination, |_| PATIENCE);
        } else if bytes >= SAYS_NOTHING && self.places.knows_bulk.load(Relaxed) {
            self.places.learn(destination, |patience| patience.saturating_sub(1));
        }
    }

    /// The connection could not be carried to its destination. If it was moved to another thread, a thread that has a
    /// tunnel there might have succeeded, so the next connection stays on its own thread.
    pub(crate) fn failed(&self, destination: SocketAddr) {
        if self.spread {
            self.places.learn(destination, |_| 0);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.spread {
            self.lane().bulk.fetch_sub(1, Relaxed);
        }
    }
}

#[cfg(test)]
#[path = "places_tests.rs"]
mod tests;
