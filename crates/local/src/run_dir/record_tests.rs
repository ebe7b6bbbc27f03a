use super::*;

fn id(inode: u64) -> NamespaceId {
    NamespaceId { device: 4, inode }
}

fn made(dir: &Path) -> Vec<(String, NamespaceId)> {
    let state = State::read(dir).unwrap();
    state.made().map(|(name, id)| (name.to_owned(), id)).collect()
}

#[test]
fn what_was_made_is_known_to_whoever_comes_next() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(State::read(dir.path()), None);
    let record = Record::begin(dir.path(), Path::new("/run/netns")).unwrap();
    assert_eq!(made(dir.path()), []);
    record.add("a", id(1)).unwrap();
    record.add("b", id(2)).unwrap();
    record.remove("a");
    assert_eq!(made(dir.path()), [("b".to_owned(), id(2))]);
    assert_eq!(State::read(dir.path()).unwrap().netns_dir, Path::new("/run/netns"));
}

#[test]
fn after_a_restart_of_the_machine_it_made_nothing() {
    let dir = tempfile::tempdir().unwrap();
    Record::begin(dir.path(), Path::new("/run/netns")).unwrap().add("a", id(1)).unwrap();
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
