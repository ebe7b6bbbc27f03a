//! An ordered map whose clones share structure.
//!
//! A new snapshot of the mesh is published with every change, while readers still hold the previous one. With the
//! standard library's maps, each snapshot would be a full copy. This map is a B+tree of reference-counted nodes, which
//! are not written while two maps hold them. A clone increments one count. A write after a clone copies only the nodes
//! on the path to its entry, whatever the size of the map.
//!
//! Entries lie in order, side by side in the leaves, so an entry costs little more than its key and value.
//!
//! Published resources have a tree of their own (`catalogue` in `leno-xds`): it finds what differs between two versions,
//! and keeps each page of resources encoded. A mesh needs neither, and writes more often, so its nodes are smaller.

use std::borrow::Borrow;
use std::fmt;
use std::ops::{Bound, Index, RangeBounds};
use std::slice;
use std::sync::Arc;

/// Most entries of a leaf and most children of a branch. A write after a clone copies one such node per level; a lookup
/// is a binary search in each. Copying costs one count per key and value.
const FULL: usize = 24;
/// A node with fewer entries is merged with its neighbour.
const SCANT: usize = FULL / 4;
/// Capacity grows in steps of this size, because most nodes stay as they are for long.
const GROWTH: usize = 4;

/// An ordered map whose clones share their nodes.
///
/// Values should be cheap to clone, because a write may clone up to a node of them: numbers, `Arc`s, or another `Map`.
pub struct Map<K, V> {
    root: Option<Arc<Node<K, V>>>,
    len: usize,
}

/// An ordered set whose clones share their nodes. [`Map::keys`] lists its members.
pub type Set<T> = Map<T, ()>;

enum Node<K, V> {
    /// Entries in order.
    Leaf(Vec<(K, V)>),
    /// Children in order, all of the same height. A child's keys are at least the key stored beside it and less than
    /// the next child's. The first child's stored key is not used.
    Branch(Vec<(K, Arc<Self>)>),
}

/// A child and its smallest possible key.
type Child<K, V> = (K, Arc<Node<K, V>>);

impl<K: Clone, V: Clone> Clone for Node<K, V> {
    /// A node is cloned only in order to be written.
    fn clone(&self) -> Self {
        fn with_room<T: Clone>(nodes: &[T]) -> Vec<T> {
            let mut copy = Vec::with_capacity((nodes.len() + 1).min(FULL));
            copy.extend_from_slice(nodes);
            copy
        }
        match self {
            Self::Leaf(entries) => Self::Leaf(with_room(entries)),
            Self::Branch(children) => Self::Branch(with_room(children)),
        }
    }
}

/// What a write did to a node.
enum Inserted<K, V> {
    /// The key was there. Holds its previous value.
    Replaced(V),
    /// The key is new, and there was room for it.
    New,
    /// The key is new, and the node was split. Holds the right half and its first key.
    Split(K, Arc<Node<K, V>>),
}

/// The child in which `key` belongs.
fn child_of<K: Borrow<Q>, V, Q: Ord + ?Sized>(children: &[Child<K, V>], key: &Q) -> usize {
    children.get(1..).map_or(0, |others| others.partition_point(|(from, _)| from.borrow() <= key))
}

/// Inserts `item` at `index`. Returns what was split off to make room.
fn put<T>(items: &mut Vec<T>, index: usize, item: T) -> Option<Vec<T>> {
    if items.len() < FULL {
        if items.len() == items.capacity() {
            items.reserve_exact(GROWTH.min(FULL - items.len()));
        }
        items.insert(index, item);
        return None;
    }
    if index == FULL {
        // Entries that arrive in order leave full nodes behind.
        return Some(vec![item]);
    }
    let mut right = items.split_off(FULL / 2);
    items.shrink_to(FULL / 2 + GROWTH);
    let side = if index <= FULL / 2 { &mut *items } else { &mut right };
    let index = if index <= FULL / 2 { index } else { index - FULL / 2 };
    if side.len() == side.capacity() {
        side.reserve_exact(GROWTH);
    }
    side.insert(index, item);
    Some(right)
}

impl<K: Ord + Clone, V: Clone> Node<K, V> {
    fn insert(&mut self, key: K, value: V) -> Inserted<K, V> {
        match self {
            Self::Leaf(entries) => match entries.binary_search_by(|(held, _)| held.cmp(&key)) {
                Ok(index) => Inserted::Replaced(std::mem::replace(&mut entries[index].1, value)),
                Err(index) => match put(entries, index, (key, value)) {
                    None => Inserted::New,
                    Some(right) => Inserted::Split(right[0].0.clone(), Arc::new(Self::Leaf(right))),
                },
            },
            Self::Branch(children) => {
                let index = child_of(children, &key);
                match Arc::make_mut(&mut children[index].1).insert(key, value) {
                    Inserted::Split(from, child) => match put(children, index + 1, (from, child)) {
                        None => Inserted::New,
                        Some(right) => Inserted::Split(right[0].0.clone(), Arc::new(Self::Branch(right))),
                    },
                    done => done,
                }
            }
        }
    }

    fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        match self {
            Self::Leaf(entries) => {
                let index = entries.binary_search_by(|(held, _)| held.borrow().cmp(key)).ok()?;
                Some(&mut entries[index].1)
            }
            Self::Branch(children) => {
                let index = child_of(children, key);
                Arc::make_mut(&mut children[index].1).get_mut(key)
            }
        }
    }

    fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        match self {
            Self::Leaf(entries) => {
                let index = entries.binary_search_by(|(held, _)| held.borrow().cmp(key)).ok()?;
                Some(entries.remove(index).1)
            }
            Self::Branch(children) => {
                let index = child_of(children, key);
                let child = Arc::make_mut(&mut children[index].1);
                let removed = child.remove(key)?;
                match child.len() {
                    0 => drop(children.remove(index)),
                    few if few < SCANT && children.len() > 1 => put_together(children, index.saturating_sub(1)),
                    _ => {}
                }
                Some(removed)
            }
        }
    }
}

impl<K, V> Node<K, V> {
    fn len(&self) -> usize {
        match self {
            Self::Leaf(entries) => entries.len(),
            Self::Branch(children) => children.len(),
        }
    }
}

/// Merges the children `left` and `left + 1`, or balances them if they don't fit into one node.
fn put_together<K: Clone, V: Clone>(children: &mut Vec<Child<K, V>>, left: usize) {
    let (from, right) = children.remove(left + 1);
    let right = Arc::unwrap_or_clone(right);
    let split = match (Arc::make_mut(&mut children[left].1), right) {
        (Node::Leaf(entries), Node::Leaf(mut others)) => {
            entries.append(&mut others);
            halve(entries).map(|right| (right[0].0.clone(), Node::Leaf(right)))
        }
        (Node::Branch(inner), Node::Branch(mut others)) => {
            // A branch's first key is not used; the key beside the branch is the right one.
            if let Some(first) = others.first_mut() {
                first.0 = from;
            }
            inner.append(&mut others);
            halve(inner).map(|right| (right[0].0.clone(), Node::Branch(right)))
        }
        // Can't happen: children have the same height.
        (_, right) => Some((from, right)),
    };
    if let Some((from, right)) = split {
        children.insert(left + 1, (from, Arc::new(right)));
    }
}

/// Splits off the right half if there are too many items for one node.
fn halve<T>(items: &mut Vec<T>) -> Option<Vec<T>> {
    let right = (items.len() > FULL).then(|| items.split_off(items.len() / 2));
    items.shrink_to_fit();
    right
}

impl<K, V> Map<K, V> {
    /// An empty map.
    pub const fn new() -> Self {
        Self { root: None, len: 0 }
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether `other` is a clone of this map and neither was written since. If true, they are equal, and no entry had
    /// to be compared.
    pub fn ptr_eq(&self, other: &Self) -> bool {
        match (&self.root, &other.root) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        }
    }

    /// The entries, in order.
    pub fn iter(&self) -> Iter<'_, K, V> {
        let mut iter = Iter { branches: Vec::new(), leaf: [].iter() };
        if let Some(root) = &self.root {
            iter.descend(root);
        }
        iter
    }

    /// The keys, in order.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }

    /// The values, in the order of their keys.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    /// The entry with the smallest key.
    pub fn first_key_value(&self) -> Option<(&K, &V)> {
        self.iter().next()
    }

    /// The entry of a key.
    pub fn get_key_value<Q: Ord + ?Sized>(&self, key: &Q) -> Option<(&K, &V)>
    where
        K: Borrow<Q>,
    {
        let mut node = self.root.as_deref()?;
        loop {
            match node {
                Node::Leaf(entries) => {
                    let index = entries.binary_search_by(|(held, _)| held.borrow().cmp(key)).ok()?;
                    return entries.get(index).map(|(key, value)| (key, value));
                }
                Node::Branch(children) => node = &children.get(child_of(children, key))?.1,
            }
        }
    }

    /// The value of a key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.get_key_value(key).map(|(_, value)| value)
    }

    /// Whether there is an entry with that key.
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.get_key_value(key).is_some()
    }

    /// The entries whose keys are in a range, in order.
    pub fn range<'a, Q, R>(&'a self, range: R) -> impl Iterator<Item = (&'a K, &'a V)> + use<'a, K, V, Q, R>
    where
        Q: Ord + ?Sized,
        K: Borrow<Q>,
        R: RangeBounds<Q>,
    {
        self.starting(range.start_bound()).take_while(move |(key, _)| match range.end_bound() {
            Bound::Included(end) => (*key).borrow() <= end,
            Bound::Excluded(end) => (*key).borrow() < end,
            Bound::Unbounded => true,
        })
    }

    fn starting<Q: Ord + ?Sized>(&self, start: Bound<&Q>) -> Iter<'_, K, V>
    where
        K: Borrow<Q>,
    {
        let (Bound::Included(key) | Bound::Excluded(key)) = start else { return self.iter() };
        let mut iter = Iter { branches: Vec::new(), leaf: [].iter() };
        let mut node = self.root.as_deref();
        while let Some(inner) = node.take() {
            match inner {
                Node::Leaf(entries) => {
                    let skipped = entries.partition_point(|(held, _)| match start {
                        Bound::Excluded(_) => held.borrow() <= key,
                        _ => held.borrow() < key,
                    });
                    iter.leaf = entries.get(skipped..).unwrap_or_default().iter();
                }
                Node::Branch(children) => {
                    let index = child_of(children, key);
                    iter.branches.push(children.get(index + 1..).unwrap_or_default().iter());
                    node = children.get(index).map(|(_, child)| &**child);
                }
            }
        }
        iter
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        *self = Self::new();
    }
}

