use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use leno_control::translate::Options;
use leno_control::{Authenticator as _, Controller, roots};
use leno_telemetry::Readiness;
use leno_testkit::api_server::ApiServer;
use leno_tls::CaOptions;
use serde_json::json;

use super::*;
use crate::{
    Candidate, Client, ClusterAuthority, ClusterFeed, GatewayKeeper, StatusWriter, TokenReviews, WaypointTemplate,
    token_claims,
};

const NAMESPACE_OF_CONTROL: &str = "leno-system";

/// A request as RBAC sees it: group, resource, verb, namespace, name.
fn attributes(request: &str) -> (String, String, String, Option<String>, Option<String>) {
    let (method, target) = request.split_once(' ').expect("method and path");
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (group, rest) = match &parts[..] {
        ["api", "v1", rest @ ..] => ("", rest),
        ["apis", group, _, rest @ ..] => (*group, rest),
        other => panic!("{other:?}"),
    };
    let (namespace, rest) = match rest {
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (Some((*namespace).to_owned()), rest),
        rest => (None, rest),
    };
    let (resource, mut name) = match rest {
        [resource] => ((*resource).to_owned(), None),
        [resource, name] => ((*resource).to_owned(), Some((*name).to_owned())),
        [resource, name, sub] => (format!("{resource}/{sub}"), Some((*name).to_owned())),
        other => panic!("{other:?}"),
    };
    // A list or watch of one name counts as being about that name.
    let by_name = query.split('&').find_map(|pair| pair.strip_prefix("fieldSelector=metadata.name%3D"));
    name = name.or(by_name.map(str::to_owned));
    let verb = match method {
        "GET" if query.contains("watch=1") => "watch",
        "GET" if rest.len() == 1 => "list",
        "GET" => "get",
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        other => panic!("{other}"),
    };
    (group.to_owned(), resource, verb.to_owned(), namespace, name)
}

/// The rule that allows a request.
fn allowing(request: &str) -> Option<(&'static str, usize)> {
    let (group, resource, verb, namespace, name) = attributes(request);
    let matches = |rule: &Rule| {
        rule.group == group
            && rule.resources.contains(&resource.as_str())
            && rule.verbs.contains(&verb.as_str())
            && (rule.names.is_empty() || name.as_deref().is_some_and(|name| rule.names.contains(&name)))
    };
    let own = namespace.as_deref() == Some(NAMESPACE_OF_CONTROL);
    let in_namespace = NAMESPACE.iter().position(|rule| own && matches(rule)).map(|at| ("namespace", at));
    let in_cluster = || CLUSTER.iter().position(matches).map(|at| ("cluster", at));
    in_namespace.or_else(in_cluster).or_else(|| WAYPOINTS.iter().position(matches).map(|at| ("waypoints", at)))
}

