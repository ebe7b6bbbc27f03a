use std::path::PathBuf;

use nix::mount::{MntFlags, umount2};

use super::*;
use crate::netns_names::NAMED_DIR;
use crate::test_support::may_run;

/// A named namespace that is gone at the end, also when the test fails.
struct Named(PathBuf, String);

impl Drop for Named {
    fn drop(&mut self) {
        let _ = NetworkNamespace::delete_named(&self.0, &self.1);
        // The directory was made a mount point.
        if self.0 != Path::new(NAMED_DIR) {
            let _ = umount2(&self.0, MntFlags::MNT_DETACH);
        }
    }
}

#[test]
fn names_are_single_path_components() {
    for bad in ["", ".", "..", "a/b", "a\0b"] {
        let error = NetworkNamespace::create_named(Path::new("/nonexistent"), bad).unwrap_err();
        assert!(matches!(error, Error::InvalidName { .. }), "{bad:?}: {error}");
    }
}

#[test]
fn a_missing_directory_has_no_names() {
    assert_eq!(NetworkNamespace::list(Path::new("/nonexistent/netns")).unwrap(), Vec::<String>::new());
}

#[test]
fn runs_inside_and_returns_also_after_a_panic() {
    if !may_run("runs_inside_and_returns_also_after_a_panic") {
        return;
    }
    let home = NetworkNamespace::current().unwrap();
    let other = NetworkNamespace::create().unwrap();
    assert_ne!(home, other);
    assert_eq!(other.run(|| NetworkNamespace::current().unwrap().id()).unwrap(), other.id());
    assert_eq!(NetworkNamespace::current().unwrap(), home);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| other.run(|| panic!("on purpose"))));
    assert!(panicked.is_err());
    assert_eq!(NetworkNamespace::current().unwrap(), home);
    // Nested visits unwind one by one.
    let third = NetworkNamespace::create().unwrap();
    let (inner, outer) = other
        .run(|| (third.run(|| NetworkNamespace::current().unwrap()).unwrap(), NetworkNamespace::current().unwrap()))
        .unwrap();
    assert_eq!((inner, outer), (third, other));
}

#[test]
fn a_thread_that_lingers_comes_home_when_told() {
    if !may_run("a_thread_that_lingers_comes_home_when_told") {
        return;
    }
    let here = || NetworkNamespace::current().unwrap().id();
    let home = here();
    let (one, other) = (NetworkNamespace::create().unwrap(), NetworkNamespace::create().unwrap());
    let lingering = std::thread::spawn(move || {
        NetworkNamespace::linger();
        for namespace in [&one, &other, &one] {
            assert_eq!(namespace.run(here).unwrap(), namespace.id());
            assert_eq!(here(), namespace.id());
        }
        NetworkNamespace::go_home();
        assert_eq!(here(), home);
        NetworkNamespace::go_home();
        // A panic neither brings it home nor keeps it from coming.
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| other.run(|| panic!("on purpose"))));
        assert!(panicked.is_err() && here() == other.id());
        NetworkNamespace::go_home();
        assert_eq!(here(), home);
        // One that ends while it is away harms nobody.
        one.run(|| ()).unwrap();
    });
    lingering.join().unwrap();
    assert_eq!(here(), home);
}

#[test]
fn a_new_namespace_has_loopback_up() {
    if !may_run("a_new_namespace_has_loopback_up") {
        return;
    }
    let namespace = NetworkNamespace::create().unwrap();
    namespace
        .run(|| {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        })
        .unwrap();
}

#[test]
fn named_namespaces_come_and_go() {
    if !may_run("named_namespaces_come_and_go") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("netns");
    let guard = Named(dir.clone(), "leno-test-named".into());
    let created = NetworkNamespace::create_named(&dir, &guard.1).unwrap();
    assert_eq!(NetworkNamespace::list(&dir).unwrap(), ["leno-test-named"]);
    assert_eq!(NetworkNamespace::open_named(&dir, &guard.1).unwrap(), created);
    assert_eq!(NetworkNamespace::from_fd(created.try_clone_fd().unwrap()).unwrap(), created);
    let taken = NetworkNamespace::create_named(&dir, &guard.1).unwrap_err();
    assert_eq!(taken.errno(), Some(libc::EEXIST));
    assert_eq!(NetworkNamespace::open_named(&dir, &guard.1).unwrap(), created, "the failure must not remove it");
    NetworkNamespace::delete_named(&dir, &guard.1).unwrap();
    NetworkNamespace::delete_named(&dir, &guard.1).unwrap();
    assert!(NetworkNamespace::list(&dir).unwrap().is_empty());
    // The descriptor still works after the name is gone.
    created.run(|| ()).unwrap();
}

#[test]
fn ip_netns_sees_the_names() {
    if !may_run("ip_netns_sees_the_names") {
        return;
    }
    let name = format!("test-leno-{}", std::process::id());
    let guard = Named(NAMED_DIR.into(), name.clone());
    let created = match NetworkNamespace::create_named(&guard.0, &name) {
        // Root of a user namespace doesn't own /run.
        Err(error) if error.errno() == Some(libc::EACCES) => {
            leno_testkit::skips::skip("ip_netns_sees_the_names", &error.to_string());
            return;
        }
        created => created.unwrap(),
    };
    let home = NetworkNamespace::current().unwrap();
    let Some(list) = crate::test_support::judge(&home, "ip", &["netns", "list"]) else { return };
    assert!(list.lines().any(|line| line.split_whitespace().next() == Some(name.as_str())), "{list}");
    let inside = crate::test_support::judge(
        &home,
        "ip",
        &["netns", "exec", &name, "readlink", OWN.replace("thread-self", "self").as_str()],
    );
    assert_eq!(inside.unwrap().trim(), created.to_string());
}

#[test]
fn a_descriptor_of_something_else_is_refused_on_entry() {
    let file = File::open("/proc/self/ns/mnt").unwrap();
    let namespace = NetworkNamespace::from_fd(file.into()).unwrap();
    namespace.run(|| panic!("must not run")).unwrap_err();
}

#[test]
fn the_cookie_tells_a_namespace_from_the_next_one_with_its_number() {
    if !may_run("the_cookie_tells_a_namespace_from_the_next_one_with_its_number") {
        return;
    }
    let first = NetworkNamespace::create().unwrap();
    let Some(cookie) = first.cookie().unwrap() else { return };
    assert_eq!(NetworkNamespace::from_fd(first.try_clone_fd().unwrap()).unwrap().cookie().unwrap(), Some(cookie));
    drop(first);
    for _ in 0..20 {
        assert_ne!(NetworkNamespace::create().unwrap().cookie().unwrap(), Some(cookie));
    }
}
