//! What the connections of one pod may take of the process's descriptors, and of that, each who causes them.
//!
//! Each connection holds sockets: one where the rest of its way is a tunnel, two in the clear; and so
//! does each tunnel that a peer has opened to the pod, one. A pod
//! that opens them without end, or is opened them by a peer, must leave room for the others; and a peer
//! that opens them without end must leave room for the other peers of the same pod. While
//! there is plenty, nobody is counted out; once there is not, those that have more than their share.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use leno_model::Identity;
use leno_telemetry::descriptor_limit;
use parking_lot::Mutex;

use crate::failure::Failure;

/// What the connections of all pods may take together.
pub(crate) struct Shares {
    /// The number of sockets above which pods are limited to their shares. The rest of the descriptors is for tunnels
    /// to peers, for listeners, and for pods that have few.
    plenty: usize,
    taken: AtomicUsize,
    pods: AtomicUsize,
}

impl Shares {
    /// For the descriptors that this process may open.
    pub(crate) fn of_this_process() -> Arc<Self> {
        Self::of(descriptor_limit() as usize)
    }

    fn of(descriptors: usize) -> Arc<Self> {
        Arc::new(Self { plenty: descriptors / 4 * 3, taken: AtomicUsize::new(0), pods: AtomicUsize::new(0) })
    }

    /// A pod's share. It may take at most `most` sockets however many are free; 0 for no such limit.
    pub(crate) fn join(self: &Arc<Self>, pod: String, most: usize) -> Arc<Share> {
        self.pods.fetch_add(1, Relaxed);
        Arc::new(Share { shares: self.clone(), pod, most, taken: Mutex::default() })
    }
}

/// Who causes a connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    /// The pod's own programs.
    Own,
    /// Somebody who has proved nothing, or nothing yet.
    Address(IpAddr),
    /// Somebody who has.
    Peer(Identity),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own => f.write_str("the pod's own program"),
            Self::Address(address) => address.fmt(f),
            Self::Peer(identity) => identity.fmt(f),
        }
    }
}

/// The share of one pod. Drop it with the pod, when it has no sockets any more.
pub(crate) struct Share {
    shares: Arc<Shares>,
    pod: String,
    most: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    all: usize,
    /// Those that have any.
    sources: HashMap<Arc<Source>, usize>,
}

/// Sockets that one connection or tunnel has of its pod's share, and of what its source may have there. They are given
/// back when it is dropped.
pub(crate) struct Sockets {
    share: Arc<Share>,
    source: Arc<Source>,
    count: usize,
}

impl Share {
    /// Takes one socket.
    ///
    /// # Errors
    /// If the pod has as many as it may have, or the source does.
    pub(crate) fn take(self: &Arc<Self>, source: Source) -> Result<Sockets, Failure> {
        let mut taken = self.taken.lock();
        let held = taken.sources.get_key_value(&source).map(|(source, count)| (source.clone(), *count));
        let (source, count) = held.unwrap_or_else(|| (Arc::new(source), 0));
        self.admit(&taken, &source, count)?;
        taken.all += 1;
        self.shares.taken.fetch_add(1, Relaxed);
        *taken.sources.entry(source.clone()).or_default() += 1;
        drop(taken);
        Ok(Sockets { share: self.clone(), source, count: 1 })
    }

    /// Whether a source that has `count` may have one more.
    fn admit(&self, taken: &Taken, source: &Source, count: usize) -> Result<(), Failure> {
        let pod = || self.pod.clone();
        // With the one that asks.
        let sources = taken.sources.len() + usize::from(count == 0);
        if self.most > 0 {
            if taken.all >= self.most {
                return Err(Failure::TooManySockets { pod: pod(), most: self.most });
            }
            // The last quarter is for those that have few.
            let plenty = (self.most - self.most / 4).max(1);
            let fair = (plenty / sources).max(1);
            if taken.all >= plenty && count >= fair {
                return Err(Failure::TooManyOfSource { holder: source.to_string(), pod: pod(), taken: count, fair });
            }
        }
        let (all, plenty) = (self.shares.taken.load(Relaxed), self.shares.plenty);
        let share = plenty / self.shares.pods.load(Relaxed).max(1);
        if all < plenty || taken.all < share {
            return Ok(());
        }
        let fair = share / sources;
        if count < fair {
            return Ok(());
        }
        Err(match sources {
            1 => Failure::NoSockets { pod: pod(), taken: taken.all, all },
            _ => Failure::TooManyOfSource { holder: source.to_string(), pod: pod(), taken: count, fair },
        })
    }
}

impl Sockets {
    /// Counts one more that is there anyway.
    pub(crate) fn count_another(&mut self) {
        let mut taken = self.share.taken.lock();
        taken.all += 1;
        *taken.sources.entry(self.source.clone()).or_default() += 1;
        self.count += 1;
        self.share.shares.taken.fetch_add(1, Relaxed);
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        let mut taken = self.share.taken.lock();
        taken.all -= self.count;
        if let Some(left) = taken.sources.get_mut(&self.source) {
            *left -= self.count;
            if *left == 0 {
                taken.sources.remove(&self.source);
            }
        }
        if taken.sources.capacity() > ROOM && taken.sources.len() < taken.sources.capacity() / 8 {
            let room = 2 * taken.sources.len();
            taken.sources.shrink_to(room);
        }
        self.share.shares.taken.fetch_sub(self.count, Relaxed);
    }
}

/// Sources for which a pod keeps room.
const ROOM: usize = 256;

impl Drop for Share {
    fn drop(&mut self) {
        self.shares.pods.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
#[path = "shares_tests.rs"]
mod tests;
