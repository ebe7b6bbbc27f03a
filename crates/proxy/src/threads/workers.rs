//! The threads connections run on.
//!
//! Single-threaded runtimes: a connection stays with the tunnel it uses, so that no message has to
//! wake another thread. As many as cores. Which of them take what is not decided here.

use std::thread::JoinHandle;

use leno_capture::NetworkNamespace;
use leno_tunnel::timers;
use tokio::runtime::{Builder, Handle};
use tokio_util::sync::CancellationToken;

use super::give_back;
use crate::error::Error;

/// The data-path threads. Dropped, they finish what they are polling and end.
pub struct Workers {
    handles: Vec<Handle>,
    threads: Vec<JoinHandle<()>>,
    stop: CancellationToken,
}

impl Workers {
    /// Starts `count` threads; 0 for one per core. Each lets go of freed memory by `trim` and
    /// leaves its timers to `keeper`, which must outlive it.
    ///
    /// # Errors
    /// If a thread or its runtime can't be had.
    pub fn start(count: usize, trim: fn(), keeper: &Handle) -> Result<Self, Error> {
        let cores = || std::thread::available_parallelism().map_or(2, usize::from);
        let count = if count == 0 { cores() } else { count };
        let stop = CancellationToken::new();
        let mut workers = Self { handles: Vec::new(), threads: Vec::new(), stop };
        for index in 0..count {
            let runtime = Builder::new_current_thread()
                // And not of time: that would read the clock and look through its timers at each
                // turn, 1 % of the processor time of a request, for none that are kept here.
                .enable_io()
                .on_thread_park(|| {
                    leno_tunnel::thread_sleeps();
                    NetworkNamespace::go_home();
                })
                .build()
                .map_err(Error::Runtime)?;
            workers.handles.push(runtime.handle().clone());
            let stop = workers.stop.clone();
            let keeper = keeper.clone();
            let thread = std::thread::Builder::new()
                .name(format!("worker-{index}"))
                .spawn(move || {
                    give_back::by(trim);
                    timers::keep_on(&keeper);
                    NetworkNamespace::linger();
                    runtime.block_on(stop.cancelled());
                    NetworkNamespace::go_home();
                })
                .map_err(Error::Runtime)?;
            workers.threads.push(thread);
        }
        Ok(workers)
    }

    /// One handle per worker.
    pub fn handles(&self) -> &[Handle] {
        &self.handles
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop.cancel();
        for thread in self.threads.drain(..) {
            // A worker that panicked has already told so; there is nothing left to stop.
            let _ = thread.join();
        }
    }
}
