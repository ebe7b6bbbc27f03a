//! What two proxies tell of one connection, put together: that of the source knows what was asked for, that of the
//! destination what a policy decided. Within the mesh both call it by one trace id.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use leno_telemetry::observe::{Connection, Verdict};
use serde::Serialize;

/// How long the end that one proxy tells of waits for the other's word. Each tells within a fraction of a second; a
/// proxy that has no stream never does.
const PATIENCE: Duration = Duration::from_secs(2);

/// Connections that have been shown and are remembered, lest the other proxy's late word show them again.
const REMEMBERED: usize = 8192;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Trace(String),
    /// A request at a waypoint, which tells of it alone. Many may belong to one trace.
    Request(String),
    /// One that only one proxy can see: node, source and destination.
    Alone(String, Option<SocketAddr>, Option<SocketAddr>),
}

/// Connections whose end has not been shown.
#[derive(Default)]
pub(super) struct Ledger {
    entries: HashMap<Key, Entry>,
    shown: VecDeque<Key>,
    is_shown: HashSet<Key>,
}

/// What is known of one connection.
#[derive(Debug)]
pub(super) struct Entry {
    /// As the source's proxy sees it, and as the destination's.
    sides: [Option<Seen>; 2],
    /// When it was first heard of, and of its end.
    pub(super) since: Instant,
    ended: Option<Instant>,
    /// Whether its beginning has been shown.
    pub(super) announced: bool,
    /// What of its bytes has been counted, for rates.
    pub(super) counted: [u64; 2],
}

#[derive(Debug)]
struct Seen {
    node: String,
    connection: Connection,
    ended: bool,
}

/// One connection as it is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Shown {
    pub(super) state: State,
    /// Nodes whose proxies tell of it.
    pub(super) nodes: Vec<String>,
    #[serde(flatten)]
    pub(super) connection: Connection,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    Open,
    Ended,
}

impl Ledger {
    /// Notes what the proxy of `node` tells. Says whether the connection was not known before.
    pub(super) fn note(&mut self, node: &str, connection: Connection, ended: bool, now: Instant) -> bool {
        let key = key(node, &connection);
        if self.is_shown.contains(&key) {
            return false;
        }
        let mut new = false;
        let entry = self.entries.entry(key).or_insert_with(|| {
            new = true;
            Entry { sides: [None, None], since: now, ended: None, announced: false, counted: [0, 0] }
        });
        // A waypoint is where the source's connection ends.
        let side = usize::from(connection.reporter != "source");
        let side = &mut entry.sides[side];
        // A look at what is open may be older than the word of its end.
        if side.as_ref().is_some_and(|seen| seen.ended && !ended) {
            return new;
        }
        *side = Some(Seen { node: node.to_owned(), connection, ended });
        if ended {
            entry.ended.get_or_insert(now);
        }
        new
    }

    /// Forgets what the proxy of `node` said was open: it is gone, and so are its connections.
    pub(super) fn gone(&mut self, node: &str) {
        for entry in self.entries.values_mut() {
            for side in &mut entry.sides {
                if side.as_ref().is_some_and(|seen| seen.node == node && !seen.ended) {
                    *side = None;
                }
            }
        }
        self.entries.retain(|_, entry| entry.sides.iter().any(Option::is_some));
    }

    /// Takes out those that have ended, as far as both proxies have said so or were waited for.
    pub(super) fn take_ended(&mut self, now: Instant) -> Vec<Entry> {
        let ripe = |entry: &Entry| {
            entry.ended.is_some_and(|ended| entry.both_ended() || now.duration_since(ended) >= PATIENCE)
        };
        let keys: Vec<Key> = self.entries.iter().filter(|(_, entry)| ripe(entry)).map(|(key, _)| key.clone()).collect();
        let mut taken = Vec::with_capacity(keys.len());
        for key in keys {
            taken.extend(self.entries.remove(&key));
            if matches!(key, Key::Trace(_)) {
                if self.shown.len() == REMEMBERED
                    && let Some(oldest) = self.shown.pop_front()
                {
                    self.is_shown.remove(&oldest);
                }
                self.shown.push_back(key.clone());
                self.is_shown.insert(key);
            }
        }
        taken.sort_by(|a, b| a.time().cmp(b.time()));
        taken
    }

    /// All that there are.
    pub(super) fn entries(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.entries.values_mut()
    }
}

fn key(node: &str, connection: &Connection) -> Key {
    if let Some(request) = &connection.request {
        return Key::Request(format!("{node} {}", request.span));
    }
    match &connection.trace {
        Some(trace) => Key::Trace(trace.clone()),
        None => Key::Alone(
            format!("{node} {}", connection.reporter),
            connection.source.address,
            connection.destination.address,
        ),
    }
}

impl Entry {
    fn seen(&self) -> impl Iterator<Item = &Seen> {
        self.sides.iter().flatten()
    }

    fn both_ended(&self) -> bool {
        let alone = self.seen().all(|seen| seen.connection.trace.is_none() || seen.connection.request.is_some());
        (alone || self.sides.iter().all(Option::is_some)) && self.seen().all(|seen| seen.ended)
    }

    fn time(&self) -> &str {
        self.seen().map(|seen| seen.connection.time.as_str()).min().unwrap_or_default()
    }

    /// Whether it is still open, as far as anybody has said.
    pub(super) fn is_open(&self) -> bool {
        self.seen().all(|seen| !seen.ended)
    }

    /// Both proxies' words as one; `None` only if there are none.
    pub(super) fn shown(&self) -> Option<Shown> {
        let state = if self.is_open() { State::Open } else { State::Ended };
        let mut nodes: Vec<String> = self.seen().map(|seen| seen.node.clone()).collect();
        nodes.dedup();
        let connection = match &self.sides {
            [Some(source), Some(destination)] => merged(&source.connection, &destination.connection),
            [Some(only), None] | [None, Some(only)] => only.connection.clone(),
            [None, None] => return None,
        };
        Some(Shown { state, nodes, connection })
    }
}

fn merged(source: &Connection, destination: &Connection) -> Connection {
    let mut both = destination.clone();
    both.reporter = "both".to_owned();
    let either = |first: &Option<String>, second: &Option<String>| first.clone().or_else(|| second.clone());
    for (peer, other) in [(&mut both.source, &source.source), (&mut both.destination, &source.destination)] {
        // A waypoint that passes a connection on unread names the endpoint; what its client's node has seen proved is the
        // waypoint's own account.
        let same = peer.pod.is_none() || other.pod.is_none() || peer.pod == other.pod;
        peer.pod = either(&peer.pod, &other.pod);
        peer.workload = either(&peer.workload, &other.workload);
        peer.namespace = either(&peer.namespace, &other.namespace);
        peer.identity = either(&peer.identity, if same { &other.identity } else { &None });
    }
    // The program's own port is known where it is.
    both.source.address = source.source.address.or(both.source.address);
    both.service = either(&source.service, &destination.service);
    // Each counts as it passes bytes on, and a look at what is open takes one after the other.
    both.bytes_sent = source.bytes_sent.max(destination.bytes_sent);
    both.bytes_received = source.bytes_received.max(destination.bytes_received);
    both.duration_ms = source.duration_ms.max(destination.duration_ms);
    if destination.verdict == Verdict::Allowed && source.verdict != Verdict::Allowed {
        both.verdict = source.verdict;
        both.reason.clone_from(&source.reason);
    }
    both
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
