//! Work beside a test, which the test's own runtime must not slow down.

#![allow(clippy::unwrap_used, reason = "test code")]

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Something that goes on, on a thread of its own, until it is dropped.
#[derive(Debug)]
pub struct Busy {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Busy {
    /// Starts `work`, which is to end once the flag that it is given is set.
    pub fn with<F: Future<Output = ()>>(work: impl FnOnce(Arc<AtomicBool>) -> F + Send + 'static) -> Self {
        Self::beginning(|| {}, work)
    }

    /// As [`Busy::with`], on a thread that gives way to all others: on a machine of few cores it would take
    /// from them what somebody elsewhere doesn't.
    pub fn elsewhere<F: Future<Output = ()>>(work: impl FnOnce(Arc<AtomicBool>) -> F + Send + 'static) -> Self {
        Self::beginning(give_way, work)
    }

    fn beginning<F: Future<Output = ()>>(
        begin: fn(),
        work: impl FnOnce(Arc<AtomicBool>) -> F + Send + 'static,
    ) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            begin();
            tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work(stopped));
        });
        Self { stop, thread: Some(thread) }
    }
}

/// This thread computes when nobody else wants to.
pub(crate) fn give_way() {
    // SAFETY: takes numbers only. It speaks of this thread alone, on Linux, and nobody is refused a
    // lower priority.
    #[allow(unsafe_code, reason = "no safe wrapper")]
    let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) };
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // While a test fails, it may wait for an answer for ever.
        if !std::thread::panicking()
            && let Some(thread) = self.thread.take()
        {
            thread.join().unwrap();
        }
    }
}
