use leno_model::{Identity, Service, Workload};

use super::*;

fn metrics() -> Metrics {
    Metrics::new("ztunnel", "1.2.3", 100)
}

fn web() -> Workload {
    let mut workload = Workload::new("uid", "shop", "web-1");
    workload.workload_name = "web".into();
    workload.canonical_name = "web".into();
    workload.canonical_revision = "v1".into();
    workload.locality.region = "eu".into();
    workload
}

fn labels() -> ConnectionLabels {
    ConnectionLabels::new(Reporter::Source)
        .source(&web())
        .source_principal(Identity::new("cluster.local", "shop", "web").unwrap())
        .destination(&Workload::new("other", "shop", "db-1"))
        .service(&Service::new("shop", "db", "db.shop.svc.cluster.local"))
        .security(SecurityPolicy::MutualTls)
}

fn sample<'a>(body: &'a str, name: &str) -> Vec<&'a str> {
    body.lines()
        .filter(|line| line.starts_with(&format!("{name}{{")) || line.starts_with(&format!("{name} ")))
        .collect()
}

#[test]
fn connection_metrics_have_istios_names_and_labels() {
    let metrics = metrics();
    let connection = metrics.connection(&labels());
    connection.sent(10);
    connection.sent(5);
    connection.received(7);
    let body = metrics.page().encode().unwrap();
    let expected = "{reporter=\"source\",source_workload=\"web\",source_canonical_service=\"web\",\
        source_canonical_revision=\"v1\",source_workload_namespace=\"shop\",\
        source_principal=\"spiffe://cluster.local/ns/shop/sa/web\",source_app=\"web\",source_version=\"v1\",\
        source_cluster=\"Kubernetes\",destination_service=\"db.shop.svc.cluster.local\",\
        destination_service_namespace=\"shop\",destination_service_name=\"db\",\
        destination_workload=\"unknown\",destination_canonical_service=\"unknown\",\
        destination_canonical_revision=\"unknown\",destination_workload_namespace=\"shop\",\
        destination_principal=\"unknown\",destination_app=\"unknown\",destination_version=\"unknown\",\
        destination_cluster=\"Kubernetes\",request_protocol=\"tcp\",response_flags=\"-\",\
        connection_security_policy=\"mutual_tls\",source_region=\"eu\"}";
    for (name, value) in [
        ("istio_tcp_connections_opened_total", 1),
        ("istio_tcp_connections_closed_total", 0),
        ("istio_tcp_sent_bytes_total", 15),
        ("istio_tcp_received_bytes_total", 7),
    ] {
        assert_eq!(sample(&body, name), [format!("{name}{expected} {value}")]);
    }
    assert!(sample(&body, "istio_tcp_connections_failed_total").is_empty());
    drop(connection);
    let body = metrics.page().encode().unwrap();
    assert!(sample(&body, "istio_tcp_connections_closed_total")[0].ends_with(" 1"));
}

#[test]
fn failures_are_told_by_flag() {
    let metrics = metrics();
    metrics.connection_failed(&labels(), ResponseFlags::Deny);
    metrics.connection_failed(&labels(), ResponseFlags::Deny);
    metrics.connection_failed(&labels(), ResponseFlags::Connect);
    let body = metrics.page().encode().unwrap();
    let failed = sample(&body, "istio_tcp_connections_failed_total");
    assert_eq!(failed.len(), 2);
    assert!(failed.iter().any(|line| line.contains("response_flags=\"DENY\"") && line.ends_with(" 2")));
    assert!(failed.iter().any(|line| line.contains("response_flags=\"CONNECT\"") && line.ends_with(" 1")));
    assert!(sample(&body, "istio_tcp_connections_opened_total").is_empty());
}

#[test]
fn beyond_the_limit_series_are_counted_together() {
    let metrics = Metrics::new("ztunnel", "1", 2);
    let open = |name: &str| {
        let workload = Workload::new(name, name, name);
        metrics.connection(&ConnectionLabels::new(Reporter::Source).source(&workload))
    };
    let kept: Vec<_> = ["a", "b", "c", "d", "a"].into_iter().map(open).collect();
    let body = metrics.page().encode().unwrap();
    let opened = sample(&body, "istio_tcp_connections_opened_total");
    assert_eq!(opened.len(), 3, "{opened:#?}");
    let overflow: Vec<_> = opened.iter().filter(|line| line.contains("source_workload=\"overflow\"")).collect();
    assert!(overflow.len() == 1 && overflow[0].ends_with(" 2"), "{overflow:?}");
    assert_eq!(sample(&body, "leno_metric_series_overflow_total"), ["leno_metric_series_overflow_total 2"]);
    drop(kept);
    let body = metrics.page().encode().unwrap();
    let closed = sample(&body, "istio_tcp_connections_closed_total");
    assert!(closed.iter().any(|line| line.contains("overflow") && line.ends_with(" 2")));
}

