//! Background work beside a test, outside of the test's own runtime.

#![allow(clippy::unwrap_used, reason = "test code")]

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Work on a thread of its own, until this is dropped.
#[derive(Debug)]
pub struct Busy {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Busy {
    /// Starts `work`, which has to end once the flag is set.
    pub fn with<F: Future<Output = ()>>(work: impl FnOnce(Arc<AtomicBool>) -> F + Send + 'static) -> Self {
        Self::beginning(|| {}, work)
    }

    /// As [`Busy::with`], on a thread of the lowest priority: with few cores it would otherwise slow the test down as
    /// no remote machine does.
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

/// Computes only when no other thread wants the processor.
pub(crate) fn give_way() {
    // SAFETY: the call takes numbers only and concerns this thread alone. Linux lets every process lower its priority.
    #[allow(unsafe_code, reason = "no safe wrapper")]
    let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) };
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // While a test fails, the work may wait for ever for an answer.
        if !std::thread::panicking()
            && let Some(thread) = self.thread.take()
        {
            thread.join().unwrap();
        }
    }
}
