//! Watchers of connections. The log's thread keeps the last connections that ended, and passes events on to all watchers.
//! The data path only hands its lines to that thread.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::{Happened, Line};

/// How many ended connections are kept for later watchers. About 250 KiB.
const KEPT: usize = 512;

/// How many lines may wait for a watcher. Further ones are dropped and counted. About 2 MiB.
const WAITING: usize = 4096;

#[derive(Default)]
pub(super) struct Watchers {
    state: Mutex<State>,
    /// The number of watchers.
    count: AtomicUsize,
}

#[derive(Default)]
struct State {
    kept: VecDeque<Line>,
    /// How many connections ended and are not kept any more.
    forgotten: u64,
    watching: Vec<Arc<Feed>>,
}

/// The lines that wait for a watcher.
#[derive(Default)]
struct Feed {
    waiting: Mutex<Waiting>,
    filled: Condvar,
}

#[derive(Default)]
struct Waiting {
    lines: VecDeque<Line>,
    missed: u64,
}

impl Feed {
    fn tell(&self, line: &Line) {
        let mut waiting = self.waiting.lock();
        if waiting.lines.len() < WAITING {
            waiting.lines.push_back(line.clone());
        } else {
            waiting.missed += 1;
        }
    }
}

impl Watchers {
    /// Whether anybody watches.
    pub(super) fn any(&self) -> bool {
        self.count.load(Relaxed) > 0
    }

    /// Takes the events, in order, from the log's thread.
    pub(super) fn tell(&self, lines: impl Iterator<Item = Line>) {
        let mut state = self.state.lock();
        for line in lines {
            for feed in &state.watching {
                feed.tell(&line);
            }
            if line.happened == Happened::Opened {
                continue;
            }
            if state.kept.len() == KEPT {
                state.kept.pop_front();
                state.forgotten += 1;
            }
            state.kept.push_back(line);
        }
        for feed in &state.watching {
            feed.filled.notify_one();
        }
    }

    /// The log's thread reports that `count` lines were dropped before they reached it.
    pub(super) fn missed(&self, count: u64) {
        let mut state = self.state.lock();
        state.forgotten += count;
        for feed in &state.watching {
            feed.waiting.lock().missed += count;
        }
    }

    pub(super) fn watch(self: &Arc<Self>) -> Watch {
        let feed = Arc::new(Feed::default());
        let mut state = self.state.lock();
        state.watching.push(feed.clone());
        self.count.fetch_add(1, Relaxed);
        let recent = state.kept.iter().cloned().collect();
        Watch { recent, forgotten: state.forgotten, watchers: self.clone(), feed }
    }
}

/// A watcher's view of the connections.
pub struct Watch {
    /// Connections that had ended before, the oldest first, as far as they are kept.
    pub recent: Vec<Line>,
    /// How many had ended that are no longer kept.
    pub forgotten: u64,
    watchers: Arc<Watchers>,
    feed: Arc<Feed>,
}

impl Watch {
    /// The events since the last call, and how many lines were dropped meanwhile. Waits until there is one, `limit` at most.
    /// It blocks, so it is not for the data path.
    pub fn next(&self, limit: Duration) -> (VecDeque<Line>, u64) {
        let deadline = Instant::now() + limit;
        let mut waiting = self.feed.waiting.lock();
        while waiting.lines.is_empty() && waiting.missed == 0 {
            if self.feed.filled.wait_until(&mut waiting, deadline).timed_out() {
                break;
            }
        }
        (std::mem::take(&mut waiting.lines), std::mem::take(&mut waiting.missed))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.watchers.state.lock().watching.retain(|feed| !Arc::ptr_eq(feed, &self.feed));
        self.watchers.count.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
