//! The configuration of Envoy: listeners in the pods' namespaces, and clusters that tunnel.
//!
//! The tunnel is HBONE, as Istio's proxies speak it: HTTP/2 CONNECT to the destination pod's port 15008 over mutual TLS 1.3, and
//! the authority names the real destination. Windows and limits are those of the other subjects, so that none wins by buffering.

use std::path::Path;

use leno_capture::pod_rules::{OUTBOUND_PORT, TUNNEL_PORT};
use leno_capture::sockets::PROXY_MARK;
use serde_json::{Value, json};

/// Receive windows of a stream and of a connection, bytes: those of Leno and of ztunnel.
const WINDOWS: (u32, u32) = (4 << 20, 16 << 20);
/// Streams per connection that a client uses and a server allows, as for ztunnel.
const STREAMS: (u32, u32) = (100, 200);
/// Envoy's own limit of 1024 connections and requests is a protection, and not what is to be measured.
const NO_LIMIT: u32 = 10_000_000;

/// `SOL_SOCKET`, `SO_MARK`; `IPPROTO_IP`, `IP_BIND_ADDRESS_NO_PORT`, which leaves ports to `connect` so that they don't run out.
const MARK: (i32, i32) = (libc::SOL_SOCKET, libc::SO_MARK);
const BIND_WITHOUT_PORT: (i32, i32) = (libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT);

/// A pod, as Envoy's configuration needs it. Paths must be UTF-8.
pub(super) struct Pod<'a> {
    /// The part of its names that is unique.
    pub uid: &'a str,
    /// The path by which its network namespace can be opened.
    pub namespace: String,
    /// Certificate chain, leaf first.
    pub chain: &'a Path,
    /// Private key.
    pub key: &'a Path,
    /// The root certificate of peers.
    pub root: &'a Path,
    /// The common prefix of all peers' identities.
    pub peers: &'a str,
}

/// The file that Envoy starts with. It refers to two other files in `directory`, and puts the admin socket there.
pub(super) fn bootstrap(node: &str, directory: &Path) -> Value {
    let follow = |file: &str| {
        let path = directory.join(file);
        json!({ "path_config_source": { "path": path }, "resource_api_version": "V3" })
    };
    json!({
        "node": { "id": node, "cluster": "leno-lab" },
        "admin": { "address": { "pipe": { "path": directory.join(super::ADMIN), "mode": 0o600 } } },
        "dynamic_resources": { "cds_config": follow(super::CLUSTERS), "lds_config": follow(super::LISTENERS) },
    })
}

/// A discovery response in a file.
pub(super) fn resources(version: u64, resources: Vec<Value>) -> Value {
    json!({ "version_info": version.to_string(), "resources": resources })
}

/// The names of a pod's listeners. Its clusters have the same names.
pub(super) fn names(uid: &str) -> [String; 2] {
    [format!("outbound-{uid}"), format!("inbound-{uid}")]
}

