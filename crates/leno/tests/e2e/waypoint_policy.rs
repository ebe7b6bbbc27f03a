//! Policies about requests on a stage, with curl: enforced at the waypoint, and by the pods' node proxies where there is none.

use crate::shop::{GATE, NAMESPACE};
use crate::stage::{Ran, Stage, eventually, run, skip};

const MESH: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: shop}
spec: {nodeName: node-1, serviceAccountName: client, containers: [{name: c, command: [sleep, infinity]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: stranger, namespace: shop}
spec: {nodeName: node-1, serviceAccountName: stranger, containers: [{name: c, command: [sleep, infinity]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec:
  nodeName: node-2
  serviceAccountName: web
  containers:
  - name: nginx
    command:
    - bash
    - -c
    - |
      d=$(mktemp -d)
      cat > $d/conf <<'EOF'
      user root; worker_processes 1; error_log stderr; pid nginx.pid; events {}
      http { access_log off; server { listen 8080; root .; location / { return 200 "served $request_uri\n"; } } }
      EOF
      exec nginx -e stderr -p $d -c $d/conf -g 'daemon off;'
"#;

fn policy(name: &str, spec: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: {name}, namespace: shop}}\n\
         spec:\n  targetRefs: [{{kind: Service, group: '', name: web}}]\n  {}\n",
        spec.trim_start().replace('\n', "\n  ")
    )
}

/// The answer's status and body.
fn answer(stage: &Stage, pod: &str, what: &str) -> Ran {
    stage.sh(pod, &format!("curl -sS -m 20 --path-as-is -w '%{{http_code}}' {what}"))
}

/// Asserts what becomes of requests once the edit is in force.
fn eventually_answers(stage: &Stage, rows: &[(&str, &str, &str)]) {
    for (pod, what, expected) in rows {
        eventually(&format!("{pod}: {what}: {expected}"), || {
            let ran = answer(stage, pod, what);
            if ran.stdout.ends_with(expected) { Ok(()) } else { Err(format!("{ran:?}")) }
        });
    }
}

const READ_ONLY: &str = "action: ALLOW
rules:
- from: [{source: {principals: ['cluster.local/ns/shop/sa/client']}}]
  to: [{operation: {methods: [GET], paths: ['/open/*']}}]
- when: [{key: 'request.headers[x-role]', values: [admin]}]";

#[test]
fn policies_about_requests_hold_with_a_waypoint_and_without() {
    if skip("policies_about_requests_hold_with_a_waypoint_and_without", &["nginx", "curl"]) {
        return;
    }
    let stage =
        Stage::up(&[("namespace.yaml", NAMESPACE), ("gate.yaml", GATE), ("mesh.yaml", MESH)], &["--nodes", "2"]);
    assert_eq!(answer(&stage, "shop/stranger", "http://web/any").ok().stdout, "served /any\n200");

    stage.write("policy.yaml", &policy("read-only", READ_ONLY));
    eventually_answers(
        &stage,
        &[
            ("shop/stranger", "http://web/open/a", "403"),
            ("shop/client", "http://web/open/a", "served /open/a\n200"),
            ("shop/client", "-X POST http://web/open/a", "403"),
            ("shop/client", "http://web/closed", "403"),
            ("shop/client", "-X DELETE -H 'x-role: admin' http://web/closed", "200"),
            // What is judged is what the program is asked for.
            ("shop/client", "http://web/open/../closed", "403"),
            ("shop/client", "http://web/closed/../open/a", "served /open/a\n200"),
            ("shop/client", "http://web/open/%2e%2e/closed", "403"),
        ],
    );
    let refused = answer(&stage, "shop/stranger", "http://web/open/a").ok().stdout;
    assert!(refused.contains("RBAC: access denied"), "{refused}");
    stage.told(&["logs", "shop/gate"], |log| log.contains("sa/stranger") && log.contains("read-only"));

    // Asked beforehand, the answer is the same.
    let explain = |method: &str, path: &str| {
        run(stage.command("explain").args(["shop/client", "shop/web:80", "--method", method, "--path", path])).stdout
    };
    let (closed, open) = (explain("GET", "/closed"), explain("GET", "/open/a"));
    assert!(closed.contains("denied") && closed.contains("read-only"), "{closed}");
    assert!(!open.contains("denied") && open.contains("read-only"), "{open}");

    // A DENY policy wins; one on trial, and one that audits, refuse nothing and are logged.
    let trial = policy("trial", "action: DENY\nrules: [{to: [{operation: {paths: ['/open/tried']}}]}]")
        .replace("namespace: shop}", "namespace: shop, annotations: {istio.io/dry-run: 'true'}}");
    let audit = policy("audit", "action: AUDIT\nrules: [{to: [{operation: {paths: ['/open/audited']}}]}]");
    let deny = policy("deny", "action: DENY\nrules: [{to: [{operation: {paths: ['/open/secret*']}}]}]");
    stage.write("policy.yaml", &[policy("read-only", READ_ONLY), trial, audit, deny].join("---\n"));
    eventually_answers(
        &stage,
        &[
            ("shop/client", "-H 'x-role: admin' http://web/open/secrets", "403"),
            ("shop/client", "http://web/open/tried", "200"),
            ("shop/client", "http://web/open/audited", "200"),
        ],
    );
    eventually("the two are logged", || {
        let log = run(stage.command("logs").arg("shop/gate")).ok().stdout;
        let line = |path: &str, policy: &str| {
            log.lines().any(|line| {
                line.contains(path) && line.split("dry_run").nth(1).is_some_and(|told| told.contains(policy))
            })
        };
        if line("/open/tried", "trial") && line("/open/audited", "audit") { Ok(()) } else { Err(log) }
    });

    // Without a waypoint nobody sees requests: what was allowed by what they say is refused, and nothing is served to strangers.
    stage.write("policy.yaml", &policy("read-only", READ_ONLY));
    stage.remove("gate.yaml");
    stage.write("namespace.yaml", &NAMESPACE.replace(", istio.io/use-waypoint: gate", ""));
    stage.wait("the waypoint is gone", |ps| {
        let pods = ps["pods"].as_array()?;
        pods.iter().all(|pod| !pod["name"].as_str().unwrap_or_default().starts_with("gate-")).then_some(())
    });
    for pod in ["shop/client", "shop/stranger"] {
        eventually("no request passes", || {
            let ran = answer(&stage, pod, "http://web/open/a");
            let told = stage.node_log("node-2").contains("stands in for the AuthorizationPolicies of Service shop/web");
            if ran.code != 0 && told { Ok(()) } else { Err(format!("{ran:?} {told}")) }
        });
    }
    stage.remove("policy.yaml");
    eventually_answers(&stage, &[("shop/stranger", "http://web/any", "served /any\n200")]);
}
