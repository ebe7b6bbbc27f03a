//! External authorisers on a stage: real gRPC and HTTP servers in the mesh are asked by the waypoint, and curl sees what becomes of
//! it.

use crate::shop::{GATE, SHOP};
use crate::stage::{Ran, Stage, eventually, run, skip};

const MESH: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: opa, namespace: shop, labels: {istio.io/use-waypoint: none}}
spec: {selector: {app: opa}, ports: [{name: grpc, port: 9191}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec:
  nodeName: node-2
  containers:
  - name: nginx
    readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1, failureThreshold: 60}
    command:
    - bash
    - -c
    - |
      d=$(mktemp -d)
      cat > $d/conf <<'EOF'
      user root; worker_processes 1; error_log stderr; pid nginx.pid; events {}
      http {
        access_log off;
        server { listen 8080; location / { return 200 "$request_uri user=$http_x_user pass=$http_x_pass\n"; } }
      }
      EOF
      exec nginx -e stderr -p $d -c $d/conf -g 'daemon off;'
"#;

/// Lets pass who says so in a header, and takes that header away. Messages are put together by hand (protobuf's wire format),
/// so nothing has to be generated.
const AUTHORIZER: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: opa, namespace: shop, labels: {app: opa}}
spec:
  nodeName: node-2
  containers:
  - name: opa
    readinessProbe: {tcpSocket: {port: 9191}, periodSeconds: 1, failureThreshold: 60}
    command:
    - /usr/bin/python3
    - -c
    - |
      import grpc
      from concurrent import futures
      def varint(n): return bytes([n]) if n < 128 else bytes([n & 127 | 128]) + varint(n >> 7)
      def part(field, data): return bytes([field << 3 | 2]) + varint(len(data)) + data
      def number(field, n): return bytes([field << 3]) + varint(n)
      def header(name, value): return part(1, part(1, name) + part(2, value))
      allowed = part(1, b"") + part(3, part(2, header(b"x-user", b"ann")) + part(5, b"x-pass") + part(6, header(b"x-seen", b"1")))
      denied = part(1, number(1, 7)) + part(2, part(1, number(1, 418)) + part(2, header(b"x-why", b"no pass")) + part(3, b"not today\n"))
      principal = part(4, b"spiffe://cluster.local/ns/shop/sa/default")
      def check(asked, context):
          said = part(1, b"x-pass") + part(2, b"yes") in asked or part(11, b"open sesame") in asked
          return allowed if said and principal in asked else denied
      class Handler(grpc.GenericRpcHandler):
          def service(self, call):
              if call.method == "/envoy.service.auth.v3.Authorization/Check":
                  return grpc.unary_unary_rpc_method_handler(check)
      server = grpc.server(futures.ThreadPoolExecutor(2), handlers=[Handler()])
      server.add_insecure_port("[::]:9191")
      server.start()
      server.wait_for_termination()
"#;

const POLICIES: &str = r#"
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data:
  mesh: |
    extensionProviders:
    - name: opa
      envoyExtAuthzGrpc: {service: opa.shop.svc.cluster.local, port: 9191, timeout: 5s, failOpen: FAIL}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: ask, namespace: shop}
spec:
  targetRefs: [{kind: Service, group: '', name: web}]
  action: CUSTOM
  provider: {name: opa}
  rules: [{to: [{operation: {paths: ['/asked*']}}]}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: lost, namespace: shop}
spec:
  targetRefs: [{kind: Service, group: '', name: web}]
  action: CUSTOM
  provider: {name: nobody}
  rules: [{to: [{operation: {paths: ['/lost']}}]}]
"#;

/// A program that sends back what it is sent, and an authoriser that is told of it.
const BODIES: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: box, namespace: shop}
spec: {selector: {app: box}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: box, namespace: shop, labels: {app: box}}
spec:
  nodeName: node-2
  containers:
  - name: box
    readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1, failureThreshold: 60}
    command:
    - /usr/bin/python3
    - -c
    - |
      import http.server
      class Echo(http.server.BaseHTTPRequestHandler):
          protocol_version = "HTTP/1.1"
          def do_POST(self):
              body = self.rfile.read(int(self.headers["content-length"]))
              self.send_response(200)
              self.send_header("content-length", str(len(body)))
              self.end_headers()
              self.wfile.write(body)
      http.server.ThreadingHTTPServer(("", 8080), Echo).serve_forever()
