use leno_kubernetes::Client;
use leno_testkit::api_server::{ApiServer, definition};
use serde_json::json;

use super::*;
use crate::{NAMESPACE, Profile, Release, Values};

/// A played API server, and a client of it.
async fn cluster() -> (ApiServer, Client) {
    let server = ApiServer::start().await;
    let client = Client::anonymous(&server.url()).expect("a URL");
    (server, client)
}

async fn install(client: &Client, profile: Profile, sets: &[&str]) -> Result<Applied, ClusterError> {
    let mut values = Values::of(profile).expect("a chart");
    for set in ["namespace.create=true"].iter().chain(sets) {
        values.set(set).expect("a value");
    }
    let record = Record::of(profile, &values).expect("a record");
    let release = Release { namespace: NAMESPACE.to_owned(), values, crds: true };
    apply(client, &release, &record).await
}

async fn uninstall(client: &Client, purge: bool) -> Result<Removal, ClusterError> {
    remove(client, NAMESPACE, purge, &mut |_| {}).await
}

fn names(server: &ApiServer, api_version: &str, plural: &str) -> Vec<String> {
    let all = server.all(api_version, plural);
    all.iter().map(|object| object["metadata"]["name"].as_str().expect("a name").to_owned()).collect()
}

/// All kinds that an installation has objects of, but the namespace.
fn everything(server: &ApiServer) -> Vec<String> {
    let kinds = [
        ("apps/v1", "deployments"),
        ("apps/v1", "daemonsets"),
        ("v1", "services"),
        ("v1", "serviceaccounts"),
        ("v1", "configmaps"),
        ("v1", "secrets"),
        ("policy/v1", "poddisruptionbudgets"),
        ("networking.k8s.io/v1", "networkpolicies"),
        ("rbac.authorization.k8s.io/v1", "clusterroles"),
        ("rbac.authorization.k8s.io/v1", "clusterrolebindings"),
        ("rbac.authorization.k8s.io/v1", "roles"),
        ("rbac.authorization.k8s.io/v1", "rolebindings"),
        ("apiextensions.k8s.io/v1", "customresourcedefinitions"),
        ("coordination.k8s.io/v1", "leases"),
    ];
    kinds.iter().flat_map(|(version, plural)| names(server, version, plural)).collect()
}

#[tokio::test]
async fn an_installation_is_put_there_and_taken_away_without_a_trace() {
    let (server, client) = cluster().await;
    let applied = install(&client, Profile::Default, &[]).await.expect("it is installed");
    assert_eq!(names(&server, "apps/v1", "daemonsets"), ["leno-agent", "leno-node"]);
    assert_eq!(applied.foreign, [""; 0]);
    assert_eq!(installer(&client).await.expect("an answer"), Some((NAMESPACE.to_owned(), Installer::Leno)));

    // What the control plane makes by itself.
    for (version, kind, name) in [
        ("v1", "Secret", "leno-ca"),
        ("v1", "ConfigMap", "leno-ca-root"),
        ("coordination.k8s.io/v1", "Lease", "leno-control"),
    ] {
        server.put(&json!({"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": NAMESPACE}}));
    }
    uninstall(&client, false).await.expect("it is removed");
    assert_eq!(everything(&server), [""; 0]);
    assert_eq!(names(&server, "v1", "namespaces"), [""; 0]);
    // The agents need the rest while they clean up.
    let requests = server.requests();
    let at = |what: &str| requests.iter().position(|request| request.starts_with(what)).expect(what);
    let deletions = [
        "/apis/apps/v1/namespaces/leno-system/daemonsets/leno-agent",
        "/apis/apps/v1/namespaces/leno-system/daemonsets/leno-node",
        "/apis/apps/v1/namespaces/leno-system/deployments/leno-control",
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/leno-agent",
    ];
    // And to know that the proxies follow them.
    let announced = requests.iter().rposition(|request| {
        request.starts_with("PATCH ") && request.contains(deletions[0]) && !request.contains("force=true")
    });
    let order = deletions.map(|path| at(&format!("DELETE {path}")));
    assert!(announced.expect("the agents are told") < order[0] && order.is_sorted(), "{requests:?}");
    let again = uninstall(&client, false).await.expect_err("there is nothing to remove");
    assert!(again.to_string().contains("not installed in leno-system"), "{again}");
}

