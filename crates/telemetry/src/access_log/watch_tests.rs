use super::*;
use crate::access_log::{AccessLog, Direction, Level, Record};
use crate::logging::Format;
use prometheus_client::metrics::counter::Counter;

const LIMIT: Duration = Duration::from_secs(20);

fn log(level: Level) -> AccessLog {
    AccessLog::new(std::io::sink(), Format::Plain, level, 100_000, Counter::default()).unwrap()
}

fn record(bytes: u64) -> Record {
    let mut record = Record::new(Direction::Inbound);
    record.bytes_sent = bytes;
    record
}

/// Waits until `count` lines have come; they, and how many were missed meanwhile.
fn next(watch: &Watch, count: usize) -> (Vec<Line>, u64) {
    let (mut all, mut missed) = (Vec::new(), 0);
    while all.len() < count {
        let (lines, gone) = watch.next(LIMIT);
        assert!(!lines.is_empty(), "{} of {count} lines came", all.len());
        all.extend(lines);
        missed += gone;
    }
    (all, missed)
}

#[test]
fn who_watches_is_told_whatever_the_logs_level() {
    let log = log(Level::Off);
    assert!(!log.enabled(Level::Error), "nobody watches: nothing is put together");
    let watch = log.watch();
    assert!(log.enabled(Level::Debug));
    log.opened(record(1));
    log.completed(record(2));
    let (lines, _) = next(&watch, 2);
    let told: Vec<_> = lines.iter().map(|line| (line.happened, line.record.bytes_sent)).collect();
    assert_eq!(told, [(Happened::Opened, 1), (Happened::Completed, 2)]);
    drop(watch);
    assert!(!log.enabled(Level::Error));
}

#[test]
fn the_last_that_ended_are_kept_and_the_rest_is_counted() {
    let log = log(Level::Info);
    for bytes in 0..KEPT as u64 + 7 {
        log.completed(record(bytes));
    }
    assert!(log.flush(LIMIT));
    let watch = log.watch();
    assert_eq!((watch.recent.len(), watch.forgotten), (KEPT, 7));
    assert_eq!(watch.recent[0].record.bytes_sent, 7);
    // They are not told again.
    log.completed(record(99));
    assert_eq!(next(&watch, 1).0[0].record.bytes_sent, 99);
}

#[test]
fn one_who_reads_too_slowly_misses_some_and_is_told_how_many() {
    let log = log(Level::Off);
    let (slow, quick) = (log.watch(), log.watch());
    let mut read = 0;
    for _ in 0..WAITING / 10 + 1 {
        for _ in 0..10 {
            log.completed(record(1));
        }
        let (lines, missed) = next(&quick, 10);
        assert_eq!(missed, 0);
        read += lines.len();
    }
    assert!(read > WAITING);
    let (lines, missed) = slow.next(LIMIT);
    assert_eq!((lines.len(), missed), (WAITING, (read - WAITING) as u64));
    assert_eq!(slow.next(Duration::ZERO).0.len(), 0);
}
