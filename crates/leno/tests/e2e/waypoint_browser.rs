//! A browser on a stage: what a page of one origin may ask of a service of another, by the CORS filter of its route.

use crate::shop::SHOP;
use crate::stage::{Ran, Stage, eventually, skip};

const MESH: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: app, namespace: shop}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: other, namespace: shop}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: api, namespace: shop}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8081}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: shared, namespace: shop}
spec:
  parentRefs: [{group: '', kind: Service, name: api}]
  rules:
  - filters:
    - type: CORS
      cors: {allowOrigins: ['http://app.shop'], allowMethods: [PUT], allowHeaders: [x-token], exposeHeaders: [x-left]}
    backendRefs: [{name: api, port: 80}]
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec:
  nodeName: node-2
  containers:
  - name: nginx
    command:
    - bash
    - -c
    - |
      d=$(mktemp -d); cat > $d/page.html <<'EOF'
      <!doctype html><title>a page</title><p id="said">nothing yet</p>
      <script>
        const said = text => document.getElementById("said").textContent = text;
        const [method, header] = location.search.slice(1).split(",");
        fetch("http://api.shop/item", {method, headers: header ? {[header]: "1"} : {}})
          .then(async answer => said(`${answer.status} ${await answer.text()} ${answer.headers.get("x-left")} ${answer.headers.get("x-kept")}`))
          .catch(error => said(`failed: ${error.message}`));
      </script>
      EOF
      cat > $d/conf <<'EOF'
      user root; worker_processes 1; error_log stderr; pid nginx.pid; events {}
      http {
        access_log off; types { text/html html; }
        server { listen 8080; root .; location / { try_files /page.html =404; } }
        server { listen 8081; location / { add_header x-left 3; add_header x-kept 4; return 200 "$request_method done"; } }
      }
      EOF
      exec nginx -e stderr -p $d -c $d/conf -g 'daemon off;'
"#;

/// The page after its script has run. Virtual time does not pass while a request is under way.
const BROWSER: &str = "d=$(mktemp -d); HOME=$d timeout 60 chromium-headless-shell --no-sandbox --disable-gpu \
    --disable-dev-shm-usage --no-proxy-server --user-data-dir=$d --virtual-time-budget=10000 --dump-dom";

/// What the page says once a browser has shown it.
fn shown(stage: &Stage, url: &str) -> Result<String, Ran> {
    let ran = stage.sh("shop/client", &format!("{BROWSER} '{url}'; status=$?; rm -rf $d; exit $status"));
    let said = ran.stdout.split_once("<p id=\"said\">").and_then(|(_, rest)| rest.split_once("</p>"));
    said.map(|(said, _)| said.to_owned()).ok_or(ran)
}

#[test]
fn a_browser_asks_before_a_page_reaches_another_origin() {
    if skip("a_browser_asks_before_a_page_reaches_another_origin", &["nginx", "curl", "chromium-headless-shell"]) {
        return;
    }
    let stage = Stage::up(&[("shop.yaml", SHOP), ("mesh.yaml", MESH)], &["--nodes", "2"]);
    eventually("the service answers", || {
        let ran = stage.sh("shop/client", "curl -sS -m 20 -X PUT http://api.shop/item");
        if ran.stdout == "PUT done" { Ok(()) } else { Err(format!("{ran:?}")) }
    });
    for (url, expected) in [
        // It is told the header that the filter exposes, and no other.
        ("http://app.shop/?PUT,x-token", "200 PUT done 3 null"),
        // No question comes before a simple request; its answer is kept from the page of another origin.
        ("http://app.shop/?GET", "200 GET done 3 null"),
        ("http://other.shop/?GET", "failed: Failed to fetch"),
        ("http://other.shop/?PUT,x-token", "failed: Failed to fetch"),
        ("http://app.shop/?DELETE,x-token", "failed: Failed to fetch"),
        ("http://app.shop/?PUT,x-secret", "failed: Failed to fetch"),
    ] {
        assert_eq!(shown(&stage, url).unwrap(), expected, "{url}");
    }
    // The questions of a browser, and what it sent after them: one PUT (and that of curl), no DELETE.
    let count = |log: &str, method: &str| {
        let told = |line: &&str| line.contains("path=\"/item\"") && line.contains(&format!("method=\"{method}\""));
        log.lines().filter(told).count()
    };
    let log = stage.told(&["logs", "shop/gate"], |log| {
        ["OPTIONS", "PUT", "GET"].map(|method| count(log, method)).iter().sum::<usize>() >= 8
    });
    let counts = ["OPTIONS", "PUT", "GET", "DELETE"].map(|method| count(&log, method));
    assert_eq!(counts, [4, 2, 2, 0], "{log}");
}
