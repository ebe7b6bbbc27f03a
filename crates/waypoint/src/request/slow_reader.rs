//! What waits for a client that does not read, and its end when memory is short.

use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::task::Context;
use std::time::{Duration, Instant};

use futures_util::task::AtomicWaker;

/// The responses of a connection whose next bytes the client has not made room for.
#[derive(Debug)]
pub(crate) struct Unread {
    waiting: AtomicUsize,
    began: Instant,
    /// When the client last took something, in milliseconds since the beginning.
    taken: AtomicU64,
    /// [`End`] as a number.
    end: AtomicU8,
    task: AtomicWaker,
}

/// Whether a connection is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    No,
    /// Its client is asked to end it, and has a moment for that.
    Soon,
    Now,
}

impl Default for Unread {
    fn default() -> Self {
        Self {
            waiting: AtomicUsize::new(0),
            began: Instant::now(),
            taken: AtomicU64::new(0),
            end: AtomicU8::new(End::No as u8),
            task: AtomicWaker::new(),
        }
    }
}

impl Unread {
    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// A response's bytes were handed over; the next are not asked for before there is room.
    pub(crate) fn handed_over(&self) {
        self.waiting.fetch_add(1, Relaxed);
        self.taken.store(self.now(), Relaxed);
    }

    /// There is room, or the response is over.
    pub(crate) fn asked_for(&self) {
        self.waiting.fetch_sub(1, Relaxed);
    }

    /// Ends a connection whose client has taken nothing for `age`, while something waits for it. One that has been `idle` for
    /// so long may hold something, too: what the library has taken, and can't send.
    pub(crate) fn end_if_stalled(&self, age: Duration, idle: Option<Duration>) {
        let millis = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        let end = if self.waiting.load(Relaxed) > 0 && self.now().saturating_sub(self.taken.load(Relaxed)) >= millis {
            End::Now
        } else if idle.is_some_and(|idle| idle >= age) {
            End::Soon
        } else {
            return;
        };
        self.end.fetch_max(end as u8, Relaxed);
        self.task.wake();
    }

    /// Whether the connection is to end. The task of `cx` is woken when that changes.
    pub(crate) fn ends(&self, cx: &Context<'_>) -> End {
        self.task.register(cx.waker());
        let end = self.end.load(Relaxed);
        [End::No, End::Soon].into_iter().find(|one| *one as u8 == end).unwrap_or(End::Now)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn only_who_lets_bytes_wait_is_ended() {
        let (unread, now) = (Unread::default(), Duration::ZERO);
        let cx = Context::from_waker(Waker::noop());
        unread.end_if_stalled(now, None);
        assert_eq!(unread.ends(&cx), End::No, "nothing waits");
        unread.handed_over();
        unread.handed_over();
        unread.asked_for();
        unread.end_if_stalled(Duration::from_secs(60), None);
        assert_eq!(unread.ends(&cx), End::No, "not for long");
        unread.end_if_stalled(Duration::from_secs(60), Some(Duration::from_secs(61)));
        assert_eq!(unread.ends(&cx), End::Soon);
        unread.end_if_stalled(now, None);
        unread.end_if_stalled(Duration::from_secs(60), Some(Duration::from_secs(61)));
        assert_eq!(unread.ends(&cx), End::Now);
    }
}