#[tokio::test]
async fn what_an_installation_that_was_killed_has_made_is_removed() {
    let (server, client) = cluster().await;
    install(&client, Profile::Ha, &[]).await.expect("it is installed");
    let requests = server.requests();
    let steps: Vec<_> = requests.iter().filter(|request| request.starts_with("PATCH ")).cloned().collect();
    assert!(steps.len() > 15, "{steps:?}");
    for step in steps {
        let (server, client) = cluster().await;
        tokio::select! {
            biased;
            () = server.requested(&step) => {}
            done = install(&client, Profile::Ha, &[]) => panic!("{step} was not awaited: {done:?}"),
        }
        uninstall(&client, false).await.unwrap_or_else(|error| panic!("killed at {step}: {error}"));
        assert_eq!(everything(&server), [""; 0], "killed at {step}");
        assert_eq!(names(&server, "v1", "namespaces"), [""; 0], "killed at {step}");
    }
}

#[tokio::test]
async fn definitions_that_stayed_can_be_purged_afterwards() {
    let (server, client) = cluster().await;
    install(&client, Profile::Default, &[]).await.expect("it is installed");
    server.put(&json!({
        "apiVersion": "security.istio.io/v1", "kind": "PeerAuthentication",
        "metadata": {"name": "strict", "namespace": "shop"},
    }));
    uninstall(&client, false).await.expect("it is removed");
    uninstall(&client, true).await.expect("what stayed is removed");
    assert_eq!(everything(&server), [""; 0]);
}

#[tokio::test]
async fn what_a_change_makes_needless_is_removed_and_the_rest_stays() {
    let (server, client) = cluster().await;
    install(&client, Profile::Ha, &[]).await.expect("it is installed");
    assert_eq!(names(&server, "policy/v1", "poddisruptionbudgets"), ["leno-control"]);
    server.put(&json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "somebody", "namespace": NAMESPACE},
    }));
    let applied = install(&client, Profile::Default, &["agent.enabled=false"]).await.expect("it is changed");
    assert_eq!(names(&server, "policy/v1", "poddisruptionbudgets"), [""; 0]);
    assert_eq!(names(&server, "apps/v1", "daemonsets"), ["leno-node"]);
    assert!(applied.removed.contains(&"PodDisruptionBudget leno-control".to_owned()), "{applied:?}");
    assert!(names(&server, "v1", "serviceaccounts").contains(&"somebody".to_owned()));
    let record = Record::read(&client, NAMESPACE).await.expect("an answer").expect("a record");
    assert_eq!(record.profile, Profile::Default);
    assert!(record.values.contains("enabled: false"), "{}", record.values);
}

#[tokio::test]
async fn definitions_of_others_are_left_alone_unless_they_are_too_old() {
    let (server, client) = cluster().await;
    let theirs = definition("authorizationpolicies", "v1");
    server.put(&theirs);
    let applied = install(&client, Profile::Default, &[]).await.expect("it is installed");
    assert_eq!(applied.foreign, ["authorizationpolicies.security.istio.io"]);
    uninstall(&client, true).await.expect("it is removed");
    assert_eq!(everything(&server), ["authorizationpolicies.security.istio.io"]);

    let mut rules = definition("destinationrules", "v1alpha3");
    rules["metadata"]["name"] = "destinationrules.networking.istio.io".into();
    server.put(&rules);
    let applied = install(&client, Profile::Default, &[]).await.expect("all versions are read");
    assert!(applied.foreign.contains(&"destinationrules.networking.istio.io".to_owned()), "{applied:?}");

    server.put(&definition("authorizationpolicies", "v1beta1"));
    let refusal = install(&client, Profile::Default, &[]).await.expect_err("it is too old").to_string();
    assert!(refusal.contains("has no version v1; upgrade it"), "{refusal}");
}

#[tokio::test]
async fn users_policies_outlive_an_installation_unless_they_are_purged() {
    let (server, client) = cluster().await;
    install(&client, Profile::Default, &[]).await.expect("it is installed");
    server.put(&json!({
        "apiVersion": "security.istio.io/v1", "kind": "PeerAuthentication",
        "metadata": {"name": "strict", "namespace": "shop"},
    }));
    let removal = uninstall(&client, false).await.expect("it is removed");
    assert_eq!(everything(&server), ["peerauthentications.security.istio.io"]);
    assert_eq!(removal.kept.len(), 1);
    assert!(removal.kept[0].why.contains("--purge"), "{removal:?}");
}