#[test]
fn the_other_metrics_have_istios_names() {
    let metrics = metrics();
    let open = metrics.socket(Reporter::Destination);
    metrics.dns_request("A", DnsProtocol::Udp, Some(&web()));
    metrics.dns_upstream("AAAA", DnsProtocol::Tcp, Some(&web()), Duration::from_millis(5), true);
    metrics.on_demand_dns(&web(), "example.com");
    metrics.xds_message("type.googleapis.com/istio.workload.Address", 100);
    metrics.xds_message("type.googleapis.com/istio.workload.Address", 11);
    metrics.xds_terminated(XdsTermination::Reconnect);
    metrics.active_proxies().set(3);
    metrics.pending_proxies().inc();
    metrics.proxies_started().inc_by(4);
    metrics.proxies_stopped().inc();
    let body = metrics.page().encode().unwrap();
    let dns = |query: &str, protocol: &str| {
        format!(
            "{{request_query_type=\"{query}\",request_protocol=\"{protocol}\",source_canonical_service=\"web\",source_canonical_revision=\"v1\""
        )
    };
    let address = "{url=\"type.googleapis.com/istio.workload.Address\"}";
    for line in [
        "istio_tcp_sockets_open{reporter=\"destination\"} 1".to_owned(),
        format!("istio_dns_requests_total{}}} 1", dns("A", "udp")),
        format!("istio_dns_upstream_requests_total{}}} 1", dns("AAAA", "tcp")),
        format!("istio_dns_upstream_failures_total{}}} 1", dns("AAAA", "tcp")),
        format!("istio_dns_upstream_request_duration_seconds_bucket{{le=\"0.01\",{}}} 1", &dns("AAAA", "tcp")[1..]),
        format!("istio_xds_message_total{address} 2"),
        format!("istio_xds_message_bytes_total{address} 111"),
        "istio_xds_connection_terminations_total{reason=\"Reconnect\"} 1".to_owned(),
        "istio_build{component=\"ztunnel\",tag=\"1.2.3\"} 1".to_owned(),
        "workload_manager_active_proxy_count 3".to_owned(),
        "workload_manager_pending_proxy_count 1".to_owned(),
        "workload_manager_proxies_started_total 4".to_owned(),
        "workload_manager_proxies_stopped_total 1".to_owned(),
    ] {
        assert!(body.lines().any(|found| found == line), "{line} is not in\n{body}");
    }
    assert!(body.contains("hostname=\"example.com\"} 1"));
    drop(open);
    assert!(metrics.page().encode().unwrap().contains("istio_tcp_sockets_open{reporter=\"destination\"} 0"));
}

#[test]
fn the_process_is_told() {
    let body = metrics().page().encode().unwrap();
    for (name, least) in [
        ("process_open_fds", 3.0),
        ("process_resident_memory_bytes", 1e6),
        ("process_threads", 1.0),
        ("process_cpu_seconds_total", 0.0),
    ] {
        let line = sample(&body, name).first().copied().unwrap_or_else(|| panic!("no {name}"));
        let value: f64 = line.rsplit(' ').next().unwrap().parse().unwrap();
        assert!(value >= least, "{line}");
    }
}

#[test]
fn formats_differ_where_parsers_do() {
    let metrics = metrics();
    metrics.proxies_started().inc();
    let open = metrics.page().encode_open_metrics().unwrap();
    assert!(open.ends_with("# EOF\n"));
    assert!(open.contains("# TYPE workload_manager_proxies_started counter\n"));
    let classic = metrics.page().encode().unwrap();
    assert!(!classic.contains("# EOF"));
    assert!(classic.contains("# HELP workload_manager_proxies_started_total Pods"));
    assert!(classic.contains("# TYPE workload_manager_proxies_started_total counter\n"));
    assert!(classic.contains("# TYPE workload_manager_active_proxy_count gauge\n"));
    // Each sample belongs to the family announced last: what a classic parser relies on.
    let mut family = "";
    for line in classic.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            family = rest.split(' ').next().unwrap();
        } else if !line.starts_with('#') {
            assert!(line.starts_with(family), "{line} after {family}");
        }
    }
}

#[test]
fn hostile_label_values_stay_values() {
    let metrics = metrics();
    metrics.on_demand_dns(&web(), "a\"} 1\nforged_total 5\\");
    let body = metrics.page().encode().unwrap();
    assert!(body.contains(r#"hostname="a\"} 1\nforged_total 5\\"} 1"#), "{body}");
    assert!(sample(&body, "forged_total").is_empty());
}

#[test]
fn threads_lose_no_count() {
    let metrics = metrics();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..1000 {
                    metrics.connection(&labels()).sent(3);
                }
            });
        }
    });
    let body = metrics.page().encode().unwrap();
    assert!(sample(&body, "istio_tcp_sent_bytes_total")[0].ends_with(" 12000"));
    assert!(sample(&body, "istio_tcp_connections_closed_total")[0].ends_with(" 4000"));
}
