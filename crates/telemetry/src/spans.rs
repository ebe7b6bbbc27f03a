//! Spans of requests, told to an OpenTelemetry collector (OTLP 1.x).
//!
//! What tells a span puts it into a queue and goes on. A task elsewhere sends what is in the queue. If the collector is slow or
//! away, the queue gets full; what finds no place, and what could not be sent, is dropped and counted.

mod answer;
mod collector;
mod export;
mod json;
mod protobuf;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::Notify;

use export::Export;

pub use collector::{Collector, Protocol};

/// Spans that wait. They take about 2 MiB.
const CAPACITY: usize = 4096;

/// Most spans in one message.
const BATCH: usize = 512;

/// The longest that a span waits for others to go with it.
const PAUSE: Duration = Duration::from_secs(1);

/// Pause after the collector did not take what it was sent.
const AGAIN: Duration = Duration::from_secs(5);

/// One request, as its server's side saw it.
#[derive(Debug, Clone)]
pub struct Span {
    /// The trace.
    pub trace: u128,
    /// Its own number.
    pub span: u64,
    /// The client's span.
    pub parent: Option<u64>,
    /// When it began.
    pub began: SystemTime,
    /// How long it took.
    pub took: Duration,
    /// Its name: the method and the rule of a route.
    pub name: String,
    /// What is known of it, by OpenTelemetry's names.
    pub attributes: Vec<(&'static str, Value)>,
    /// Why it failed, if it did.
    pub error: Option<String>,
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A text.
    Text(String),
    /// A number.
    Number(i64),
}

/// Spans on their way to a collector. Clones share the queue.
#[derive(Debug, Clone)]
pub struct Spans {
    queue: Arc<Queue>,
}

#[derive(Debug)]
struct Queue {
    waiting: Mutex<VecDeque<Span>>,
    enough: Notify,
    dropped: Counter,
}

impl Spans {
    /// A queue whose losses are counted in `dropped`. [`Self::send`] empties it.
    pub fn new(dropped: Counter) -> Self {
        let queue = Queue { waiting: Mutex::default(), enough: Notify::new(), dropped };
        Self { queue: Arc::new(queue) }
    }

    /// Tells of a span. Never waits.
    pub fn tell(&self, span: Span) {
        let mut waiting = self.queue.waiting.lock();
        if waiting.len() >= CAPACITY {
            drop(waiting);
            self.queue.dropped.inc();
            return;
        }
        waiting.push_back(span);
        let enough = waiting.len() == BATCH;
        drop(waiting);
        if enough {
            self.queue.enough.notify_one();
        }
    }

    /// Sends spans to the collector, in the name of `service`. Never returns. For a runtime that carries no traffic.
    pub async fn send(self, collector: Collector, protocol: Protocol, service: String) {
        let mut export = Export::new(collector, protocol, service);
        let (mut well, mut whole) = (true, true);
        loop {
            let _ = tokio::time::timeout(PAUSE, self.queue.enough.notified()).await;
            loop {
                let batch = self.take();
                if batch.is_empty() {
                    break;
                }
                let sent = export.send(&batch).await;
                match (&sent, well) {
                    (Err(error), true) => {
                        tracing::warn!(%error, "the trace collector does not take spans; they are dropped and counted until it does");
                    }
                    (Ok(_), false) => tracing::info!("the trace collector takes spans again"),
                    _ => {}
                }
                well = sent.is_ok();
                if let Ok(refused) = sent {
                    if let Some(refused) = &refused {
                        self.queue.dropped.inc_by(refused.count);
                        if whole {
                            tracing::warn!(
                                why = refused.why,
                                "the trace collector refuses some of the spans; they are counted as dropped"
                            );
                        }
                    }
                    whole = refused.is_none();
                }
                if !well {
                    self.queue.dropped.inc_by(batch.len() as u64);
                    tokio::time::sleep(AGAIN).await;
                    break;
                }
            }
        }
    }

    fn take(&self) -> Vec<Span> {
        let mut waiting = self.queue.waiting.lock();
        let count = waiting.len().min(BATCH);
        waiting.drain(..count).collect()
    }
}

#[cfg(test)]
#[path = "spans/spans_tests.rs"]
mod tests;
