//! A connection for tests.

use leno_telemetry::observe::{Connection, HttpRequest, Peer, Verdict};

use super::ledger::{Shown, State};
use crate::args::ObjectName;

/// From `shop/web` to `shop/db-svc`, well.
pub(super) fn connection() -> Connection {
    let peer = |name: &str, address: &str| Peer {
        pod: Some(format!("{name}-1")),
        workload: Some(name.to_owned()),
        namespace: Some("shop".to_owned()),
        identity: Some(format!("spiffe://cluster.local/ns/shop/sa/{name}")),
        address: Some(address.parse().unwrap()),
    };
    Connection {
        time: "2026-11-25T12:34:56.000001Z".to_owned(),
        reporter: "destination".to_owned(),
        source: peer("web", "10.0.0.1:4000"),
        destination: peer("db", "10.0.0.2:8080"),
        service: Some("db-svc.shop.svc.cluster.local".to_owned()),
        port: Some(8080),
        encrypted: Some(true),
        why: "mutual TLS".to_owned(),
        bytes_sent: 12,
        bytes_received: 3400,
        duration_ms: 56,
        verdict: Verdict::Allowed,
        policy: None,
        reason: None,
        dry_run: Vec::new(),
        fail_open: Vec::new(),
        trace: Some("ab".to_owned()),
        request: None,
    }
}

pub(super) fn request(span: u64, status: u16, took_us: u64) -> HttpRequest {
    HttpRequest {
        method: "GET".to_owned(),
        path: "/x".to_owned(),
        authority: "db".to_owned(),
        protocol: "HTTP/1.1".to_owned(),
        status,
        flags: "-".to_owned(),
        took_us,
        span: format!("{span:016x}"),
        ..HttpRequest::default()
    }
}

pub(super) fn shown(connection: Connection) -> Shown {
    Shown { state: State::Ended, nodes: vec!["node-2".to_owned()], connection }
}

pub(super) fn named(namespace: &str, name: &str) -> ObjectName {
    ObjectName { namespace: namespace.to_owned(), name: name.to_owned() }
}
