use super::*;
use crate::{Kind, Mode, Object, decode};

fn rule(mode: Mode, spec: &str) -> Result<DestinationRule, String> {
    let text = format!("{{\"metadata\": {{\"name\": \"web\", \"namespace\": \"shop\"}}, \"spec\": {spec}}}");
    let decoded = decode(Kind::DestinationRule, mode, &mut serde_json::Deserializer::from_str(&text));
    match decoded.map_err(|error| error.to_string())?.object {
        Object::DestinationRule(rule) => Ok(rule),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_rule_is_read_with_all_its_parts() {
    let spec = r#"{"host": "web", "trafficPolicy": {
        "loadBalancer": {"consistentHash": {"httpCookie": {"name": "who", "ttl": "0s"}, "ringHash": {"minimumRingSize": 9}}},
        "connectionPool": {"tcp": {"maxConnections": 7, "connectTimeout": "250ms"},
                           "http": {"http1MaxPendingRequests": 1, "http2MaxRequests": 2, "maxRetries": 3, "idleTimeout": "1m30s"}},
        "outlierDetection": {"consecutive5xxErrors": 0, "consecutiveGatewayErrors": 4, "baseEjectionTime": "1.5s"},
        "tls": {"mode": "ISTIO_MUTUAL"},
        "portLevelSettings": [{"port": {"number": 80}, "loadBalancer": {"simple": "ROUND_ROBIN"}}],
        "retryBudget": {"percent": 12.5, "minRetryConcurrency": 2}},
      "subsets": [{"name": "v1", "labels": {"version": "v1"}, "trafficPolicy": {"loadBalancer": {"simple": "RANDOM"}}}]}"#;
    let rule = rule(Mode::Strict, spec).expect("a rule");
    let policy = rule.spec.traffic_policy.expect("a policy");
    let pool = policy.connection_pool.expect("limits");
    let (tcp, http) = (pool.tcp.expect("tcp"), pool.http.expect("http"));
    assert_eq!((tcp.max_connections, tcp.connect_timeout), (Some(7), Some(GoDuration(Duration::from_millis(250)))));
    assert_eq!(http.idle_timeout, Some(GoDuration(Duration::from_secs(90))));
    assert_eq!(
        (http.http1_max_pending_requests, http.http2_max_requests, http.max_retries),
        (Some(1), Some(2), Some(3))
    );
    let outliers = policy.outlier_detection.expect("outliers");
    assert_eq!(outliers.base_ejection_time, Some(GoDuration(Duration::from_millis(1500))));
    assert_eq!(
        policy.port_level_settings[0].load_balancer.as_ref().and_then(|lb| lb.simple),
        Some(SimpleLoadBalancer::RoundRobin)
    );
    assert_eq!(policy.retry_budget.and_then(|budget| budget.percent), Some(Percent(125_000)));
    assert_eq!(rule.spec.subsets[0].name, "v1");
}

#[test]
fn what_is_unknown_is_refused_in_a_file_and_noted_on_a_cluster() {
    let spec = r#"{"host": "web", "trafficPolicy": {"loadBalancer": {"simple": "NEXT_YEARS"}, "conectionPool": {}}}"#;
    let error = rule(Mode::Strict, spec).expect_err("refused");
    assert!(error.contains("NEXT_YEARS"), "{error}");
    let lenient = rule(Mode::Lenient, spec).expect("read");
    assert!(lenient.not_understood.iter().any(|what| what.contains("NEXT_YEARS")), "{lenient:?}");
    assert!(lenient.not_understood.iter().any(|what| what.contains("conectionPool")), "{lenient:?}");
    assert!(rule(Mode::Strict, r#"{"trafficPolicy": {}}"#).expect_err("refused").contains("host"));
    let share = r#"{"host": "web", "trafficPolicy": {"retryBudget": {"percent": 101}}}"#;
    assert!(rule(Mode::Strict, share).expect_err("refused").contains("from 0 to 100"));
}

#[test]
fn durations_are_gos() {
    let of = |text: &str| text.parse::<GoDuration>().map(|duration| duration.0);
    assert_eq!(of("1h2m3s"), Ok(Duration::from_secs(3723)));
    assert_eq!(of("1.5s"), Ok(Duration::from_millis(1500)));
    assert_eq!(of("100us"), Ok(Duration::from_micros(100)));
    for wrong in ["", "1", "s", "1x", "-1s", "1.2.3s", "9999999999h"] {
        assert!(of(wrong).is_err(), "{wrong}");
    }
}
