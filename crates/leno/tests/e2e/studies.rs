//! The studies with applications of their own: `leno lab run emojivoto`, `bookinfo` and the paths of `http`.

use serde_json::Value;

use crate::lab::lab;
use crate::stage::skip;

/// A run of both subjects, each of whose requests was answered.
fn study(scenario: &str, step: &str, duration: &str) -> Vec<Value> {
    let report =
        lab(&[scenario, "--step", step, "--duration", duration, "--subject", "none", "--subject", "leno"]).unwrap();
    let results = report["results"].as_array().unwrap().clone();
    assert_eq!(results.len() % 2, 0, "{results:?}");
    for result in &results {
        let [load] = &result["loads"].as_array().unwrap()[..] else { panic!("{result}") };
        let outcome = &load["outcome"];
        assert!(outcome["answered"].as_u64().unwrap() > 10, "{result}");
        assert_eq!(outcome["errors"], serde_json::json!({}), "{result}");
        // Together, because the kernel only estimates how the time was shared between the two.
        let cpu = |proxy: &Value| {
            ["user_seconds", "system_seconds"].iter().map(|kind| proxy["cpu"][kind].as_f64().unwrap()).sum::<f64>()
        };
        let proxies = result["proxies"].as_array().unwrap();
        assert_eq!(proxies.is_empty(), result["subject"] == "none");
        assert!(proxies.iter().all(|proxy| cpu(proxy) > 0.0), "the requests went past a proxy: {result}");
    }
    results
}

#[test]
fn emojivoto_walks_over_its_instances() {
    if skip("emojivoto_walks_over_its_instances", &[]) {
        return;
    }
    for result in study("emojivoto", "l4", "1s") {
        let outcome = &result["loads"][0]["outcome"];
        // A new connection for twenty requests, with a few more or less at the edges.
        let (opened, planned) = (outcome["connections_opened"].as_f64().unwrap(), outcome["planned"].as_f64().unwrap());
        assert!((opened - planned / 20.0).abs() <= 16.0, "{opened} connections for {planned} requests: {result}");
    }
}

#[test]
fn bookinfo_has_a_connection_for_each_request() {
    if skip("bookinfo_has_a_connection_for_each_request", &[]) {
        return;
    }
    // A closed loop counts what ends within the time, and a page takes seconds on a machine that has much else to do.
    for result in study("bookinfo", "fast/l4", "8s") {
        let outcome = &result["loads"][0]["outcome"];
        // A page is five KiB, so all parts of it were there.
        assert!(outcome["body_bytes"].as_u64().unwrap() > outcome["answered"].as_u64().unwrap() * 4000, "{result}");
        let (opened, answered) =
            (outcome["connections_opened"].as_u64().unwrap(), outcome["answered"].as_u64().unwrap());
        assert!(opened.abs_diff(answered) <= 64, "{opened} connections for {answered} requests: {result}");
    }
}

#[test]
fn a_request_goes_the_whole_path() {
    if skip("a_request_goes_the_whole_path", &[]) {
        return;
    }
    study("http", "path/l4", "1s");
    let results = study("http", "path/waypoint", "1s");
    let through = results.iter().filter(|result| result["subject"] == "leno");
    let waypoints =
        through.flat_map(|result| result["proxies"].as_array().unwrap()).filter(|it| it["node"] == "waypoint");
    assert_eq!(waypoints.count(), 1, "{results:?}");
}