---
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data:
  mesh: |
    extensionProviders:
    - name: opa
      envoyExtAuthzGrpc:
        service: opa.shop.svc.cluster.local
        port: 9191
        timeout: 5s
        includeRequestBodyInCheck: {maxRequestBytes: 1024}
"#;

/// An authoriser that speaks HTTP. It says what it was asked in a header.
const GATEKEEPER: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: keeper, namespace: shop, labels: {istio.io/use-waypoint: none}}
spec: {selector: {app: keeper}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: keeper, namespace: shop, labels: {app: keeper}}
spec:
  nodeName: node-1
  containers:
  - name: keeper
    readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1, failureThreshold: 60}
    command:
    - /usr/bin/python3
    - -c
    - |
      import http.server
      class Keeper(http.server.BaseHTTPRequestHandler):
          protocol_version = "HTTP/1.1"
          def answer(self):
              names = " ".join(sorted(name.lower() for name in self.headers))
              given = self.headers.get("x-pass")
              body = b"" if given == "yes" else b"log in\n"
              self.send_response(200 if given == "yes" else 500 if given == "break" else 302)
              self.send_header("x-asked", self.command + " " + self.path + " " + self.headers["host"] + " " + names)
              self.send_header("x-user", "ann")
              self.send_header("location", "http://login/")
              self.send_header("content-length", str(len(body)))
              self.end_headers()
              self.wfile.write(body)
          do_GET = do_POST = answer
      http.server.ThreadingHTTPServer(("", 8080), Keeper).serve_forever()
---
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data:
  mesh: |
    extensionProviders:
    - name: keeper
      envoyExtAuthzHttp:
        service: keeper.shop.svc.cluster.local
        port: 80
        timeout: 5s
        statusOnError: "503"
        pathPrefix: /check
        includeRequestHeadersInCheck: [x-p*]
        includeAdditionalHeadersInCheck: {x-mesh: shop}
        headersToUpstreamOnAllow: [x-user]
        headersToDownstreamOnAllow: [x-asked]
    - name: second
      envoyExtAuthzHttp:
        {service: second.shop.svc.cluster.local, port: 80, timeout: 5s, includeRequestHeadersInCheck: [x-p*]}
"#;

/// A second one, at the first waypoint.
const SECOND: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: second, namespace: shop, labels: {istio.io/use-waypoint: gate}}
spec: {selector: {app: keeper}, ports: [{name: http, port: 80, targetPort: 8080}]}
"#;

/// Lets only the waypoint ask that has to.
const ASKER: &str = r#"
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: asker, namespace: shop}
spec:
  targetRefs: [{kind: Service, group: '', name: keeper}]
  action: ALLOW
  rules: [{from: [{source: {principals: [cluster.local/ns/shop/sa/gate]}}], to: [{operation: {paths: ['/check/*']}}]}]
"#;

/// A policy that has an authoriser asked about the requests to a service.
fn asks(name: &str, service: &str, provider: &str, rule: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: {name}, namespace: shop}}\nspec:\n  \
         targetRefs: [{{kind: Service, group: '', name: {service}}}]\n  \
         action: CUSTOM\n  provider: {{name: {provider}}}\n  rules: [{rule}]\n"
    )
}

const BELOW_ASKED: &str = "{to: [{operation: {paths: ['/asked*']}}]}";

fn curl(stage: &Stage, what: &str) -> Ran {
    tried(stage, what).ok()
}

/// The same while things change, when a connection may be refused.
fn tried(stage: &Stage, what: &str) -> Ran {
    stage.sh("shop/client", &format!("curl -sS -m 20 -w '%{{http_code}}' {what}"))
}

/// Waits for a line of the waypoint's log that has all of this.
fn logged(stage: &Stage, words: &[&str]) {
    eventually("a line of the log", || {
        let log = run(stage.command("logs").arg("shop/gate")).ok().stdout;
        let found = log.lines().any(|line| words.iter().all(|word| line.contains(word)));
        if found { Ok(()) } else { Err(log) }
    });
}

