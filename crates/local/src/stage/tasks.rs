//! Work beside the stage's own: tasks that end with their owner, and calls that block.

use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::Error;

/// Bounds how many threads talk to the kernel's network configuration at a time. It serves one
/// after the other anyway; a hundred pods that start together would be a hundred idle threads.
#[derive(Clone)]
pub(crate) struct Gate(Arc<Semaphore>);

impl Gate {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(4)))
    }

    /// Runs `work` where it may block.
    pub(crate) async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Error> {
        let stopping = || Error::Refused("the stage is shutting down".to_owned());
        let _place = self.0.acquire().await.map_err(|_| stopping())?;
        tokio::task::spawn_blocking(work).await.map_err(|_| stopping())
    }
}

/// Background tasks that end with their owner.
#[derive(Default)]
pub(crate) struct Tasks(Vec<JoinHandle<()>>);

impl Tasks {
    pub(crate) fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.push(tokio::spawn(task));
    }

    /// Ends them and waits until what they hold is released.
    pub(crate) async fn end(mut self) {
        for task in std::mem::take(&mut self.0) {
            task.abort();
            let _ = task.await;
        }
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}
