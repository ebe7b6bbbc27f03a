//! AuthorizationPolicy and PeerAuthentication, as their author means them.

use leno_e2e::{Namespace, Pod};

use crate::matrix::Server;
use crate::mesh::{AMBIENT, Stand};
use crate::stand::{self, comes_true};

pub(crate) const STRICT: &str = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: strict}\nspec: {mtls: {mode: STRICT}}\n";

pub(crate) fn decide(stand: &Stand) {
    let cluster = &stand.cluster;
    let (here, there) = stand::two_nodes(cluster);
    let inside = Namespace::new(cluster, "e2e-policy", &[AMBIENT]).unwrap();
    let outside = Namespace::new(cluster, "e2e-stranger", &[]).unwrap();
    let server = Server::new(Pod::new("server", &here));
    inside.apply(&server.services()).unwrap();
    inside.start(&[server.pod.clone(), Pod::new("near", &here), Pod::new("far", &there)]).unwrap();
    outside.start(&[Pod::new("near", &here), Pod::new("far", &there)]).unwrap();
    let urls = server.urls(&inside);
    for pod in ["near", "far"] {
        server.await_known(&inside, pod, &urls);
        server.await_known(&outside, pod, &urls);
    }

    inside.apply(STRICT).unwrap();
    for pod in ["near", "far"] {
        comes_true("a stranger is refused under STRICT by every way", || reached(&outside, pod, &urls).is_empty());
        assert_eq!(reached(&inside, pod, &urls), urls, "STRICT lets {pod}, a member of the mesh, in");
    }

    inside.apply(DENY_HTTP).unwrap();
    let (http, others): (Vec<_>, Vec<_>) = urls.iter().cloned().partition(|url| url.contains(":8080"));
    for pod in ["near", "far"] {
        comes_true("a denied member is refused", || reached(&inside, pod, &http).is_empty());
        assert_eq!(reached(&inside, pod, &others), others, "the other ports stay open to {pod}");
    }
    inside.kubectl().run(&["delete", "authorizationpolicy", "no-http", "--namespace", inside.name()]).unwrap();
    for pod in ["near", "far"] {
        comes_true("a policy that is deleted denies no more", || reached(&inside, pod, &urls) == urls);
    }

    // Only the other namespace's members: identities decide, not addresses.
    let other = Namespace::new(cluster, "e2e-other", &[AMBIENT]).unwrap();
    other.start(&[Pod::new("near", &here), Pod::new("far", &there)]).unwrap();
    inside.apply(&only_from(other.name())).unwrap();
    for pod in ["near", "far"] {
        comes_true("who is not allowed is refused", || reached(&inside, pod, &urls).is_empty());
        comes_true("who is allowed is let in", || reached(&other, pod, &urls) == urls);
    }
}

/// Denies everybody one port.
const DENY_HTTP: &str = "apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: no-http}
spec:
  action: DENY
  selector: {matchLabels: {app: server}}
  rules: [{to: [{operation: {ports: [\"8080\"]}}]}]
";

/// Allows the workloads of one namespace, and nobody else.
pub(crate) fn only_from(namespace: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {{name: only-from}}
spec:
  action: ALLOW
  selector: {{matchLabels: {{app: server}}}}
  rules: [{{from: [{{source: {{principals: [\"cluster.local/ns/{namespace}/sa/default\"]}}}}]}}]
"
    )
}

/// Which of these addresses answer.
fn reached(namespace: &Namespace, pod: &str, urls: &[String]) -> Vec<String> {
    let answers = namespace.ask(pod, urls).unwrap();
    answers.into_iter().filter(|answer| answer.outcome.is_ok()).map(|answer| answer.url).collect()
}