#[test]
fn an_authoriser_that_speaks_grpc_is_asked_at_a_waypoint() {
    let programs = ["nginx", "curl", "/usr/bin/python3"];
    if skip("an_authoriser_that_speaks_grpc_is_asked_at_a_waypoint", &programs) {
        return;
    }
    let policies = |fail_open: &str| POLICIES.replace("FAIL", fail_open);
    let files =
        [("shop.yaml", SHOP), ("mesh.yaml", MESH), ("opa.yaml", AUTHORIZER), ("policies.yaml", &policies("false"))];
    let stage = Stage::prepare(&files);
    let warned = run(stage.up_command(&["--nodes", "2"])).ok().stderr;

    let allowed = curl(&stage, "-i -H 'x-pass: yes' -H 'x-user: root' http://web/asked/a").stdout;
    assert!(allowed.ends_with("\r\n\r\n/asked/a user=ann pass=\n200"), "{allowed}");
    assert!(allowed.contains("x-seen: 1\r\n"), "{allowed}");
    let denied = curl(&stage, "-i http://web/asked/a").stdout;
    assert!(denied.contains("x-why: no pass\r\n") && denied.ends_with("\r\n\r\nnot today\n418"), "{denied}");
    assert_eq!(curl(&stage, "http://web/open").stdout, "/open user= pass=\n200", "it is not asked about that");
    logged(&stage, &["response_code=418", "UAEX", "denied by the authoriser", "of policy shop/ask"]);

    // Where nobody is to be asked, the answer is no, and the author is told.
    assert!(curl(&stage, "-H 'x-pass: yes' http://web/lost").stdout.ends_with("403"));
    let finding = warned.lines().find(|line| line.contains("AuthorizationPolicy shop/lost")).unwrap_or(&warned);
    assert!(finding.contains("what matches is DENIED") && finding.contains("no provider \"nobody\""), "{finding}");
    assert!(!warned.contains("shop/ask"), "{warned}");

    // A dead one lets nothing through that it would be asked about, unless its provider says so.
    stage.remove("opa.yaml");
    stage.wait("the authoriser is gone", |ps| {
        ps["pods"].as_array()?.iter().all(|pod| pod["name"] != "opa").then_some(())
    });
    let asked = "-H 'x-pass: yes' http://web/asked";
    assert!(curl(&stage, asked).stdout.ends_with("403"));
    assert_eq!(curl(&stage, "http://web/open").stdout, "/open user= pass=\n200");
    stage.write("policies.yaml", &policies("true"));
    eventually("failOpen is in force", || match curl(&stage, asked).stdout {
        passed if passed == "/asked user= pass=yes\n200" => Ok(()),
        other => Err(other),
    });
    logged(&stage, &["response_code=200", "fail_open=", "gave no answer"]);
}

#[test]
fn an_authoriser_reads_bodies_at_a_waypoint() {
    if skip("an_authoriser_reads_bodies_at_a_waypoint", &["nginx", "curl", "/usr/bin/python3"]) {
        return;
    }
    let stage = Stage::prepare(&[
        ("shop.yaml", SHOP),
        ("mesh.yaml", MESH),
        ("opa.yaml", AUTHORIZER),
        ("bodies.yaml", BODIES),
        ("read.yaml", &asks("read", "box", "opa", BELOW_ASKED)),
    ]);
    let warned = run(stage.up_command(&["--nodes", "2"])).ok().stderr;
    assert!(!warned.contains("shop/read"), "{warned}");

    assert_eq!(curl(&stage, "-d 'open sesame' http://box/asked").stdout, "open sesame200");
    assert_eq!(curl(&stage, "-d 'open barley' http://box/asked").stdout, "not today\n418");
    let long = "-d $(printf 'x%.0s' $(seq 1025))";
    let refused = curl(&stage, &format!("{long} http://box/asked")).stdout;
    assert!(refused.contains("maxRequestBytes") && refused.ends_with("413"), "{refused}");
    logged(&stage, &["response_code=413", "UAEX", "longer than the 1024 bytes"]);
    let passed = curl(&stage, &format!("{long} http://box/open")).stdout;
    assert_eq!((passed.len(), passed.ends_with("xx200")), (1028, true), "nobody reads that: {passed}");

    let explained =
        run(stage.command("explain").args(["shop/client", "shop/box:80", "--method", "POST", "--path", "/asked"]));
    let said = explained.stdout;
    assert!(said.contains("told up to 1024 bytes of its body; a longer one gets status 413"), "{said}");
}

