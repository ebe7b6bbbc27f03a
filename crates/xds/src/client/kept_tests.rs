use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use leno_proto::{ADDRESS_TYPE, AUTHORIZATION_TYPE, TRUST_BUNDLE_TYPE};
use prost::Message as _;

use super::super::response::{Body, Resource};
use super::journal::MAGIC;
use super::*;

fn response(type_url: &str, resources: &[(&str, &str)], removed: &[&str]) -> Response {
    let resource = |(name, value): &(&str, &str)| {
        let body = Body { type_url: type_url.to_owned(), value: value.as_bytes().to_vec().into() };
        Resource { version: "1".to_owned(), resource: Some(body), name: (*name).to_owned() }.encode_to_vec().into()
    };
    Response {
        resources: resources.iter().map(resource).collect(),
        type_url: type_url.to_owned(),
        nonce: "n".to_owned(),
        removed_resources: removed.iter().map(ToString::to_string).collect(),
    }
}

/// A process that keeps its state at a path, without a thread.
struct Process {
    writing: Writing,
    outcome: io::Result<()>,
}

impl Process {
    fn at(path: &Path) -> Self {
        let (waiting, place) = (Waiting::default(), Place::new(path.to_owned()));
        // As much as may ever wait, so that each order can be taken off.
        waiting.bytes.store(usize::MAX / 2, Relaxed);
        let writing = Writing { place, waiting, journal: None, connected: Arc::default() };
        Self { writing, outcome: Ok(()) }
    }

    /// Each order comes by itself if `each`, else all at once.
    fn carry_out(&mut self, orders: Vec<Order>, each: bool) {
        let bursts: Vec<Vec<Order>> =
            if each { orders.into_iter().map(|order| vec![order]).collect() } else { vec![orders] };
        for burst in bursts {
            let (writer, queue) = mpsc::channel();
            burst.into_iter().for_each(|order| writer.send(order).unwrap());
            self.outcome = self.writing.burst(&queue, Duration::ZERO).map(|_| ());
        }
    }
}

/// Writes a journal as a process does that ends then.
fn write(path: &Path, orders: Vec<Order>) {
    let mut process = Process::at(path);
    process.carry_out(orders, true);
    process.outcome.unwrap();
}

fn open(path: &Path) -> io::Result<Option<Saved>> {
    Place::new(path.to_owned()).open()?.map(Saved::check).transpose()
}

type Held = BTreeMap<(String, String), Vec<u8>>;

/// What a proxy would hold that begins with the journal.
fn held(path: &Path) -> Option<Held> {
    let saved = open(path).unwrap()?;
    let mut held = BTreeMap::new();
    for entry in saved.entries().unwrap().map(Result::unwrap) {
        for name in entry.removed_resources {
            held.remove(&(entry.type_url.clone(), name));
        }
        for resource in entry.resources {
            let resource = Resource::decode(resource).unwrap();
            held.insert((entry.type_url.clone(), resource.name), resource.resource.unwrap().value.to_vec());
        }
    }
    Some(held)
}

fn mesh() -> Vec<Order> {
    vec![
        Order::Write(response(ADDRESS_TYPE, &[("a", "1"), ("b", "1")], &[])),
        Order::Write(response(AUTHORIZATION_TYPE, &[("a", "policy")], &[])),
        Order::Complete,
        Order::Write(response(ADDRESS_TYPE, &[("c", "1"), ("a", "2")], &["b"])),
        Order::Write(response(TRUST_BUNDLE_TYPE, &[("", "old root")], &[])),
        Order::Write(response(TRUST_BUNDLE_TYPE, &[("", "new root")], &[])),
    ]
}

fn expected() -> Held {
    [
        (ADDRESS_TYPE, "a", "2"),
        (ADDRESS_TYPE, "c", "1"),
        (AUTHORIZATION_TYPE, "a", "policy"),
        (TRUST_BUNDLE_TYPE, "", "new root"),
    ]
    .map(|(of, name, value)| ((of.to_owned(), name.to_owned()), value.as_bytes().to_vec()))
    .into()
}

