use http::StatusCode;
use leno_testkit::api_server::ApiServer;
use serde_json::json;

use super::*;

const NAMESPACE: &str = "leno-system";

/// A played cluster with one node, on which all parts run and say these things.
struct Played {
    server: ApiServer,
    client: Client,
}

impl Played {
    async fn new() -> Self {
        let server = ApiServer::start().await;
        let client = Client::anonymous(&server.url()).unwrap();
        let played = Self { server, client };
        for (role, node) in [("leno-agent", "n1"), ("leno-node", "n1"), ("leno-control", "n1")] {
            played.part(role, node, true);
        }
        played
            .says("leno-agent", AGENT, "/metrics", "leno_agent_cni_requests_total{command=\"add\",result=\"x\"} 3")
            .await;
        played.control("pilot_xds 1\nleno_proxies_behind 0\n", 400.0, 300.0).await;
        played
    }

    fn part(&self, role: &str, node: &str, ready: bool) {
        self.server.put(&json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": format!("{role}-{node}"), "namespace": NAMESPACE,
                "labels": {"app.kubernetes.io/name": role, "app.kubernetes.io/part-of": "leno"},
            },
            "spec": {"nodeName": node, "hostNetwork": role == "leno-agent"},
            "status": {"phase": "Running", "startTime": "2026-11-25T04:00:00Z", "conditions": [{
                "type": "Ready", "status": if ready { "True" } else { "False" },
                "lastTransitionTime": "2026-11-25T04:00:10Z",
            }]},
        }));
    }

    async fn says(&self, role: &str, port: u16, path: &str, text: &str) {
        self.server.set_page([NAMESPACE, &format!("{role}-n1")], port, path, (StatusCode::OK, text)).await;
    }

    /// The control plane's metrics, with the days that root and signing certificate last.
    async fn control(&self, metrics: &str, root: f64, signing: f64) {
        let ends = format!(
            "citadel_server_root_cert_expiry_seconds {}\ncitadel_server_cert_chain_expiry_seconds {}\n",
            root * 86400.0,
            signing * 86400.0
        );
        self.says("leno-control", METRICS, "/metrics", &format!("# HELP x\n{metrics}{ends}")).await;
    }

    /// An agent that is not ready, and why.
    async fn waits(&self, trouble: &str) {
        self.part("leno-agent", "n1", false);
        let text = format!("not ready, waiting for:\n- CNI plugin: {trouble}\n");
        let answer = (StatusCode::INTERNAL_SERVER_ERROR, text.as_str());
        self.server.set_page([NAMESPACE, "leno-agent-n1"], AGENT, "/healthz/ready", answer).await;
    }

    /// What is not well: outcome, what was found, and the hint.
    async fn troubles(&self) -> Vec<(Outcome, String, String)> {
        let findings = within(Duration::ZERO, &self.client, NAMESPACE).await;
        let bad = findings.into_iter().filter(|finding| finding.outcome != Outcome::Ok);
        bad.map(|finding| (finding.outcome, finding.found.unwrap(), finding.hint.unwrap())).collect()
    }

    /// The only thing that is not well.
    async fn trouble(&self) -> (Outcome, String, String) {
        let mut troubles = self.troubles().await;
        assert_eq!(troubles.len(), 1, "{troubles:?}");
        troubles.remove(0)
    }
}

#[tokio::test]
async fn an_installation_that_is_well_has_no_findings() {
    assert_eq!(Played::new().await.troubles().await, []);
}

#[tokio::test]
async fn an_agent_that_cannot_install_its_plugin_says_why_and_the_hint_fits() {
    let played = Played::new().await;
    let cases = [
        ("/host/etc/cni/net.d does not exist; mount the node's", "agent.cniConfDir"),
        (
            "/host/etc/cni/net.d/10-x.conflist uses the plugin bridge, which is not in /host/opt/cni/bin; mount",
            "agent.cniBinDir",
        ),
        ("there is no CNI configuration in /host/etc/cni/net.d yet; waiting for", "install a network plugin"),
        (
            "can't write the plugin /host/opt/cni/bin/leno-cni: Read-only file system (os error 30); mount the directory read-write",
            "must be writable",
        ),
        (
            "/host/etc/cni/net.d/05-x.conf is what the container runtime uses, and no plugin can be added to it: it has no list",
            ".conflist",
        ),
    ];
    for (trouble, fix) in cases {
        played.waits(trouble).await;
        let (outcome, found, hint) = played.trouble().await;
        assert_eq!(outcome, Outcome::Failed);
        assert!(found.starts_with("leno-agent-n1 on n1: CNI plugin: ") && found.contains(trouble), "{found}");
        assert!(hint.contains(fix), "{trouble}: {hint}");
    }
}

