use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::Resource;

fn resource(name: &str, body: &str) -> Arc<Published> {
    Arc::new(Published::new("type", name.into(), &Resource::new(body.to_owned())))
}

/// This many resources, with names like those of pods, so that changes hit any page.
fn mesh(count: usize) -> Catalogue {
    let mut catalogue = Catalogue::default();
    for n in 0..count {
        catalogue.insert(resource(&pod(n), "1"));
    }
    catalogue
}

fn pod(n: usize) -> String {
    format!("Kubernetes//Pod/ns/{:08x}", (n as u32).wrapping_mul(0x9e37_79b9))
}

fn contents(catalogue: &Catalogue) -> BTreeMap<String, String> {
    catalogue.iter().map(|(name, found)| (name.to_string(), found.version().to_owned())).collect()
}

/// Checks what must always hold of a tree.
fn check(catalogue: &Catalogue) {
    fn walk(node: &Node, above: Option<&Name>) -> usize {
        assert!(node.len() <= node.most());
        if let Node::Shelf(shelf) = node {
            assert!(!shelf.places.is_empty());
            let heights: Vec<usize> = shelf.places.iter().map(|(first, node)| walk(node, Some(first))).collect();
            assert!(heights.iter().all(|height| *height == heights[0]), "{heights:?}");
            assert!(shelf.places.is_sorted_by(|a, b| a.0 < b.0));
            assert!(above.is_none_or(|above| *above <= shelf.places[0].0));
            return heights[0] + 1;
        }
        let Node::Page(page) = node else { unreachable!() };
        assert!(above.is_none_or(|above| page.entries.first().is_some_and(|first| above <= first.name())));
        0
    }
    walk(&catalogue.root, None);
    assert!(catalogue.keys().is_sorted());
    assert_eq!(catalogue.len(), catalogue.values().count());
    assert_eq!(catalogue.bytes(), catalogue.pages().map(|page| page.block().len()).sum::<usize>());
}

type Differences = Vec<(String, Option<String>, Option<String>)>;

fn differences(old: &Catalogue, new: &Catalogue) -> Differences {
    let mut found = Vec::new();
    let version = |of: &Arc<Published>| Some(of.version().to_owned());
    new.changes_since(old, |change| {
        found.push(match change {
            Change::Added(new) => (new.name().to_string(), None, version(new)),
            Change::Replaced { old, new } => (new.name().to_string(), version(old), version(new)),
            Change::Removed(old) => (old.name().to_string(), version(old), None),
        });
    });
    found
}

fn naive_differences(old: &Catalogue, new: &Catalogue) -> Differences {
    let (old, new) = (contents(old), contents(new));
    let names: std::collections::BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let differ = names.into_iter().filter(|name| old.get(*name) != new.get(*name));
    differ.map(|name| (name.clone(), old.get(name).cloned(), new.get(name).cloned())).collect()
}

#[derive(Debug, Clone)]
enum Step {
    Insert(u16, u8),
    Remove(u16),
    /// Removes this many names, from the first one on.
    RemoveMany(u16, u16),
    /// Adds this many names.
    InsertMany(u16, u16),
    Remember,
}

