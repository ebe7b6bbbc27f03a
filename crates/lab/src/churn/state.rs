//! What a proxy holds, in short form: a digest of each resource.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use twox_hash::XxHash64;

use super::wire::{Sink, find};
use crate::load::LatencyRecorder;

/// The text before a change's number in a changed workload's revision.
pub(crate) const MARK: &str = "change-";

/// The change's number in a workload's revision.
pub(super) fn mark(revision: &[u8]) -> Option<u32> {
    std::str::from_utf8(revision.strip_prefix(MARK.as_bytes())?).ok()?.parse().ok()
}

// The numbers of the message fields that are read.
const VERSION: u64 = 1;
const BODY: u64 = 2;
const NAME: u64 = 3;
const ANY_VALUE: u64 = 2;
const WORKLOAD: u64 = 1;
const CANONICAL_REVISION: u64 = 11;
/// The status of a workload. That it takes connections is the default, which is not written.
const STATUS: u64 = 17;

/// Numbers for names, so that a thousand proxies need four bytes for each resource.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// The names known from the beginning, in order. Most resources come in this order.
    first: Vec<Box<[u8]>>,
    first_numbers: HashMap<Box<[u8]>, u32>,
    later: RwLock<HashMap<Box<[u8]>, u32>>,
}

impl Names {
    pub(super) fn new(mut names: Vec<String>) -> Self {
        names.sort();
        let first: Vec<Box<[u8]>> = names.into_iter().map(|name| name.into_bytes().into()).collect();
        let first_numbers = first.iter().cloned().zip(0..).collect();
        Self { first, first_numbers, later: RwLock::default() }
    }

    /// The number of a name. `guess` is the likely one.
    fn number(&self, name: &[u8], guess: u32) -> u32 {
        if self.first.get(guess as usize).is_some_and(|known| **known == *name) {
            return guess;
        }
        if let Some(number) = self.first_numbers.get(name) {
            return *number;
        }
        let known = |later: &HashMap<Box<[u8]>, u32>| later.get(name).copied();
        if let Some(number) = known(&self.later.read()) {
            return number;
        }
        let mut later = self.later.write();
        let next = (self.first.len() + later.len()) as u32;
        *later.entry(name.into()).or_insert(next)
    }
}

/// The awaited changes, and how much of them all proxies have seen.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    /// The number of the first one.
    from: AtomicU32,
    sent: RwLock<HashMap<u32, Sent>>,
    /// Names of the workloads that changes take away.
    going: RwLock<HashMap<Box<[u8]>, u32>>,
    /// Pairs of a change and a proxy that has seen it.
    seen: AtomicU64,
    latency: Mutex<LatencyRecorder>,
}

#[derive(Debug, Clone, Copy)]
struct Sent {
    at: Instant,
    pods: u32,
}

impl Watched {
    /// Forgets earlier changes, and waits for those from `number` on.
    pub(super) fn begin(&self, number: u32) {
        self.sent.write().clear();
        self.going.write().clear();
        self.from.store(number, Ordering::SeqCst);
        self.seen.store(0, Ordering::SeqCst);
        *self.latency.lock() = LatencyRecorder::new();
    }

    /// The last of a change of this many pods is about to be fed.
    pub(crate) fn sent(&self, number: u32, pods: u32) {
        let sent = Sent { at: Instant::now(), pods };
        self.sent.write().insert(number, sent);
    }

    /// Workloads that change `number` takes away. To be told before [`Self::sent`].
    pub(crate) fn going(&self, number: u32, names: impl IntoIterator<Item = String>) {
        let names = names.into_iter().map(|name| (name.into_bytes().into_boxed_slice(), number));
        self.going.write().extend(names);
    }

    /// Pairs of a change and a proxy that has seen it.
    pub(super) fn seen(&self) -> u64 {
        self.seen.load(Ordering::SeqCst)
    }

    /// How long that took.
    pub(super) fn latency(&self) -> LatencyRecorder {
        self.latency.lock().clone()
    }
}

/// A resource in full, which one proxy keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) name: String,
    pub(super) version: String,
    /// The encoded `Any`.
    pub(super) body: Vec<u8>,
}

