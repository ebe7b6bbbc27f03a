//! Access log: one line per connection, in the words and fields of Istio's node proxy.
//!
//! Lines are formatted and written by a thread of their own. When it can't keep up, lines are dropped and counted, and
//! the log itself notes the gap. The data path never waits.

mod format;
mod queue;
mod watch;

use std::fmt;
use std::io::Write;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use leno_model::{Identity, Name, PolicyName, Workload};
use prometheus_client::metrics::counter::Counter;

use crate::Error;
use crate::logging::Format;
use queue::Queue;
use watch::Watchers;

pub(crate) use format::time as line_time;
pub use watch::Watch;

/// Default of the number of lines that may wait to be written. They take about 4 MiB.
pub const DEFAULT_CAPACITY: usize = 10_000;

/// Which connections are logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
#[repr(u8)]
pub enum Level {
    /// No connection.
    Off,
    /// Failed ones.
    Error,
    /// All, when they end.
    #[default]
    Info,
    /// All, when they begin and when they end.
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

/// Direction of a connection, seen from the pod or waypoint whose proxy reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Into the pod.
    Inbound,
    /// Out of the pod.
    Outbound,
    /// Through a waypoint.
    Through,
}

impl Direction {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Inbound => "inbound",
            Self::Outbound => "outbound",
            Self::Through => "through",
        }
    }
}

/// One end of a connection.
#[derive(Debug, Clone, Default)]
pub struct Endpoint {
    /// Its address. For the destination, the address that was connected to.
    pub address: Option<SocketAddr>,
    /// The pod, if it is known whose the address is.
    pub workload: Option<Arc<Workload>>,
    /// Proven identity; only with mutual TLS.
    pub identity: Option<Identity>,
}

/// The facts about a connection.
#[derive(Debug, Clone)]
pub struct Record {
    /// The source.
    pub source: Endpoint,
    /// The destination.
    pub destination: Endpoint,
    /// The address that the HBONE request named, or the tunnel's address.
    pub hbone_address: Option<HboneAddress>,
    /// Host name of the service that the program asked for.
    pub service: Option<Name>,
    /// Direction, seen from the pod whose proxy reports.
    pub direction: Direction,
    /// Bytes that the pod's program sent.
    pub bytes_sent: u64,
    /// Bytes that the pod's program received.
    pub bytes_received: u64,
    /// How long it lasted.
    pub duration: Duration,
    /// Trace id of the `traceparent` header, if there was one.
    pub trace_id: Option<u128>,
    /// What dry-run policies would have done to it; empty if none would have done anything.
    pub dry_run: Vec<String>,
    /// The external authorisers that gave no answer, and whose provider says `failOpen`, in words; empty if there was none.
    pub fail_open: Vec<String>,
    /// Why it failed, with the policy's name if one denied it; `None` if it succeeded.
    pub error: Option<String>,
    /// Whether a policy refused it, or ended it later.
    pub denied: bool,
    /// The policy that allowed or denied it, if one did.
    pub policy: Option<PolicyName>,
    /// Whether both ends were proven and it was encrypted.
    pub mutual_tls: bool,
    /// The HTTP request, if it is about one and not about a connection.
    pub request: Option<Box<Request>>,
}

/// The facts about an HTTP request.
#[derive(Debug, Clone)]
pub struct Request {
    /// The method.
    pub method: Name,
    /// The host that it names.
    pub authority: Name,
    /// Path and query.
    pub path: Name,
    /// `HTTP/1.1`, for instance: what the client speaks.
    pub protocol: &'static str,
    /// Status of the response.
    pub status: u16,
    /// gRPC status of the response, if it said one.
    pub grpc_status: Option<u16>,
    /// What went wrong, in Istio's letters; `-` if nothing did.
    pub flags: &'static str,
    /// Its id.
    pub id: Name,
    /// How many endpoints were asked.
    pub attempts: u32,
    /// The rule of a route that it followed.
    pub route: Option<Name>,
    /// The proxy's own number for it, by which it is known while it is open and when it has ended; 0 if it has none.
    pub span: u64,
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
    /// A record of which only the direction is known.
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
            fail_open: Vec::new(),
            error: None,
            denied: false,
            policy: None,
            mutual_tls: false,
            request: None,
        }
    }
}