fn with(mut held: Held, name: &str, value: &str) -> Held {
    held.insert((ADDRESS_TYPE.to_owned(), name.to_owned()), value.as_bytes().to_vec());
    held
}

fn change(name: &str, value: &str) -> Vec<Order> {
    vec![Order::Write(response(ADDRESS_TYPE, &[(name, value)], &[]))]
}

#[test]
fn a_journal_is_read_as_it_was_written_and_only_if_nobody_else_could_write_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mesh");
    assert_eq!(held(&path), None, "no process before");
    write(&path, mesh());
    assert_eq!(held(&path), Some(expected()));
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(open(&path).is_err(), "others may have written it");
    fs::rename(&path, dir.path().join("elsewhere")).unwrap();
    fs::set_permissions(dir.path().join("elsewhere"), fs::Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::symlink(dir.path().join("elsewhere"), &path).unwrap();
    assert!(open(&path).is_err(), "through a link");
}

#[test]
fn one_that_is_not_complete_does_not_replace_the_last_and_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mesh");
    write(&path, mesh());
    // Killed: nobody removes its file, but the next process.
    write(&path, change("z", "1"));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    assert_eq!(held(&path), Some(expected()));
    write(&path, mesh());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_torn_end_is_passed_over_as_a_whole_response_and_a_damaged_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mesh");
    let mut orders = mesh();
    // One response in several parts: it replaces `a` and `c`.
    let names: Vec<String> = (0..600).map(|number| format!("many-{number}")).collect();
    let many: Vec<(&str, &str)> = names.iter().map(|name| (&**name, "1")).collect();
    let complete = {
        write(&path, mesh());
        fs::metadata(&path).unwrap().len()
    };
    orders.push(Order::Write(response(ADDRESS_TYPE, &many, &["a", "c"])));
    write(&path, orders);
    let whole = fs::read(&path).unwrap();
    assert_eq!(held(&path).unwrap().len(), 2 + 600);
    let cut = |length: usize| fs::write(&path, &whole[..length]).unwrap();
    for length in [whole.len() - 1, whole.len() - 20_000, complete as usize + 3, complete as usize] {
        cut(length);
        assert_eq!(held(&path), Some(expected()), "cut to {length} of {} bytes", whole.len());
    }
    for length in [0, MAGIC.len() - 1, MAGIC.len(), MAGIC.len() + 100] {
        cut(length);
        assert!(open(&path).is_err(), "cut to {length} bytes: not everything was sent by then");
    }
    // Every bit counts, those of lengths, too.
    for at in (0..complete as usize).chain((complete as usize..whole.len()).step_by(997)) {
        let mut other = whole.clone();
        other[at] ^= 1 << (at % 8);
        fs::write(&path, &other).unwrap();
        assert!(open(&path).is_err(), "byte {at}");
    }
    fs::write(&path, [&whole[..], &[0; 4096]].concat()).unwrap();
    assert!(open(&path).is_err(), "zeros, as a file system leaves them after a crash");
}

