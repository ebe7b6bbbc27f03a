//! Handshakes of one thread, one at a time.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

thread_local! {
    static FREE: Arc<Semaphore> = Arc::new(Semaphore::new(1));
}

/// Waits until it is this handshake's turn to compute, and until what else the thread has to do is done.
///
/// A step of a handshake takes a fifth to half a millisecond of arithmetic. A few hundred peers that
/// come at once, as after a node's restart, would otherwise take all their steps before the thread
/// looks at its sockets again, and each connection it carries would wait for them. So a step comes
/// between two such looks.
///
/// Held until the step is done, never while a peer is waited for.
pub(crate) async fn turn() -> Option<OwnedSemaphorePermit> {
    let free = FREE.with(Arc::clone);
    // Never closed; and without a turn a handshake is only less polite.
    let turn = free.acquire_owned().await.ok();
    tokio::task::yield_now().await;
    turn
}

#[cfg(test)]
#[path = "turn_tests.rs"]
mod tests;
