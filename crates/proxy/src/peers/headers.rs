//! Headers of a CONNECT request and of its response: who calls, on whose behalf.

use std::fmt::Write;
use std::net::SocketAddr;

use http::{HeaderMap, HeaderName, HeaderValue};
use leno_model::{Service, Workload};

const BAGGAGE: HeaderName = HeaderName::from_static("baggage");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// Leno's own.
const PASSED: HeaderName = HeaderName::from_static("x-leno-waypoints");

/// The headers of a CONNECT for a connection that `source` opened from `from` (RFC 7239 for
/// `forwarded`, W3C for `baggage` and `traceparent`).
pub fn request(
    baggage: Option<HeaderValue>,
    from: SocketAddr,
    service: Option<&Service>,
    trace: &TraceId,
) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(3);
    headers.extend(baggage.map(|baggage| (BAGGAGE, baggage)));
    let mut forwarded = format!("for=\"{from}\"");
    if let Some(service) = service {
        let _ = write!(forwarded, ";host={}", service.id.hostname);
    }
    put_once(&mut headers, http::header::FORWARDED, &forwarded);
    put_once(&mut headers, TRACEPARENT, &trace.traceparent());
    headers
}

/// Says how many waypoints have sent a connection on to another one, as their routes say. Routes may lead in a circle.
pub fn put_passed(headers: &mut HeaderMap, waypoints: u32) {
    headers.insert(PASSED, HeaderValue::from(waypoints));
}

/// How many waypoints have sent a connection on to another one; as many as can be, if what it says is not understood.
pub fn passed(headers: &HeaderMap) -> u32 {
    let number = |value: &HeaderValue| value.to_str().ok()?.parse().ok();
    headers.get(PASSED).map_or(0, |value| number(value).unwrap_or(u32::MAX))
}

/// The headers of a 200 response: the workload that was reached.
pub fn response(baggage: Option<HeaderValue>) -> HeaderMap {
    baggage.map(|baggage| (BAGGAGE, baggage)).into_iter().collect()
}

/// The trace id of a request's `traceparent`, if it carries a sound one.
pub fn trace_of(headers: &HeaderMap) -> Option<u128> {
    let value = headers.get(TRACEPARENT)?.to_str().ok()?;
    let mut parts = value.split('-');
    let (_version, trace) = (parts.next()?, parts.next()?);
    // `from_str_radix` alone would accept a sign.
    let sound = trace.len() == 32 && trace.bytes().all(|b| b.is_ascii_hexdigit());
    u128::from_str_radix(trace, 16).ok().filter(|id| sound && *id != 0)
}

/// The service that the caller's program asked for, according to the caller. For telemetry only: a caller may write
/// anything here.
pub fn forwarded_host(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(http::header::FORWARDED)?.to_str().ok()?;
    value.split(';').find_map(|pair| pair.trim().strip_prefix("host=")).map(|host| host.trim_matches('"'))
}

/// Adds a value that won't be used again. If both sides remembered it (RFC 7541 §2.3.2), it would displace values that
/// are used again. "Never indexed" (§6.2.3) prevents that.
fn put_once(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Some(mut value) = sound(value) {
        value.set_sensitive(true);
        headers.insert(name, value);
    }
}

/// A name as a header value. Names come from the control plane; one with a control character must not forge a header.
fn sound(value: &str) -> Option<HeaderValue> {
    HeaderValue::from_str(value).ok()
}

/// A description of a workload as a header value.
pub fn baggage(workload: &Workload) -> Option<HeaderValue> {
    let kind = format!("k8s.{}.name", workload.workload_type.as_str());
    let pairs = [
        ("k8s.cluster.name", &workload.cluster_id),
        ("k8s.namespace.name", &workload.namespace),
        (kind.as_str(), &workload.workload_name),
        ("service.name", &workload.canonical_name),
        ("service.version", &workload.canonical_revision),
        ("cloud.region", &workload.locality.region),
        ("cloud.availability_zone", &workload.locality.zone),
    ];
    let mut baggage = String::with_capacity(160);
    for (key, value) in pairs {
        if !value.is_empty() {
            let comma = if baggage.is_empty() { "" } else { "," };
            let _ = write!(baggage, "{comma}{key}={value}");
        }
    }
    sound(&baggage)
}

/// A W3C trace id and span id: one per connection of a program.
pub struct TraceId {
    trace: u128,
    span: u64,
}

impl TraceId {
    /// A new random one.
    pub fn random() -> Self {
        // Zero is not a valid id (W3C Trace Context §3.2.2).
        Self { trace: rand::random::<u128>() | 1, span: rand::random::<u64>() | 1 }
    }

    /// The trace id.
    pub fn trace(&self) -> u128 {
        self.trace
    }

    fn traceparent(&self) -> String {
        format!("00-{:032x}-{:016x}-00", self.trace, self.span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload() -> Workload {
        let mut w = Workload::new("Kubernetes//Pod/ns/a-1", "ns", "a-1");
        w.workload_name = "a".into();
        w.canonical_name = "a".into();
        w
    }

    #[test]
    fn a_request_tells_source_service_and_trace() {
        let service = Service::new("ns", "b", "b.ns.svc.cluster.local");
        let trace = TraceId::random();
        let headers = request(baggage(&workload()), "10.0.0.1:5".parse().expect("addr"), Some(&service), &trace);
        assert_eq!(
            headers["baggage"],
            "k8s.cluster.name=Kubernetes,k8s.namespace.name=ns,k8s.deployment.name=a,service.name=a"
        );
        assert_eq!(headers["forwarded"], "for=\"10.0.0.1:5\";host=b.ns.svc.cluster.local");
        assert_eq!(trace_of(&headers), Some(trace.trace()));
        assert_eq!(forwarded_host(&headers), Some("b.ns.svc.cluster.local"));
    }

    #[test]
    fn waypoints_that_were_passed_are_counted() {
        let mut headers = HeaderMap::new();
        assert_eq!(passed(&headers), 0);
        put_passed(&mut headers, 3);
        assert_eq!(passed(&headers), 3);
        headers.insert("x-leno-waypoints", HeaderValue::from_static("-1"));
        assert_eq!(passed(&headers), u32::MAX);
    }

    #[test]
    fn a_name_with_a_line_break_forges_nothing() {
        let mut source = workload();
        source.canonical_name = "a\r\nx-evil: 1".into();
        let headers = request(baggage(&source), "10.0.0.1:5".parse().expect("addr"), None, &TraceId::random());
        assert!(!headers.contains_key("baggage") && !headers.contains_key("x-evil"));
    }

    #[test]
    fn unsound_traces_are_ignored() {
        for bad in ["", "00", "00-xyz-1-00", "00-00000000000000000000000000000000-1-00"] {
            let mut headers = HeaderMap::new();
            headers.insert("traceparent", HeaderValue::from_static(bad));
            assert_eq!(trace_of(&headers), None, "{bad}");
        }
    }
}
