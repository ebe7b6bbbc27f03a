//! Who talks to whom: one line for each pair of a source and what it asks for, with rates.

use std::collections::{BTreeMap, VecDeque};

use leno_telemetry::observe::{Connection, Peer, Verdict};
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

#[derive(Debug, Default, Clone, Copy)]
struct Moment {
    connections: u64,
    bytes: [u64; 2],
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
            let quiet = pair.open == 0 && pair.now.connections == 0 && pair.now.bytes == [0, 0];
            pair.quiet = if quiet { pair.quiet + 1 } else { 0 };
            pair.past.push_back(std::mem::take(&mut pair.now));
            while pair.past.len() > self.moments {
                pair.past.pop_front();
            }
            let seconds = pair.past.len() as f64 * self.each;
            let per_second = |of: fn(&Moment) -> u64| pair.past.iter().map(of).sum::<u64>() as f64 / seconds;
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
                line.failed.to_string(),
                if line.denied > 0 { paint.bad(&line.denied.to_string()) } else { "0".to_owned() },
            ]
        })
        .collect();
    let heading = ["SOURCE", "DESTINATION", "OPEN", "CONN/S", "SENT/S", "RECEIVED/S", "ENCRYPTED", "FAILED", "DENIED"];
    table(&heading, &rows)
}

#[cfg(test)]
#[path = "map_tests.rs"]
mod tests;
