//! A stage whose disk is full, or can't be written any more. Traffic goes on, people are told what to do, and what could not be done
//! is done once there is room.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use leno_testkit::skips;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::clear::Watch;
use crate::stage::{Stage, eventually, run, script, skip};
use crate::steady::{Client, ECHO};
use crate::topology;

const NEEDS: &[&str] = &["/usr/bin/python3", "socat"];
/// Where pods outside the mesh are answered.
const PLAIN: &str = "echo.plain:7000";
const NODE: &str = "node-1";

/// A file system of this test's own.
struct Disk {
    at: tempfile::TempDir,
}

impl Disk {
    /// In memory, of so many kilobytes.
    fn small(kilobytes: usize) -> Self {
        let at = tempfile::tempdir().unwrap();
        let size = format!("size={kilobytes}k,mode=755");
        mount(Some("leno-test"), at.path(), Some("tmpfs"), MsFlags::empty(), Some(size.as_str())).unwrap();
        Self { at }
    }

    /// In a file, so that it can fail. `None` after reporting that `test` is skipped without it.
    fn that_fails(test: &str) -> Option<Self> {
        let at = tempfile::tempdir().unwrap();
        let image = at.path().join("image");
        std::fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
        run(Command::new("mkfs.ext4").args(["-q", "-O", "^has_journal"]).arg(&image)).ok();
        let mounted = run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(at.path()));
        if mounted.code != 0 {
            skips::skip(test, &format!("can't mount a file ({})", mounted.stderr.trim()));
            return None;
        }
        Some(Self { at })
    }

    /// Nothing can be written there from now on, not even by who has files open.
    fn fail(&self) {
        run(Command::new("mount").args(["-o", "remount,abort"]).arg(self.path())).ok();
    }

    fn path(&self) -> &Path {
        self.at.path()
    }

    fn filler(&self) -> PathBuf {
        self.path().join("filler")
    }

    /// Takes all the room that there is.
    fn fill(&self) {
        let mut filler = std::fs::File::create(self.filler()).unwrap();
        // What is smaller than this finds no room, either: a file takes whole pages.
        while filler.write_all(&[0; 1024]).is_ok() {}
    }

    /// Gives it back.
    fn empty(&self) {
        std::fs::remove_file(self.filler()).unwrap();
    }

    /// What there is beside the filler.
    fn files(&self) -> Vec<PathBuf> {
        let all = std::fs::read_dir(self.path()).unwrap().map(|entry| entry.unwrap().path());
        all.filter(|path| *path != self.filler()).collect()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = umount2(self.at.path(), MntFlags::MNT_DETACH);
    }
}

/// A stage that has all its files on a disk, with proxies that save their state there.
fn up_on(disk: &Path, programs: &Path) -> Stage {
    let program = programs.join("proxy");
    let leno = env!("CARGO_BIN_EXE_leno");
    script(&program, &format!("export LENO_STATE_DIR={}/$NODE_NAME\nexec {leno} node", disk.display()));
    let stage = Stage::prepare_in(&disk.join("run"), &[("all.yaml", &topology::text(&[ECHO]))]);
    stage.bring_up(&["--node-proxy", &format!("{NODE}={}", program.display())]);
    stage
}

#[test]
fn a_full_disk_stops_no_traffic_and_is_told_until_there_is_room() {
    if skip("a_full_disk_stops_no_traffic_and_is_told_until_there_is_room", NEEDS) {
        return;
    }
    let (disk, programs) = (Disk::small(4096), tempfile::tempdir().unwrap());
    let stage = up_on(disk.path(), programs.path());
    let watch = Watch::begin(&stage, PLAIN);
    let mut client = Client::at(&stage, 50);
    client.watch(50);

    disk.fill();
    stage.write("late.yaml", &topology::client("mesh", "late", "node-2"));
    let why = "its disk is full: make room there";
    stage.told(&["ps"], |said| said.contains(why) && said.contains("No space left on device"));
    stage.told(&["status"], |said| said.contains(why));
    let seen = client.watch(50);
    assert_eq!((seen.failed.len(), seen.unanswered.len(), seen.lost.len()), (0, 0, 0), "{seen:?}");
    // The next proxy finds no room, either, and serves.
    next_proxy(&stage);
    client.watch(50);

    disk.empty();
    stage.wait("what could not be started", |ps| {
        let late = ps["pods"].as_array()?.iter().find(|pod| pod["name"] == "late")?;
        (late["ready"] == true && late["in_mesh"] == true && ps["troubles"].as_array()?.is_empty()).then_some(())
    });
    stage.told(&["logs", "--node", NODE], |log| {
        log.contains("something is missing before this line, it could not be written: No space left on device")
    });
    // A proxy that could not save its state does not begin to: its log says that it is to be restarted.
    next_proxy(&stage);
    eventually("the saved state to have what came meanwhile", || {
        let saved = std::fs::read(disk.path().join(NODE).join("mesh")).map_err(|error| error.to_string())?;
        let has_it = saved.windows(4).any(|bytes| bytes == b"late");
        if has_it { Ok(()) } else { Err(format!("{} bytes without it", saved.len())) }
    });
    assert!(!run(&mut stage.command("status")).ok().stdout.contains(why));
    watch.end(&stage);
    stage.down().ok();
}

