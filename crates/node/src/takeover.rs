//! Making way for the next proxy of the node.
//!
//! A proxy that is told to end goes on taking a pod's new connections until another one listens there too: the kernel gives
//! both their share of them then, and all to the other once this one has closed its listeners. The next one is told of the
//! pods by the node agent, and need not know of this one; so it may be a ztunnel, or another version.

use std::sync::Arc;
use std::time::Duration;

use leno_capture::others_listen;
use tokio::time::{Instant, sleep};

use crate::pod::Pod;

/// Between two looks at who listens in a pod. The longer, the more of what is new meets a proxy that ends; each costs about a
/// tenth of a millisecond.
const LOOK: Duration = Duration::from_millis(25);

/// Resolves when another proxy listens in the pod, or nothing is to be gained by waiting longer.
pub(crate) async fn taken_over(pod: &Arc<Pod>, until: Instant) {
    while !pod.has_left() && Instant::now() < until {
        match others_listen(pod.netns(), pod.ports(), pod.listeners()) {
            Ok(true) => {
                tracing::info!(pod = %pod.name(), "another proxy has taken over the pod");
                return;
            }
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(%error, pod = %pod.name(), "can't tell whether another proxy serves the pod; letting go of it");
                return;
            }
        }
        sleep(LOOK).await;
    }
}
