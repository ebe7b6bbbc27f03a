use super::*;

fn id(inode: u64) -> Identity {
    Identity { device: 4, inode, cookie: Some(inode + 1000) }
}

fn begin(dir: &Path, left: Option<State>) -> Record {
    Record::begin(dir, Path::new("/run/netns"), left).unwrap()
}

fn add(record: &Record, name: &str, id: Identity) {
    let mut state = record.state.lock();
    state.made.insert(name.to_owned(), id);
    state.write(&record.run_dir).unwrap();
}

fn made(dir: &Path) -> Vec<(String, Identity)> {
    let state = State::read(dir).unwrap();
    state.made().map(|(name, id)| (name.to_owned(), id)).collect()
}

#[test]
fn what_was_made_is_known_to_whoever_comes_next() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(State::read(dir.path()), None);
    let record = begin(dir.path(), None);
    assert_eq!(made(dir.path()), []);
    add(&record, "a", id(1));
    add(&record, "b", id(2));
    record.remove("a");
    assert_eq!(made(dir.path()), [("b".to_owned(), id(2))]);
    assert_eq!(State::read(dir.path()).unwrap().netns_dir, Path::new("/run/netns"));
}

#[test]
fn what_could_not_be_removed_is_the_next_stages_to_remove() {
    let dir = tempfile::tempdir().unwrap();
    let record = begin(dir.path(), None);
    add(&record, "a", id(1));
    add(&record, "b", id(2));
    let mut left = State::read(dir.path()).unwrap();
    left.keep_only(&["b".to_owned()].into());
    begin(dir.path(), Some(left.clone()));
    assert_eq!(made(dir.path()), [("b".to_owned(), id(2))]);
    left.boot = "an earlier one".to_owned();
    begin(dir.path(), Some(left));
    assert_eq!(made(dir.path()), []);
}

#[test]
fn after_a_restart_of_the_machine_it_made_nothing() {
    let dir = tempfile::tempdir().unwrap();
    add(&begin(dir.path(), None), "a", id(1));
    let text = std::fs::read_to_string(dir.path().join(FILE)).unwrap();
    std::fs::write(dir.path().join(FILE), text.replace(&boot(), "an earlier one")).unwrap();
    assert_eq!(made(dir.path()), []);
}

#[test]
fn a_stage_before_this_one_wrote_nothing_down() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(FILE), r#"{"netns_dir":"/run/netns"}"#).unwrap();
    assert_eq!(made(dir.path()), []);
}

/// A Leno before this one wrote no cookies down, and an old kernel has none.
#[test]
fn without_a_cookie_a_namespace_is_nobodys() {
    let here = NetworkNamespace::current().unwrap();
    let known = Identity::of(&here).unwrap();
    if known.cookie.is_none() {
        return;
    }
    assert!(known.is(&here));
    assert!(!Identity { cookie: None, ..known }.is(&here));
    assert!(!Identity { cookie: known.cookie.map(|cookie| cookie + 1), ..known }.is(&here));
    let before: Identity = serde_json::from_str(r#"{"device":4,"inode":1}"#).unwrap();
    assert_eq!(before.cookie, None);
}
