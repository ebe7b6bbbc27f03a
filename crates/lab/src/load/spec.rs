//! The parameters of a load generator, and its answers.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::histogram::Latency;
use super::server::Listening;

/// One load from one pod.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoadSpec {
    /// Seconds of load before anything counts.
    pub warmup_seconds: f64,
    /// Seconds that count. Ignored by loads that last until told.
    pub seconds: f64,
    /// The load.
    pub load: Load,
}

impl LoadSpec {
    pub(super) fn warmup(&self) -> Duration {
        Duration::try_from_secs_f64(self.warmup_seconds).unwrap_or_default()
    }

    pub(super) fn duration(&self) -> Duration {
        Duration::try_from_secs_f64(self.seconds).unwrap_or_default()
    }
}

/// Kinds of load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Load {
    /// HTTP/1.1 requests.
    Http(HttpLoad),
    /// Bulk bytes over TCP.
    Stream(StreamLoad),
    /// Open connections on which nothing happens.
    Idle(IdleLoad),
}

/// HTTP/1.1 `GET` requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HttpLoad {
    /// Server.
    pub target: SocketAddr,
    /// Path; `/bytes/N` asks the lab's server for a body of N bytes, everything else for its usual body.
    pub path: String,
    /// Connections at a time.
    pub connections: usize,
    /// When the next request is sent.
    pub pace: Pace,
    /// Whether a connection is used again after a request.
    pub reuse: Reuse,
    /// Threads. One is enough for about 100 000 requests/s.
    pub workers: usize,
    /// A request that has no complete answer after this many seconds is an error, and its connection is given up.
    pub timeout_seconds: f64,
}

/// When the next request is sent.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pace {
    /// A request is sent as soon as the last one is answered: this finds the maximum. Its latencies flatter a server
    /// that stalls, because no request is sent meanwhile.
    Closed,
    /// At fixed times, whether or not the last one is answered. Latency counts from the time at which a request should
    /// have been sent, so that a stall shows in every request it delayed.
    Open {
        /// Requests per second over all connections, evenly spaced.
        per_second: f64,
    },
}

/// The use of a connection after a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reuse {
    /// It carries the next request.
    Kept,
    /// The server closes it; the next request has a new one. Latency includes the connection's establishment.
    PerRequest,
}

/// Bulk bytes over TCP.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StreamLoad {
    /// The server's sink for [`Direction::Send`], its source for [`Direction::Receive`].
    pub target: SocketAddr,
    /// Connections, each with a thread.
    pub streams: usize,
    /// Which way the bytes go.
    pub direction: Direction,
    /// Bytes per second that each stream reads at most; makes it a slow reader.
    pub read_limit: Option<u64>,
}

/// Which way bulk bytes go, seen from the generator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// To the server.
    Send,
    /// From the server.
    Receive,
}

/// Open connections on which nothing happens, until told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IdleLoad {
    /// The server's echo.
    pub target: SocketAddr,
    /// How many.
    pub connections: usize,
}

/// One line of a generator's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// A server is ready.
    Listening {
        /// Where.
        ports: Listening,
    },
    /// The measured time begins now.
    Started,
    /// The measured time has just ended.
    Ended,
    /// The last line of a generator that succeeded.
    Result {
        /// The result.
        outcome: Box<Outcome>,
    },
    /// The last line of one that did not.
    Failed {
        /// Why.
        reason: String,
    },
}

/// The result of a load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Outcome {
    /// Of [`Load::Http`].
    Http(HttpOutcome),
    /// Of [`Load::Stream`].
    Stream(StreamOutcome),
    /// Of [`Load::Idle`].
    Idle(IdleOutcome),
}

/// The result of HTTP requests.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct HttpOutcome {
    /// Seconds that counted.
    pub seconds: f64,
    /// Requests that should have been sent in that time; 0 for a closed loop.
    pub planned: u64,
    /// Requests that were answered in full, of those that count.
    pub answered: u64,
    /// Answers that arrived within the time, per second.
    pub achieved_per_second: f64,
    /// Bytes of the answers' bodies that arrived within the time.
    pub body_bytes: u64,
    /// Connections that were opened within the time.
    pub connections_opened: u64,
    /// Failed requests by reason. Requests that timed out or had no answer at the end are in here, and in `latency` with
    /// their age, which their latency would have exceeded.
    pub errors: BTreeMap<String, u64>,
    /// From the intended time of sending (open loop) or the actual one (closed loop) to the last byte.
    pub latency: Latency,
    /// For an open loop on a virtual machine: the requests during which the hypervisor took no time.
    #[serde(default)]
    pub undisturbed: Option<Box<Undisturbed>>,
    /// How late the generator itself was with requests whose connection was free: when this is not small beside the
    /// latency, the generator is what was measured. Empty for a closed loop.
    pub lag: Latency,
}

/// Requests that were due while a hypervisor took no time from this machine, nor in the 200 ms before or the 100 ms after.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Undisturbed {
    /// Seconds in which they were due.
    pub seconds: f64,
    /// Their latency, as that of all.
    pub latency: Latency,
}

impl HttpOutcome {
    /// All failed requests.
    #[must_use]
    pub fn error_count(&self) -> u64 {
        self.errors.values().sum()
    }
}

/// The result of bulk streams.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StreamOutcome {
    /// Seconds that counted.
    pub seconds: f64,
    /// Bytes in that time, of each stream.
    pub bytes: Vec<u64>,
    /// Bytes of all streams in each tenth of that time.
    pub tenths: Vec<u64>,
    /// Failed streams by reason; a stream whose bytes did not all arrive is one.
    pub errors: BTreeMap<String, u64>,
}

/// The result of idle connections.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct IdleOutcome {
    /// Connections that carried a byte there and back.
    pub opened: u64,
    /// Seconds this took for all of them.
    pub open_seconds: f64,
    /// Those of them that carried another byte there and back at the end.
    pub alive: u64,
    /// Failed connections by reason.
    pub errors: BTreeMap<String, u64>,
}
