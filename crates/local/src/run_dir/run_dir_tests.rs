use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

use super::*;
use crate::run_dir::lock::Lock;

fn stage(base: &Path) -> StageName {
    StageName::new("x").unwrap().in_dir(base)
}

fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn ones_own_directory_is_used_again() {
    let base = tempfile::tempdir().unwrap();
    let name = stage(base.path());
    assert_eq!(check(&name).unwrap(), base.path().join("x"), "one that is not there yet is no mistake");
    make(&name).unwrap();
    assert_eq!(make(&name).unwrap(), base.path().join("x"));
    assert_eq!(std::fs::metadata(base.path().join("x")).unwrap().mode() & 0o7777, 0o700);
}

#[test]
fn what_somebody_else_may_have_made_is_not_used() {
    let elsewhere = tempfile::tempdir().unwrap();
    let refused = |what: &str, prepare: &dyn Fn(&Path, &Path)| {
        let base = tempfile::tempdir().unwrap();
        prepare(base.path(), &base.path().join("x"));
        let name = stage(base.path());
        for outcome in [make(&name), check(&name)] {
            let text = outcome.expect_err(what).to_string();
            assert!(text.contains(what) && text.contains("LENO_RUN_DIR"), "{what}: {text}");
        }
    };
    refused("symbolic link", &|_, dir| symlink(elsewhere.path(), dir).unwrap());
    refused("is no directory but a file", &|_, dir| std::fs::write(dir, "").unwrap());
    refused("open to other users (mode 755)", &|_, dir| {
        std::fs::create_dir(dir).unwrap();
        mode(dir, 0o755);
    });
    // Others could put another directory in its place. In one like /tmp they can't.
    refused("open to other users (mode 777)", &|base, _| mode(base, 0o777));
    let like_tmp = tempfile::tempdir().unwrap();
    mode(like_tmp.path(), 0o1777);
    make(&stage(like_tmp.path())).unwrap();
    if nix::unistd::geteuid().is_root() {
        refused("belongs to user 65534", &|_, dir| {
            std::fs::create_dir(dir).unwrap();
            mode(dir, 0o700);
            chown(dir, Some(65534), None).unwrap();
        });
    }
    assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0);
}

#[test]
fn no_file_is_opened_through_a_link() {
    let base = tempfile::tempdir().unwrap();
    let name = stage(base.path());
    let dir = make(&name).unwrap();
    let victim = base.path().join("victim");
    std::fs::write(&victim, "precious").unwrap();
    for file in ["lock", "state.json", "log"] {
        symlink(&victim, dir.join(file)).unwrap();
    }
    assert!(Lock::take(&dir, &name).is_err());
    assert!(open_file(&dir.join("state.json")).is_err());
    assert!(write_file(&dir.join("state.json"), b"x", 0o600).is_err());
    assert!(crate::stage::logs::Log::open(&dir.join("log")).is_err());
    symlink(base.path(), dir.join("node-1")).unwrap();
    assert!(make_dir(&dir.join("node-1")).is_err());
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
}

#[test]
fn a_run_directory_is_the_same_wherever_it_is_asked_for() {
    let stage = stage(Path::new("stages"));
    assert_eq!(stage.run_dir(), std::env::current_dir().unwrap().join("stages/x"));
}

#[test]
fn others_are_found_by_their_directories() {
    let base = tempfile::tempdir().unwrap();
    let stage = stage(base.path());
    assert!(stage.others().is_empty());
    for name in ["lab", "x", "a", "Not a stage"] {
        std::fs::create_dir(base.path().join(name)).unwrap();
    }
    assert_eq!(stage.others(), ["a", "lab"]);
}
