//! The threads that connections run on.
//!
//! Each has a single-threaded runtime. A connection stays on the thread of the tunnel that it uses, so no message has
//! to wake another thread. There are as many threads as cores. Other modules decide which of them accept connections.

use std::sync::Arc;
use std::thread::JoinHandle;

use leno_capture::NetworkNamespace;
use leno_tunnel::timers;
use tokio::runtime::{Builder, EnterGuard, Handle, Runtime};
use tokio_util::sync::CancellationToken;

use super::memory::{Lives, Memory};
use crate::error::Error;

/// One of the threads that connections run on, and what belongs to it. It is handed down to everything that runs there.
///
/// Two things can't be handed down, because the kernel or another library asks for them: which thread keeps this
/// thread's timers, and which network namespace it returns to. [`Worker::occupy`] sets them up once.
#[derive(Clone)]
pub struct Worker {
    index: usize,
    handle: Handle,
    memory: Arc<Memory>,
}

impl Worker {
    fn new(index: usize, runtime: &Runtime, trim: fn()) -> Self {
        let handle = runtime.handle().clone();
        Self { index, memory: Memory::new(handle.clone(), trim), handle }
    }

    /// Makes the calling thread this worker's thread until `stop`. `keeper` keeps its timers.
    fn occupy(runtime: &Runtime, keeper: &Handle, stop: &CancellationToken) {
        timers::keep_on(keeper);
        NetworkNamespace::linger();
        runtime.block_on(stop.cancelled());
        NetworkNamespace::go_home();
    }

    /// Its place among the proxy's workers, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Runs a task on it.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.handle.spawn(task);
    }

    /// Until the guard is dropped, tasks and sockets of the calling thread belong to this worker.
    pub fn enter(&self) -> EnterGuard<'_> {
        self.handle.enter()
    }

    /// Counts a connection or a tunnel that will live on it.
    pub fn lives(&self) -> Lives {
        self.memory.begun()
    }
}

/// The data-path threads. When dropped, they finish what they are polling and end.
pub struct Workers {
    all: Vec<Worker>,
    threads: Vec<JoinHandle<()>>,
    stop: CancellationToken,
}

impl Workers {
    /// Starts `count` threads, or one per core if it is 0. Each gives freed memory back with `trim` and leaves its
    /// timers to `keeper`, which must outlive it.
    ///
    /// # Errors
    /// If a thread or its runtime can't be created.
    pub fn start(count: usize, trim: fn(), keeper: &Handle) -> Result<Self, Error> {
        let cores = || std::thread::available_parallelism().map_or(2, usize::from);
        let count = if count == 0 { cores() } else { count };
        let stop = CancellationToken::new();
        let mut workers = Self { all: Vec::new(), threads: Vec::new(), stop };
        for index in 0..count {
            let runtime = Builder::new_current_thread()
                // Without time: the runtime would read the clock and look through its timers at each turn. That is 1 %
                // of the processor time of a request, for timers that are not kept here.
                .enable_io()
                .on_thread_park(|| {
                    leno_tunnel::thread_sleeps();
                    NetworkNamespace::go_home();
                })
                .build()
                .map_err(Error::Runtime)?;
            workers.all.push(Worker::new(index, &runtime, trim));
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
            // A worker that panicked has reported it, and there is nothing left to stop.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
#[path = "workers_tests.rs"]
mod tests;
