//! Everything that a control plane publishes at one time.

use std::collections::BTreeMap;
use std::sync::Arc;

use leno_model::Name;

use crate::catalogue::Catalogue;
use crate::published::Published;
use crate::resource::Resource;

/// A snapshot of everything published. Snapshots share what is equal in them, down to pages of some hundred resources,
/// and comparing them skips what they share.
#[derive(Debug, Clone, Default)]
pub struct Resources {
    generation: u64,
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
