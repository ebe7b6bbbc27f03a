use std::time::Duration;

use super::*;

#[test]
fn starts_anew_when_full() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.log");
    let mut log = Log::with_limit(&path, 8).unwrap();
    for line in ["one\n", "two\n", "three\n"] {
        log.write(line.as_bytes()).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "three\n");
    assert_eq!(std::fs::read_to_string(previous(&path)).unwrap(), "one\ntwo\n");
}

#[test]
fn what_was_written_since_a_time_is_found_in_both_parts() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.log");
    let mut log = Log::with_limit(&path, 16).unwrap();
    let at = |millis: u64| UNIX_EPOCH + Duration::from_millis(1_000_000_000 + millis);
    for (time, line) in [(0, "one\n"), (300, "two\n"), (5000, "three\n"), (5001, "four\n"), (9000, "five\n")] {
        log.write_at(line.as_bytes(), at(time)).unwrap();
    }
    let since = |path: &Path, time| {
        begin_of(path, at(time))
            .map(|at| std::fs::read_to_string(path).unwrap()[usize::try_from(at).unwrap()..].to_owned())
    };
    let older = previous(&path);
    assert_eq!(since(&older, 0).as_deref(), Some("one\ntwo\nthree\nfour\n"));
    // To the second: what may belong is not left out.
    assert_eq!(since(&older, 200).as_deref(), Some("one\ntwo\nthree\nfour\n"));
    assert_eq!(since(&older, 1000).as_deref(), Some("three\nfour\n"));
    assert_eq!(since(&older, 6000), None);
    assert_eq!(since(&path, 6000).as_deref(), Some("five\n"));
    assert_eq!(since(&path, 10_000), None);
}

#[test]
fn a_log_without_times_counts_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.log");
    std::fs::write(&path, "x\n").unwrap();
    assert_eq!(begin_of(&path, SystemTime::now()), Some(0));
}
