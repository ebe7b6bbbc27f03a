//! The threads connections run on.
//!
//! Single-threaded runtimes: a connection stays with the tunnel it uses, so that no message has to
//! wake another thread. As many as cores. Which of them take what is not decided here.

use std::sync::Arc;
use std::thread::JoinHandle;

use leno_capture::NetworkNamespace;
use leno_tunnel::timers;
use tokio::runtime::{Builder, EnterGuard, Handle, Runtime};
use tokio_util::sync::CancellationToken;

use super::memory::{Lives, Memory};
use crate::error::Error;

/// One of the threads connections run on, and what belongs to it. Whoever runs something there hands this down.
///
/// What can't be handed down, because it is the kernel's or another library's to ask for, is set up once, in
/// [`Worker::occupy`]: who keeps the thread's timers, and which network namespace it comes home to.
#[derive(Clone)]
pub struct Worker {
    handle: Handle,
    memory: Arc<Memory>,
}

impl Worker {
    fn new(runtime: &Runtime, trim: fn()) -> Self {
        let handle = runtime.handle().clone();
        Self { memory: Memory::new(handle.clone(), trim), handle }
    }

    /// Makes the calling thread this worker's until `stop`; its timers are `keeper`'s.
    fn occupy(runtime: &Runtime, keeper: &Handle, stop: &CancellationToken) {
        timers::keep_on(keeper);
        NetworkNamespace::linger();
        runtime.block_on(stop.cancelled());
        NetworkNamespace::go_home();
    }

    /// Runs something on it.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.handle.spawn(task);
    }

    /// Until the guard is dropped, what the calling thread spawns and registers is this worker's.
    pub fn enter(&self) -> EnterGuard<'_> {
        self.handle.enter()
    }

    /// Counts a connection or a tunnel that is to live on it.
    pub fn lives(&self) -> Lives {
        self.memory.begun()
    }
}

/// The data-path threads. Dropped, they finish what they are polling and end.
pub struct Workers {
    all: Vec<Worker>,
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
        let mut workers = Self { all: Vec::new(), threads: Vec::new(), stop };
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
            workers.all.push(Worker::new(&runtime, trim));
            let stop = workers.stop.clone();
            let keeper = keeper.clone();
            let thread = std::thread::Builder::new()
                .name(format!("worker-{index}"))
                .spawn(move || Worker::occupy(&runtime, &keeper, &stop))
                .map_err(Error::Runtime)?;
            workers.threads.push(thread);
        }
        Ok(workers)
    }

    /// All of them.
    pub fn all(&self) -> &[Worker] {
        &self.all
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

#[cfg(test)]
#[path = "workers_tests.rs"]
mod tests;
