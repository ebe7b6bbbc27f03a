//! What belongs to others stays theirs, whatever its name. Leno does not take what others made for its own.

use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use crate::stage::{leno, run, skip};
use crate::topology;

/// A user id that no machine uses.
const SOMEBODY: u32 = 65_531;

/// Removes what a test made under a fixed name.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_run_directory_that_another_user_made_is_refused() {
    if skip("a_run_directory_that_another_user_made_is_refused", &[]) {
        return;
    }
    // Root made it. Root is the other user here.
    let base = Removed(format!("/tmp/leno-{SOMEBODY}").into());
    let dir = base.0.join("default");
    std::fs::create_dir_all(&dir).unwrap();
    let victim = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(victim.path(), "precious").unwrap();
    chown(victim.path(), Some(SOMEBODY), None).unwrap();
    for file in ["lock", "stage.log"] {
        symlink(victim.path(), dir.join(file)).unwrap();
    }
    for path in [&base.0, &dir] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    let listener = std::os::unix::net::UnixListener::bind(dir.join("stage.sock")).unwrap();
    listener.set_nonblocking(true).unwrap();
    std::fs::set_permissions(dir.join("stage.sock"), std::fs::Permissions::from_mode(0o777)).unwrap();
    // Start the program by its descriptor, because that user may not be allowed to enter the checkout.
    let program = std::fs::File::open(env!("CARGO_BIN_EXE_leno")).unwrap();
    for args in [&["up", "--detach", "--file", "/"][..], &["ps"], &["exec", "a/b", "--", "true"], &["down"]] {
        let mut command = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()));
        command.args(args).uid(SOMEBODY).gid(SOMEBODY).current_dir("/");
        let ran = run(command.env_remove("LENO_RUN_DIR").env_remove("XDG_RUNTIME_DIR"));
        assert_ne!(ran.code, 0, "{args:?}");
        for word in ["belongs to user 0", &format!("/tmp/leno-{SOMEBODY}"), "LENO_RUN_DIR"] {
            assert!(ran.stderr.contains(word), "{args:?}: no {word:?} in: {}", ran.stderr);
        }
        assert!(listener.accept().is_err(), "{args:?} has talked to somebody else's socket");
    }
    assert_eq!(std::fs::read_to_string(victim.path()).unwrap(), "precious");
}

/// Another owner's network namespace, with a program in it.
struct Foreign {
    name: String,
    program: Child,
}

impl Foreign {
    fn new(name: &str) -> Self {
        run(Command::new("ip").args(["netns", "add", name])).ok();
        let net = format!("--net=/run/netns/{name}");
        let program = Command::new("nsenter").args([&net, "sleep", "600"]).spawn().unwrap();
        Self { name: name.to_owned(), program }
    }

    #[track_caller]
    fn untouched(&mut self) {
        assert!(self.program.try_wait().unwrap().is_none(), "the program in {} was ended", self.name);
        run(Command::new("nsenter").args([&format!("--net=/run/netns/{}", self.name), "true"])).ok();
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
        run(Command::new("ip").args(["netns", "delete", &self.name]));
    }
}