/// A control plane's life at an API server: it starts, a person makes mistakes, roots change, it ends.
#[tokio::test]
async fn what_a_control_plane_asks_for_is_allowed_and_nothing_else_is() {
    let server = ApiServer::start().await;
    server.put(&json!({
        "apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
        "metadata": {"name": "p", "namespace": "shop"},
        "spec": {"selector": {"matchLabels": {"app": "nobody"}}},
    }));
    server.put(&json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"name": "gate", "namespace": "shop", "uid": "u"},
        "spec": {"gatewayClassName": "leno-waypoint", "listeners": [{"name": "mesh", "port": 15008, "protocol": "HBONE"}]},
    }));
    server.put(&json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"parentRefs": [{"group": "", "kind": "Service", "name": "gone"}]},
    }));
    let client = Client::anonymous(&server.url()).expect("a URL");
    let file = std::env::temp_dir().join(format!("leno-rbac-template-{}", std::process::id()));
    let part = |version: &str, kind: &str| {
        format!("- {{apiVersion: {version}, kind: {kind}, metadata: {{name: '@NAME@'}}}}\n")
    };
    let parts = [
        part("v1", "Service"),
        part("apps/v1", "Deployment"),
        part("policy/v1", "PodDisruptionBudget"),
        part("networking.k8s.io/v1", "NetworkPolicy"),
    ];
    std::fs::write(&file, parts.concat()).expect("a file");
    let readiness = Readiness::default();
    let status = Arc::new(StatusWriter::default());
    let controller = Controller::telling(Options::default(), status.clone());
    let feed = ClusterFeed::announce(client.clone(), controller.clone(), &readiness);
    let ready = readiness.task("authority");
    let kept =
        ClusterAuthority::open(client.clone(), NAMESPACE_OF_CONTROL, "cluster.local", CaOptions::default(), ready);
    let kept = kept.await.expect("a new authority");
    let reviews = TokenReviews::new(client.clone());
    let plane = leno_control::ControlPlane::new(
        controller.clone(),
        Arc::new(TokenReviews::new(client.clone())),
        Arc::new(leno_control::CertificatePolicy::new(controller.clone(), kept.authority().clone())),
    );
    let candidate = Candidate::new(client.clone(), NAMESPACE_OF_CONTROL, "a");
    let leads = candidate.leads();
    let template = WaypointTemplate { file: file.clone(), roots: kept.authority().trust() };
    let gateways = GatewayKeeper::new(client.clone(), controller.clone(), Some(template));
    let life = async {
        let all = async {
            tokio::join!(
                feed.run(),
                candidate.run(),
                kept.run(leads.clone()),
                status.run(&client, &controller, leads),
                controller.run(),
                gateways.run(candidate.leads()),
                roots::follow(plane, kept.authority().clone(), Duration::ZERO),
            )
        };
        let events = async {
            server.requested("POST /api/v1/namespaces/shop/events").await;
            server.requested("PATCH /apis/gateway.networking.k8s.io/v1/namespaces/shop/gateways/gate/status").await;
            server.requested("PATCH /apis/gateway.networking.k8s.io/v1/namespaces/shop/httproutes/web/status").await;
            server.requested("PATCH /apis/security.istio.io/v1/namespaces/shop/authorizationpolicies/p/status").await;
            server.requested("POST /api/v1/namespaces/leno-system/configmaps").await;
            // Somebody breaks the ConfigMap, and a new intermediate is made.
            server.put(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "leno-ca-root", "namespace": "leno-system"}, "data": {}}));
            server.requested("PUT /api/v1/namespaces/leno-system/configmaps/leno-ca-root").await;
            kept.authority().rotate_intermediate().expect("it has its root");
            server.requested("PUT /api/v1/namespaces/leno-system/secrets/leno-ca").await;
            server.requested("PUT /apis/coordination.k8s.io/v1/namespaces/leno-system/leases/leno-control").await;
            let claims = json!({"aud": ["istio-ca"], "exp": 4_000_000_000_u64});
            let _ = reviews.authenticate(&token_claims::token(&claims), "").await;
            // List and watch of one name are one permission for clients that look for a name.
        };
        tokio::select! {
            _ = all => {}
            () = events => {}
        }
    };
    tokio::time::timeout(Duration::from_secs(120), life).await.expect("all of it happens");
    candidate.resign().await;
    let _ = std::fs::remove_file(file);
    let mut used = BTreeSet::new();
    for request in server.requests() {
        let rule = allowing(&request);
        assert!(rule.is_some(), "no rule allows {request}");
        used.extend(rule);
    }
    let lists = [("cluster", CLUSTER), ("namespace", NAMESPACE), ("waypoints", WAYPOINTS)];
    let all = lists.into_iter().flat_map(|(list, rules)| (0..rules.len()).map(move |at| (list, at)));
    let unused: Vec<_> = all.filter(|rule| !used.contains(rule)).collect();
    assert!(unused.is_empty(), "nothing needs {unused:?}");
}