#[tokio::test]
async fn a_network_plugin_that_ignores_chaining_is_found() {
    let played = Played::new().await;
    played.says("leno-agent", AGENT, "/metrics", "leno_agent_cni_requests_total{command=\"del\",result=\"x\"} 1").await;
    assert_eq!(played.troubles().await, [], "no pod has started since");
    played.server.put(&json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"nodeName": "n1"}, "status": {"phase": "Running", "startTime": "2026-11-25T04:30:00Z"},
    }));
    let (outcome, found, hint) = played.trouble().await;
    assert_eq!(outcome, Outcome::Failed);
    assert!(found.starts_with("n1: 1 pods started since"), "{found}");
    assert!(hint.contains("cni.exclusive=false"), "{hint}");
    played.says("leno-agent", AGENT, "/metrics", "leno_agent_cni_requests_total{command=\"add\",result=\"x\"} 1").await;
    assert_eq!(played.troubles().await, []);
}

#[tokio::test]
async fn proxies_that_are_out_of_sync_are_found() {
    let played = Played::new().await;
    played.control("pilot_xds 1\nleno_proxies_behind 1\npilot_total_xds_rejects{type=\"wds\"} 2\n", 400.0, 300.0).await;
    let (outcome, found, hint) = played.trouble().await;
    assert_eq!(outcome, Outcome::Failed);
    assert_eq!(found, "1 have not accepted the latest version of the mesh; 2 times one has refused a part of it");
    assert!(hint.contains("leno logs"), "{hint}");
    played.control("pilot_xds 0\nleno_proxies_behind 0\n", 400.0, 300.0).await;
    assert_eq!(played.trouble().await.1, "0 of 1 proxies are connected");
}

#[tokio::test]
async fn certificates_that_end_soon_are_found() {
    let played = Played::new().await;
    let well = "pilot_xds 1\nleno_proxies_behind 0\n";
    played.control(well, 29.5, 300.0).await;
    let (outcome, found, hint) = played.trouble().await;
    assert_eq!((outcome, found.as_str()), (Outcome::Warning, "the root ends in 29 days"));
    assert!(hint.contains("cacerts"), "{hint}");
    played.control(well, 400.0, 0.5).await;
    let (outcome, found, _) = played.trouble().await;
    assert_eq!((outcome, found.as_str()), (Outcome::Failed, "the certificate that signs ends in 0 days"));
    played.control(well, -1.0, 300.0).await;
    assert_eq!(played.trouble().await.1, "the root has ended");
}

#[tokio::test]
async fn pods_that_no_control_plane_has_told_of_are_found() {
    let played = Played::new().await;
    let status = |connected: bool, pods: &[&str]| {
        json!({"node": "n1", "controlPlane": {"connected": connected}, "untoldPods": pods}).to_string()
    };
    played.says("leno-node", ADMIN, "/status", &status(true, &[])).await;
    assert_eq!(played.troubles().await, []);
    played.says("leno-node", ADMIN, "/status", &status(false, &["shop/web-2", "shop/web-3"])).await;
    let (outcome, found, hint) = played.trouble().await;
    assert_eq!(outcome, Outcome::Failed);
    assert_eq!(found, "leno-node-n1 on n1 has no control plane and does not know shop/web-2, shop/web-3");
    assert!(hint.contains("leno-control"), "{hint}");
}

#[tokio::test]
async fn who_may_not_ask_the_parts_is_told_which_right_is_missing() {
    let played = Played::new().await;
    played.server.forbid("/api/v1/namespaces/leno-system/pods/leno-control-n1/portforward");
    let troubles = played.troubles().await;
    assert_eq!(troubles.len(), 2, "{troubles:?}");
    assert!(
        troubles.iter().all(|(outcome, found, _)| *outcome == Outcome::Unknown && found.contains("pods/portforward"))
    );
}
