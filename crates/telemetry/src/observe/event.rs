//! The lines of a proxy's stream of connections, as they are written and read: one JSON object each.

use std::net::SocketAddr;

use leno_model::{Name, Workload};
use serde::{Deserialize, Serialize};

use crate::access_log::{Direction, Endpoint, HboneAddress, Line, Record, line_time};

/// One line of the stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The first line: the proxy, and how much of the past is known.
    Hello(Hello),
    /// A connection is open. Repeated when it has carried more, if that was requested.
    Open(Box<Connection>),
    /// A connection has ended, or never came to be.
    Ended(Box<Connection>),
    /// The end of what was open or had ended when the stream began. What follows happens now.
    Now,
    /// Lines are missing, because the reader or the access log was too slow.
    Missed {
        /// How many lines.
        count: u64,
    },
}

/// The proxy that writes the stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The node.
    pub node: String,
    /// The proxy's version.
    pub version: String,
    /// Which connections that ended are kept: `all`, `failed` or `none`, as the access log's level says.
    pub keeps: String,
    /// Connections that had ended and are not kept any more.
    pub forgotten: u64,
}

/// One connection, as one proxy sees it: that of its source, or that of its destination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// When this was so: UTC, RFC 3339.
    pub time: String,
    /// Which end's proxy reports: `source` or `destination`.
    pub reporter: String,
    /// Who connected.
    pub source: Peer,
    /// To whom.
    pub destination: Peer,
    /// Host name of the service that was asked for, or that the destination serves there.
    pub service: Option<String>,
    /// Port of the destination.
    pub port: Option<u16>,
    /// Whether it was encrypted, and both ends proven. `None`: it never came that far.
    pub encrypted: Option<bool>,
    /// Why it was, or was not.
    pub why: String,
    /// Bytes from the source to the destination.
    pub bytes_sent: u64,
    /// Bytes from the destination to the source.
    pub bytes_received: u64,
    /// How long it has lasted, milliseconds.
    pub duration_ms: u64,
    /// What became of it.
    pub verdict: Verdict,
    /// The policy that decided, `namespace/name`, if one did.
    pub policy: Option<String>,
    /// Why it was denied or failed.
    pub reason: Option<String>,
    /// What policies on trial would have done.
    pub dry_run: Vec<String>,
    /// The external authorisers without whose answer it passed (`failOpen`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fail_open: Vec<String>,
    /// What both proxies of a connection call it, hexadecimal; only within the mesh.
    pub trace: Option<String>,
    /// The HTTP request, if this is about one and not about a connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<HttpRequest>,
}

/// One HTTP request, as a waypoint sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpRequest {
    /// The method.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// The host that it names; empty while it is open.
    pub authority: String,
    /// What the client speaks: `HTTP/1.1`, for instance.
    pub protocol: String,
    /// Status of the response; 0 before there is one.
    pub status: u16,
    /// gRPC status of the response, if it said one.
    pub grpc_status: Option<u16>,
    /// What went wrong, in Istio's letters; `-` if nothing did.
    pub flags: String,
    /// The rule of a route that it followed.
    pub route: Option<String>,
    /// Microseconds until its response had been passed on.
    pub took_us: u64,
    /// The waypoint's number for it, hexadecimal.
    pub span: String,
}

fn request(record: &Record) -> Option<HttpRequest> {
    let request = record.request.as_ref()?;
    Some(HttpRequest {
        method: request.method.to_string(),
        path: request.path.to_string(),
        authority: request.authority.to_string(),
        protocol: request.protocol.to_owned(),
        status: request.status,
        grpc_status: request.grpc_status,
        flags: request.flags.to_owned(),
        route: request.route.as_ref().map(ToString::to_string),
        took_us: u64::try_from(record.duration.as_micros()).unwrap_or(u64::MAX),
        span: format!("{:016x}", request.span),
    })
}

