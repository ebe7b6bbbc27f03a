//! The parameters of a load generator, and its results.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::histogram::Latency;
use super::server::Listening;

/// One load from one pod.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoadSpec {
    /// Seconds of load before the measured time.
    pub warmup_seconds: f64,
    /// Seconds of the measured time. Ignored by unlimited loads, unless nobody attends.
    pub seconds: f64,
    /// Nobody gives orders on standard input: its end means nothing, and an unlimited load ends after `seconds`.
    #[serde(default)]
    pub unattended: bool,
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
    /// HTTP or gRPC requests.
    Http(HttpLoad),
    /// Bulk bytes over TCP.
    Stream(StreamLoad),
    /// Open connections on which nothing happens.
    Idle(IdleLoad),
}

/// `GET` requests, or unary gRPC calls.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HttpLoad {
    /// The server's address.
    pub target: SocketAddr,
    /// Path. One that ends with `/bytes/N` asks the lab's server for a body of N bytes, everything else for its usual body.
    pub path: String,
    /// Fields that every request has, besides those that its protocol needs.
    #[serde(default)]
    pub headers: Vec<(String, String)>,
    /// How a request is written down.
    #[serde(default)]
    pub protocol: Protocol,
    /// The number of simultaneous connections.
    pub connections: usize,
    /// Requests at a time on each connection. More than one needs HTTP/2.
    #[serde(default = "one")]
    pub streams: usize,
    /// Requests to take in turn instead of `target` and `path`. Needs HTTP/1.1.
    #[serde(default)]
    pub walk: Option<Walk>,
    /// When the next request is sent.
    pub pace: Pace,
    /// Whether a connection is used again after a request.
    pub reuse: Reuse,
    /// Threads. One is enough for about 100 000 requests/s.
    pub workers: usize,
    /// A request that has no complete answer after this many seconds is an error, and its connection is given up.
    pub timeout_seconds: f64,
}

impl HttpLoad {
    /// HTTP/1.1 requests by one thread, with ten seconds for each.
    #[must_use]
    pub fn new(target: SocketAddr, path: &str, connections: usize, pace: Pace, reuse: Reuse) -> Self {
        Self {
            target,
            path: path.to_owned(),
            headers: Vec::new(),
            protocol: Protocol::Http1,
            connections,
            streams: 1,
            walk: None,
            pace,
            reuse,
            workers: 1,
            timeout_seconds: 10.0,
        }
    }
}

fn one() -> usize {
    1
}

/// How a request is written down.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// HTTP/1.1.
    #[default]
    Http1,
    /// HTTP/2 in the clear by prior knowledge (RFC 9113 §3.3).
    Http2,
    /// A unary gRPC call, which asks for a message of the length in the path.
    Grpc,
}

/// A list of requests that every connection takes in turn, from the first one, again and again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Walk {
    /// The requests.
    pub stops: Vec<Stop>,
    /// Whether all connections send at the same moments. Otherwise their requests are evenly spaced.
    pub lockstep: bool,
}

/// A request of a walk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stop {
    /// The server's address. A connection is opened anew when it differs from the last request's.
    pub target: SocketAddr,
    /// The field `Host`.
    pub host: String,
    /// Path, and query if there is one.
    pub path: String,
}

/// When the next request is sent.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pace {
    /// A request is sent as soon as the last one is answered. This finds the maximum rate. Its latencies flatter a
    /// server that stalls, because no request is sent meanwhile.
    Closed,
    /// Requests are sent at fixed times, whether or not the last one is answered. Latency counts from the planned time,
    /// so that a stall shows in every request it delayed.
    Open {
        /// Requests per second over all connections, evenly spaced.
        per_second: f64,
    },
}

/// The use of a connection after a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reuse {
    /// The connection carries the next request.
    Kept,
    /// The server closes it, and the next request opens another. Latency includes the connection's establishment.
    PerRequest,
}

/// Bulk bytes over TCP.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StreamLoad {
    /// The server's sink for [`Direction::Send`], its source for [`Direction::Receive`].
    pub target: SocketAddr,
    /// The number of connections. Each has a thread.
    pub streams: usize,
    /// Which way the bytes go.
    pub direction: Direction,
    /// The most bytes per second that each stream reads. This makes it a slow reader.
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

/// Idle connections, held until told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IdleLoad {
    /// The server's echo.
    pub target: SocketAddr,
    /// Their number.
    pub connections: usize,
}

/// One line of a generator's output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// A server is ready.
    Listening {
        /// Its addresses.
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
    /// The measured time, seconds.
    pub seconds: f64,
    /// Requests planned in that time. 0 for a closed loop.
    pub planned: u64,
    /// Counted requests with a complete answer.
    pub answered: u64,
    /// Answers that arrived within the time, per second.
    pub achieved_per_second: f64,
    /// Bytes of the answers' bodies that arrived within the time.
    pub body_bytes: u64,
    /// Connections that were opened for counted requests.
    pub connections_opened: u64,
    /// Failed requests by reason. Those without an answer are included, and are in `latency` with their age, which is
    /// less than their latency would have been.
    pub errors: BTreeMap<String, u64>,
    /// From the intended time of sending (open loop) or the actual one (closed loop) to the last byte.
    pub latency: Latency,
    /// For an open loop on a virtual machine: the requests during which the hypervisor took no time.
    #[serde(default)]
    pub undisturbed: Option<Box<Undisturbed>>,
    /// How late the generator was with requests whose connection was free. If this is not small compared with the
    /// latency, the generator itself was measured. Empty for a closed loop.
    pub lag: Latency,
}

/// Requests due while the hypervisor took no time from this machine, nor in the 200 ms before or the 100 ms after.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Undisturbed {
    /// The seconds of such time.
    pub seconds: f64,
    /// Their latency, recorded as for all requests.
    pub latency: Latency,
}

impl HttpOutcome {
    /// The number of all failed requests.
    #[must_use]
    pub fn error_count(&self) -> u64 {
        self.errors.values().sum()
    }
}

/// The result of bulk streams.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StreamOutcome {
    /// The measured time, seconds.
    pub seconds: f64,
    /// Bytes of each stream in that time.
    pub bytes: Vec<u64>,
    /// Bytes of all streams in each tenth of that time.
    pub tenths: Vec<u64>,
    /// Failed streams by reason, including streams that lost bytes.
    pub errors: BTreeMap<String, u64>,
}

/// The result of idle connections.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct IdleOutcome {
    /// Connections that passed the first check.
    pub opened: u64,
    /// Seconds until all had been opened and checked.
    pub open_seconds: f64,
    /// Connections that also passed the check at the end.
    pub alive: u64,
    /// Failed connections by reason.
    pub errors: BTreeMap<String, u64>,
}
