//! One connection as a row for people.

use std::time::Duration;

use leno_telemetry::observe::{Connection, HttpRequest, Peer, Verdict};

use super::filter::service_name;
use super::ledger::{Shown, State};
use crate::output::Paint;

pub(super) const HEADING: [&str; 10] =
    ["TIME", "STATE", "SOURCE", "DESTINATION", "SERVICE", "ENCRYPTED", "SENT", "RECEIVED", "LASTED", "VERDICT"];

/// The cells of one connection.
pub(super) fn cells(shown: &Shown, paint: Paint) -> Vec<String> {
    let connection = &shown.connection;
    vec![
        // Of an RFC 3339 text in UTC, the time of day.
        connection.time.get(11..19).unwrap_or_default().to_owned(),
        match shown.state {
            State::Open => "open",
            State::Ended => "ended",
        }
        .to_owned(),
        peer(&connection.source, None),
        peer(&connection.destination, connection.port),
        connection.service.as_deref().map_or_else(|| "-".to_owned(), service),
        encrypted(connection),
        bytes(connection.bytes_sent),
        bytes(connection.bytes_received),
        lasted(Duration::from_millis(connection.duration_ms)),
        // The last cell, for colours would count as width.
        verdict(connection, paint),
    ]
}

/// A pod and whom it proved to be; what is known of the address otherwise.
fn peer(peer: &Peer, port: Option<u16>) -> String {
    let port = port.map(|port| format!(":{port}")).unwrap_or_default();
    let identity = peer.identity.as_deref();
    match (&peer.namespace, &peer.pod) {
        (Some(namespace), Some(pod)) => {
            let proven = match identity.map(|identity| account(identity, namespace)) {
                Some(account) => format!(" ({account})"),
                None => String::new(),
            };
            format!("{namespace}/{pod}{port}{proven}")
        }
        _ => {
            let address = peer.address.map(|address| address.ip().to_string()).unwrap_or_else(|| "?".to_owned());
            let proven = identity.map(|identity| format!(" ({identity})")).unwrap_or_default();
            if address.contains(':') && !port.is_empty() {
                format!("[{address}]{port}{proven}")
            } else {
                format!("{address}{port}{proven}")
            }
        }
    }
}

/// The service account of an identity, which is the pod's namespace's in nearly all cases.
fn account<'a>(identity: &'a str, namespace: &str) -> &'a str {
    let own = format!("/ns/{namespace}/sa/");
    match identity.find(&own) {
        Some(at) => &identity[at + own.len() - "sa/".len()..],
        None => identity,
    }
}

/// `namespace/name` of a Service of the cluster; a foreign host as it is.
pub(super) fn service(host: &str) -> String {
    match service_name(host) {
        Some((name, namespace)) => format!("{namespace}/{name}"),
        None => host.to_owned(),
    }
}

fn encrypted(connection: &Connection) -> String {
    match connection.encrypted {
        Some(true) => connection.why.clone(),
        Some(false) => format!("no: {}", connection.why),
        None => format!("-: {}", connection.why),
    }
}

fn verdict(connection: &Connection, paint: Paint) -> String {
    let reason = connection.reason.as_deref().unwrap_or_default();
    let mut text = connection.request.as_ref().map(request).unwrap_or_default();
    text += &match (connection.verdict, &connection.policy) {
        (Verdict::Allowed, None) => paint.good("allowed"),
        (Verdict::Allowed, Some(policy)) => format!("{} by {policy}", paint.good("allowed")),
        (Verdict::Denied, _) => format!("{}: {reason}", paint.bad("denied")),
        (Verdict::Failed, _) => format!("{}: {reason}", paint.bad("failed")),
    };
    for note in &connection.dry_run {
        text.push_str("; on trial: ");
        text.push_str(note);
    }
    for passes in &connection.fail_open {
        text.push_str("; failOpen: ");
        text.push_str(passes);
    }
    text
}

/// What was asked, and the status of the answer.
fn request(request: &HttpRequest) -> String {
    let HttpRequest { method, authority, path, status, .. } = request;
    let status = match (status, request.grpc_status) {
        (0, _) => "…".to_owned(),
        (_, Some(grpc)) => format!("gRPC {grpc}"),
        (status, None) => status.to_string(),
    };
    format!("{method} {authority}{path} {status}: ")
}

/// Bytes with a unit, as few digits as tell them apart.
pub(super) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["kB", "MB", "GB", "TB", "PB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in UNITS {
        if value < 999.5 {
            break;
        }
        value /= 1000.0;
        unit = next;
    }
    if value < 9.95 { format!("{value:.1} {unit}") } else { format!("{value:.0} {unit}") }
}

fn lasted(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{} ms", duration.as_millis()),
        1..100 => format!("{:.1} s", duration.as_secs_f64()),
        100..6000 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::testing::{connection, request, shown};

    fn row(change: impl FnOnce(&mut Connection)) -> String {
        let mut connection = connection();
        change(&mut connection);
        cells(&shown(connection), Paint::none()).join(" | ")
    }

    #[test]
    fn a_row_says_who_talks_to_whom_and_why_it_may() {
        assert_eq!(
            row(|c| c.policy = Some("shop/web-only".into())),
            "12:34:56 | ended | shop/web-1 (sa/web) | shop/db-1:8080 (sa/db) | shop/db-svc | mutual TLS | 12 B | 3.4 kB | \
             56 ms | allowed by shop/web-only"
        );
        let plain = row(|c| {
            c.source = Peer { address: Some("[fd00::9]:1".parse().unwrap()), ..Peer::default() };
            c.destination.identity = None;
            (c.encrypted, c.why) = (Some(false), "the mesh does not know the source".into());
            (c.verdict, c.reason) = (Verdict::Denied, Some("not allowed".into()));
        });
        assert_eq!(
            plain,
            "12:34:56 | ended | fd00::9 | shop/db-1:8080 | shop/db-svc | no: the mesh does not know the source | 12 B | \
             3.4 kB | 56 ms | denied: not allowed"
        );
        let of_request = row(|c| c.request = Some(request(1, 404, 9)));
        assert!(of_request.ends_with("GET db/x 404: allowed"), "{of_request}");
        let foreign = row(|c| c.source.identity = Some("spiffe://x/ns/edge/sa/gateway".into()));
        assert!(foreign.contains("shop/web-1 (spiffe://x/ns/edge/sa/gateway)"), "{foreign}");
    }

    #[test]
    fn units() {
        let all = [0, 999, 1000, 9_949, 12_345, 999_499, 1_000_000, 5_200_000_000];
        assert_eq!(all.map(bytes), ["0 B", "999 B", "1.0 kB", "9.9 kB", "12 kB", "999 kB", "1.0 MB", "5.2 GB"]);
        let all = [7, 1500, 120_000, 7_200_000].map(|ms| lasted(Duration::from_millis(ms)));
        assert_eq!(all, ["7 ms", "1.5 s", "2 min", "2 h"]);
    }
}