#[test]
fn a_journal_that_grows_is_written_anew_without_what_is_outdated() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mesh");
    let long = "x".repeat(10_000);
    let mut process = Process::at(&path);
    process.carry_out(mesh(), true);
    let mut largest = 0;
    for round in 0..1000 {
        let value = format!("{long}{round}");
        process.carry_out(vec![Order::Write(response(ADDRESS_TYPE, &[("a", &value)], &["gone"]))], true);
        process.outcome.as_ref().unwrap();
        largest = largest.max(fs::metadata(&path).unwrap().len());
    }
    assert!(largest < 2 * GROWTH, "{largest}");
    assert_eq!(held(&path), Some(with(expected(), "a", &format!("{long}999"))));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn while_one_proxy_follows_another_the_later_one_s_state_counts_as_long_as_it_lives() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mesh");
    let long = "x".repeat(1 << 20);
    let mut first = Process::at(&path);
    first.carry_out(mesh(), true);
    let mut second = Process::at(&path);
    second.carry_out(mesh(), true);
    second.carry_out(change("second", "1"), true);
    // Both are told, in whatever order. The first one grows and writes its own anew meanwhile.
    for round in 0..10 {
        first.carry_out(change("first", &format!("{round}{long}")), true);
        first.outcome.as_ref().unwrap();
    }
    assert_eq!(held(&path), Some(with(expected(), "second", "1")));
    second.carry_out(change("second", "2"), true);
    assert_eq!(held(&path), Some(with(expected(), "second", "2")), "it still writes to the file that counts");
    // The second one crashes, and the first one goes on.
    drop(second);
    first.carry_out(change("first", "last"), true);
    first.outcome.as_ref().unwrap();
    assert_eq!(held(&path), Some(with(expected(), "first", "last")));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_process_goes_on_from_what_the_one_before_has_left_and_the_age_stays() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mesh");
    write(&path, mesh());
    let hours_ago = SystemTime::now() - Duration::from_secs(5 * 3600);
    File::options().write(true).open(&path).unwrap().set_modified(hours_ago).unwrap();
    let mut next = Process::at(&path);
    // Half of it had come when the control plane fell silent.
    next.carry_out(change("half", "1"), true);
    let saved = open(&path).unwrap().unwrap();
    next.carry_out(vec![Order::Continue(saved)], false);
    next.outcome.as_ref().unwrap();
    assert_eq!(held(&path), Some(expected()));
    assert_eq!(open(&path).unwrap().unwrap().written, hours_ago);
    // While nothing is heard, it gets no younger; once a control plane is there, it does, even if nothing changes.
    next.carry_out(vec![], false);
    next.writing.burst(&mpsc::channel().1, Duration::ZERO).unwrap();
    let (alive, silence) = mpsc::channel();
    next.writing.burst(&silence, Duration::ZERO).unwrap();
    assert_eq!(open(&path).unwrap().unwrap().written, hours_ago);
    next.writing.connected.store(true, Relaxed);
    next.writing.burst(&silence, Duration::ZERO).unwrap();
    assert!(open(&path).unwrap().unwrap().written > hours_ago);
    drop(alive);

    let days_ago = SystemTime::now() - Duration::from_secs(25 * 3600);
    File::options().write(true).open(&path).unwrap().set_modified(days_ago).unwrap();
    assert!(open(&path).is_err(), "too old");
}

#[test]
fn a_journal_that_somebody_removes_is_not_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mesh");
    let mut process = Process::at(&path);
    process.carry_out(mesh(), true);
    fs::remove_file(&path).unwrap();
    process.carry_out(change("a", "3"), true);
    process.outcome.as_ref().unwrap();
    assert!(process.writing.journal.is_none());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn when_it_cannot_be_written_nothing_outdated_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mesh");
    write(&path, mesh());
    // A disk that is full. The kernel's device for that has the error of one.
    let mut process = Process::at(&path);
    process.carry_out(mesh(), true);
    process.writing.journal.as_mut().unwrap().write_to(File::options().write(true).open("/dev/full").unwrap());
    process.carry_out(change("a", "3"), true);
    assert_eq!(process.outcome.as_ref().unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    process.writing.place.abandon(process.writing.journal.as_ref());
    drop(process);
    let left = fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().path()).collect::<Vec<_>>();
    assert!(held(&path).is_none(), "{left:?}");
}

/// The lock of the directory is held by a process that was stopped: nothing can be put in place.
#[test]
fn what_piles_up_behind_a_stopped_process_is_let_go() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mesh");
    write(&path, mesh());
    let stopped = File::open(dir.path()).unwrap();
    stopped.lock().unwrap();
    let mut kept = Kept::new(path.clone());
    let long = "x".repeat(16 << 20);
    let mut sent = 0;
    while !kept.waiting.given_up.load(Relaxed) {
        kept.applied(response(ADDRESS_TYPE, &[("a", &long)], &[]));
        sent += long.len();
        assert!(sent <= WAITING + 2 * long.len(), "{sent} bytes wait");
    }
    assert!(kept.writer.is_none());
    kept.applied(response(ADDRESS_TYPE, &[("a", "2")], &[]));
    kept.complete();
    assert!(kept.writer.is_none(), "it is not begun again");
    drop(stopped);
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while path.exists() {
        assert!(std::time::Instant::now() < deadline, "what is outdated stays");
        std::thread::sleep(Duration::from_millis(5));
    }
}
