use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};

use super::*;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn id(account: &str) -> Identity {
    Identity::new("cluster.local", "shop", account).unwrap()
}

fn open(dir: &Path) -> Option<SavedState> {
    SavedState::open(dir, "this node", DAY)
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o777
}

#[test]
fn what_is_saved_is_there_for_the_next_proxy_and_for_nobody_else() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("below").join("state");
    let first = open(&place).unwrap();
    fs::write(first.mesh(), "mesh").unwrap();
    first.certificates().save(&id("web"), "secret");
    first.certificates().save(&id("db"), "other");
    first.certificates.settle();
    let next = open(&place).unwrap();
    assert!(next.mesh().exists());
    assert_eq!(next.certificates().load(&id("web")).as_deref(), Some("secret"));
    assert_eq!(next.certificates().load(&id("job")), None);
    next.certificates().remove(&id("web"));
    assert_eq!(next.certificates().load(&id("web")), None);
    next.certificates().save(&id("web"), "again");
    next.certificates.settle();
    next.keep_only([id("web")].iter());
    assert_eq!(next.certificates().load(&id("web")).as_deref(), Some("again"));
    assert_eq!(next.certificates().load(&id("db")), None, "its pods left while no proxy ran");
    for (path, expected) in
        [(&place, 0o700), (&place.join("certificates"), 0o700), (&next.certificates.path(&id("web")), 0o600)]
    {
        assert_eq!(mode(path), expected, "{}", path.display());
    }
}

#[test]
fn state_of_another_boot_or_control_plane_or_layout_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("state");
    let first = open(&place).unwrap();
    for file in ["mesh", "mesh.0badcafe"] {
        fs::write(place.join(file), "mesh").unwrap();
    }
    first.certificates().save(&id("web"), "secret");
    first.certificates.settle();
    let next = SavedState::open(&place, "another node", DAY).unwrap();
    assert_eq!(next.certificates().load(&id("web")), None);
    let left = next.files().unwrap();
    assert_eq!(left.len(), 2, "the owner and the directory of certificates: {left:?}");
    // It is the other one's now.
    next.certificates().save(&id("web"), "secret");
    next.certificates.settle();
    fs::write(place.join("owner"), "torn").unwrap();
    fs::set_permissions(place.join("owner"), fs::Permissions::from_mode(0o600)).unwrap();
    let torn = SavedState::open(&place, "another node", DAY).unwrap();
    assert_eq!(torn.certificates().load(&id("web")), None);
}

#[test]
fn certificates_that_have_ended_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("state");
    let first = open(&place).unwrap();
    for (account, hours) in [("web", 25), ("db", 23)] {
        first.certificates().save(&id(account), "secret");
        first.certificates.settle();
        let written = std::time::SystemTime::now() - Duration::from_secs(hours * 3600);
        let file = fs::File::options().write(true).open(first.certificates.path(&id(account))).unwrap();
        file.set_modified(written).unwrap();
    }
    let next = open(&place).unwrap();
    assert_eq!(next.certificates().load(&id("web")), None);
    assert!(next.certificates().load(&id("db")).is_some());
}

#[test]
fn a_place_or_a_file_that_others_may_write_to_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("state");
    let state = open(&place).unwrap();
    state.certificates().save(&id("web"), "secret");
    state.certificates.settle();
    let file = state.certificates.path(&id("web"));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(state.certificates().load(&id("web")), None);
    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("/etc/hostname", &file).unwrap();
    assert_eq!(state.certificates().load(&id("web")), None, "through a link");
    fs::remove_file(&file).unwrap();
    fs::set_permissions(&place, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(open(&place).is_none(), "open to others");
    fs::set_permissions(&place, fs::Permissions::from_mode(0o700)).unwrap();
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&place, &link).unwrap();
    assert!(open(&link).is_none(), "a link");
    assert!(open(&place.join("owner")).is_none(), "a file");
    if nix::unistd::geteuid().is_root() {
        std::os::unix::fs::chown(&place, Some(65534), None).unwrap();
        assert!(open(&place).is_none(), "another user's");
        assert!(fs::read_dir(&place).unwrap().count() > 0, "and it is left alone");
    }
}

#[test]
fn a_directory_with_somebody_s_files_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("home");
    DirBuilder::new().mode(0o700).create(&place).unwrap();
    fs::write(place.join("thesis"), "years").unwrap();
    assert!(open(&place).is_none());
    assert_eq!(fs::read_dir(&place).unwrap().count(), 1);
}
