//! The handshakes of one thread, one step at a time.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

thread_local! {
    static FREE: Arc<Semaphore> = Arc::new(Semaphore::new(1));
}

/// Waits for this handshake's turn to compute, and until the thread's other work is done.
///
/// A step of a handshake takes a fifth to half a millisecond of arithmetic. A few hundred peers that connect at the
/// same time, as after a node's restart, would otherwise do all their steps before the thread looks at its sockets
/// again, and each connection that it carries would wait for them. So the thread looks at its sockets between two
/// steps.
///
/// The turn is held until the step is done, never while the peer is waited for.
pub(crate) async fn turn() -> Option<OwnedSemaphorePermit> {
    let free = FREE.with(Arc::clone);
    // The semaphore is never closed. Without a turn, a handshake would merely hold up others.
    let turn = free.acquire_owned().await.ok();
    tokio::task::yield_now().await;
    turn
}

#[cfg(test)]
#[path = "turn_tests.rs"]
mod tests;
