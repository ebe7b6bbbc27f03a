//! Access log: one line per connection, in the words and fields of Istio's node proxy.
//!
//! Lines are put together and written by a thread of their own. When that can't keep up, lines
//! are dropped, counted and the gap is announced in the log itself: the data path never waits.

mod format;
mod queue;

use std::fmt;
use std::io::Write;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use leno_model::{Identity, Name};
use prometheus_client::metrics::counter::Counter;

use crate::Error;
use crate::logging::Format;
use queue::{Line, Queue};

/// Lines that may wait to be written, unless said otherwise. About 4 MiB when full.
pub const DEFAULT_CAPACITY: usize = 10_000;

/// Which connections are told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
#[repr(u8)]
pub enum Level {
    /// None.
    Off,
    /// Failed ones.
    Error,
    /// All, at their end.
    #[default]
    Info,
    /// All, at their beginning too.
    Debug,
}

impl FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "off" => Ok(Self::Off),
            "error" | "warn" => Ok(Self::Error),
            "info" => Ok(Self::Info),
            "debug" | "trace" => Ok(Self::Debug),
            other => Err(format!("{other:?} is no access log level; expected off, error, info or debug")),
        }
    }
}

/// Which way a connection goes, seen from the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Into the pod.
    Inbound,
    /// Out of the pod.
    Outbound,
}

impl Direction {
    fn as_str(self) -> &'static str {
        match self {
            Self::Inbound => "inbound",
            Self::Outbound => "outbound",
        }
    }
}

/// One end of a connection.
#[derive(Debug, Clone, Default)]
pub struct Endpoint {
    /// Its address; of the destination, what the connection was made to.
    pub address: Option<SocketAddr>,
    /// Pod name.
    pub workload: Option<Name>,
    /// Namespace.
    pub namespace: Option<Name>,
    /// Proven identity; only with mutual TLS.
    pub identity: Option<Identity>,
    /// Cluster.
    pub cluster: Option<Name>,
}

impl Endpoint {
    /// The names of `workload`; the address and identity are still to be filled in.
    pub fn of(workload: &leno_model::Workload) -> Self {
        Self {
            workload: Some(workload.name.clone()),
            namespace: Some(workload.namespace.clone()),
            cluster: Some(workload.cluster_id.clone()),
            ..Self::default()
        }
    }
}

/// What is told of a connection.
#[derive(Debug, Clone)]
pub struct Record {
    /// Who connected.
    pub source: Endpoint,
    /// To whom.
    pub destination: Endpoint,
    /// What the HBONE request named, or the tunnel's address.
    pub hbone_address: Option<HboneAddress>,
    /// Host name of the service that the program asked for.
    pub service: Option<Name>,
    /// Seen from the pod whose proxy reports.
    pub direction: Direction,
    /// Bytes the pod's program sent.
    pub bytes_sent: u64,
    /// Bytes the pod's program received.
    pub bytes_received: u64,
    /// How long it lasted.
    pub duration: Duration,
    /// Trace id of the `traceparent` header, if there was one.
    pub trace_id: Option<u128>,
    /// What policies on trial would have done to it; empty if none would have done anything.
    pub dry_run: Vec<String>,
    /// Why it failed, with the policy's name if one denied it; `None` for success.
    pub error: Option<String>,
}

/// Target of a tunnel: an address, or a host name across networks.
#[derive(Debug, Clone)]
pub enum HboneAddress {
    /// An address.
    Address(SocketAddr),
    /// `host:port`.
    Name(Name),
}

impl fmt::Display for HboneAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

impl Record {
    /// A record of which only the direction is known yet.
    pub fn new(direction: Direction) -> Self {
        Self {
            source: Endpoint::default(),
            destination: Endpoint::default(),
            hbone_address: None,
            service: None,
            direction,
            bytes_sent: 0,
            bytes_received: 0,
            duration: Duration::ZERO,
            trace_id: None,
            dry_run: Vec::new(),
            error: None,
        }
    }
}

/// The access log. Clones write to the same one. What is queued when the last clone is dropped
/// is still written; [`AccessLog::flush`] waits for it.
#[derive(Clone)]
pub struct AccessLog {
    shared: Arc<Shared>,
}

struct Shared {
    queue: Arc<Queue>,
    level: AtomicU8,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.queue.close();
    }
}

impl AccessLog {
    /// An access log that writes to `out` from a thread of its own. At most `capacity` lines
    /// wait; those dropped are counted in `dropped`.
    ///
    /// # Errors
    /// If the thread can't be started.
    pub fn new(
        out: impl Write + Send + 'static,
        format: Format,
        level: Level,
        capacity: usize,
        dropped: Counter,
    ) -> Result<Self, Error> {
        let queue = Arc::new(Queue::new(capacity, dropped));
        let writer = queue.clone();
        std::thread::Builder::new()
            .name("access-log".to_owned())
            .spawn(move || writer.write_all(out, format))
            .map_err(Error::Thread)?;
        Ok(Self { shared: Arc::new(Shared { queue, level: AtomicU8::new(level as u8) }) })
    }

    /// Whether lines of this level are written; to be asked before a record is put together.
    pub fn enabled(&self, level: Level) -> bool {
        level as u8 <= self.shared.level.load(Relaxed)
    }

    /// Changes which connections are told of.
    pub fn set_level(&self, level: Level) {
        self.shared.level.store(level as u8, Relaxed);
    }

    /// Tells of a connection that begins; its counts and duration are not shown.
    pub fn opened(&self, record: Record) {
        if self.enabled(Level::Debug) {
            self.push("connection opened", Level::Debug, record);
        }
    }

    /// Tells of a connection that has ended.
    pub fn completed(&self, record: Record) {
        let level = if record.error.is_some() { Level::Error } else { Level::Info };
        if self.enabled(level) {
            self.push("connection complete", level, record);
        }
    }

    /// Tells of a connection that was refused before anything was known of it.
    pub fn refused(&self, record: Record) {
        if self.enabled(Level::Error) {
            self.push("connection failed", Level::Error, record);
        }
    }

    /// Waits until everything queued so far is written, `limit` at most; says whether it is.
    /// Blocks: not for the data path.
    pub fn flush(&self, limit: Duration) -> bool {
        self.shared.queue.flush(limit)
    }

    fn push(&self, message: &'static str, level: Level, record: Record) {
        self.shared.queue.push(Line { time: SystemTime::now(), message, level, record });
    }
}

#[cfg(test)]
#[path = "access_log_tests.rs"]
mod tests;
