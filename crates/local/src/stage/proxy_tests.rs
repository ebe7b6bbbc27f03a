use super::*;

fn settings() -> ProxySettings {
    ProxySettings {
        program: "/bin/proxy".into(),
        node: "node-1".into(),
        namespace: NetworkNamespace::current().unwrap(),
        node_ip: "172.30.1.1".parse().unwrap(),
        control: "172.30.0.1:15012".parse().unwrap(),
        root_cert: "/run/root.pem".into(),
        token: "/run/token".into(),
        zds_socket: "/run/ztunnel.sock".into(),
        resolv_conf: "/run/resolv.conf".into(),
        log: "/run/proxy.log".into(),
        trust_domain: "cluster.local".into(),
        cluster_domain: "cluster.local".into(),
        ipv6: true,
        inherited: vec![
            ("RUST_LOG".into(), "debug".into()),
            ("XDS_ADDRESS".into(), "https://elsewhere".into()),
            ("POOL_MAX_STREAMS_PER_CONNECTION".into(), "7".into()),
        ],
    }
}

#[test]
fn the_stage_decides_where_a_proxy_belongs() {
    let env = settings().environment();
    let get = |name: &str| {
        let found: Vec<_> = env.iter().filter(|(key, _)| key == name).collect();
        assert!(found.len() <= 1, "{name} twice");
        found.first().map(|(_, value)| value.as_str())
    };
    assert_eq!(get("XDS_ADDRESS"), Some("https://172.30.0.1:15012"));
    assert_eq!(get("CA_ADDRESS"), get("XDS_ADDRESS"));
    assert_eq!(get("POD_NAME"), Some("ztunnel-node-1"));
    assert_eq!(get("RUST_LOG"), Some("debug"));
    assert_eq!(get("POOL_MAX_STREAMS_PER_CONNECTION"), Some("7"));
}

#[test]
fn only_tuning_is_inherited() {
    for name in [
        "PATH",
        "RUST_LOG",
        "SECRET_TTL",
        "HTTP2_FRAME_SIZE",
        "LENO_CONNECT_TIMEOUT",
        "LENO_WINDOW_BUDGET",
        "LENO_UNREAD_BUDGET",
        "LENO_CONGESTION_CONTROL",
    ] {
        assert!(is_inherited(name), "{name}");
    }
    for name in [
        "XDS_ADDRESS",
        "AUTH_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "LENO_ROLE",
        "LENO_RUN_DIR",
        "LENO_STAGE",
        "LENO_DETACHED",
    ] {
        assert!(!is_inherited(name), "{name}");
    }
}

#[test]
fn replacements_come_fast() {
    let mut pause = next_pause(Duration::ZERO);
    assert!(pause < Duration::from_millis(300));
    for _ in 0..20 {
        pause = next_pause(pause);
    }
    assert_eq!(pause, Duration::from_secs(2));
}
