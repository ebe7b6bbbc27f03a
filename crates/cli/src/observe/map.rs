//! Who talks to whom: one line for each pair of a source and what it asks for, with rates.

use std::collections::{BTreeMap, VecDeque};

use leno_telemetry::observe::{Connection, HttpRequest, Peer, Verdict};
use serde::Serialize;

use super::ledger::{Entry, Shown};
use super::rows::{bytes, service};
use crate::output::{Paint, table};

/// Moments after which a pair that has nothing to do with each other any more is shown no longer.
const FORGOTTEN: usize = 300;

/// Both ends of a pair, as they are called.
pub(super) type Ends = (String, String);

/// Rates of all pairs over the last moments.
pub(super) struct Map {
    pairs: BTreeMap<Ends, Pair>,
    /// Moments that rates are taken over.
    moments: usize,
    /// Seconds of one moment.
    each: f64,
}

/// One pair.
#[derive(Debug, Default)]
struct Pair {
    open: u64,
    /// Of each of the last moments, the newest last.
    past: VecDeque<Moment>,
    now: Moment,
    encrypted: bool,
    in_the_clear: bool,
    /// Moments in which there was nothing.
    quiet: usize,
    /// Connections that were denied, and that failed, since this is watched.
    denied: u64,
    failed: u64,
}

#[derive(Debug, Default, Clone)]
struct Moment {
    connections: u64,
    bytes: [u64; 2],
    requests: Requests,
}

/// Requests that ended, and how long they took.
#[derive(Debug, Default, Clone)]
struct Requests {
    ended: u64,
    errors: u64,
    /// By the logarithm of their time, in steps of a sixteenth.
    times: BTreeMap<u16, u64>,
}

/// Steps for each doubling of a time.
const STEPS: f64 = 16.0;

/// The status of a request whose client went away before it was answered.
const CLIENT_GONE: u16 = 499;

impl Requests {
    fn add(&mut self, request: &HttpRequest, verdict: Verdict) {
        self.ended += 1;
        let failed = request.status >= 500 || request.grpc_status.is_some_and(|status| status > 0);
        // A client that goes away says nothing of the service.
        let refused = verdict != Verdict::Allowed && request.status != CLIENT_GONE;
        self.errors += u64::from(failed || refused);
        let step = ((request.took_us.max(1) as f64).log2() * STEPS) as u16;
        *self.times.entry(step).or_default() += 1;
    }

    fn merge(mut self, other: &Self) -> Self {
        self.ended += other.ended;
        self.errors += other.errors;
        for (step, count) in &other.times {
            *self.times.entry(*step).or_default() += count;
        }
        self
    }

    /// The time, milliseconds, that no more than `share` of them exceeded; within 3 %.
    fn percentile(&self, share: f64) -> Option<f64> {
        let rank = (self.ended as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        let step = self.times.iter().find(|(_, count)| {
            seen += **count;
            seen >= rank
        })?;
        Some(((f64::from(*step.0) + 0.5) / STEPS).exp2() / 1000.0)
    }
}

/// One line of the map.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Line {
    pub(super) source: String,
    pub(super) destination: String,
    /// Connections open now.
    pub(super) open: u64,
    /// Connections begun per second.
    pub(super) connections_per_second: f64,
    /// Bytes per second from the source to the destination.
    pub(super) sent_per_second: f64,
    /// Bytes per second from the destination to the source.
    pub(super) received_per_second: f64,
    /// Whether all was encrypted; `None` if some was and some not, or nothing came that far.
    pub(super) encrypted: Option<bool>,
    mixed: bool,
    /// Connections denied while this was watched.
    pub(super) denied: u64,
    /// Connections that failed otherwise meanwhile.
    pub(super) failed: u64,
    /// Requests that ended per second, as waypoints tell.
    pub(super) requests_per_second: f64,
    /// Of these, the share that was refused or failed: status 500 or more, or a gRPC status other than 0.
    pub(super) error_share: Option<f64>,
    /// Half of them took no longer, milliseconds.
    pub(super) p50_ms: Option<f64>,
    /// 99 of 100 took no longer, milliseconds.
    pub(super) p99_ms: Option<f64>,
}

impl Map {
    /// Rates over the last `moments` moments of `each` seconds.
    pub(super) fn new(moments: usize, each: f64) -> Self {
        Self { pairs: BTreeMap::new(), moments, each }
    }