/// Both listeners of a pod: for connections that its programs open, and for those that peers open.
pub(super) fn listeners(pod: &Pod<'_>, access_log: &Path) -> [Value; 2] {
    let [outbound, inbound] = names(pod.uid);
    // One line for each connection, as the other proxies write it.
    let log = json!([{
        "name": "envoy.access_loggers.file",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog",
            "path": access_log,
        },
    }]);
    let tunnel = json!({
        "name": "envoy.filters.network.tcp_proxy",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
            "stat_prefix": "outbound",
            "cluster": outbound,
            "tunneling_config": { "hostname": "%DOWNSTREAM_LOCAL_ADDRESS%" },
            "access_log": log,
        },
    });
    let connect = json!({
        "name": "envoy.filters.network.http_connection_manager",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": "inbound",
            "codec_type": "HTTP2",
            "http2_protocol_options": http2(STREAMS.1, true),
            "upgrade_configs": [{ "upgrade_type": "CONNECT" }],
            "stream_idle_timeout": "0s",
            "use_remote_address": true,
            "skip_xff_append": true,
            "generate_request_id": false,
            "route_config": {
                // Envoy may read its listeners before its clusters. Without this it would then refuse them for good.
                "validate_clusters": false,
                "virtual_hosts": [{
                    "name": "any",
                    "domains": ["*"],
                    "routes": [{
                        "match": { "connect_matcher": {} },
                        "route": {
                            "cluster": inbound,
                            "timeout": "0s",
                            "upgrade_configs": [{ "upgrade_type": "CONNECT", "connect_config": {} }],
                        },
                    }],
                }],
            },
            "http_filters": [
                // The program sees the client's address, as with the other proxies.
                {
                    "name": "envoy.filters.http.original_src",
                    "typed_config": {
                        "@type": "type.googleapis.com/envoy.extensions.filters.http.original_src.v3.OriginalSrc",
                        "mark": PROXY_MARK,
                    },
                },
                {
                    "name": "envoy.filters.http.router",
                    "typed_config": {
                        "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
                        "suppress_envoy_headers": true,
                    },
                },
            ],
            "access_log": log,
        },
    });
    let tls = json!({
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
            "require_client_certificate": true,
            "common_tls_context": tls(pod),
        },
    });
    let listener = |name: &str, port: u16, chain: Value, filters: Value| {
        json!({
            "@type": "type.googleapis.com/envoy.config.listener.v3.Listener",
            "name": name,
            "address": address(&pod.namespace, port),
            "socket_options": [option(MARK, PROXY_MARK)],
            "listener_filters": filters,
            "filter_chains": [chain],
        })
    };
    let original = json!([{
        "name": "envoy.filters.listener.original_dst",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.listener.original_dst.v3.OriginalDst",
        },
    }]);
    [
        listener(&outbound, OUTBOUND_PORT, json!({ "filters": [tunnel] }), original),
        listener(&inbound, TUNNEL_PORT, json!({ "filters": [connect], "transport_socket": tls }), json!([])),
    ]
}

/// Both clusters of a pod: to the tunnel port of any destination pod, and to any program in this pod.
pub(super) fn clusters(pod: &Pod<'_>) -> [Value; 2] {
    let [outbound, inbound] = names(pod.uid);
    let cluster = |name: &str, destination: Value| {
        json!({
            "@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster",
            "name": name,
            "type": "ORIGINAL_DST",
            "lb_policy": "CLUSTER_PROVIDED",
            "connect_timeout": "10s",
            "original_dst_lb_config": destination,
            "upstream_bind_config": {
                "source_address": address(&pod.namespace, 0)["socket_address"],
                "socket_options": [option(MARK, PROXY_MARK), option(BIND_WITHOUT_PORT, 1)],
            },
            "circuit_breakers": {
                "thresholds": [{
                    "max_connections": NO_LIMIT,
                    "max_pending_requests": NO_LIMIT,
                    "max_requests": NO_LIMIT,
                }],
            },
        })
    };
    let mut tunnel = cluster(&outbound, json!({ "upstream_port_override": TUNNEL_PORT }));
    tunnel["typed_extension_protocol_options"] = json!({
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": { "http2_protocol_options": http2(STREAMS.0, false) },
        },
    });
    tunnel["transport_socket"] = json!({
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            "common_tls_context": tls(pod),
        },
    });
    [tunnel, cluster(&inbound, json!({ "use_http_header": true, "http_header_name": ":authority" }))]
}

fn address(namespace: &str, port: u16) -> Value {
    json!({
        "socket_address": { "address": "0.0.0.0", "port_value": port, "network_namespace_filepath": namespace },
    })
}

fn option((level, name): (i32, i32), value: u32) -> Value {
    json!({ "level": level, "name": name, "int_value": value, "state": "STATE_PREBIND" })
}

fn http2(streams: u32, allow_connect: bool) -> Value {
    json!({
        "initial_stream_window_size": WINDOWS.0,
        "initial_connection_window_size": WINDOWS.1,
        "max_concurrent_streams": streams,
        "allow_connect": allow_connect,
    })
}

fn tls(pod: &Pod<'_>) -> Value {
    let file = |path: &Path| json!({ "filename": path });
    json!({
        "alpn_protocols": ["h2"],
        "tls_params": { "tls_minimum_protocol_version": "TLSv1_3", "tls_maximum_protocol_version": "TLSv1_3" },
        "tls_certificates": [{ "certificate_chain": file(pod.chain), "private_key": file(pod.key) }],
        "validation_context": {
            "trusted_ca": file(pod.root),
            "match_typed_subject_alt_names": [{ "san_type": "URI", "matcher": { "prefix": pod.peers } }],
        },
    })
}
