use leno_model::{Identity, Service, Workload};

use super::*;

fn labels() -> ConnectionLabels {
    ConnectionLabels::new(Reporter::Waypoint)
        .source(&Workload::new("uid", "shop", "web-1"))
        .source_principal(Identity::new("cluster.local", "shop", "web").unwrap())
        .destination(&Workload::new("other", "shop", "db-1"))
        .service(&Service::new("shop", "db", "db.shop.svc.cluster.local"))
        .security(SecurityPolicy::MutualTls)
}

const OK: Outcome = Outcome { status: 200, grpc_status: None, flags: "-" };

fn value(body: &str, name: &str, labels: &[&str]) -> Option<f64> {
    let fits = |line: &&str| line.starts_with(&format!("{name}{{")) && labels.iter().all(|label| line.contains(label));
    body.lines().find(fits).map(|line| line.rsplit(' ').next().unwrap().parse().unwrap())
}

#[test]
fn requests_have_istios_names_labels_and_buckets() {
    let metrics = Metrics::new("waypoint", "1", 100);
    assert!(!metrics.page().encode().unwrap().contains("istio_requests"));
    let ok = metrics.requests(&labels(), RequestProtocol::Http, OK);
    ok.ended(Duration::from_micros(700), 10, 2_000);
    ok.ended(Duration::from_millis(25), 0, 0);
    let failed = Outcome { status: 503, grpc_status: None, flags: "UF" };
    metrics.requests(&labels(), RequestProtocol::Http, failed).ended(Duration::from_secs(7200), 0, 0);
    let body = metrics.page().encode().unwrap();
    let of_ok = [
        "reporter=\"waypoint\"",
        "request_protocol=\"http\",response_code=\"200\",grpc_response_status=\"\",response_flags=\"-\"",
        "destination_service_name=\"db\"",
        "source_principal=\"spiffe://cluster.local/ns/shop/sa/web\"",
        "connection_security_policy=\"mutual_tls\"",
    ];
    assert_eq!(value(&body, "istio_requests_total", &of_ok), Some(2.0), "{body}");
    assert_eq!(value(&body, "istio_requests_total", &["response_code=\"503\"", "response_flags=\"UF\""]), Some(1.0));
    let with = |more: &'static str| [&of_ok[..], &[more]].concat();
    let duration = "istio_request_duration_milliseconds";
    assert_eq!(value(&body, &format!("{duration}_sum"), &of_ok), Some(25.7));
    assert_eq!(value(&body, &format!("{duration}_count"), &of_ok), Some(2.0));
    for (end, count) in [("0.5", 0.0), ("1.0", 1.0), ("10.0", 1.0), ("25.0", 2.0), ("3600000.0", 2.0), ("+Inf", 2.0)] {
        let end = format!("le=\"{end}\"");
        let labels = [&of_ok[..], &[&*end]].concat();
        assert_eq!(value(&body, &format!("{duration}_bucket"), &labels), Some(count), "{end}: {body}");
    }
    assert_eq!(value(&body, "istio_response_bytes_bucket", &with("le=\"1000.0\"")), Some(1.0));
    assert_eq!(value(&body, "istio_response_bytes_sum", &of_ok), Some(2000.0));
    assert_eq!(value(&body, "istio_request_bytes_sum", &of_ok), Some(10.0));
    let late = ["response_code=\"503\"", "le=\"3600000.0\""];
    assert_eq!(value(&body, &format!("{duration}_bucket"), &late), Some(0.0));
    assert_eq!(value(&body, &format!("{duration}_bucket"), &["response_code=\"503\"", "le=\"+Inf\""]), Some(1.0));
    assert!(!body.contains("istio_request_messages"), "nobody spoke gRPC");
}

#[test]
fn grpc_has_its_status_and_its_messages() {
    let metrics = Metrics::new("waypoint", "1", 100);
    for (status, messages) in [(0, (1, 5)), (14, (2, 0))] {
        let outcome = Outcome { status: 200, grpc_status: Some(status), flags: "-" };
        let series = metrics.requests(&labels(), RequestProtocol::Grpc, outcome);
        series.ended(Duration::from_millis(1), 1, 1);
        series.messages(messages.0, messages.1);
    }
    let body = metrics.page().encode().unwrap();
    let unavailable = ["request_protocol=\"grpc\"", "grpc_response_status=\"14\""];
    assert_eq!(value(&body, "istio_requests_total", &unavailable), Some(1.0));
    let sums = ["istio_request_messages_total", "istio_response_messages_total"].map(|name| value(&body, name, &[]));
    assert_eq!(sums, [Some(3.0), Some(5.0)]);
    let line = body.lines().find(|line| line.starts_with("istio_request_messages_total{")).unwrap();
    assert!(!line.contains("response_code"), "{line}");
}

#[test]
fn too_many_are_counted_together() {
    let metrics = Metrics::new("waypoint", "1", 3);
    let request = |status: u16| {
        metrics.requests(&labels(), RequestProtocol::Http, Outcome { status, ..OK }).ended(Duration::ZERO, 0, 0);
    };
    (200..400).for_each(request);
    request(200);
    let body = metrics.page().encode().unwrap();
    assert_eq!(body.lines().filter(|line| line.starts_with("istio_requests_total{")).count(), 4);
    let overflow = ["source_workload=\"overflow\"", "response_code=\"overflow\"", "response_flags=\"overflow\""];
    assert_eq!(value(&body, "istio_requests_total", &overflow), Some(197.0));
    assert_eq!(value(&body, "istio_requests_total", &["response_code=\"200\""]), Some(2.0));
    assert!(body.contains("leno_metric_series_overflow_total 197"), "{body}");
}