/// One end of a connection.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// The pod, if the mesh knows whose the address is.
    pub pod: Option<String>,
    /// What it is one of: its Deployment, for instance.
    pub workload: Option<String>,
    /// Its namespace.
    pub namespace: Option<String>,
    /// Proven identity (a SPIFFE ID).
    pub identity: Option<String>,
    /// Its address.
    pub address: Option<SocketAddr>,
}

/// What became of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It was let pass.
    Allowed,
    /// A policy refused it, or ended it later.
    Denied,
    /// It was not carried, or broke, for another reason.
    Failed,
}

impl Connection {
    /// A connection that has ended or been refused.
    pub(super) fn of_line(line: &Line) -> Self {
        Self::new(&line.record, line_time(line.time))
    }

    pub(super) fn new(record: &Record, time: String) -> Self {
        let asked = match &record.hbone_address {
            Some(HboneAddress::Address(address)) => Some(*address),
            // A waypoint knows the endpoint of a connection that it passes on unread.
            Some(HboneAddress::Name(_)) => record
                .destination
                .address
                .filter(|_| record.direction == Direction::Through && record.destination.workload.is_some()),
            None => record.destination.address,
        };
        let (reporter, [bytes_sent, bytes_received]) = match record.direction {
            Direction::Outbound => ("source", [record.bytes_sent, record.bytes_received]),
            // There, what the pod's program sent is the answer.
            Direction::Inbound => ("destination", [record.bytes_received, record.bytes_sent]),
            Direction::Through => ("waypoint", [record.bytes_sent, record.bytes_received]),
        };
        let (encrypted, why) = encryption(record);
        let verdict = match &record.error {
            _ if record.denied => Verdict::Denied,
            Some(_) => Verdict::Failed,
            None => Verdict::Allowed,
        };
        Self {
            time,
            reporter: reporter.to_owned(),
            source: peer(&record.source, record.source.address),
            destination: peer(&record.destination, asked),
            service: record.service.as_ref().map(ToString::to_string),
            port: asked.map(|address| address.port()),
            encrypted,
            why: why.to_owned(),
            bytes_sent,
            bytes_received,
            duration_ms: u64::try_from(record.duration.as_millis()).unwrap_or(u64::MAX),
            verdict,
            policy: record.policy.as_ref().map(ToString::to_string),
            reason: record.error.clone(),
            dry_run: record.dry_run.clone(),
            fail_open: record.fail_open.clone(),
            trace: record.trace_id.map(|id| format!("{id:032x}")),
            request: request(record),
        }
    }
}

fn peer(end: &Endpoint, address: Option<SocketAddr>) -> Peer {
    let workload = end.workload.as_deref();
    let named =
        |name: fn(&Workload) -> &Name| workload.map(name).filter(|name| !name.is_empty()).map(ToString::to_string);
    Peer {
        pod: named(|workload| &workload.name),
        workload: named(|workload| &workload.workload_name).or_else(|| named(|workload| &workload.name)),
        namespace: named(|workload| &workload.namespace),
        identity: end.identity.as_ref().map(ToString::to_string),
        address,
    }
}

/// Whether a connection was encrypted, and why, as far as its proxy can tell.
fn encryption(record: &Record) -> (Option<bool>, &'static str) {
    if record.mutual_tls {
        return (Some(true), "mutual TLS");
    }
    let known = |end: &Endpoint| end.workload.is_some();
    match record.direction {
        Direction::Outbound if record.error.is_some() && record.bytes_sent == 0 => (None, "nothing was sent"),
        Direction::Outbound if known(&record.destination) => (Some(false), "the destination is not in the mesh"),
        Direction::Outbound => (Some(false), "the mesh does not know the destination"),
        Direction::Inbound if known(&record.source) => (Some(false), "the source is not in the mesh"),
        Direction::Inbound => (Some(false), "the mesh does not know the source"),
        Direction::Through => (None, "the peer has proved nothing"),
    }
}
