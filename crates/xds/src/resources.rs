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
}