#[tokio::test]
async fn the_class_of_waypoints_goes_unless_it_is_somebody_elses() {
    let class = |controller: &str, part_of: &str| {
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
            "metadata": {"name": "leno-waypoint", "labels": {"app.kubernetes.io/part-of": part_of}},
            "spec": {"controllerName": controller},
        })
    };
    for (controller, part_of, kept) in [
        ("leno.mesh/waypoint-controller", "leno", 0),
        ("leno.mesh/waypoint-controller", "theirs", 1),
        ("example.com/other", "leno", 1),
    ] {
        let (server, client) = cluster().await;
        install(&client, Profile::Default, &[]).await.expect("it is installed");
        server.put(&class(controller, part_of));
        let removal = uninstall(&client, false).await.expect("it is removed");
        assert_eq!(removal.kept.len(), kept, "{removal:?}");
        assert_eq!(removal.removed.contains(&"GatewayClass leno-waypoint".to_owned()), kept == 0, "{removal:?}");
    }
}

/// What stays with its users says that nobody serves it any more, and what other controllers said stays.
#[tokio::test]
async fn no_object_that_stays_says_that_it_is_served() {
    let (server, client) = cluster().await;
    install(&client, Profile::Default, &[]).await.expect("it is installed");
    let yes = |kind: &str| {
        json!({
            "type": kind, "status": "True", "reason": kind, "message": "so it is", "observedGeneration": 3,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    };
    let gateway = |name: &str, class: &str| {
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"name": name, "namespace": "shop"},
            "spec": {"gatewayClassName": class},
            "status": {
                "addresses": [{"type": "Hostname", "value": "waypoint.shop.svc.cluster.local"}],
                "conditions": [yes("Accepted"), yes("Programmed"), yes("example.com/Seen")],
                "listeners": [{"name": "mesh", "attachedRoutes": 1, "conditions": [yes("Programmed")]}],
            },
        })
    };
    for (name, controller) in [("leno-waypoint", "leno.mesh/waypoint-controller"), ("nginx", "example.com/nginx")] {
        server.put(&json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
            "metadata": {"name": name, "labels": {"app.kubernetes.io/part-of": "leno"}},
            "spec": {"controllerName": controller}, "status": {"conditions": [yes("Accepted")]},
        }));
    }
    for (name, class) in [("ours", "leno-waypoint"), ("alias", "istio-waypoint"), ("theirs", "nginx")] {
        server.put(&gateway(name, class));
    }
    let parent = |controller: &str| json!({"parentRef": {"name": "web"}, "controllerName": controller, "conditions": [yes("Accepted")]});
    server.put(&json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": {"name": "web", "namespace": "shop"},
        "status": {"parents": [parent("example.com/nginx"), parent("leno.mesh/waypoint-controller")]},
    }));
    server.put(&json!({
        "apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy", "metadata": {"name": "web", "namespace": "shop"},
        "status": {"conditions": [yes("WaypointAccepted"), yes(leno_kubernetes::CONDITION)]},
    }));
    uninstall(&client, false).await.expect("it is removed");

    let get = |version: &str, plural: &str, namespace: &str, name: &str| {
        server.get(version, plural, namespace, name).expect("it stays")["status"].clone()
    };
    let api = "gateway.networking.k8s.io/v1";
    for name in ["ours", "alias"] {
        let status = get(api, "gateways", "shop", name);
        assert_eq!((&status["addresses"], &status["listeners"]), (&json!([]), &json!([])), "{name}");
        let conditions = status["conditions"].as_array().expect("conditions");
        let words: Vec<_> = conditions.iter().map(|it| [&it["type"], &it["status"], &it["reason"]]).collect();
        let (accepted, programmed, seen) = (json!("Accepted"), json!("Programmed"), json!("example.com/Seen"));
        let (unknown, pending, is) = (json!("Unknown"), json!("Pending"), json!("True"));
        let expected = [[&accepted, &unknown, &pending], [&programmed, &unknown, &pending], [&seen, &is, &seen]];
        assert_eq!(words, expected, "{name}");
        assert_ne!(conditions[1]["lastTransitionTime"], "2026-01-01T00:00:00Z");
    }
    assert_eq!(get(api, "gateways", "shop", "theirs"), gateway("theirs", "nginx")["status"]);
    assert_eq!(get(api, "gatewayclasses", "", "nginx"), json!({"conditions": [yes("Accepted")]}));
    assert_eq!(get(api, "httproutes", "shop", "web"), json!({"parents": [parent("example.com/nginx")]}));
    let policy = get("security.istio.io/v1", "authorizationpolicies", "shop", "web");
    assert_eq!(policy, json!({"conditions": [yes("WaypointAccepted")]}));
}