    /// Counts what an entry has carried since it was counted last, and whether it has just come.
    pub(super) fn count(&mut self, entry: &mut Entry, shown: &Shown) {
        let connection = &shown.connection;
        let pair = self.pairs.entry(ends(connection)).or_default();
        if let Some(request) = &connection.request {
            if !entry.is_open() {
                pair.now.requests.add(request, connection.verdict);
                pair.denied += u64::from(connection.verdict == Verdict::Denied);
            }
            pair.encrypted |= connection.encrypted == Some(true);
            // Its bytes are those of a connection, which is told of, too.
            return;
        }
        let bytes = [connection.bytes_sent, connection.bytes_received];
        for ((sum, bytes), counted) in pair.now.bytes.iter_mut().zip(bytes).zip(&mut entry.counted) {
            *sum += bytes.saturating_sub(*counted);
            *counted = bytes.max(*counted);
        }
        if !std::mem::replace(&mut entry.announced, true) {
            pair.now.connections += 1;
        }
        match connection.encrypted {
            Some(true) => pair.encrypted = true,
            Some(false) => pair.in_the_clear = true,
            None => {}
        }
        match connection.verdict {
            _ if entry.is_open() => pair.open += 1,
            Verdict::Allowed => {}
            Verdict::Denied => pair.denied += 1,
            Verdict::Failed => pair.failed += 1,
        }
    }

    /// Ends a moment. What is open is to be counted anew in the next one.
    pub(super) fn lines(&mut self) -> Vec<Line> {
        let mut lines = Vec::with_capacity(self.pairs.len());
        for ((source, destination), pair) in &mut self.pairs {
            let quiet =
                pair.open == 0 && pair.now.connections == 0 && pair.now.bytes == [0, 0] && pair.now.requests.ended == 0;
            pair.quiet = if quiet { pair.quiet + 1 } else { 0 };
            pair.past.push_back(std::mem::take(&mut pair.now));
            while pair.past.len() > self.moments {
                pair.past.pop_front();
            }
            let seconds = pair.past.len() as f64 * self.each;
            let per_second = |of: fn(&Moment) -> u64| pair.past.iter().map(of).sum::<u64>() as f64 / seconds;
            let all = pair.past.iter().map(|moment| &moment.requests);
            let requests = all.fold(Requests::default(), Requests::merge);
            lines.push(Line {
                source: source.clone(),
                destination: destination.clone(),
                open: std::mem::take(&mut pair.open),
                connections_per_second: per_second(|moment| moment.connections),
                sent_per_second: per_second(|moment| moment.bytes[0]),
                received_per_second: per_second(|moment| moment.bytes[1]),
                encrypted: (pair.encrypted != pair.in_the_clear).then_some(pair.encrypted),
                mixed: pair.encrypted && pair.in_the_clear,
                denied: pair.denied,
                failed: pair.failed,
                requests_per_second: requests.ended as f64 / seconds,
                error_share: (requests.ended > 0).then(|| requests.errors as f64 / requests.ended as f64),
                p50_ms: requests.percentile(0.5),
                p99_ms: requests.percentile(0.99),
            });
        }
        self.pairs.retain(|_, pair| pair.quiet < FORGOTTEN);
        lines
    }
}

fn ends(connection: &Connection) -> Ends {
    let destination = match &connection.service {
        Some(host) => service(host),
        None => name(&connection.destination, connection.port),
    };
    (name(&connection.source, None), destination)
}

fn name(peer: &Peer, port: Option<u16>) -> String {
    match (&peer.namespace, &peer.workload, &peer.identity, &peer.address) {
        (Some(namespace), Some(workload), ..) => format!("{namespace}/{workload}"),
        (_, _, Some(identity), _) => identity.clone(),
        (_, _, _, Some(address)) => match port {
            Some(port) => std::net::SocketAddr::new(address.ip(), port).to_string(),
            None => address.ip().to_string(),
        },
        _ => "?".to_owned(),
    }
}

fn per(of: Option<f64>, text: impl FnOnce(f64) -> String) -> String {
    of.map_or_else(|| "-".to_owned(), text)
}

/// The map for people.
pub(super) fn text(lines: &[Line], paint: Paint) -> String {
    let rows: Vec<_> = lines
        .iter()
        .map(|line| {
            let encrypted = match line.encrypted {
                Some(true) => "yes",
                Some(false) => "no",
                None if line.mixed => "some",
                None => "-",
            };
            vec![
                line.source.clone(),
                line.destination.clone(),
                line.open.to_string(),
                format!("{:.1}", line.connections_per_second),
                bytes(line.sent_per_second as u64),
                bytes(line.received_per_second as u64),
                encrypted.to_owned(),
                per(line.error_share, |_| format!("{:.1}", line.requests_per_second)),
                per(line.error_share, |share| format!("{:.1} %", share * 100.0)),
                per(line.p50_ms, |ms| format!("{ms:.1} ms")),
                per(line.p99_ms, |ms| format!("{ms:.1} ms")),
                line.failed.to_string(),
                if line.denied > 0 { paint.bad(&line.denied.to_string()) } else { "0".to_owned() },
            ]
        })
        .collect();
    let heading = [
        "SOURCE",
        "DESTINATION",
        "OPEN",
        "CONN/S",
        "SENT/S",
        "RECEIVED/S",
        "ENCRYPTED",
        "REQ/S",
        "ERRORS",
        "P50",
        "P99",
        "FAILED",
        "DENIED",
    ];
    table(&heading, &rows)
}

#[cfg(test)]
#[path = "map_tests.rs"]
mod tests;
