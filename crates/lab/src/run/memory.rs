//! What is left of a burst.

use std::time::{Duration, Instant};

use crate::measure::{Memory, memory};

/// Fresh memory plus this part of it counts as given back.
const SLACK: f64 = 0.25;
/// Descriptors that may be open in addition: tunnels that are kept for the next connection.
const DESCRIPTORS: u64 = 64;

/// Looks at a process until its memory is back near what it was, or `limit` has passed. What it then has, and after how
/// many seconds it was back.
pub(super) async fn settle(pid: i32, fresh: &Memory, limit: Duration) -> std::io::Result<(Memory, Option<f64>)> {
    let begun = Instant::now();
    loop {
        let now = memory(pid)?;
        let closed = now.descriptors <= fresh.descriptors + DESCRIPTORS;
        if closed && now.rss_bytes as f64 <= fresh.rss_bytes as f64 * (1.0 + SLACK) {
            return Ok((now, Some(begun.elapsed().as_secs_f64())));
        }
        if begun.elapsed() >= limit {
            return Ok((now, None));
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}
