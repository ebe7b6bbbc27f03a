//! Routes that lead from a Service behind one waypoint to a Service behind another one, on a stage.

use crate::shop::{GATE, SHOP};
use crate::stage::{Stage, eventually, run, skip};

/// A namespace with a waypoint of its own, and a program that a policy protects there. `direct` is a Service of the same pod
/// that has no waypoint, so that the pod itself lets connections in that have not passed one.
const BACK: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: back, labels: {istio.io/dataplane-mode: ambient}}
---
apiVersion: v1
kind: Service
metadata: {name: vault, namespace: back, labels: {istio.io/use-waypoint: door}}
spec: {selector: {app: vault}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: raw, namespace: back, labels: {istio.io/use-waypoint: door}}
spec: {selector: {app: vault}, ports: [{name: tcp, port: 81, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: direct, namespace: back}
spec: {selector: {app: vault}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: vault, namespace: back, labels: {app: vault}}
spec:
  nodeName: node-2
  containers:
  - name: files
    readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1, failureThreshold: 60}
    command: [sh, -c, 'cd $(mktemp -d) && echo gold >secret && echo soup >menu && exec python3 -m http.server 8080']
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: secrets, namespace: back}
spec:
  targetRefs: [{kind: Service, group: '', name: vault}]
  action: DENY
  rules: [{to: [{operation: {paths: ['/secret*']}}]}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: raw, namespace: back}
spec:
  targetRefs: [{kind: Service, group: '', name: raw}]
  rules: [{from: [{source: {principals: ['cluster.local/ns/shop/sa/WHO']}}]}]
---
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: shop, namespace: back}
spec:
  from:
  - {group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: shop}
  - {group: gateway.networking.k8s.io, kind: TCPRoute, namespace: shop}
  to: [{group: '', kind: Service}]
"#;

const FRONT: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}, {name: tcp, port: 81, targetPort: 8081}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: onward, namespace: shop}
spec:
  parentRefs: [{kind: Service, group: '', name: web, port: 80}]
  rules: [{backendRefs: [{name: vault, namespace: back, port: 80}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: TCPRoute
metadata: {name: onward, namespace: shop}
spec:
  parentRefs: [{kind: Service, group: '', name: web, port: 81}]
  rules: [{backendRefs: [{name: raw, namespace: back, port: 81}]}]
"#;

/// Back to where the request came from.
const CIRCLE: &str = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: again, namespace: back}
spec:
  parentRefs: [{kind: Service, group: '', name: vault}]
  rules:
  - {matches: [{path: {value: /round}}], backendRefs: [{name: web, namespace: shop, port: 80}]}
  - {backendRefs: [{name: vault, port: 80}]}
---
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: back, namespace: shop}
spec: {from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: back}], to: [{group: '', kind: Service}]}
"#;

#[test]
fn a_route_to_a_service_behind_another_waypoint_passes_that_too() {
    if skip("a_route_to_a_service_behind_another_waypoint_passes_that_too", &["curl", "python3"]) {
        return;
    }
    let door = GATE.replace("name: gate, namespace: shop", "name: door, namespace: back");
    let stage = Stage::up(
        &[("shop.yaml", SHOP), ("door.yaml", &door), ("back.yaml", BACK), ("front.yaml", FRONT)],
        &["--nodes", "2"],
    );
    let ask = |what: &str| stage.sh("shop/client", &format!("curl -sS -m 20 -w ' %{{http_code}}' {what}")).stdout;
    assert_eq!(ask("http://direct.back/secret"), "gold\n 200");
    let is_denied = |said: String| said.starts_with("RBAC: access denied") && said.ends_with(" 403");
    assert!(is_denied(ask("http://vault.back/secret")));
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        assert!(is_denied(ask(&format!("{version} http://web/secret"))));
    }
    assert_eq!(ask("http://web/menu"), "soup\n 200");
    stage.told(&["logs", "back/door"], |log| log.contains("sa/gate") && log.contains("path=\"/menu\""));
    let explained = |path: &str| {
        run(stage.command("explain").args(["shop/client", "shop/web:80", "--method", "GET", "--path", path])).stdout
    };
    let said = explained("/secret");
    assert!(said.contains("vault.back.svc.cluster.local is behind another waypoint, which is passed, too"), "{said}");

    // A connection that nobody reads: the other waypoint sees this one as its client.
    assert!(ask("http://web:81/menu").ends_with(" 000"));
    stage.write("back.yaml", &BACK.replace("sa/WHO", "sa/gate"));
    eventually("the waypoint is let in", || match ask("http://web:81/menu") {
        said if said == "soup\n 200" => Ok(()),
        other => Err(other),
    });

    stage.write("circle.yaml", CIRCLE);
    eventually("a circle ends", || match ask("http://web/round") {
        said if said.contains("lead in a circle?") && said.ends_with(" 508") => Ok(()),
        other => Err(other),
    });
    assert_eq!(ask("http://web/menu"), "soup\n 200");
}
