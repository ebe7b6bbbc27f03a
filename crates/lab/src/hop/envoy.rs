//! Envoy's configuration.

use serde_json::{Value, json};

use super::setting::{Setting, Side, Start, WINDOWS, WORKERS};
use crate::scenario::{RULE_HEADER, RULE_PATH, route_prefix};

/// Envoy's own limit of 1024 connections and requests is a protection, and not what is to be measured.
const NO_LIMIT: u32 = 10_000_000;

pub(super) fn start(setting: &Setting<'_>) -> Start {
    let path = setting.directory.join("envoy.json");
    let arguments =
        ["-c".to_owned(), path.display().to_string(), "--concurrency".to_owned(), WORKERS.to_string()].into_iter();
    let rest = ["--disable-hot-restart", "--log-level", "warning"].map(str::to_owned);
    Start {
        files: vec![("envoy.json", bootstrap(setting).to_string())],
        arguments: arguments.chain(rest).collect(),
        environment: Vec::new(),
    }
}

fn bootstrap(setting: &Setting<'_>) -> Value {
    let admin = setting.directory.join("envoy.sock");
    json!({
        "node": { "id": "hop", "cluster": "leno-lab" },
        "admin": { "address": { "pipe": { "path": admin, "mode": 0o600 } } },
        "static_resources": { "listeners": [listener(setting)], "clusters": [cluster(setting)] },
    })
}

fn listener(setting: &Setting<'_>) -> Value {
    let address = json!({ "address": setting.listen.ip(), "port_value": setting.listen.port() });
    let mut chain = json!({ "filters": [connections(setting)] });
    if setting.side == Side::Second {
        let mut tls = tls(setting);
        tls["require_client_certificate"] = json!(true);
        tls["@type"] = json!("type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext");
        chain["transport_socket"] = json!({ "name": "envoy.transport_sockets.tls", "typed_config": tls });
    }
    json!({ "name": "hop", "address": { "socket_address": address }, "filter_chains": [chain] })
}

fn connections(setting: &Setting<'_>) -> Value {
    let mut filters = Vec::new();
    if setting.hop.rule {
        filters.push(rule());
    }
    filters.push(json!({
        "name": "envoy.filters.http.router",
        "typed_config": { "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router" },
    }));
    json!({
        "name": "envoy.filters.network.http_connection_manager",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": "hop",
            "codec_type": if setting.is_http2() { "HTTP2" } else { "HTTP1" },
            "http2_protocol_options": windows(),
            "route_config": { "virtual_hosts": [{ "name": "any", "domains": ["*"], "routes": routes(setting) }] },
            "http_filters": filters,
        },
    })
}

fn windows() -> Value {
    json!({ "initial_stream_window_size": WINDOWS.0, "initial_connection_window_size": WINDOWS.1 })
}

fn routes(setting: &Setting<'_>) -> Vec<Value> {
    let target = json!({ "cluster": "next", "timeout": "60s" });
    let mut routes: Vec<Value> = (0..setting.hop.routes)
        .map(|number| json!({ "match": { "prefix": route_prefix(number) }, "route": target }))
        .collect();
    if routes.is_empty() {
        routes.push(json!({ "match": { "prefix": "/" }, "route": target }));
    }
    if setting.hop.rule {
        let header = json!([{ "header": { "key": "x-hop", "value": "lab" } }]);
        routes.iter_mut().for_each(|route| route["request_headers_to_add"] = header.clone());
    }
    routes
}

/// Only what has this method, path and header may pass.
fn rule() -> Value {
    let (name, value) = RULE_HEADER;
    let exact = |name: &str, value: &str| json!({ "name": name, "string_match": { "exact": value } });
    json!({
        "name": "envoy.filters.http.rbac",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC",
            "rules": {
                "action": "ALLOW",
                "policies": { "lab": {
                    "permissions": [{ "and_rules": { "rules": [
                        { "header": exact(":method", "GET") },
                        { "url_path": { "path": { "prefix": RULE_PATH } } },
                        { "header": exact(name, value) },
                    ] } }],
                    "principals": [{ "any": true }],
                } },
            },
        },
    })
}

fn cluster(setting: &Setting<'_>) -> Value {
    let address = json!({ "address": setting.next.ip(), "port_value": setting.next.port() });
    let endpoint = json!({ "endpoint": { "address": { "socket_address": address } } });
    let limits = json!({
        "max_connections": NO_LIMIT, "max_pending_requests": NO_LIMIT, "max_requests": NO_LIMIT, "max_retries": NO_LIMIT,
    });
    let protocol = if setting.next_is_http2() {
        json!({ "http2_protocol_options": windows() })
    } else {
        json!({ "http_protocol_options": {} })
    };
    let mut cluster = json!({
        "name": "next",
        "type": "STATIC",
        "connect_timeout": "5s",
        "circuit_breakers": { "thresholds": [limits] },
        "load_assignment": { "cluster_name": "next", "endpoints": [{ "lb_endpoints": [endpoint] }] },
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": protocol,
            },
        },
    });
    if setting.side == Side::First {
        let mut tls = tls(setting);
        tls["@type"] = json!("type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext");
        cluster["transport_socket"] = json!({ "name": "envoy.transport_sockets.tls", "typed_config": tls });
    }
    cluster
}

fn tls(setting: &Setting<'_>) -> Value {
    let certificates = setting.certificates;
    json!({ "common_tls_context": {
        "tls_params": { "tls_minimum_protocol_version": "TLSv1_3", "tls_maximum_protocol_version": "TLSv1_3" },
        "alpn_protocols": ["h2"],
        "tls_certificates": [{
            "certificate_chain": { "filename": certificates.chain },
            "private_key": { "filename": certificates.key },
        }],
        "validation_context": { "trusted_ca": { "filename": certificates.root } },
    } })
}
