use super::*;

#[test]
fn those_of_one_hash_are_kept_in_their_order() {
    let mut index = Index::default();
    index.put(1, "b");
    index.put(1, "d");
    index.put_before(1, "c", |other| *other > "c");
    index.put_before(1, "a", |other| *other > "a");
    index.put(2, "e");
    assert_eq!((index.at(1), index.at(2), index.at(3)), (&["a", "b", "c", "d"][..], &["e"][..], &[][..]));
    assert_eq!(index.find_mut(1, |value| *value == "c"), Some(&mut "c"));
    assert_eq!(index.find_mut(2, |value| *value == "c"), None);
    let before = index.clone();
    for (gone, left) in [("b", &["a", "c", "d"][..]), ("x", &["a", "c", "d"]), ("d", &["a", "c"]), ("a", &["c"])] {
        index.remove(1, |value| *value == gone);
        assert_eq!(index.at(1), left);
    }
    index.remove(1, |_| true);
    index.remove(2, |_| true);
    assert!(index.is_empty());
    assert_eq!(before.values().count(), 5);
}

#[test]
fn only_what_is_alone_is_replaced_where_it_is() {
    let mut index = Index::default();
    index.put(1, ("a", 1));
    let is = |name: &'static str| move |held: &(&str, i32)| held.0 == name;
    assert!(!index.replace_only(1, &("b", 2), is("b")) && !index.replace_only(2, &("a", 2), is("a")));
    assert_eq!(index.at(1), [("a", 1)]);
    assert!(index.replace_only(1, &("a", 2), is("a")));
    assert_eq!(index.at(1), [("a", 2)]);
    index.put(1, ("b", 1));
    assert!(!index.replace_only(1, &("b", 2), is("b")));
    assert_eq!(index.at(1), [("a", 2), ("b", 1)]);
}

/// 50 000 pods are in several of these.
#[test]
fn an_entry_is_three_words() {
    assert_eq!(size_of::<(u64, Few<Arc<()>>)>(), 24);
}
