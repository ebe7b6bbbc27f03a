//! Dashboards show something: every metric that they name exists, with every label that they use.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leno_model::Workload;

use super::control::{ControlMetrics, ControlState, RequestOutcome};
use super::*;

/// The one that the chart has. `leno_agent_…` are the agent's, whose own tests look for them.
const OURS: &str = include_str!("../../../../charts/leno/templates/dashboard.yaml");

/// What Istio's own dashboard of node proxies (`ztunnel`) asks for, and what its mesh, service and workload dashboards ask for.
/// A label follows its metric.
const OF_ISTIO: &[(&str, &[&str])] = &[
    ("istio_build", &["component", "tag"]),
    (
        "istio_tcp_connections_opened_total",
        &["reporter", "destination_service", "source_workload", "connection_security_policy"],
    ),
    ("istio_tcp_connections_closed_total", &["reporter", "destination_workload", "destination_workload_namespace"]),
    ("istio_tcp_sent_bytes_total", &["reporter", "source_workload_namespace", "destination_service"]),
    ("istio_tcp_received_bytes_total", &["reporter", "source_workload_namespace", "destination_service"]),
    (
        "istio_requests_total",
        &[
            "reporter",
            "response_code",
            "grpc_response_status",
            "response_flags",
            "request_protocol",
            "source_principal",
            "source_workload",
            "source_workload_namespace",
            "destination_service",
            "destination_service_name",
            "destination_service_namespace",
            "destination_workload",
            "destination_workload_namespace",
            "connection_security_policy",
        ],
    ),
    ("istio_request_duration_milliseconds_bucket", &["reporter", "le", "response_code", "destination_service"]),
    ("istio_request_bytes_bucket", &["reporter", "le", "source_workload"]),
    ("istio_response_bytes_bucket", &["reporter", "le", "source_workload"]),
    ("istio_request_messages_total", &["reporter", "destination_service"]),
    ("istio_response_messages_total", &["reporter", "destination_service"]),
    ("istio_dns_requests_total", &[]),
    ("istio_xds_message_total", &["url"]),
    ("istio_xds_connection_terminations_total", &["reason"]),
    ("workload_manager_active_proxy_count", &[]),
    ("workload_manager_pending_proxy_count", &[]),
    ("process_open_fds", &[]),
    ("pilot_xds", &[]),
    ("pilot_xds_pushes", &["type"]),
    ("pilot_xds_config_size_bytes_bucket", &["type"]),
    ("pilot_total_xds_rejects", &["type"]),
    ("pilot_proxy_convergence_time_bucket", &[]),
    ("pilot_services", &[]),
    ("citadel_server_csr_count", &[]),
    ("citadel_server_success_cert_issuance_count", &[]),
    ("citadel_server_root_cert_expiry_seconds", &[]),
];

/// What Prometheus adds to each series.
const OF_PROMETHEUS: [&str; 5] = ["instance", "job", "pod", "namespace", "node"];

/// The labels of each metric that a proxy and a control plane expose once everything has happened.
fn exposed() -> BTreeMap<String, BTreeSet<String>> {
    let metrics = Metrics::new("ztunnel", "leno-1", 100);
    let web = Workload::new("uid", "shop", "web-1");
    let labels = ConnectionLabels::new(Reporter::Source).source(&web);
    let _open = metrics.connection(&labels);
    metrics.connection_failed(&labels, ResponseFlags::Deny);
    let outcome = Outcome { status: 200, grpc_status: Some(0), flags: "-" };
    metrics.requests(&labels, RequestProtocol::Grpc, outcome).ended(Duration::ZERO, 1, 1);
    let _socket = metrics.socket(Reporter::Source);
    metrics.dns_request("A", DnsProtocol::Udp, Some(&web));
    metrics.dns_upstream("A", DnsProtocol::Udp, Some(&web), Duration::from_millis(1), true);
    metrics.xds_message("type", 1);
    metrics.xds_terminated(XdsTermination::Error);
    let control = ControlMetrics::default();
    control.pushed("type", 1);
    control.rejected("type");
    control.converged(Duration::from_millis(1));
    control.certificate_requested();
    control.certificate_answered(RequestOutcome::Issued);
    let now = std::time::SystemTime::now();
    let state =
        move || ControlState { root_not_after: Some(now), signing_not_after: Some(now), ..ControlState::default() };
    let pages = [metrics.page().encode().unwrap(), control.page("leno-1", state).encode().unwrap()];
    let mut exposed: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in pages.iter().flat_map(|page| page.lines()).filter(|line| !line.starts_with('#')) {
        let (name, rest) = line.split_at(line.find(['{', ' ']).unwrap());
        let labels = rest.split('"').step_by(2).filter_map(|part| part.strip_suffix('='));
        let labels = labels.map(|label| label.trim_start_matches(['{', ',']).to_owned());
        exposed.entry(name.to_owned()).or_default().extend(labels);
    }
    exposed
}

