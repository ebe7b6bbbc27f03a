use super::*;

fn state() -> ControlState {
    ControlState {
        services: 3,
        workloads: 5,
        policies: 2,
        proxies: 2,
        versions: 7,
        behind: 1,
        connection_limits: vec![(ConnectionState::Authenticated, 512), (ConnectionState::Unauthenticated, 128)],
        root_not_after: Some(SystemTime::now() + Duration::from_secs(1000)),
        signing_not_after: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(60)),
    }
}

/// The value of the sample that begins with `name`, which has all its labels.
#[track_caller]
fn value(page: &str, name: &str) -> f64 {
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in\n{page}")).parse().expect("a number")
}

const ADDRESS: &str = "type.googleapis.com/istio.workload.Address";

#[test]
fn what_istiod_counts_too_has_its_names() {
    let metrics = ControlMetrics::default();
    metrics.pushed(ADDRESS, 5000);
    metrics.pushed(ADDRESS, 50_000);
    metrics.pushed("type.googleapis.com/istio.security.Authorization", 10);
    metrics.rejected(ADDRESS);
    metrics.converged(Duration::from_millis(7));
    for outcome in [RequestOutcome::Issued, RequestOutcome::Denied, RequestOutcome::Malformed, RequestOutcome::Failed] {
        metrics.certificate_requested();
        metrics.certificate_answered(outcome);
    }
    let page = metrics.page("leno-1.2.3", state);
    let text = page.encode().unwrap();
    for (name, expected) in [
        ("istio_build{component=\"control\",tag=\"leno-1.2.3\"}", 1.0),
        ("pilot_xds", 2.0),
        ("pilot_xds_pushes{type=\"wds\"}", 2.0),
        ("pilot_xds_pushes{type=\"wads\"}", 1.0),
        ("pilot_total_xds_rejects{type=\"wds\"}", 1.0),
        ("pilot_xds_config_size_bytes_bucket{le=\"10000.0\",type=\"wds\"}", 1.0),
        ("pilot_proxy_convergence_time_bucket{le=\"0.005\"}", 0.0),
        ("pilot_proxy_convergence_time_bucket{le=\"0.01\"}", 1.0),
        ("pilot_services", 3.0),
        ("citadel_server_csr_count", 4.0),
        ("citadel_server_success_cert_issuance_count", 1.0),
        ("citadel_server_authentication_failure_count", 1.0),
        ("citadel_server_csr_parsing_err_count", 1.0),
        ("citadel_server_csr_sign_err_count", 1.0),
        ("citadel_server_cert_chain_expiry_timestamp", 60.0),
    ] {
        assert_eq!(value(&text, name), expected, "{name}");
    }
    let left = value(&text, "citadel_server_root_cert_expiry_seconds");
    assert!((900.0..=1000.0).contains(&left), "{left}");
    assert!(value(&text, "citadel_server_cert_chain_expiry_seconds") < 0.0, "it expired in 1970");
}

#[test]
fn what_only_leno_counts_has_its_own_names() {
    let metrics = ControlMetrics::default();
    let _proven = metrics.connection(ConnectionState::Authenticated);
    drop(metrics.connection(ConnectionState::Unauthenticated));
    metrics.refused("full");
    metrics.discovery_denied();
    let text = metrics.page("1", state).encode().unwrap();
    for (name, expected) in [
        ("leno_control_connections{state=\"authenticated\"}", 1.0),
        ("leno_control_connections{state=\"unauthenticated\"}", 0.0),
        ("leno_control_connections_limit{state=\"authenticated\"}", 512.0),
        ("leno_control_connections_refused_total{reason=\"full\"}", 1.0),
        ("leno_discovery_authentication_failures_total", 1.0),
        ("leno_published_versions_total", 7.0),
        ("leno_proxies_behind", 1.0),
        ("leno_workloads", 5.0),
        ("leno_policies", 2.0),
    ] {
        assert_eq!(value(&text, name), expected, "{name}");
    }
}

#[test]
fn each_format_says_what_it_can_of_a_counter_without_suffix() {
    let page = ControlMetrics::default().page("1", ControlState::default);
    assert!(page.encode().unwrap().contains("# TYPE citadel_server_csr_count counter\n"));
    assert!(page.encode_open_metrics().unwrap().contains("# TYPE citadel_server_csr_count unknown\n"));
    for text in [page.encode().unwrap(), page.encode_open_metrics().unwrap()] {
        assert_eq!(value(&text, "citadel_server_csr_count"), 0.0);
        assert!(!text.contains("root_cert_expiry"), "what is not known is not told");
    }
}

#[test]
fn a_client_cannot_make_series_by_made_up_types() {
    let metrics = ControlMetrics::default();
    for number in 0..100 {
        metrics.pushed(&format!("type.googleapis.com/made.up.Type{number}"), 1);
    }
    let text = metrics.page("1", state).encode().unwrap();
    assert_eq!(value(&text, "pilot_xds_pushes{type=\"other\"}"), 100.0);
    assert_eq!(text.lines().filter(|line| line.starts_with("pilot_xds_pushes{")).count(), 1);
}