impl<K: Ord + Clone, V: Clone> Map<K, V> {
    /// Adds or replaces an entry. Returns the value that was replaced.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let Some(root) = &mut self.root else {
            self.root = Some(Arc::new(Node::Leaf(vec![(key, value)])));
            self.len = 1;
            return None;
        };
        match Arc::make_mut(root).insert(key, value) {
            Inserted::Replaced(before) => return Some(before),
            Inserted::New => {}
            Inserted::Split(from, right) => {
                let left = root.clone();
                *root = Arc::new(Node::Branch(vec![(from.clone(), left), (from, right)]));
            }
        }
        self.len += 1;
        None
    }

    /// The value of a key, for changing it. Copies nothing if there is no such entry.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        if !self.contains_key(key) {
            return None;
        }
        Arc::make_mut(self.root.as_mut()?).get_mut(key)
    }

    /// The value of a key, for changing it. If there is none, inserts what `value` returns.
    pub fn get_or_insert_with(&mut self, key: K, value: impl FnOnce() -> V) -> &mut V {
        if !self.contains_key(&key) {
            self.insert(key.clone(), value());
        }
        // It was found or inserted just now.
        self.get_mut(&key).expect("the key is in the map")
    }

    /// Removes an entry and returns its value. Copies nothing if there is no such entry.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        if !self.contains_key(key) {
            return None;
        }
        let root = self.root.as_mut()?;
        let removed = Arc::make_mut(root).remove(key)?;
        self.len -= 1;
        // A root with a single child is one level too many.
        while let Node::Branch(children) = &**root
            && let [(_, only)] = &children[..]
        {
            *root = only.clone();
        }
        if root.len() == 0 {
            self.root = None;
        }
        Some(removed)
    }
}

/// The entries of a [`Map`], in order.
pub struct Iter<'a, K, V> {
    branches: Vec<slice::Iter<'a, Child<K, V>>>,
    leaf: slice::Iter<'a, (K, V)>,
}

impl<'a, K, V> Iter<'a, K, V> {
    fn descend(&mut self, mut node: &'a Node<K, V>) {
        loop {
            match node {
                Node::Leaf(entries) => {
                    self.leaf = entries.iter();
                    return;
                }
                Node::Branch(children) => {
                    let mut children = children.iter();
                    let Some((_, first)) = children.next() else { return };
                    self.branches.push(children);
                    node = first;
                }
            }
        }
    }
}

impl<'a, K, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some((key, value)) = self.leaf.next() {
                return Some((key, value));
            }
            match self.branches.last_mut()?.next() {
                Some((_, child)) => self.descend(child),
                None => drop(self.branches.pop()),
            }
        }
    }
}

impl<K, V> fmt::Debug for Iter<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Iter").finish_non_exhaustive()
    }
}

impl<K, V> Clone for Map<K, V> {
    fn clone(&self) -> Self {
        Self { root: self.root.clone(), len: self.len }
    }
}

impl<K, V> Default for Map<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Borrow<Q>, V, Q: Ord + ?Sized> Index<&Q> for Map<K, V> {
    type Output = V;

    /// # Panics
    /// If there is no such entry.
    fn index(&self, key: &Q) -> &V {
        self.get(key).expect("an entry with that key")
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for Map<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<K: PartialEq, V: PartialEq> PartialEq for Map<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.ptr_eq(other) || self.len == other.len && self.iter().eq(other.iter())
    }
}

impl<K: Eq, V: Eq> Eq for Map<K, V> {}

impl<K: Ord + Clone, V: Clone> Extend<(K, V)> for Map<K, V> {
    fn extend<T: IntoIterator<Item = (K, V)>>(&mut self, entries: T) {
        for (key, value) in entries {
            self.insert(key, value);
        }
    }
}

impl<K: Ord + Clone, V: Clone> FromIterator<(K, V)> for Map<K, V> {
    fn from_iter<T: IntoIterator<Item = (K, V)>>(entries: T) -> Self {
        let mut map = Self::new();
        map.extend(entries);
        map
    }
}

impl<'a, K, V> IntoIterator for &'a Map<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = Iter<'a, K, V>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
#[path = "map_tests.rs"]
mod tests;
