//! What turns one version of a catalogue into another: found once, encoded once, for all proxies that lack it.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock, Weak};

use bytes::Bytes;
use leno_model::Name;
use parking_lot::Mutex;

use crate::catalogue::{Catalogue, Change};
use crate::published::Published;
use crate::wire;

/// Differences remembered, by what they are between: of each type, for proxies that are in step and for those
/// that are a few steps behind.
const REMEMBERED: usize = 24;
/// Longest response whose bytes are kept for the next proxy.
const KEPT: usize = 256 << 10;
/// What of a longer one is written at once, bytes.
const PIECE: usize = 32 << 10;
/// `DeltaDiscoveryResponse.removed_resources`.
const REMOVED_RESOURCES: u8 = 6;

/// What of a delta is sent at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    All,
    /// What must be there before workloads name it.
    Early,
    /// What may go only when no workload needs it any more.
    Late,
}

/// What a proxy lacks of a catalogue.
#[derive(Debug, Default)]
pub(super) struct Delta {
    pub(super) upserts: Vec<Arc<Published>>,
    /// Upserts that reach less far than what the proxy has.
    pub(super) narrowing: Vec<Narrowing>,
    pub(super) removals: Vec<Removal>,
    written: [OnceLock<Bytes>; 3],
}

/// An upsert that reaches less far than what is there.
#[derive(Debug)]
pub(super) struct Narrowing {
    pub(super) new: Arc<Published>,
    /// Version of what is there; `None` if the proxy asked for it anew.
    pub(super) old: Option<Name>,
}

#[derive(Debug)]
pub(super) struct Removal {
    pub(super) name: Name,
    /// Version of what is there; `None` if the proxy is only told that there is nothing.
    pub(super) old: Option<Name>,
}

impl Delta {
    /// From one published version to another.
    fn between(from: &Catalogue, to: &Catalogue) -> Self {
        let mut delta = Self::default();
        to.changes_since(from, |change| match change {
            // It may be asked for by another name; what it says is the same.
            Change::Replaced { old, new } if old.version() == new.version() => {}
            Change::Replaced { old, new } if new.reach().is_some() && old.reach() > new.reach() => {
                delta.narrowing.push(Narrowing { new: new.clone(), old: Some(old.version().into()) });
            }
            Change::Added(new) | Change::Replaced { new, .. } => delta.upserts.push(new.clone()),
            Change::Removed(old) => {
                delta.removals.push(Removal { name: old.name().clone(), old: Some(old.version().into()) });
            }
        });
        delta
    }

    pub(super) fn is_empty(&self, part: Part) -> bool {
        let early = self.upserts.is_empty();
        let late = self.narrowing.is_empty() && self.removals.is_empty();
        match part {
            Part::All => early && late,
            Part::Early => early,
            Part::Late => late,
        }
    }

    pub(super) fn resources(&self, part: Part) -> impl Iterator<Item = &Arc<Published>> {
        let early: &[_] = if part == Part::Late { &[] } else { &self.upserts };
        let late: &[_] = if part == Part::Early { &[] } else { &self.narrowing };
        early.iter().chain(late.iter().map(|narrowing| &narrowing.new))
    }

    pub(super) fn removed(&self, part: Part) -> &[Removal] {
        if part == Part::Early { &[] } else { &self.removals }
    }

    /// Length of a part on the wire.
    pub(super) fn length(&self, part: Part) -> usize {
        let resources: usize = self.resources(part).map(|resource| resource.field().len()).sum();
        resources + self.removed(part).iter().map(|removal| wire::length(removal.name.len())).sum::<usize>()
    }

    /// A part on the wire, if it is not long.
    pub(super) fn written(&self, part: Part) -> Option<&Bytes> {
        let place = &self.written[part as usize];
        if place.get().is_none() {
            let length = self.length(part);
            if length > KEPT {
                return None;
            }
            let mut bytes = Vec::with_capacity(length);
            let (mut at, more) = (0, usize::MAX);
            self.write(part, &mut at, more, &mut bytes);
            // Another proxy may have been as quick.
            let _ = place.set(bytes.into());
        }
        place.get()
    }

    /// The next piece of a part, whatever its length; from number `at` on, which it counts up.
    pub(super) fn piece(&self, part: Part, at: &mut usize) -> Option<Bytes> {
        let mut bytes = Vec::new();
        self.write(part, at, PIECE, &mut bytes);
        (!bytes.is_empty()).then(|| bytes.into())
    }

    fn write(&self, part: Part, at: &mut usize, enough: usize, out: &mut Vec<u8>) {
        // Counted, not skipped: of a hundred thousand resources, the next is found at once.
        let early = if part == Part::Late { 0 } else { self.upserts.len() };
        let narrowing = if part == Part::Early { 0 } else { self.narrowing.len() };
        let removed = self.removed(part);
        while out.len() < enough {
            if *at < early {
                out.extend_from_slice(self.upserts[*at].field());
            } else if *at - early < narrowing {
                out.extend_from_slice(self.narrowing[*at - early].new.field());
            } else if let Some(removal) = removed.get(*at - early - narrowing) {
                wire::put(out, REMOVED_RESOURCES, removal.name.as_bytes());
            } else {
                return;
            }
            *at += 1;
        }
    }
}

/// Differences between published catalogues, which all proxies of a server share.
#[derive(Debug, Default)]
pub(super) struct Deltas {
    remembered: Mutex<VecDeque<Between>>,
}

#[derive(Debug)]
struct Between {
    // Not kept alive: a catalogue that is gone is not asked for.
    from: Weak<Catalogue>,
    to: Weak<Catalogue>,
    delta: Arc<Delta>,
}

impl Deltas {
    pub(super) fn between(&self, from: &Arc<Catalogue>, to: &Arc<Catalogue>) -> Arc<Delta> {
        let mut remembered = self.remembered.lock();
        let is = |one: &Weak<Catalogue>, other: &Arc<Catalogue>| std::ptr::eq(one.as_ptr(), Arc::as_ptr(other));
        if let Some(found) = remembered.iter().find(|one| is(&one.from, from) && is(&one.to, to)) {
            return found.delta.clone();
        }
        // With the lock held: the others that wait for it most likely want this one.
        let delta = Arc::new(Delta::between(from, to));
        remembered.retain(|one| one.to.strong_count() > 0 && one.from.strong_count() > 0);
        if remembered.len() == REMEMBERED {
            remembered.pop_front();
        }
        remembered.push_back(Between { from: Arc::downgrade(from), to: Arc::downgrade(to), delta: delta.clone() });
        delta
    }
}

#[cfg(test)]
#[path = "delta_tests.rs"]
mod tests;
