//! The queue between the data path and the writer thread.

use std::collections::VecDeque;
use std::io::Write;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::{Condvar, Mutex};
use prometheus_client::metrics::counter::Counter;

use super::watch::Watchers;
use super::{Line, format};
use crate::logging::Format;

/// How long the writer lets lines gather. A wake-up and a system call for each line would cost more than the line.
const GATHER: Duration = Duration::from_millis(20);

/// Bytes that are gathered before they are written.
const BATCH: usize = 64 << 10;

/// The number of lines for which each of the two buffers keeps room. More come only in a burst.
const ROOM: usize = 256;

pub(super) struct Queue {
    state: Mutex<State>,
    /// Where the writer waits.
    filled: Condvar,
    /// Where flushing callers wait.
    written: Condvar,
    capacity: usize,
    dropped: Counter,
}

#[derive(Default)]
struct State {
    lines: VecDeque<Line>,
    /// Lines dropped since the last note in the log.
    missing: u64,
    /// The number of lines ever queued, and the number written.
    pushed: u64,
    done: u64,
    closed: bool,
    hurry: bool,
    finished: bool,
}

impl Queue {
    pub(super) fn new(capacity: usize, dropped: Counter) -> Self {
        Self { state: Mutex::default(), filled: Condvar::new(), written: Condvar::new(), capacity, dropped }
    }

    pub(super) fn push(&self, line: Line) {
        let mut state = self.state.lock();
        if state.lines.len() >= self.capacity || state.finished {
            state.missing += 1;
            drop(state);
            self.dropped.inc();
            return;
        }
        state.lines.push_back(line);
        state.pushed += 1;
        // Otherwise the writer is awake, or will look here when it is done.
        let first = state.lines.len() == 1;
        drop(state);
        if first {
            self.filled.notify_one();
        }
    }

    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.filled.notify_all();
    }

    pub(super) fn flush(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let mut state = self.state.lock();
        let target = state.pushed;
        state.hurry = true;
        self.filled.notify_all();
        while state.done < target && !state.finished {
            if self.written.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
        state.done >= target
    }

    /// The writer thread: runs until the queue is closed and empty, or `out` fails.
    pub(super) fn write_all(&self, mut out: impl Write, format: Format, watchers: &Watchers) {
        let mut buffer = Vec::with_capacity(BATCH + 4096);
        // Swapped with the queue's own, so that neither has to grow again for each batch.
        let mut lines = VecDeque::new();
        loop {
            let missing = self.next_batch(&mut lines);
            if lines.is_empty() && missing == 0 {
                break;
            }
            if missing > 0 {
                watchers.missed(missing);
                format::gap(&mut buffer, format, SystemTime::now(), missing);
            }
            let count = lines.len() as u64;
            let mut result = Ok(());
            for line in &lines {
                if !line.logged {
                    continue;
                }
                format::line(&mut buffer, format, line);
                if buffer.len() >= BATCH {
                    result = result.and_then(|()| out.write_all(&buffer));
                    buffer.clear();
                }
            }
            result = result.and_then(|()| out.write_all(&buffer)).and_then(|()| out.flush());
            // After they were written, so that the log holds everything that watchers are told.
            watchers.tell(lines.drain(..));
            buffer.clear();
            buffer.shrink_to(BATCH + 4096);
            lines.shrink_to(ROOM);
            let mut state = self.state.lock();
            state.done += count;
            if let Err(error) = result {
                state.finished = true;
                drop(state);
                self.written.notify_all();
                tracing::error!(%error, "the access log can't be written any more; its lines are dropped");
                return;
            }
            drop(state);
            self.written.notify_all();
        }
        self.state.lock().finished = true;
        self.written.notify_all();
    }

    /// Swaps in what has gathered; nothing when the queue is closed and empty. Returns how many lines were dropped.
    fn next_batch(&self, lines: &mut VecDeque<Line>) -> u64 {
        let mut state = self.state.lock();
        while state.lines.is_empty() && state.missing == 0 && !state.closed {
            self.filled.wait(&mut state);
        }
        let deadline = Instant::now() + GATHER;
        while !state.closed && !state.hurry && !self.filled.wait_until(&mut state, deadline).timed_out() {}
        state.hurry = false;
        std::mem::swap(&mut state.lines, lines);
        std::mem::take(&mut state.missing)
    }
}
