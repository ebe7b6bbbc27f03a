//! The difference between what a proxy has and what is published.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use leno_model::Name;

use super::TypeState;
use crate::catalogue::{Catalogue, Change};
use crate::encoded::Published;
use crate::resource::reach_of;
use crate::server::delta::{Delta, Deltas, Narrowing, Part, Removal};
use crate::server::sent::Sent;

/// What the proxy lacks of the catalogue `of`.
#[derive(Debug, Default)]
pub(in crate::server) struct Pending {
    pub(super) of: Option<Arc<Catalogue>>,
    pub(super) lacks: Lacks,
}

#[derive(Debug, Default)]
pub(super) enum Lacks {
    #[default]
    Nothing,
    /// The proxy has nothing.
    Everything,
    Some(Arc<Delta>),
    /// The part of this difference that is sent last.
    Late(Arc<Delta>),
}

impl Pending {
    pub(in crate::server) fn is_empty(&self, part: Part) -> bool {
        match &self.lacks {
            Lacks::Nothing => true,
            Lacks::Everything => part == Part::Late,
            Lacks::Some(delta) => delta.is_empty(part),
            Lacks::Late(delta) => part == Part::Early || delta.is_empty(Part::Late),
        }
    }
}

impl TypeState {
    /// Finds what the proxy lacks, unless that is known.
    pub(in crate::server) fn refresh(&mut self, latest: &Arc<Catalogue>, deltas: &Deltas, now: Instant) {
        if let Some(held) = self.told.take() {
            self.sent = if self.wildcard {
                Sent::told_beside(&held, latest)
            } else {
                Sent::told(&held, |name| self.names.contains(name))
            };
        }
        if self.pending.of.as_ref().is_some_and(|of| Arc::ptr_eq(of, latest)) {
            return;
        }
        let lacks = if self.wildcard {
            match self.lacks_of_everything(latest, deltas) {
                // The proxy's earlier snapshot need not be kept.
                Lacks::Some(delta) if delta.is_empty(Part::All) => {
                    self.has_all_of(latest, None);
                    Lacks::Nothing
                }
                lacks => lacks,
            }
        } else if self.seek(latest) || self.pending.of.is_none() {
            Lacks::Some(Arc::new(self.lacks_of_names(latest)))
        } else {
            std::mem::take(&mut self.pending.lacks)
        };
        self.pending = Pending { of: Some(latest.clone()), lacks };
        if self.pending.is_empty(Part::Late) {
            self.late_since = None;
        } else {
            self.late_since.get_or_insert(now);
        }
    }

    fn lacks_of_everything(&self, latest: &Arc<Catalogue>, deltas: &Deltas) -> Lacks {
        let (base, but) = self.sent.parts();
        let in_doubt = self.waiting.as_ref().is_some_and(|waiting| !waiting.narrows.is_empty());
        if but.is_empty() && self.reached.is_empty() && !in_doubt {
            return match (base.is_empty(), latest.is_empty()) {
                (true, true) => Lacks::Nothing,
                (true, false) => Lacks::Everything,
                _ => Lacks::Some(deltas.between(base, latest)),
            };
        }
        let mut differs = BTreeMap::new();
        latest.changes_since(base, |change| match change {
            Change::Added(new) => drop(differs.insert(new.name(), (None, Some(new)))),
            Change::Replaced { old, new } => drop(differs.insert(new.name(), (Some(old.version()), Some(new)))),
            Change::Removed(old) => drop(differs.insert(old.name(), (Some(old.version()), None))),
        });
        for (name, version) in but {
            differs.insert(name, (version.as_deref(), latest.get(name)));
        }
        let mut delta = Delta::default();
        for (name, (old, new)) in differs {
            match (old, new) {
                (old, Some(new)) if old != Some(new.version()) => self.sort_in(&mut delta, new),
                (Some(old), None) => delta.removals.push(Removal { name: name.clone(), old: Some(old.into()) }),
                _ => {}
            }
        }
        Lacks::Some(Arc::new(delta))
    }

    fn lacks_of_names(&self, latest: &Catalogue) -> Delta {
        let mut delta = Delta::default();
        let mut answered = BTreeSet::new();
        for resource in self.wanted.iter().filter_map(|name| latest.get(name)) {
            if self.sent.version(resource.name()) != Some(resource.version()) {
                self.sort_in(&mut delta, resource);
            }
            answered.insert(&**resource.name());
            answered.extend(resource.each_alias());
        }
        let (_, have) = self.sent.parts();
        let mut removals: BTreeMap<&Name, Option<Name>> = have
            .iter()
            .filter(|(name, _)| !self.wanted.contains(*name))
            .map(|(n, version)| (n, version.clone()))
            .collect();
        // A proxy that requests a name waits to be told that there is no such resource.
        for name in &self.names {
            if !self.sent.is_known_missing(name) && !answered.contains(&**name) {
                removals.entry(name).or_default();
            }
        }
        delta.removals = removals.into_iter().map(|(name, old)| Removal { name: name.clone(), old }).collect();
        delta
    }

    fn sort_in(&self, delta: &mut Delta, new: &Arc<Published>) {
        if self.narrows(new) {
            let old = self.sent.version(new.name()).map(Name::from);
            delta.narrowing.push(Narrowing { new: new.clone(), old });
        } else {
            delta.upserts.push(new.clone());
        }
    }

    /// Whether its reach is lower than that of the version that the proxy may use.
    fn narrows(&self, new: &Published) -> bool {
        let (name, Some(reach)) = (new.name(), new.reach()) else { return false };
        let in_doubt = self.waiting.as_ref().is_some_and(|waiting| waiting.narrows.contains(name));
        // Its reach may be higher than that of the version sent last. The answer tells which one the proxy has, before
        // anything else is sent.
        !(in_doubt && self.reach_sent(name) < Some(reach)) && self.reach(name) > Some(reach)
    }

    /// The reach of the version that the proxy may use.
    pub(super) fn reach(&self, name: &str) -> Option<u8> {
        self.reach_sent(name).max(self.reached.get(name).copied())
    }

    fn reach_sent(&self, name: &str) -> Option<u8> {
        self.sent.version(name).and_then(reach_of)
    }

    /// Finds the resources behind the requested names. Returns whether one of them may have changed.
    fn seek(&mut self, latest: &Arc<Catalogue>) -> bool {
        let Self { names, wanted, .. } = self;
        let is_wanted = |resource: &Published| {
            names.contains(resource.name()) || resource.each_alias().any(|alias| names.contains(alias))
        };
        let mut touched = true;
        match self.sought_in.replace(latest.clone()) {
            Some(before) => {
                touched = false;
                latest.changes_since(&before, |change| {
                    touched |= match change {
                        Change::Removed(old) => wanted.remove(old.name()),
                        Change::Added(new) | Change::Replaced { new, .. } if is_wanted(new) => {
                            wanted.insert(new.name().clone());
                            true
                        }
                        Change::Added(new) | Change::Replaced { new, .. } => wanted.remove(new.name()),
                    }
                });
            }
            None => {
                *wanted = names.iter().filter(|name| latest.contains_key(name)).cloned().collect();
                if wanted.len() < names.len() {
                    wanted.extend(latest.values().filter(|resource| is_wanted(resource)).map(|r| r.name().clone()));
                }
            }
        }
        touched
    }
}