/// What happened to a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Happened {
    Opened,
    Completed,
    /// It was refused before anything was known of it.
    Refused,
}

/// An event for the log's thread.
#[derive(Debug, Clone)]
pub struct Line {
    pub(crate) time: SystemTime,
    pub(crate) happened: Happened,
    level: Level,
    /// Whether the log gets it. Otherwise only watchers do.
    logged: bool,
    pub(crate) record: Record,
}

/// The access log. Clones write to the same log. When the last clone is dropped, queued lines are still written;
/// [`AccessLog::flush`] waits for that.
#[derive(Clone)]
pub struct AccessLog {
    shared: Arc<Shared>,
}

struct Shared {
    queue: Arc<Queue>,
    watchers: Arc<Watchers>,
    level: AtomicU8,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.queue.close();
    }
}

impl AccessLog {
    /// An access log that writes to `out` on a thread of its own. At most `capacity` lines wait. Dropped lines are
    /// counted in `dropped`.
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
        let watchers = Arc::new(Watchers::default());
        let (writer, watched) = (queue.clone(), watchers.clone());
        std::thread::Builder::new()
            .name("access-log".to_owned())
            .spawn(move || writer.write_all(out, format, &watched))
            .map_err(Error::Thread)?;
        Ok(Self { shared: Arc::new(Shared { queue, watchers, level: AtomicU8::new(level as u8) }) })
    }

    /// Whether anybody wants lines of this level. Check it before building a record.
    pub fn enabled(&self, level: Level) -> bool {
        self.is_logged(level) || self.shared.watchers.any()
    }

    fn is_logged(&self, level: Level) -> bool {
        level as u8 <= self.shared.level.load(Relaxed)
    }

    /// Which connections are logged.
    pub fn level(&self) -> Level {
        let all = [Level::Debug, Level::Info, Level::Error];
        all.into_iter().find(|level| self.is_logged(*level)).unwrap_or(Level::Off)
    }

    /// Changes which connections are logged.
    #[cfg(test)]
    pub(crate) fn set_level(&self, level: Level) {
        self.shared.level.store(level as u8, Relaxed);
    }

    /// Watches all connections from now on, whatever the log's level, until the result is dropped. What the log's
    /// thread handed out before is in [`Watch::recent`].
    pub fn watch(&self) -> Watch {
        self.shared.watchers.watch()
    }

    /// Logs the beginning of a connection. Byte counts and duration are not shown.
    pub fn opened(&self, record: Record) {
        if self.enabled(Level::Debug) {
            self.push(Happened::Opened, Level::Debug, record);
        }
    }

    /// Logs the end of a connection.
    pub fn completed(&self, record: Record) {
        let level = if record.error.is_some() { Level::Error } else { Level::Info };
        if self.enabled(level) {
            self.push(Happened::Completed, level, record);
        }
    }

    /// Logs a connection that was refused before anything was known about it.
    pub fn refused(&self, record: Record) {
        if self.enabled(Level::Error) {
            self.push(Happened::Refused, Level::Error, record);
        }
    }

    /// Waits, at most for `limit`, until everything queued so far is written. Returns whether it is. Blocks, so it is
    /// not for the data path.
    pub fn flush(&self, limit: Duration) -> bool {
        self.shared.queue.flush(limit)
    }

    fn push(&self, happened: Happened, level: Level, record: Record) {
        let logged = self.is_logged(level);
        self.shared.queue.push(Line { time: SystemTime::now(), happened, level, logged, record });
    }
}

#[cfg(test)]
#[path = "access_log_tests.rs"]
mod tests;
