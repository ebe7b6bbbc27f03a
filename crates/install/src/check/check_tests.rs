use std::time::{Duration, UNIX_EPOCH};

use leno_kubernetes::Client;
use leno_testkit::api_server::{ApiServer, definition};
use serde_json::{Value, json};

use super::*;

#[test]
fn versions_are_compared_as_numbers() {
    let outcome = |major: &str, minor: &str| {
        before::new_enough(&json!({"major": major, "minor": minor, "gitVersion": "v"})).outcome
    };
    assert_eq!(outcome("1", "30"), Outcome::Ok);
    assert_eq!(outcome("1", "37+"), Outcome::Ok);
    assert_eq!(outcome("2", "0"), Outcome::Ok);
    assert_eq!(outcome("1", "9"), Outcome::Failed);
    assert_eq!(before::new_enough(&json!({})).outcome, Outcome::Failed);
}

fn node(name: &str, kernel: &str, ready: &str, message: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "status": {
            "nodeInfo": {"kernelVersion": kernel, "operatingSystem": "linux"},
            "conditions": [{"type": "Ready", "status": ready, "message": message}],
        },
    })
}

#[test]
fn a_node_without_a_network_is_told_from_another_that_is_not_ready() {
    let good = node("n1", "6.1.0-13-amd64", "True", "");
    assert_eq!(nodes::networked(std::slice::from_ref(&good)).outcome, Outcome::Ok);
    let bare = nodes::networked(&[good.clone(), node("n2", "6.1.0", "False", "cni plugin not initialized")]);
    assert_eq!((bare.outcome, bare.found.as_deref()), (Outcome::Failed, Some("n2: cni plugin not initialized")));
    assert!(bare.hint.is_some_and(|hint| hint.contains("install a network plugin")));
    let lost = nodes::networked(&[good, node("n3", "6.1.0", "Unknown", "Kubelet stopped posting node status.")]);
    assert!(lost.hint.is_some_and(|hint| hint.contains("describe node")));
}

#[test]
fn old_kernels_are_found() {
    let found = nodes::kernels(&[node("a", "5.4.0-1", "True", ""), node("b", "4.18.0-553.el8", "True", "")]);
    assert_eq!(found.found.as_deref(), Some("b has 4.18.0-553.el8"));
    assert_eq!(nodes::kernels(&[node("a", "6.18", "True", "")]).outcome, Outcome::Ok);
}

#[test]
fn times_are_read() {
    assert_eq!(nodes::seconds("1970-01-01T00:00:00Z"), Some(Duration::ZERO));
    assert_eq!(nodes::seconds("2000-03-01T00:00:01.5Z"), Some(Duration::from_secs(951_868_801)));
    assert_eq!(nodes::seconds("2026-11-25T04:50:28.123456Z"), Some(Duration::from_secs(1_795_582_228)));
    for wrong in ["", "2026-11-25", "2026-11-25T04:50:28", "2026-xx-25T04:50:28Z"] {
        assert_eq!(nodes::seconds(wrong), None, "{wrong}");
    }
}

#[test]
fn clocks_that_are_off_are_found() {
    let lease = |name: &str, time: &str| json!({"metadata": {"name": name}, "spec": {"renewTime": time}});
    let now = UNIX_EPOCH + nodes::seconds("2026-11-25T05:00:00Z").expect("a time");
    let good = lease("n1", "2026-11-25T04:59:50.000000Z");
    assert_eq!(nodes::clocks(std::slice::from_ref(&good), now).outcome, Outcome::Ok);
    let ahead = nodes::clocks(&[good.clone(), lease("n2", "2026-11-25T05:10:00.000000Z")], now);
    assert_eq!(ahead.found.as_deref(), Some("n2 is 600 s ahead of this machine"));
    assert!(ahead.hint.is_some_and(|hint| hint.starts_with("set these nodes' clocks")));
    let all = nodes::clocks(&[lease("n1", "2026-11-25T04:00:00Z")], now);
    assert_eq!(all.found.as_deref(), Some("n1 is 3600 s behind this machine"));
    assert!(all.hint.is_some_and(|hint| hint.contains("this machine's clock")));
}

#[test]
fn a_node_without_an_agent_is_found() {
    let nodes =
        json!({"items": [{"metadata": {"name": "n1"}}, {"metadata": {"name": "n2"}}, {"metadata": {"name": "n3"}}]});
    let pod = |role: &str, node: &str| json!({"metadata": {"labels": {"app.kubernetes.io/name": role}}, "spec": {"nodeName": node}});
    let pods = json!({"items": [pod("leno-agent", "n1"), pod("leno-node", "n1"), pod("leno-node", "n2")]});
    let both = ["leno-agent", "leno-node"];
    let expected = ["n2 has no leno-agent", "n3 has no leno-agent", "n3 has no leno-node"];
    assert_eq!(installed::uncovered(&nodes, &pods, &both), expected);
    assert_eq!(installed::uncovered(&nodes, &pods, &both[1..]), expected[2..]);
}

#[test]
fn pods_that_are_left_out_are_found() {
    let pod = |name: &str, namespace: &str, labels: Value, redirection: Option<&str>| {
        json!({
            "metadata": {
                "name": name, "namespace": namespace, "labels": labels,
                "annotations": {"ambient.istio.io/redirection": redirection},
            },
        })
    };
    let namespaces = json!({"items": [{"metadata": {"name": "shop"}}]});
    let pods = json!({"items": [
        pod("in", "shop", json!({}), Some("enabled")),
        pod("pending", "shop", json!({}), Some("pending")),
        pod("refuses", "shop", json!({"istio.io/dataplane-mode": "none"}), None),
        pod("alone", "bank", json!({"istio.io/dataplane-mode": "ambient"}), None),
        pod("outside", "bank", json!({}), None),
    ]});
    assert_eq!(installed::left_out(&namespaces, &pods), ["shop/pending", "bank/alone"]);
}

