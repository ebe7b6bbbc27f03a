//! A hash index: finds values by a key that is part of the value.
//!
//! The index stores only the hash of each key, so it keeps no second copy of the keys. A lookup compares integers that
//! lie side by side in memory.

use std::hash::{BuildHasher, Hash, RandomState};
use std::slice;
use std::sync::{Arc, LazyLock};

use crate::Map;

/// The hash keys, shared by all indices so that their clones agree. They are random, so an outsider can't provoke
/// collisions.
static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// The hash under which a value with this key is stored.
pub(crate) fn hash(key: impl Hash) -> u64 {
    KEYS.hash_one(key)
}

/// Values by the hash of a key. Several values may share a key, and two keys may share a hash, so callers compare the
/// key themselves.
#[derive(Debug, Clone)]
pub(crate) struct Index<V>(Map<u64, Few<V>>);

/// The values of one hash; most hashes have one value.
#[derive(Debug, Clone)]
enum Few<V> {
    One(V),
    Several(Arc<[V]>),
}

impl<V> Few<V> {
    fn all(&self) -> &[V] {
        match self {
            Self::One(value) => slice::from_ref(value),
            Self::Several(values) => values,
        }
    }
}

impl<V> Default for Index<V> {
    fn default() -> Self {
        Self(Map::new())
    }
}

impl<V> Index<V> {
    /// The values stored under `hash`.
    pub(crate) fn at(&self, hash: u64) -> &[V] {
        self.0.get(&hash).map_or(&[], Few::all)
    }

    /// All values, in no particular order.
    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.0.values().flat_map(Few::all)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<V: Clone> Index<V> {
    /// Adds a value behind those with the same hash.
    pub(crate) fn put(&mut self, hash: u64, value: V) {
        self.put_before(hash, value, |_| false);
    }

    /// Adds a value before the first one for which `after` is true.
    pub(crate) fn put_before(&mut self, hash: u64, value: V, after: impl Fn(&V) -> bool) {
        let few = match self.at(hash) {
            [] => Few::One(value),
            held => {
                let (before, behind) = held.split_at(held.iter().position(after).unwrap_or(held.len()));
                Few::Several(before.iter().cloned().chain([value]).chain(behind.iter().cloned()).collect())
            }
        };
        self.0.insert(hash, few);
    }

    /// Removes the values for which `is` is true.
    pub(crate) fn remove(&mut self, hash: u64, is: impl Fn(&V) -> bool) {
        let mut left: Vec<V> = match self.at(hash) {
            held if held.iter().any(&is) => held.iter().filter(|value| !is(value)).cloned().collect(),
            _ => return,
        };
        match left.len() {
            0 => self.0.remove(&hash),
            1 => left.pop().and_then(|last| self.0.insert(hash, Few::One(last))),
            _ => self.0.insert(hash, Few::Several(left.into())),
        };
    }

    /// Puts `value` in place of what it `is`, if that is the only one there; whether it was.
    pub(crate) fn replace_only(&mut self, hash: u64, value: &V, is: impl Fn(&V) -> bool) -> bool {
        match self.0.get_mut(&hash) {
            Some(Few::One(held)) if is(held) => {
                *held = value.clone();
                true
            }
            _ => false,
        }
    }

    /// The first that it `is`, to be changed.
    pub(crate) fn find_mut(&mut self, hash: u64, is: impl Fn(&V) -> bool) -> Option<&mut V> {
        match self.0.get_mut(&hash)? {
            Few::One(value) => Some(value).filter(|value| is(value)),
            Few::Several(values) => Arc::make_mut(values).iter_mut().find(|value| is(value)),
        }
    }
}

#[cfg(test)]
#[path = "index_tests.rs"]
mod tests;