/// The names of metrics in a query, and the labels.
fn used(query: &str) -> (Vec<&str>, BTreeSet<&str>) {
    let words = |text: &'static str| {
        move |letter: char| !(letter.is_ascii_alphanumeric() || letter == '_' || text.contains(letter))
    };
    let prefixes = ["istio_", "leno_", "pilot_", "citadel_", "workload_manager_", "process_"];
    let names = query.split(words("")).filter(|word| prefixes.iter().any(|prefix| word.starts_with(prefix))).collect();
    let mut labels = BTreeSet::new();
    for selector in query.split('{').skip(1).filter_map(|rest| rest.split('}').next()) {
        // Every second part is a value.
        for part in selector.split('"').step_by(2) {
            let label = part.trim_matches([',', ' ', '=', '~', '!']);
            labels.extend((!label.is_empty()).then_some(label));
        }
    }
    for keyword in ["by (", "on (", "group_left ("] {
        for list in query.split(keyword).skip(1).filter_map(|rest| rest.split(')').next()) {
            labels.extend(list.split(',').map(str::trim));
        }
    }
    (names, labels)
}

fn queries() -> Vec<String> {
    let lines = OURS.lines().filter_map(|line| line.trim().strip_prefix("\"expr\": \""));
    lines.map(|line| line[..line.rfind('"').unwrap()].replace("\\\"", "\"")).collect()
}

#[test]
fn every_metric_and_label_of_the_charts_dashboard_exists() {
    let exposed = exposed();
    let queries = queries();
    assert!(queries.len() > 30, "{} queries", queries.len());
    for query in &queries {
        let (names, labels) = used(query);
        assert!(!names.is_empty(), "{query}");
        if names.iter().any(|name| name.starts_with("leno_agent_")) {
            continue;
        }
        let mut known: BTreeSet<&str> = OF_PROMETHEUS.into();
        for name in names {
            let labels = exposed.get(name).unwrap_or_else(|| panic!("there is no {name}: {query}"));
            known.extend(labels.iter().map(String::as_str));
        }
        let unknown: Vec<_> = labels.difference(&known).collect();
        assert!(unknown.is_empty(), "no metric of this query has {unknown:?}: {query}");
    }
}

#[test]
fn istios_own_dashboards_find_what_they_ask_for() {
    let exposed = exposed();
    for (name, labels) in OF_ISTIO {
        let known = exposed.get(*name).unwrap_or_else(|| panic!("there is no {name}"));
        for label in *labels {
            assert!(known.contains(*label), "{name} has no {label}, but {known:?}");
        }
    }
}

#[test]
fn names_and_labels_of_queries_are_found() {
    let query = "sum by (a, le) (rate(istio_x{b=\"1, c\",d=~\"e\"}[5m])) * on (f) group_left (g) leno_y";
    let (names, labels) = used(query);
    assert_eq!(names, ["istio_x", "leno_y"]);
    assert_eq!(labels, BTreeSet::from(["a", "le", "b", "d", "f", "g"]));
}