/// It keeps nothing else from going, and is told.
#[tokio::test]
async fn a_status_that_can_not_be_changed_is_named() {
    let (server, client) = cluster().await;
    install(&client, Profile::Default, &[]).await.expect("it is installed");
    server.put(&json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": {"name": "web", "namespace": "shop"},
        "status": {"parents": [{"parentRef": {"name": "web"}, "controllerName": "leno.mesh/waypoint-controller"}]},
    }));
    server.forbid("/apis/gateway.networking.k8s.io/v1/namespaces/shop/httproutes/web/status");
    let removal = uninstall(&client, false).await.expect("it is removed");
    let kept = removal.kept.iter().find(|kept| kept.what == "status of HTTPRoute shop/web");
    assert!(kept.is_some_and(|kept| kept.why.contains("could not be changed")), "{removal:?}");
}

#[tokio::test]
async fn what_was_chosen_is_not_forgotten_by_another_install() {
    let (_server, client) = cluster().await;
    let record = |sets: &[&str]| {
        let mut values = Values::of(Profile::Default).expect("a chart");
        for set in ["namespace.create=true"].iter().chain(sets) {
            values.set(set).expect("a value");
        }
        Record::of(Profile::Default, &values).expect("a record")
    };
    let (plain, two) = (record(&[]), record(&["control.replicas=2"]));
    refuse_other_choices(&client, NAMESPACE, &plain).await.expect("nothing is installed");
    install(&client, Profile::Default, &["control.replicas=2"]).await.expect("it is installed");
    refuse_other_choices(&client, NAMESPACE, &two).await.expect("the same again");
    let refusal = refuse_other_choices(&client, NAMESPACE, &plain).await.expect_err("others").to_string();
    assert!(refusal.contains("`leno upgrade -n leno-system` keeps these"), "{refusal}");
}

#[tokio::test]
async fn a_removal_that_was_cut_off_has_to_come_to_its_end() {
    let (server, client) = cluster().await;
    install(&client, Profile::Default, &[]).await.expect("it is installed");
    // As far as a removal is when the agents begin to go.
    remove::announce(&client, NAMESPACE).await.expect("it is noted");
    assert!(is_ending(&client, NAMESPACE).await.expect("an answer"));
    let refusal = install(&client, Profile::Default, &[]).await.expect_err("half of it is gone").to_string();
    assert!(refusal.contains("run `leno uninstall -n leno-system` once more"), "{refusal}");
    uninstall(&client, false).await.expect("it is removed");
    assert!(everything(&server).is_empty());
    install(&client, Profile::Default, &[]).await.expect("it is installed again");
}

#[tokio::test]
async fn an_installation_whose_binding_is_gone_is_found_by_its_parts() {
    let (server, client) = cluster().await;
    install(&client, Profile::Default, &[]).await.expect("it is installed");
    let bindings = ("rbac.authorization.k8s.io/v1", "clusterrolebindings");
    server.delete(bindings.0, bindings.1, "", "leno-control");
    assert_eq!(installer(&client).await.expect("an answer"), Some((NAMESPACE.to_owned(), Installer::Leno)));
    server.delete("apps/v1", "deployments", NAMESPACE, "leno-control");
    assert_eq!(installer(&client).await.expect("an answer"), Some((NAMESPACE.to_owned(), Installer::Leno)));
    install(&client, Profile::Default, &[]).await.expect("what is missing is put back");
    assert!(names(&server, bindings.0, bindings.1).contains(&"leno-control".to_owned()));
}

