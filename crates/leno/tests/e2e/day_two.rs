//! A user's commands about a stage and about a cluster: one rule says which is meant, every answer names it, and `leno debug
//! collect` gathers what there is of either.

use http::StatusCode;
use leno_testkit::api_server::ApiServer;
use leno_testkit::archive::unpacked;
use serde_json::{Value, json};

use crate::stage::{Stage, eventually, leno, run, skip};
use crate::topology::{NAMESPACES, client};

#[test]
fn a_stage_tells_what_its_proxies_believe_and_is_collected_without_keys() {
    if skip("a_stage_tells_what_its_proxies_believe_and_is_collected_without_keys", &["nft", "tar"]) {
        return;
    }
    let text = format!("{NAMESPACES}{}{}", client("mesh", "a", "node-1"), client("mesh", "b", "node-2"));
    let stage = Stage::up(&[("all.yaml", &text)], &[]);
    let about = format!("stage {}\n", stage.name());

    eventually("a certificate of each node's pod", || {
        let ran = run(stage.command("config").args(["certificates"])).ok();
        assert_eq!(ran.stderr, about);
        let lines = ran.stdout.lines().filter(|line| line.contains("spiffe://") && line.contains("Available")).count();
        if lines >= 2 { Ok(()) } else { Err(ran.stdout) }
    });
    let ran = run(stage.command("config").args(["workloads", "node-2", "-o", "json"])).ok();
    let config: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((&config["of"], ran.stderr.as_str()), (&json!({"stage": stage.name()}), ""));
    let names: Vec<_> =
        config["nodes"][0]["workloads"].as_array().unwrap().iter().map(|one| &one["namespace"]).collect();
    assert!(names.iter().filter(|name| **name == "mesh").count() >= 2, "{config:#}");
    let wrong = run(stage.command("config").args(["all", "node-9"]));
    assert!(wrong.code == 1 && wrong.stderr.contains("the nodes are node-1, node-2"), "{wrong:?}");
    for (command, arguments) in [("observe", &[][..]), ("metrics", &["control"]), ("logs", &["--tail", "1"])] {
        assert_eq!(
            run(stage.command(command).args(arguments)).ok().stderr.lines().next(),
            Some(about.trim()),
            "{command}"
        );
    }

    let archive = stage.dir.path().join("report.tar.gz");
    let ran = run(leno().args(["debug", "collect", "--name", stage.name(), "-o"]).arg(&archive)).ok();
    assert!(ran.stdout.starts_with("wrote ") && !ran.stdout.contains("could not be read"), "{ran:?}");
    let files = unpacked(&archive, tempfile::tempdir().unwrap().path());
    for wanted in [
        "leno.json",
        "status.json",
        "stage.log",
        "control/metrics.txt",
        "nodes/node-1/config_dump.json",
        "nodes/node-1/connections.jsonl",
        "nodes/node-2/metrics.txt",
        "nodes/node-2/proxy.log",
    ] {
        assert!(files.get(wanted).is_some_and(|text| !text.is_empty()), "{wanted} is not among {:?}", files.keys());
    }
    assert!(files["nodes/node-1/config_dump.json"].contains("BEGIN CERTIFICATE"));
    assert!(files.values().all(|text| !text.contains("PRIVATE KEY")), "a private key is in it");
}

/// A played cluster with a proxy on one node and a control plane.
async fn cluster() -> ApiServer {
    let server = ApiServer::start().await;
    server.put(&json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "leno-control"},
        "subjects": [{"kind": "ServiceAccount", "name": "leno-control", "namespace": "mesh-system"}],
    }));
    for (role, pod) in [("leno-node", "proxy"), ("leno-control", "plane")] {
        server.put(&json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": pod, "namespace": "mesh-system",
                "labels": {"app.kubernetes.io/name": role, "app.kubernetes.io/part-of": "leno"},
            },
            "spec": {"nodeName": "n1", "containers": [{"name": "main"}]},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
        }));
    }
    let page = |pod: &'static str, port, path, text: &'static str| {
        server.set_page(["mesh-system", pod], port, path, (StatusCode::OK, text))
    };
    page("proxy", 15020, "/metrics", "istio_build{tag=\"x\"} 1\nother 2\n").await;
    page("plane", 15020, "/metrics", "pilot_xds 1\n").await;
    page("proxy", 15000, "/config_dump", "{\"policies\": [{\"namespace\": \"shop\", \"name\": \"p\", \"rules\": []}]}")
        .await;
    server.set_text("/api/v1/namespaces/mesh-system/pods/proxy/log", "2026-11-25T04:50:00.2Z second\n");
    server.set_text("/api/v1/namespaces/mesh-system/pods/plane/log", "2026-11-25T04:50:00.1Z first\n");
    server
}

#[test]
fn a_cluster_is_asked_by_kubeconfig_and_named() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let server = runtime.block_on(cluster());
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    crate::control_cluster::kubeconfig(&kubeconfig, &server.url());
    let about = format!("cluster {}, namespace mesh-system\n", server.url());
    let call = |arguments: &[&str]| {
        // A stage that the environment names counts less than a cluster that is named by a flag.
        run(leno().args(arguments).arg("--kubeconfig").arg(&kubeconfig).env("LENO_STAGE", "some"))
    };

    let metrics = call(&["metrics", "--metric", "istio"]).ok();
    assert_eq!((metrics.stdout.as_str(), &metrics.stderr), ("istio_build{tag=\"x\"} 1\n", &about));
    assert_eq!(call(&["metrics", "control"]).ok().stdout, "pilot_xds 1\n");
    let config: Value = serde_json::from_str(&call(&["config", "policies", "-o", "json"]).ok().stdout).unwrap();
    assert_eq!(config["of"], json!({"cluster": server.url(), "namespace": "mesh-system"}));
    assert_eq!(config["nodes"][0]["policies"][0]["name"], "p");
    let logs = call(&["logs"]).ok();
    assert_eq!(logs.stdout, "2026-11-25T04:50:00.100Z control/plane first\n2026-11-25T04:50:00.200Z node/n1 second\n");
    assert_eq!(logs.stderr, about);

    let nobody = call(&["metrics", "n7"]);
    assert!(nobody.code == 1 && nobody.stderr.contains("there is no node n7; the nodes are n1"), "{nobody:?}");
    let elsewhere = call(&["config", "all", "-n", "leno-system"]);
    assert!(
        elsewhere.code == 1 && elsewhere.stderr.contains("no node proxy runs in namespace leno-system"),
        "{elsewhere:?}"
    );
    server.delete("rbac.authorization.k8s.io/v1", "clusterrolebindings", "", "leno-control");
    let absent = call(&["observe"]);
    assert!(absent.code == 1 && absent.stderr.contains("`leno install`"), "{absent:?}");
}