/// Kills a proxy, and waits for the next one.
fn next_proxy(stage: &Stage) {
    let old = stage.proxy(NODE, None);
    kill(Pid::from_raw(old), Signal::SIGKILL).unwrap();
    stage.proxy(NODE, Some(old));
}

/// The kernel does that with a file system on a disk that fails.
#[test]
fn a_disk_that_can_no_longer_be_written_stops_no_traffic_and_is_told() {
    let test = "a_disk_that_can_no_longer_be_written_stops_no_traffic_and_is_told";
    if skip(test, &[NEEDS, &["mkfs.ext4", "mount"]].concat()) {
        return;
    }
    let Some(disk) = Disk::that_fails(test) else { return };
    let programs = tempfile::tempdir().unwrap();
    let stage = up_on(disk.path(), programs.path());
    let watch = Watch::begin(&stage, PLAIN);
    let mut client = Client::at(&stage, 50);
    client.watch(50);

    disk.fail();
    stage.write("late.yaml", &topology::client("mesh", "late", "node-2"));
    let why = "its disk can't be written: mount it for writing";
    stage.told(&["ps"], |said| said.contains(why) && said.contains("Read-only file system"));
    stage.told(&["status"], |said| said.contains(why));
    let seen = client.watch(50);
    assert_eq!((seen.failed.len(), seen.unanswered.len(), seen.lost.len()), (0, 0, 0), "{seen:?}");
    next_proxy(&stage);
    client.watch(50);
    watch.end(&stage);
    let down = stage.down();
    assert!(down.code == 1 && down.stderr.contains("Read-only file system"), "{down:?}");
    assert_eq!(namespaces(&stage), 0, "what is not on the disk is gone");
}

fn namespaces(stage: &Stage) -> usize {
    let prefix = format!("leno-{}.", stage.name());
    let all = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    all.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix)).count()
}

#[test]
fn without_room_or_the_right_to_write_up_says_so_and_leaves_nothing() {
    if skip("without_room_or_the_right_to_write_up_says_so_and_leaves_nothing", &[]) {
        return;
    }
    let refused = |disk: &Disk, words: [&str; 2]| {
        let stage = Stage::prepare_in(disk.path(), &[("all.yaml", &topology::text(&[]))]);
        let ran = run(stage.up_command(&[]));
        assert_ne!(ran.code, 0);
        for word in words.into_iter().chain(["LENO_RUN_DIR=DIR"]) {
            assert!(ran.stderr.contains(word), "no {word:?} in: {}", ran.stderr);
        }
        assert_eq!((disk.files(), namespaces(&stage)), (Vec::new(), 0));
    };
    // With room for nothing, and for a part of what it writes.
    for kilobytes in [0, 4, 8, 16, 32] {
        let disk = Disk::small(256 + kilobytes);
        let mut filler = std::fs::File::create(disk.filler()).unwrap();
        filler.write_all(&vec![0; 256 << 10]).unwrap();
        refused(&disk, ["its disk is full: make room there", "No space left on device"]);
    }
    let disk = Disk::small(256);
    let flags = MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    mount(None::<&str>, disk.path(), None::<&str>, flags, None::<&str>).unwrap();
    refused(&disk, ["its disk can't be written: mount it for writing", "Read-only file system"]);
}