#[tokio::test]
async fn namespaces_that_stay_enrolled_are_named() {
    let (server, client) = cluster().await;
    install(&client, Profile::Default, &[]).await.expect("it is installed");
    for (name, mode) in [("shop", "ambient"), ("plain", "none"), ("web", "ambient")] {
        server.put(&json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": name, "labels": {"istio.io/dataplane-mode": mode}},
        }));
    }
    let removal = uninstall(&client, false).await.expect("it is removed");
    assert_eq!(removal.kept.len(), 1, "{removal:?}");
    assert_eq!(removal.kept[0].what, "label istio.io/dataplane-mode=ambient of namespaces shop, web");
    assert!(removal.kept[0].why.contains("kubectl label namespace shop web"), "{removal:?}");
}

#[tokio::test]
async fn a_namespace_with_something_of_somebody_elses_stays() {
    let (server, client) = cluster().await;
    install(&client, Profile::Default, &[]).await.expect("it is installed");
    server.put(&json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "cacerts", "namespace": NAMESPACE}}));
    let removal = uninstall(&client, false).await.expect("it is removed");
    assert_eq!(names(&server, "v1", "namespaces"), [NAMESPACE]);
    assert!(removal.kept[0].why.contains("Secret cacerts"), "{removal:?}");
}

#[tokio::test]
async fn a_namespace_that_was_there_before_outlives_an_installation() {
    let (server, client) = cluster().await;
    server.put(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}));
    // A second call finds labels of the first.
    for _ in 0..2 {
        install(&client, Profile::Default, &[]).await.expect("it is installed");
    }
    let removal = uninstall(&client, false).await.expect("it is removed");
    assert_eq!(names(&server, "v1", "namespaces"), [NAMESPACE]);
    assert!(removal.kept[0].why.contains("did not make it"), "{removal:?}");
    assert_eq!(everything(&server), [""; 0]);
}

#[tokio::test]
async fn a_namespace_that_is_ending_is_named_instead_of_a_right() {
    let refused = |message: &str| leno_kubernetes::Error::Refused {
        asked: "PATCH /api/v1/namespaces/leno-system/serviceaccounts/leno-agent".to_owned(),
        status: http::StatusCode::FORBIDDEN,
        message: message.to_owned(),
        retry_after: None,
    };
    let ending = "serviceaccounts \"leno-agent\" is forbidden: unable to create new content in namespace leno-system because it is being terminated";
    let error = error::doing("applying ServiceAccount leno-agent")(refused(ending)).to_string();
    assert!(error.contains("an earlier removal is under way") && !error.contains("administrator"), "{error}");
    let error = error::doing("applying ServiceAccount leno-agent")(refused("no right")).to_string();
    assert!(error.contains("administrator"), "{error}");
}

#[tokio::test]
async fn another_mesh_keeps_its_part_or_goes() {
    let (server, client) = cluster().await;
    server.put(&json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"name": "istio-cni-node", "namespace": "istio-system", "labels": {"k8s-app": "istio-cni-node"}},
    }));
    let refusal = install(&client, Profile::Default, &[]).await.expect_err("two agents").to_string();
    assert!(refusal.contains("Istio's CNI agent runs in istio-system"), "{refusal}");
    assert!(refusal.contains("--set agent.enabled=false"), "{refusal}");
    assert_eq!(names(&server, "apps/v1", "deployments"), [""; 0], "nothing was changed");
    install(&client, Profile::Default, &["agent.enabled=false"]).await.expect("each has its part");
}

#[tokio::test]
async fn what_is_helms_is_left_to_helm() {
    let (server, client) = cluster().await;
    server.put(&json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "leno-control", "labels": {"app.kubernetes.io/managed-by": "Helm"}},
        "subjects": [{"kind": "ServiceAccount", "name": "leno-control", "namespace": NAMESPACE}],
    }));
    let installing = install(&client, Profile::Default, &[]).await.expect_err("it is Helm's").to_string();
    assert!(installing.contains("helm upgrade"), "{installing}");
    let removing = uninstall(&client, false).await.expect_err("it is Helm's").to_string();
    assert!(removing.contains("helm uninstall"), "{removing}");
}

#[tokio::test]
async fn a_right_that_is_missing_is_named() {
    let (server, client) = cluster().await;
    server.forbid("/apis/apps/v1/namespaces/leno-system/daemonsets");
    let refusal = install(&client, Profile::Default, &[]).await.expect_err("it is refused").to_string();
    assert!(refusal.starts_with("applying DaemonSet leno-agent: "), "{refusal}");
    assert!(refusal.contains("cluster administrator"), "{refusal}");
}