#[test]
fn an_authoriser_that_speaks_http_is_asked_at_a_waypoint_also_through_its_own() {
    let programs = ["nginx", "curl", "/usr/bin/python3"];
    if skip("an_authoriser_that_speaks_http_is_asked_at_a_waypoint_also_through_its_own", &programs) {
        return;
    }
    let stage = Stage::prepare(&[
        ("shop.yaml", SHOP),
        ("mesh.yaml", MESH),
        ("keeper.yaml", GATEKEEPER),
        ("ask.yaml", &asks("ask", "web", "keeper", BELOW_ASKED)),
    ]);
    let warned = run(stage.up_command(&["--nodes", "2"])).ok().stderr;
    assert!(!warned.contains("shop/ask"), "{warned}");

    let pass = "-i -H 'x-pass: yes' -H 'x-user: root' -H 'secret: s' http://web/asked/%61?b=c";
    let allowed = curl(&stage, pass).stdout;
    assert!(allowed.ends_with("\r\n\r\n/asked/a?b=c user=ann pass=yes\n200"), "{allowed}");
    let asked = "x-asked: GET /check/asked/a?b=c web content-length host x-leno-authorizer-depth x-mesh x-pass\r\n";
    assert!(allowed.contains(asked), "{allowed}");
    let denied = curl(&stage, "-i http://web/asked").stdout;
    assert!(denied.contains("location: http://login/\r\n") && denied.ends_with("\r\n\r\nlog in\n302"), "{denied}");
    logged(&stage, &["response_code=302", "UAEX", "denied by the authoriser", "of policy shop/ask"]);
    assert!(curl(&stage, "-H 'x-pass: break' http://web/asked").stdout.ends_with("503"));
    logged(&stage, &["response_code=503", "UAEX", "it answers with HTTP status 500"]);
    assert_eq!(curl(&stage, "http://web/open").stdout, "/open user= pass=\n200", "it is not asked about that");

    // Behind the waypoint that asks it, which then reaches it at once.
    let behind = |waypoint: &str| {
        GATEKEEPER.replace("istio.io/use-waypoint: none", &format!("istio.io/use-waypoint: {waypoint}"))
    };
    stage.write("keeper.yaml", &behind("gate"));
    eventually("it is behind the same waypoint", || {
        match stage.sh("shop/client", "curl -sS -m 5 http://keeper/x").stdout {
            said if said == "log in\n" => Ok(()),
            other => Err(other),
        }
    });
    assert!(curl(&stage, pass).stdout.ends_with("/asked/a?b=c user=ann pass=yes\n200"));

    // Behind another one, whose policies decide about the question.
    stage.write("door.yaml", &GATE.replace("name: gate", "name: door"));
    stage.write("asker.yaml", ASKER);
    stage.write("keeper.yaml", &behind("door"));
    eventually("it is behind another waypoint", || match tried(&stage, "http://keeper/check/x").stdout {
        said if said.starts_with("RBAC: access denied") && said.ends_with("403") => Ok(()),
        other => Err(other),
    });
    eventually("it is asked through that", || match tried(&stage, pass).stdout {
        said if said.ends_with("/asked/a?b=c user=ann pass=yes\n200") => Ok(()),
        other => Err(other),
    });
    stage.told(&["logs", "shop/door"], |log| log.contains("path=\"/check/asked/a?b=c\""));
    stage.write("asker.yaml", &ASKER.replace("sa/gate", "sa/nobody"));
    eventually("what its waypoint refuses is a denial", || match tried(&stage, pass).stdout {
        said if said.ends_with("RBAC: access denied403") => Ok(()),
        other => Err(other),
    });

    stage.write("asker.yaml", &ASKER.replace("rules: [{from", "rules: [{}, {from"));
    eventually("everybody may ask", || match tried(&stage, pass).stdout {
        said if said.ends_with("user=ann pass=yes\n200") => Ok(()),
        other => Err(other),
    });
    // Each of the two is asked about what the other is asked.
    let circle = [asks("ask-second", "keeper", "second", "{}"), asks("ask-keeper", "second", "keeper", "{}")];
    stage.write("circle.yaml", &[SECOND, &circle[0], &circle[1]].join("---\n"));
    eventually("a circle is refused", || match tried(&stage, pass).stdout {
        said if said.contains("ask in a circle") && said.ends_with("508") => Ok(()),
        other => Err(other),
    });
    logged(&stage, &["response_code=508", "UAEX", "authorisers ask in a circle"]);
}
