//! The stream of a proxy's connections on its admin port: `GET /connections`.
//!
//! It lists the open connections, those that ended lately, and with `follow` also what happens from then on, as
//! newline-delimited JSON ([`Event`]). A thread of its own writes it, no faster than it is read, from the events of the access
//! log's thread and from the list of open connections. The data path does nothing for it.

mod event;

use std::collections::HashMap;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use http::StatusCode;

pub use event::{Connection, Event, Hello, HttpRequest, Peer, Verdict};

use crate::AccessLog;
use crate::access_log::{Direction, Happened, Level, Record, Watch, line_time};
use crate::admin::{Request, Routes, lines, text};

/// How long the stream may be silent. Then it carries an empty line, by which each end sees that the other lives.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// Path of the stream.
pub const PATH: &str = "/connections";

/// Lists the open connections, each read when the iterator reaches it. Called by the thread that writes.
pub type Open = dyn Fn() -> Box<dyn Iterator<Item = Record>> + Send + Sync;

/// `GET /connections`. `?since=SECONDS` lists only what ended within that time. `?follow=true` goes on. With that,
/// `?every=MILLISECONDS` lists open connections again that have carried more since.
pub fn routes(log: &AccessLog, node: &str, open: Arc<Open>) -> Routes {
    let (log, node) = (log.clone(), node.to_owned());
    Routes::new().get(PATH, move |request| match Wanted::read(&request) {
        Ok(wanted) => {
            let (log, node, open) = (log.clone(), node.clone(), open.clone());
            lines(move |out| Stream { out, open, told: HashMap::new() }.write(&log, node, &wanted))
        }
        Err(reason) => text(StatusCode::BAD_REQUEST, reason),
    })
}

/// What was asked for.
#[derive(Debug, PartialEq, Eq)]
struct Wanted {
    since: Option<Duration>,
    follow: bool,
    every: Option<Duration>,
}

impl Wanted {
    fn read(request: &Request) -> Result<Self, String> {
        let number = |name: &str| match request.parameter(name) {
            None => Ok(None),
            Some(text) => text.parse().map(Some).map_err(|_| format!("{name}={text:?}: expected a whole number\n")),
        };
        let follow = match request.parameter("follow").as_deref() {
            None | Some("false") => false,
            Some("true" | "") => true,
            Some(other) => return Err(format!("follow={other:?}: expected true or false\n")),
        };
        Ok(Self {
            since: number("since")?.map(Duration::from_secs),
            follow,
            // More often would be a busy loop.
            every: number("every")?.map(|every: u64| Duration::from_millis(every.max(100))),
        })
    }
}

/// What tells one open connection from another.
type Key = (Direction, Option<SocketAddr>, Option<SocketAddr>, u64);

struct Stream<'a> {
    out: &'a mut dyn Write,
    open: Arc<Open>,
    /// Bytes that open connections had when they were told of last.
    told: HashMap<Key, u64>,
}

impl Stream<'_> {
    fn write(&mut self, log: &AccessLog, node: String, wanted: &Wanted) -> io::Result<()> {
        let mut watch = log.watch();
        let keeps = match log.level() {
            Level::Off => "none",
            Level::Error => "failed",
            Level::Info | Level::Debug => "all",
        };
        let version = env!("CARGO_PKG_VERSION").to_owned();
        self.event(&Event::Hello(Hello { node, version, keeps: keeps.to_owned(), forgotten: watch.forgotten }))?;
        let now = SystemTime::now();
        let wanted_past = |time: SystemTime| {
            let age = now.duration_since(time).unwrap_or_default();
            wanted.since.is_none_or(|since| age <= since)
        };
        for line in std::mem::take(&mut watch.recent) {
            if wanted_past(line.time) {
                self.event(&Event::Ended(Box::new(Connection::of_line(&line))))?;
            }
        }
        self.tell_open(wanted.every.is_some(), false)?;
        self.event(&Event::Now)?;
        self.out.flush()?;
        if wanted.follow { self.follow(&watch, wanted.every) } else { Ok(()) }
    }

    fn follow(&mut self, watch: &Watch, every: Option<Duration>) -> io::Result<()> {
        let mut look = every.map(|every| Instant::now() + every);
        loop {
            let until_look = look.map_or(HEARTBEAT, |look| look.saturating_duration_since(Instant::now()));
            let (lines, missed) = watch.next(until_look.min(HEARTBEAT));
            let quiet = lines.is_empty();
            for line in lines {
                let connection = Box::new(Connection::of_line(&line));
                let opened = line.happened == Happened::Opened;
                self.event(&if opened { Event::Open(connection) } else { Event::Ended(connection) })?;
            }
            if missed > 0 {
                self.event(&Event::Missed { count: missed })?;
            }
            if let (Some(at), Some(every)) = (look, every)
                && at <= Instant::now()
            {
                self.tell_open(true, true)?;
                look = Some(Instant::now() + every);
            }
            if quiet {
                self.out.write_all(b"\n")?;
            }
            self.out.flush()?;
        }
    }

    /// Writes the open connections. With `remember`, notes how much each has carried. With `changed`, writes only those
    /// that have carried more than was noted last.
    fn tell_open(&mut self, remember: bool, changed: bool) -> io::Result<()> {
        let mut carried = HashMap::new();
        for record in (self.open)() {
            let bytes = record.bytes_sent + record.bytes_received;
            if remember {
                let span = record.request.as_ref().map_or(0, |request| request.span);
                let key = (record.direction, record.source.address, record.destination.address, span);
                carried.insert(key, bytes);
                if changed && self.told.get(&key) == Some(&bytes) {
                    continue;
                }
            }
            let now = line_time(SystemTime::now());
            self.event(&Event::Open(Box::new(Connection::new(&record, now))))?;
        }
        self.told = carried;
        Ok(())
    }

    fn event(&mut self, event: &Event) -> io::Result<()> {
        serde_json::to_writer(&mut *self.out, event)?;
        self.out.write_all(b"\n")
    }
}

#[cfg(test)]
#[path = "observe_tests.rs"]
mod tests;