#[test]
fn labels_that_mean_nothing_are_found() {
    let object = |namespace: Option<&str>, name: &str, mode: &str| json!({"metadata": {"name": name, "namespace": namespace, "labels": {"istio.io/dataplane-mode": mode}}});
    let namespaces = json!({"items": [object(None, "shop", "ambient"), object(None, "bank", "ambiant"),
        object(None, "old", "none"), json!({"metadata": {"name": "plain"}})]});
    assert_eq!(installed::without_meaning("Namespace", &namespaces), ["Namespace bank has \"ambiant\""]);
    let pods = json!({"items": [object(Some("shop"), "web", "")]});
    assert_eq!(installed::without_meaning("Pod", &pods), ["Pod shop/web has \"\""]);
}

#[tokio::test]
async fn definitions_that_are_missing_or_too_old_are_found() {
    let server = ApiServer::start().await;
    let client = Client::anonymous(&server.url()).expect("a URL");
    let before = before::definitions(&client, false).await;
    assert_eq!(before.outcome, Outcome::Ok, "an installation brings them");
    let ours = crate::release::definitions().expect("definitions");
    for ours in ours.iter().filter(|ours| !ours.name().starts_with("tcproutes")) {
        server.put(&ours.object);
    }
    let few = before::definitions(&client, true).await;
    assert_eq!(few.outcome, Outcome::Warning);
    assert_eq!(few.found.as_deref(), Some("tcproutes.gateway.networking.k8s.io is missing"));
    server.put(&ours.iter().find(|ours| ours.name().starts_with("tcproutes")).expect("TCPRoute's").object);
    assert_eq!(before::definitions(&client, true).await.outcome, Outcome::Ok);
    let (version, plural) = ("apiextensions.k8s.io/v1", "customresourcedefinitions");
    server.delete(version, plural, "", "authorizationpolicies.security.istio.io");
    let after = before::definitions(&client, true).await;
    assert_eq!(after.outcome, Outcome::Failed);
    assert_eq!(after.found.as_deref(), Some("authorizationpolicies.security.istio.io is missing"));
    assert!(after.hint.is_some_and(|hint| hint.contains("`leno upgrade`")));
    server.put(&definition("authorizationpolicies", "v1beta1"));
    for needed in [false, true] {
        let old = before::definitions(&client, needed).await;
        assert_eq!(old.found.as_deref(), Some("authorizationpolicies.security.istio.io has no v1"));
        assert!(old.hint.is_some_and(|hint| hint.contains("chart `base`")));
    }
    server.put(&definition("authorizationpolicies", "v1"));
    assert_eq!(before::definitions(&client, true).await.outcome, Outcome::Ok);
}

#[tokio::test]
async fn a_second_mesh_is_found() {
    let server = ApiServer::start().await;
    let client = Client::anonymous(&server.url()).expect("a URL");
    assert_eq!(before::alone(&client).await.outcome, Outcome::Ok);
    server.put(&json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"name": "ztunnel", "namespace": "istio-system", "labels": {"app": "ztunnel"}},
    }));
    let found = before::alone(&client).await;
    assert_eq!(found.outcome, Outcome::Warning);
    assert!(found.hint.is_some_and(|hint| hint.contains("node.enabled=false")), "{:?}", found.found);
}

#[tokio::test]
async fn rights_that_are_missing_are_found() {
    // The played API server allows nothing that it is asked about.
    let server = ApiServer::start().await;
    let client = Client::anonymous(&server.url()).expect("a URL");
    let roles = installed::roles(&client, "leno-system").await;
    assert!(roles.found.as_deref().is_some_and(|found| found.contains("leno-agent may not watch pods")), "{roles:?}");
    assert!(roles.hint.is_some_and(|hint| hint.contains("`leno upgrade` restores")));
    server.forbid("/apis/authorization.k8s.io");
    let unknown = installed::roles(&client, "leno-system").await;
    assert_eq!(unknown.outcome, Outcome::Unknown);
}

#[test]
fn an_image_that_no_node_has_is_found() {
    for reason in ["ErrImageNeverPull", "ImagePullBackOff: Back-off pulling image", "InvalidImageName"] {
        let hint = installed::hint(&format!("leno-node-x on n1: {reason}"), "leno-system", "leno-node");
        assert!(hint.contains("load the image into every node"), "{hint}");
    }
    assert!(installed::hint("CrashLoopBackOff", "leno-system", "leno-node").contains("`kubectl logs"));
}

#[test]
fn a_control_plane_that_is_scaled_to_nothing_is_found() {
    let rollout = |name: &str, count: u64| crate::cluster::Rollout {
        name: name.to_owned(),
        wanted: count,
        ready: count,
        done: true,
        because: None,
        version: String::new(),
    };
    let found = |replicas: u64| {
        let rollouts = Ok(vec![rollout("leno-control", replicas), rollout("leno-node", 0)]);
        installed::running(&rollouts, "leno-system", &["leno-control", "leno-node"])
    };
    assert!(found(1).iter().all(|finding| finding.outcome == Outcome::Ok));
    let findings = found(0);
    assert_eq!(findings[0].found.as_deref(), Some("it is scaled to 0"));
    assert!(findings[0].hint.as_ref().is_some_and(|hint| hint.contains("kubectl scale deployment leno-control")));
    assert_eq!(findings[1].outcome, Outcome::Ok, "a cluster without a node for a proxy is another thing");
}