/// The state of one proxy.
#[derive(Debug)]
pub(super) struct Held {
    names: Arc<Names>,
    watched: Arc<Watched>,
    /// Digests, indexed by the numbers of their names. 0 stands for a resource that is not held.
    digests: Vec<u32>,
    count: usize,
    guess: u32,
    /// The number of resources in the first sync.
    wanted: usize,
    synced: bool,
    /// For changes of more than one pod: the number of pods seen.
    partly: HashMap<u32, u32>,
    /// Changes seen in full since [`Watched::begin`].
    changes_seen: usize,
    /// The resources in full, if this proxy is the witness.
    kept: Option<HashMap<u32, Kept>>,
    /// The arrival time of the bytes that are being read.
    now: Instant,
    /// Responses to acknowledge: type and nonce.
    pub(super) ended: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Held {
    pub(super) fn new(names: Arc<Names>, watched: Arc<Watched>, wanted: usize, witness: bool) -> Self {
        Self {
            digests: vec![0; names.first.len()],
            names,
            watched,
            count: 0,
            guess: 0,
            wanted,
            synced: false,
            partly: HashMap::new(),
            changes_seen: 0,
            kept: witness.then(HashMap::new),
            now: Instant::now(),
            ended: Vec::new(),
        }
    }

    /// Sets the arrival time of what is read next.
    pub(super) fn arrived(&mut self, now: Instant) {
        self.now = now;
    }

    /// Whether the first sync is done.
    pub(super) fn is_synced(&self) -> bool {
        self.synced
    }

    /// Changes seen since [`Self::begin`].
    pub(super) fn changes_seen(&self) -> usize {
        self.changes_seen
    }

    /// Starts counting changes at zero.
    pub(super) fn begin(&mut self) {
        self.partly.clear();
        self.changes_seen = 0;
    }

    /// The number of resources held.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The resources that the witness has kept.
    pub(super) fn kept(&self) -> impl Iterator<Item = &Kept> {
        self.kept.iter().flat_map(HashMap::values)
    }

    /// How many resources differ from those of `other`.
    pub(super) fn differences(&self, other: &Self) -> usize {
        let length = self.digests.len().max(other.digests.len());
        let at = |held: &Self, index: usize| held.digests.get(index).copied().unwrap_or(0);
        (0..length).filter(|index| at(self, *index) != at(other, *index)).count()
    }

    fn slot(&mut self, number: u32) -> &mut u32 {
        let index = number as usize;
        if self.digests.len() <= index {
            self.digests.resize(index + 1, 0);
        }
        &mut self.digests[index]
    }

    /// Counts a pod of a change that has reached its last state.
    fn marked(&mut self, number: u32) {
        if number < self.watched.from.load(Ordering::SeqCst) {
            return;
        }
        let sent = self.watched.sent.read().get(&number).copied();
        let Some(sent) = sent else { return };
        let seen = self.partly.entry(number).or_default();
        *seen += 1;
        if *seen == sent.pods {
            self.changes_seen += 1;
            let took = self.now.checked_duration_since(sent.at).unwrap_or(Duration::ZERO);
            self.watched.latency.lock().record(took);
            self.watched.seen.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Sink for Held {
    fn resource(&mut self, encoded: &[u8]) {
        let (name, body) = (find(encoded, NAME).unwrap_or_default(), find(encoded, BODY).unwrap_or_default());
        let number = self.names.number(name, self.guess);
        self.guess = number.wrapping_add(1);
        // The digest 0 means "not held".
        let digest = (XxHash64::oneshot(0, body) as u32).max(1);
        let before = std::mem::replace(self.slot(number), digest);
        self.count += usize::from(before == 0);
        if let Some(kept) = &mut self.kept {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let version = text(find(encoded, VERSION).unwrap_or_default());
            kept.insert(number, Kept { name: text(name), version, body: body.to_vec() });
        }
        // Changes that were not announced before are not waited for.
        if self.synced && before != digest {
            let address = find(body, ANY_VALUE).unwrap_or_default();
            let workload = find(address, WORKLOAD).filter(|workload| find(workload, STATUS).is_none());
            let revision = workload.and_then(|workload| find(workload, CANONICAL_REVISION));
            if let Some(number) = revision.and_then(mark) {
                self.marked(number);
            }
        }
        self.synced |= self.count == self.wanted;
    }

    fn removed(&mut self, name: &[u8]) {
        let number = self.names.number(name, u32::MAX);
        let before = std::mem::take(self.slot(number));
        self.count -= usize::from(before != 0);
        let going = self.watched.going.read().get(name).copied().filter(|_| before != 0);
        if let Some(number) = going {
            self.marked(number);
        }
        if let Some(kept) = &mut self.kept {
            kept.remove(&number);
        }
    }

    fn end(&mut self, type_url: &[u8], nonce: &[u8]) {
        self.ended.push((type_url.to_vec(), nonce.to_vec()));
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
