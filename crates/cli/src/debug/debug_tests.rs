use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use http::StatusCode;
use leno_kubernetes::Client;
use leno_testkit::api_server::ApiServer;
use serde_json::{Value, json};

use super::*;
use crate::args::InstalledArgs;
use crate::target::ClusterNodes;

const NAMESPACE: &str = "leno-system";
const KEY: &str = "-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqGSM49\n-----END PRIVATE KEY-----\n";

fn part(role: &str, pod: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": pod, "namespace": NAMESPACE,
            "labels": {"app.kubernetes.io/name": role, "app.kubernetes.io/part-of": "leno"},
        },
        "spec": {"nodeName": "n1", "containers": [{"name": "main", "env": [{"name": "AUTH_TOKEN", "value": "hush"}]}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    })
}

/// All files of an archive.
fn files(path: &Path) -> BTreeMap<String, String> {
    let mut tar = tar::Archive::new(flate2::read::GzDecoder::new(std::fs::File::open(path).unwrap()));
    let read = |entry: std::io::Result<tar::Entry<'_, _>>| {
        let mut entry: tar::Entry<'_, flate2::read::GzDecoder<std::fs::File>> = entry.unwrap();
        let name = entry.path().unwrap().to_str().unwrap().split_once('/').unwrap().1.to_owned();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        (name, text)
    };
    tar.entries().unwrap().map(read).collect()
}

#[tokio::test]
async fn all_that_a_report_needs_is_in_it_and_no_key_and_no_secret() {
    let server = ApiServer::start().await;
    server.put(&json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "leno-ca", "namespace": NAMESPACE},
        "stringData": {"ca-key.pem": KEY},
    }));
    server.put(&json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "leno-ca-root", "namespace": NAMESPACE},
        "data": {"root-cert.pem": "-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----\n"},
    }));
    server.put(&json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "somebodys", "namespace": NAMESPACE},
        "data": {"password": "hush"},
    }));
    for (role, pod) in [("leno-node", "proxy"), ("leno-agent", "agent"), ("leno-control", "plane")] {
        server.put(&part(role, pod));
    }
    let page = |pod: &'static str, port, path, text: &'static str| {
        server.set_page([NAMESPACE, pod], port, path, (StatusCode::OK, text))
    };
    page("proxy", 15000, "/config_dump", "{\"certificates\": []}").await;
    page("proxy", 15000, "/connections", "{}").await;
    page("proxy", 15000, "/status", "{\"version\": \"0.1.0\"}").await;
    page("plane", 15020, "/proxies", "{\"proxies\": []}").await;
    page("proxy", 15020, "/metrics", "istio_build 1").await;
    page("plane", 15020, "/metrics", "pilot_xds 1").await;
    // As if something had printed a key.
    page("agent", 15014, "/metrics", KEY).await;
    server.set_text("/api/v1/namespaces/leno-system/pods/agent/log", &format!("2026-11-25T04:50:00.1Z hello\n{KEY}"));

    server.set_text("/api/v1/namespaces/leno-system/pods/proxy/log", "");
    server.set_text("/version", "{\"major\": \"1\", \"minor\": \"37\"}");
    server.forbid("/api/v1/namespaces/leno-system/pods/plane/log");

    let nodes = ClusterNodes::new(Client::anonymous(&server.url()).unwrap(), NAMESPACE.to_owned());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("report.tar.gz");
    let mut archive = Archive::create(&path, name()).unwrap();
    let args = CollectArgs {
        output: None,
        node: Vec::new(),
        since: Duration::from_secs(3600),
        installed: InstalledArgs::default(),
    };
    let build = Build { commit: Some("abc"), profile: None };
    collect(&mut archive, &Target::Cluster(nodes), &args, &build).await.unwrap();
    assert_eq!(archive.finish().unwrap(), 1, "one log may not be read");

    let files = files(&path);
    for wanted in [
        "leno.json",
        "check.json",
        "status.json",
        "nodes/n1/status.json",
        "nodes/n1/config_dump.json",
        "nodes/n1/connections.jsonl",
        "nodes/n1/metrics.txt",
        "control/plane/metrics.txt",
        "agent/n1/metrics.txt",
        "logs/agent/main.log",
        "objects/leno-system/pods.json",
        "objects/leno-system/events.json",
        "objects/leno-system/configmap-leno-ca-root.json",
        "objects/nodes.json",
        "objects/authorizationpolicies.json",
        "errors.txt",
    ] {
        assert!(files.contains_key(wanted), "{wanted} is not among {:?}", files.keys());
    }
    assert!(files["logs/agent/main.log"].contains("hello"));
    assert!(files["errors.txt"].contains("logs/plane/main.log"), "{}", files["errors.txt"]);
    for (name, text) in &files {
        for secret in ["PRIVATE KEY", "MIGHAgEAMBMGByqGSM49", "hush"] {
            assert!(!text.contains(secret), "{secret} is in {name}");
        }
    }
    let asked = server.requests();
    assert!(!asked.iter().any(|request| request.contains("/secrets")), "Secrets are not even asked for");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing else is left");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn an_archive_that_is_given_up_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut archive = Archive::create(&directory.path().join("x.tar.gz"), "x".to_owned()).unwrap();
    archive.text("a", "b").unwrap();
    drop(archive);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}
