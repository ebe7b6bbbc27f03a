//! Everything that a control plane publishes at one time.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use leno_model::Name;

use crate::catalogue::Catalogue;
use crate::encoded::Published;
use crate::resource::Resource;

/// For how many of the latest snapshots the times of their changes are remembered. A proxy is rarely further behind.
const REMEMBERED: usize = 64;

/// A snapshot of everything published. Snapshots share what is equal in them, down to pages of some hundred resources,
/// and comparing them skips what they share.
#[derive(Debug, Clone, Default)]
pub struct Resources {
    generation: u64,
    /// The latest generations, and when the first change in each was made.
    made: VecDeque<(u64, Instant)>,
    types: BTreeMap<Name, Arc<Catalogue>>,
    /// What only one reader is sent, by type and reader.
    for_one: BTreeMap<(Name, Name), Arc<Catalogue>>,
}

impl Resources {
    /// The number of the snapshot, counted by the publisher. Proxies' sync status refers to it.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Sets the number of the snapshot.
    pub fn set_generation(&mut self, generation: u64) {
        self.generation = generation;
    }

    /// Begins the next snapshot. The first of its changes was made at `changed_at`.
    pub fn next_generation(&mut self, changed_at: Instant) {
        self.generation += 1;
        self.made.truncate(REMEMBERED - 1);
        self.made.push_front((self.generation, changed_at));
    }

    /// When the first change was made that the snapshot `generation` lacks, as far as that is remembered. `None` if it
    /// lacks none.
    pub(crate) fn changed_since(&self, generation: u64) -> Option<Instant> {
        self.made.iter().take_while(|(later, _)| *later > generation).map(|(_, at)| *at).min()
    }

    /// All resources of a type; `None` if there never were any.
    pub fn of(&self, type_url: &str) -> Option<&Arc<Catalogue>> {
        self.types.get(type_url)
    }

    /// All resources of a type that `reader` is sent: those for all, or if there never were any, those for it alone.
    pub(crate) fn seen_by(&self, type_url: &str, reader: Option<&Name>) -> Option<&Arc<Catalogue>> {
        self.of(type_url).or_else(|| self.for_one.get(&(type_url.into(), reader?.clone())))
    }

    /// Adds or replaces a resource that only `reader` is sent (`namespace/service account`). Returns whether that changed
    /// anything. A type has resources for all or for single readers, not both.
    pub fn upsert_for(&mut self, reader: &Name, type_url: &str, name: impl Into<Name>, resource: &Resource) -> bool {
        let new = Published::new(type_url, name.into(), resource);
        let held = self.for_one.entry((type_url.into(), reader.clone())).or_default();
        if held.get(new.name()).is_some_and(|held| **held == new) {
            return false;
        }
        Arc::make_mut(held).insert(Arc::new(new));
        true
    }

    /// Removes a resource that only `reader` is sent. Returns whether there was one.
    pub fn remove_for(&mut self, reader: &Name, type_url: &str, name: &str) -> bool {
        match self.for_one.get_mut(&(type_url.into(), reader.clone())) {
            Some(held) if held.get(name).is_some() => Arc::make_mut(held).remove(name),
            _ => false,
        }
    }

    /// Adds or replaces a resource. Returns whether that changed anything.
    pub fn upsert(&mut self, type_url: &str, name: impl Into<Name>, resource: Resource) -> bool {
        let new = Published::new(type_url, name.into(), &resource);
        if self.of(type_url).and_then(|held| held.get(new.name())).is_some_and(|held| **held == new) {
            return false;
        }
        if !self.types.contains_key(type_url) {
            self.types.insert(type_url.into(), Arc::default());
        }
        if let Some(held) = self.types.get_mut(type_url) {
            Arc::make_mut(held).insert(Arc::new(new));
        }
        true
    }

    /// Removes a resource. Returns whether there was one.
    pub fn remove(&mut self, type_url: &str, name: &str) -> bool {
        match self.types.get_mut(type_url) {
            Some(held) if held.get(name).is_some() => Arc::make_mut(held).remove(name),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn how_long_a_snapshot_is_behind_is_known_for_the_latest_ones() {
        let begun = Instant::now();
        let at = |seconds: u64| begun + Duration::from_secs(seconds);
        let mut resources = Resources::default();
        assert_eq!(resources.changed_since(0), None);
        for second in 1..=100 {
            resources.next_generation(at(second));
        }
        assert_eq!((resources.generation(), resources.changed_since(100)), (100, None));
        assert_eq!((resources.changed_since(99), resources.changed_since(90)), (Some(at(100)), Some(at(91))));
        assert_eq!(resources.changed_since(0), Some(at(37)), "further back nothing is remembered");
    }
    #[test]
    fn a_resource_for_one_reader_is_seen_by_no_other() {
        let (mine, other): (Name, Name) = ("shop/waypoint".into(), "bank/waypoint".into());
        let mut resources = Resources::default();
        assert!(resources.upsert_for(&mine, "t", "a", &Resource::new("1")));
        assert!(!resources.upsert_for(&mine, "t", "a", &Resource::new("1")), "nothing changed");
        let seen = |resources: &Resources, by: Option<&Name>| resources.seen_by("t", by).map_or(0, |all| all.len());
        assert_eq!((seen(&resources, Some(&mine)), seen(&resources, Some(&other)), seen(&resources, None)), (1, 0, 0));
        assert!(!resources.remove_for(&other, "t", "a"));
        assert!(resources.remove_for(&mine, "t", "a"));
        assert_eq!(seen(&resources, Some(&mine)), 0);
        resources.upsert("u", "a", Resource::new("1"));
        assert_eq!(resources.seen_by("u", Some(&other)).map(|all| all.len()), Some(1), "what is for all");
    }
}