fn step() -> impl Strategy<Value = Step> {
    let name = || 0..2000u16;
    prop_oneof![
        6 => (name(), 0..3u8).prop_map(|(name, body)| Step::Insert(name, body)),
        6 => name().prop_map(Step::Remove),
        1 => (name(), 0..600u16).prop_map(|(name, count)| Step::RemoveMany(name, count)),
        1 => (name(), 0..600u16).prop_map(|(name, count)| Step::InsertMany(name, count)),
        3 => Just(Step::Remember),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A catalogue behaves as a map, and the differences between any two of its versions are exact.
    #[test]
    fn as_an_ordinary_map(steps in prop::collection::vec(step(), 1..120)) {
        let (mut map, mut catalogue) = (BTreeMap::new(), Catalogue::default());
        let mut versions = vec![catalogue.clone()];
        let name = |n: u16| format!("{n:05}");
        for step in steps {
            let mut insert = |n: u16, body: u8| {
                let new = resource(&name(n), &body.to_string());
                map.insert(name(n), new.version().to_owned());
                catalogue.insert(new);
            };
            match step {
                Step::Insert(n, body) => insert(n, body),
                Step::InsertMany(from, count) => (from..from + count).for_each(|n| insert(n, 9)),
                Step::Remove(n) => {
                    prop_assert_eq!(catalogue.remove(&name(n)), map.remove(&name(n)).is_some());
                }
                Step::RemoveMany(from, count) => {
                    for n in from..from + count {
                        prop_assert_eq!(catalogue.remove(&name(n)), map.remove(&name(n)).is_some());
                    }
                }
                Step::Remember => versions.push(catalogue.clone()),
            }
        }
        versions.push(catalogue.clone());
        prop_assert_eq!(contents(&catalogue), map);
        for old in &versions {
            check(old);
            prop_assert_eq!(differences(old, &catalogue), naive_differences(old, &catalogue));
            prop_assert_eq!(differences(&catalogue, old), naive_differences(&catalogue, old));
        }
    }
}

/// Finding one change compares as many places in a mesh ten times as large.
#[test]
fn a_change_is_found_without_a_look_at_the_rest() {
    let looked = [1_000, 5_000, 50_000].map(|count| {
        let before = mesh(count);
        let most = [0, count / 3, count / 2, count - 1].map(|n| {
            let mut after = before.clone();
            after.insert(resource(&pod(n), "2"));
            let changed = before.changes_since(&after, |_| {});
            let mut after = before.clone();
            after.remove(&pod(n));
            let removed = after.changes_since(&before, |_| {});
            let mut after = before.clone();
            after.insert(resource(&format!("{}-new", pod(n)), "1"));
            changed.max(removed).max(after.changes_since(&before, |_| {}))
        });
        most.into_iter().max().expect("four")
    });
    let limit = 2 * (PAGE + 3 * SHELF) + 10;
    assert!(looked.iter().all(|looked| *looked <= limit), "{looked:?}");
    let before = mesh(10_000);
    assert_eq!(before.changes_since(&before.clone(), |_| {}), 2, "one look at what is the same");
}

/// A change copies a page and its shelves; the rest of both versions is the same memory.
#[test]
fn versions_share_what_did_not_change() {
    let before = mesh(20_000);
    let mut after = before.clone();
    after.insert(resource(&pod(7), "2"));
    let old: std::collections::HashSet<_> = before.pages().map(Arc::as_ptr).collect();
    assert!(old.len() > 20_000 / PAGE);
    assert_eq!(after.pages().filter(|page| !old.contains(&Arc::as_ptr(page))).count(), 1);
    let untouched = after.pages().find(|page| old.contains(&Arc::as_ptr(page))).expect("most of them");
    let twin = before.pages().find(|page| Arc::ptr_eq(page, untouched)).expect("shared");
    assert_eq!(untouched.block().as_ptr(), twin.block().as_ptr(), "and so is what is sent of it");
}

#[test]
fn a_page_that_changes_is_written_anew() {
    let mut catalogue = mesh(3);
    for (name, body) in [(pod(1), "2"), (pod(9), "1")] {
        catalogue.pages().for_each(|page| drop(page.block().clone()));
        catalogue.insert(resource(&name, body));
        check(&catalogue);
    }
    catalogue.remove(&pod(9));
    check(&catalogue);
}

/// After most resources were removed, the others lie on few pages.
#[test]
fn what_is_left_moves_together() {
    let mut catalogue = mesh(20_000);
    for n in 0..19_800 {
        catalogue.remove(&pod(n));
    }
    check(&catalogue);
    assert_eq!(catalogue.len(), 200);
    assert!(catalogue.pages().count() <= 16, "{}", catalogue.pages().count());
}
