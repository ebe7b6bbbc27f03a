//! How long answers take, recorded by one thread and asked by another.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

/// Latencies of one neighbour's requests. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Latencies(Arc<Mutex<Vec<Duration>>>);

impl Latencies {
    /// Records one.
    pub fn push(&self, latency: Duration) {
        self.0.lock().push(latency);
    }

    /// The latency that 99 of 100 requests stay below, over the coming `time`; `None` if there was no answer in it.
    pub async fn p99(&self, time: Duration) -> Option<Duration> {
        self.0.lock().clear();
        tokio::time::sleep(time).await;
        let mut latencies = std::mem::take(&mut *self.0.lock());
        latencies.sort_unstable();
        latencies.get(latencies.len() * 99 / 100).copied()
    }
}
