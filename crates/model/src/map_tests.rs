use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::rc::Rc;

use proptest::prelude::*;

use super::*;

/// Whether the tree is one: heights, order, and how full its nodes are.
fn check<K: Ord + Clone + fmt::Debug, V>(map: &Map<K, V>) {
    fn height<K: Ord + fmt::Debug, V>(node: &Node<K, V>, from: Option<&K>, to: Option<&K>) -> usize {
        assert!((1..=FULL).contains(&node.len()), "{} in one node", node.len());
        match node {
            Node::Leaf(entries) => {
                assert!(entries.is_sorted_by(|one, other| one.0 < other.0));
                assert!(entries.iter().all(|(key, _)| from.is_none_or(|from| from <= key)));
                assert!(entries.iter().all(|(key, _)| to.is_none_or(|to| key < to)));
                1
            }
            Node::Branch(children) => {
                let heights: Vec<_> = (0..children.len())
                    .map(|index| {
                        let from = if index == 0 { from } else { Some(&children[index].0) };
                        height(&children[index].1, from, children.get(index + 1).map(|(key, _)| key).or(to))
                    })
                    .collect();
                assert!(heights.iter().all(|height| *height == heights[0]), "{heights:?}");
                heights[0] + 1
            }
        }
    }
    match &map.root {
        None => assert_eq!(map.len(), 0),
        Some(root) => {
            height(root, None, None);
            assert_eq!(map.len(), map.iter().count());
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Insert(u16, u32),
    Remove(u16),
    Add(u16, u32),
    Change(u16, u32),
    /// Keeps a clone, which nothing may change from here on.
    Publish,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Phases that mostly add and mostly remove: else the tree would stay flat.
    let phase = (0u16..4, 1u32..9).prop_flat_map(|(spread, adds)| {
        let key = 0..40u16 << (2 * spread);
        let step = prop_oneof![
            adds => (key.clone(), any::<u32>()).prop_map(|(k, v)| Step::Insert(k, v)),
            9 - adds => key.clone().prop_map(Step::Remove),
            1 => (key.clone(), any::<u32>()).prop_map(|(k, v)| Step::Add(k, v)),
            1 => (key, any::<u32>()).prop_map(|(k, v)| Step::Change(k, v)),
            1 => Just(Step::Publish),
        ];
        prop::collection::vec(step, 0..700)
    });
    prop::collection::vec(phase, 1..5).prop_map(|phases| phases.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn it_is_what_the_standard_librarys_is(steps in steps(), from in 0..3000u16, to in 0..3000u16) {
        let mut map = Map::new();
        let mut naive = BTreeMap::new();
        let mut published = Vec::new();
        for step in steps {
            match step {
                Step::Insert(key, value) => prop_assert_eq!(map.insert(key, value), naive.insert(key, value)),
                Step::Remove(key) => prop_assert_eq!(map.remove(&key), naive.remove(&key)),
                Step::Add(key, value) => {
                    let (held, expected) = (map.get_or_insert_with(key, || value), naive.entry(key).or_insert(value));
                    prop_assert_eq!(&*held, &*expected);
                    *held = held.wrapping_add(1);
                    *expected = expected.wrapping_add(1);
                }
                Step::Change(key, value) => {
                    let (held, expected) = (map.get_mut(&key), naive.get_mut(&key));
                    prop_assert_eq!(&held, &expected);
                    if let (Some(held), Some(expected)) = (held, expected) {
                        *held = value;
                        *expected = value;
                    }
                }
                Step::Publish if published.len() < 8 => published.push((map.clone(), naive.clone())),
                Step::Publish => {}
            }
        }
        published.push((map, naive));
        for (map, naive) in &published {
            check(map);
            prop_assert!(map.iter().eq(naive));
            prop_assert!((0..3000).all(|key| map.get(&key) == naive.get(&key)));
            prop_assert_eq!(map.first_key_value(), naive.first_key_value());
            if from < to {
                prop_assert!(map.range(from..to).eq(naive.range(from..to)));
                prop_assert!(map.range(from..=to).eq(naive.range(from..=to)));
                let above = (Bound::Excluded(from), Bound::Unbounded);
                prop_assert!(map.range(above).eq(naive.range(above)));
            }
        }
    }
}

/// A value that counts how often it is cloned.
struct Counted(Rc<Cell<usize>>);

impl Clone for Counted {
    fn clone(&self) -> Self {
        self.0.set(self.0.get() + 1);
        Self(self.0.clone())
    }
}

/// Clones of values that a replacement, an insertion and a removal cost after a clone of the map.
fn copied(size: u32) -> usize {
    let clones = Rc::default();
    // Not in order, or all nodes would be full.
    let keys = (0..size).map(|key| key.wrapping_mul(2_654_435_761));
    let mut map: Map<_, _> = keys.map(|key| (key, Counted(Rc::clone(&clones)))).collect();
    clones.set(0);
    let (published, key) = (map.clone(), 77u32.wrapping_mul(2_654_435_761));
    map.insert(key, Counted(clones.clone()));
    map.insert(key + 1, Counted(clones.clone()));
    map.remove(&key);
    assert_eq!(published.len(), map.len());
    clones.get()
}

#[test]
fn a_write_after_a_clone_copies_one_leaf_whatever_the_size() {
    for size in [500, 5_000, 50_000] {
        let copied = copied(size);
        assert!((1..=FULL).contains(&copied), "{copied} of {size}");
    }
}

#[test]
fn a_lone_map_is_written_in_place() {
    let clones = Rc::default();
    let mut map: Map<_, _> = (0..5_000u32).map(|key| (key, Counted(Rc::clone(&clones)))).collect();
    (0..5_000).filter(|key| key % 3 > 0).for_each(|key| drop(map.remove(&key)));
    assert_eq!(clones.get(), 0);
    check(&map);
}

#[test]
fn clones_are_told_from_what_was_written_since() {
    let mut map: Map<_, _> = (0..100).map(|key| (key, key)).collect();
    let clone = map.clone();
    assert!(map.ptr_eq(&clone));
    // What is not there is not copied for.
    assert_eq!(map.get_mut(&200), None);
    assert_eq!(map.remove(&200), None);
    assert!(map.ptr_eq(&clone));
    map.insert(7, 7);
    assert!(!map.ptr_eq(&clone));
    assert_eq!(map, clone);
    map.insert(7, 8);
    assert_ne!(map, clone);
    map.clear();
    assert!(map.is_empty() && map.ptr_eq(&Map::new()));
}

#[test]
fn an_empty_map_is_two_words() {
    assert_eq!(size_of::<Map<crate::Name, crate::Name>>(), 16);
}
