//! Finding what has a key, by a hash of the key.
//!
//! The keys themselves are in what is found, so that an index keeps no second copy of them, and finding
//! one compares numbers that lie side by side.

use std::hash::{BuildHasher, Hash, RandomState};
use std::slice;
use std::sync::{Arc, LazyLock};

use crate::Map;

/// One for all indices, as their clones must agree. Nobody outside can know what collides.
static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// The number under which what has that key is indexed.
pub(crate) fn hash(key: impl Hash) -> u64 {
    KEYS.hash_one(key)
}

/// Values by the hash of a key. Several may have one key, and two keys one hash: who asks compares.
#[derive(Debug, Clone)]
pub(crate) struct Index<V>(Map<u64, Few<V>>);

/// Mostly one.
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
    /// What was put there.
    pub(crate) fn at(&self, hash: u64) -> &[V] {
        self.0.get(&hash).map_or(&[], Few::all)
    }

    /// Everything, in no order.
    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.0.values().flat_map(Few::all)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<V: Clone> Index<V> {
    /// Puts a value after those that are there.
    pub(crate) fn put(&mut self, hash: u64, value: V) {
        self.put_before(hash, value, |_| false);
    }

    /// Puts a value before the first that comes `after` it.
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

    /// Removes those that it `is`.
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
