//! The difference between two versions of a catalogue: found once and encoded once, for all proxies that need it.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock, Weak};

use bytes::Bytes;
use leno_model::Name;
use parking_lot::Mutex;

use crate::catalogue::{Catalogue, Change};
use crate::encoded::Published;
use crate::wire;

/// How many differences are remembered, by their two versions: for each type, those of proxies that are in step and of
/// proxies a few steps behind.
const REMEMBERED: usize = 24;
/// Longest response, bytes, that is kept encoded for the next proxy.
const KEPT: usize = 256 << 10;
/// Bytes of a longer response that are encoded at once.
const PIECE: usize = 32 << 10;
/// `DeltaDiscoveryResponse.removed_resources`.
const REMOVED_RESOURCES: u8 = 6;

/// A part of a delta that is sent at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    All,
    /// Resources that must be there before workloads name them.
    Early,
    /// Resources that may go only when no workload needs them any more.
    Late,
}

/// The difference between what a proxy has and a catalogue.
#[derive(Debug, Default)]
pub(super) struct Delta {
    pub(super) upserts: Vec<Arc<Published>>,
    /// Upserts that reach less far than the version that the proxy has.
    pub(super) narrowing: Vec<Narrowing>,
    pub(super) removals: Vec<Removal>,
    written: [OnceLock<Bytes>; 3],
}

/// An upsert that reaches less far than the version that the proxy has.
#[derive(Debug)]
pub(super) struct Narrowing {
    pub(super) new: Arc<Published>,
    /// The version that the proxy has; `None` if it requested the resource again.
    pub(super) old: Option<Name>,
}

#[derive(Debug)]
pub(super) struct Removal {
    pub(super) name: Name,
    /// The version that the proxy has; `None` if it is only told that there is no such resource.
    pub(super) old: Option<Name>,
}

impl Delta {
    /// The difference from one published version to another.
    fn between(from: &Catalogue, to: &Catalogue) -> Self {
        let mut delta = Self::default();
        to.changes_since(from, |change| match change {
            // It may be requested by another name; the content is the same.
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

    /// Length of a part in wire format, bytes.
    pub(super) fn length(&self, part: Part) -> usize {
        let resources: usize = self.resources(part).map(|resource| resource.field().len()).sum();
        resources + self.removed(part).iter().map(|removal| wire::length(removal.name.len())).sum::<usize>()
    }

    /// A part in wire format; `None` if it is too long to be kept.
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
            // Another thread may have encoded it meanwhile.
            let _ = place.set(bytes.into());
        }
        place.get()
    }

    /// The next piece of a part of any length, starting with resource number `at`, which is advanced.
    pub(super) fn piece(&self, part: Part, at: &mut usize) -> Option<Bytes> {
        let mut bytes = Vec::new();
        self.write(part, at, PIECE, &mut bytes);
        (!bytes.is_empty()).then(|| bytes.into())
    }

    fn write(&self, part: Part, at: &mut usize, enough: usize, out: &mut Vec<u8>) {
        // By number, so that the next of a hundred thousand resources is found at once.
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

/// The differences between published catalogues, shared by all proxies of a server.
#[derive(Debug, Default)]
pub(super) struct Deltas {
    remembered: Mutex<VecDeque<Between>>,
}

#[derive(Debug)]
struct Between {
    // Weak references: nobody asks about a catalogue that is gone.
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
        // The lock is held meanwhile, because others that wait for it most likely want the same difference.
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