#[test]
fn network_namespaces_that_the_stage_did_not_make_stay() {
    if skip("network_namespaces_that_the_stage_did_not_make_stay", &["ip", "nsenter", "sleep"]) {
        return;
    }
    let stage = crate::stage::Stage::prepare(&[("all.yaml", topology::NAMESPACES)]);
    let ours = |node: &str| format!("leno-{}.{node}", stage.name());
    let mut guest = Foreign::new(&ours("guest"));
    // A foreign namespace with a name that the stage needs is reported, not taken.
    let mut taken = Foreign::new(&ours("node-2"));
    let refused = run(stage.up_command(&[]));
    assert!(refused.code != 0 && refused.stderr.contains("ip netns delete"), "{}", refused.stderr);
    taken.untouched();
    drop(taken);

    run(stage.up_command(&[])).ok();
    guest.untouched();
    let kill = || {
        let pid = i32::try_from(stage.ps()["supervisor"].as_i64().unwrap()).unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
    };
    kill();
    run(stage.up_command(&[])).ok();
    guest.untouched();
    kill();
    // After the supervisor's death, a foreign namespace has the name of one of the stage's.
    run(Command::new("ip").args(["netns", "delete", &ours("node-1")])).ok();
    let mut heir = Foreign::new(&ours("node-1"));
    has_the_number_of_its_predecessor(stage.name(), &heir);
    let down = stage.down().ok();
    heir.untouched();
    guest.untouched();
    assert!(!Path::new("/run/netns").join(ours("node-2")).exists(), "its own are removed");
    assert!(down.stdout.contains(&ours("guest")) && down.stdout.contains("ip netns delete"), "{}", down.stdout);
}

/// After the supervisor's death, foreign namespaces have all names and inode numbers of the stage's.
#[test]
fn foreign_namespaces_with_a_stages_names_and_numbers_stay() {
    if skip("foreign_namespaces_with_a_stages_names_and_numbers_stay", &["ip", "nsenter", "sleep"]) {
        return;
    }
    let stage = crate::stage::Stage::prepare(&[("all.yaml", topology::NAMESPACES)]);
    run(stage.up_command(&[])).ok();
    let pid = i32::try_from(stage.ps()["supervisor"].as_i64().unwrap()).unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
    let names: Vec<_> = record(stage.name())["made"].as_object().unwrap().keys().cloned().collect();
    assert!(names.len() >= 3, "the link between the nodes, and two nodes: {names:?}");
    for name in &names {
        run(Command::new("ip").args(["netns", "delete", name])).ok();
    }
    let mut heirs: Vec<_> = names.iter().map(|name| Foreign::new(name)).collect();
    for heir in &heirs {
        has_the_number_of_its_predecessor(stage.name(), heir);
    }
    let down = stage.down().ok();
    for heir in &mut heirs {
        heir.untouched();
        assert!(down.stdout.contains(&heir.name), "{}", down.stdout);
    }
}

fn record(stage: &str) -> serde_json::Value {
    let text = std::fs::read(Path::new("/run/leno").join(stage).join("state.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// Makes it so that a namespace has the inode number of the stage's of this name. The kernel reuses numbers, but in an order
/// that a test can't choose, so the record is changed instead.
fn has_the_number_of_its_predecessor(stage: &str, heir: &Foreign) {
    use std::os::unix::fs::MetadataExt as _;
    let found = std::fs::metadata(Path::new("/run/netns").join(&heir.name)).unwrap();
    let mut state = record(stage);
    let made = &mut state["made"][&heir.name];
    assert!(made["inode"].is_u64(), "{made}");
    (made["device"], made["inode"]) = (found.dev().into(), found.ino().into());
    std::fs::write(Path::new("/run/leno").join(stage).join("state.json"), state.to_string()).unwrap();
}

/// Leno versions before this one did not record their network namespaces.
#[test]
fn what_an_older_stage_left_is_told_and_stays() {
    if skip("what_an_older_stage_left_is_told_and_stays", &["ip", "nsenter", "sleep"]) {
        return;
    }
    let stage = crate::stage::Stage::prepare(&[]);
    let mut left = Foreign::new(&format!("leno-{}.node-1", stage.name()));
    let dir = Path::new("/run/leno").join(stage.name());
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o700)).unwrap();
    std::fs::write(dir.join("state.json"), r#"{"netns_dir":"/run/netns"}"#).unwrap();
    let down = run(leno().args(["down", "--name", stage.name()])).ok();
    assert!(down.stdout.contains(&left.name) && down.stdout.contains("ip netns delete"), "{}", down.stdout);
    left.untouched();
    assert!(!dir.exists());
}
