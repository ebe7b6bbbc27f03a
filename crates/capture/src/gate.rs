//! Limits the number of blocking calls.

use std::sync::Arc;

use tokio::sync::Semaphore;

/// Limits how many threads talk to the kernel's network configuration at a time. The kernel serves one after the other
/// anyway, and for a hundred pods that start together there would be a hundred idle threads.
#[derive(Debug, Clone)]
pub struct Gate(Arc<Semaphore>);

/// The runtime ends, and with it whatever was to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this process is shutting down")]
pub struct Stopped;

impl Default for Gate {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(4)))
    }
}

impl Gate {
    /// Runs `work` on a thread where it may block. It runs to its end even if nobody waits for it any more.
    ///
    /// # Errors
    /// [`Stopped`] if the runtime ends first.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Stopped> {
        let place = Arc::clone(&self.0).acquire_owned().await.map_err(|_| Stopped)?;
        let in_place = move || {
            let _place = place;
            work()
        };
        tokio::task::spawn_blocking(in_place).await.map_err(|_| Stopped)
    }
}
