//! Sessions, rate limits, retries, faults and the limits of DestinationRules on a stage, with curl and gRPC's own client.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::shop::SHOP;
use crate::stage::{Stage, eventually, run, skip};

const MESH: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: hashed, namespace: shop}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: mixed, namespace: shop}
spec: {selector: {mixed: 'yes'}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: faulty, namespace: shop}
spec: {selector: {app: odd}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: flaky, namespace: shop}
spec: {selector: {app: odd}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: odd, namespace: shop}
spec: {selector: {app: odd}, ports: [{name: http, port: 80, targetPort: 8080}, {name: grpc, port: 90, targetPort: 9000}]}
---
apiVersion: v1
kind: Pod
metadata: {name: odd, namespace: shop, labels: {app: odd, mixed: 'yes'}}
spec:
  nodeName: node-2
  containers:
  - name: c
    command:
    - bash
    - -c
    - |
      exec /usr/bin/python3 -c '
      import collections, concurrent.futures, grpc, http.server, time
      class Unary(grpc.GenericRpcHandler):
          def service(self, call): return grpc.unary_unary_rpc_method_handler(lambda said, context: said)
      calls = grpc.server(concurrent.futures.ThreadPoolExecutor(4)); calls.add_generic_rpc_handlers((Unary(),))
      assert calls.add_insecure_port("0.0.0.0:9000"); calls.start()
      seen = collections.Counter()
      class Requests(http.server.BaseHTTPRequestHandler):
          protocol_version = "HTTP/1.1"
          def log_message(self, *words): pass
          def do_GET(self):
              seen[self.path] += 1
              if self.path.startswith("/slow"): time.sleep(1)
              fails = self.path.startswith("/fail") or self.path.startswith("/twice") and seen[self.path] < 3
              text = f"odd {seen[self.path]}\n".encode()
              self.send_response(503 if fails else 200)
              self.send_header("content-length", str(len(text))); self.end_headers(); self.wfile.write(text)
      http.server.ThreadingHTTPServer(("", 8080), Requests).serve_forever()'
"#;

/// A server that says its name, whatever it is asked.
const SERVER: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: NAME, namespace: shop, labels: {app: web, mixed: 'LAST'}}
spec:
  nodeName: node-2
  containers:
  - name: nginx
    command:
    - bash
    - -c
    - |
      d=$(mktemp -d)
      cat > $d/conf <<'EOF'
      user root; worker_processes 1; error_log stderr; pid nginx.pid; events {}
      http { access_log off; server { listen 8080; location / { return 200 "NAME\n"; } } }
      EOF
      exec nginx -e stderr -p $d -c $d/conf -g 'daemon off;'
"#;

const ROUTES: &str = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web, namespace: shop}
spec:
  parentRefs: [{group: '', kind: Service, name: web}]
  rules:
  - name: cart
    matches: [{path: {type: PathPrefix, value: /cart}}]
    sessionPersistence: {sessionName: cart, type: Cookie, absoluteTimeout: 1h, cookieConfig: {lifetimeType: Permanent}}
    backendRefs: [{name: web, port: 80}]
  - backendRefs: [{name: web, port: 80}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: limited, namespace: shop, annotations: {leno.mesh/rate-limit: 5/h, leno.mesh/rate-limit-burst: '3'}}
spec:
  parentRefs: [{group: '', kind: Service, name: odd, port: 80}]
  rules: [{matches: [{path: {type: PathPrefix, value: /limited}}], backendRefs: [{name: odd, port: 80}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: patient, namespace: shop}
spec:
  parentRefs: [{group: '', kind: Service, name: odd, port: 80}]
  rules:
  - matches: [{path: {type: PathPrefix, value: /slow}}]
    timeouts: {request: 300ms}
    backendRefs: [{name: odd, port: 80}]
  - matches: [{path: {type: PathPrefix, value: /twice}}]
    retry: {codes: [503], attempts: 2, backoff: 10ms}
    backendRefs: [{name: odd, port: 80}]
  - backendRefs: [{name: odd, port: 80}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: GRPCRoute
metadata: {name: limited, namespace: shop, annotations: {leno.mesh/rate-limit: 4/h}}
spec:
  parentRefs: [{group: '', kind: Service, name: odd, port: 90}]
  rules:
  - matches: [{method: {service: few.Calls}}]
    backendRefs: [{name: odd, port: 90}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: GRPCRoute
metadata: {name: others, namespace: shop}
spec:
  parentRefs: [{group: '', kind: Service, name: odd, port: 90}]
  rules: [{backendRefs: [{name: odd, port: 90}]}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: flaky, namespace: shop}
spec: {hosts: [flaky], http: [{timeout: 500ms, retries: {attempts: 2, retryOn: 5xx}}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: hashed, namespace: shop}
spec: {host: hashed, trafficPolicy: {loadBalancer: {consistentHash: {httpHeaderName: x-user}}}}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: faulty, namespace: shop}
spec: {host: faulty.shop.svc.cluster.local, trafficPolicy: {connectionPool: {http: {http2MaxRequests: 1}}}}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: mixed, namespace: shop}
spec:
  host: mixed
  trafficPolicy:
    loadBalancer: {simple: ROUND_ROBIN}
    outlierDetection: {consecutive5xxErrors: 2, baseEjectionTime: 10m}
"#;

fn faults(http: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: faulty, namespace: shop}}\n\
         spec: {{hosts: [faulty], http: [{http}]}}\n"
    )
}

/// Six calls each of a method that a limit counts and of one that none does: how they ended.
const CALLS: &str = r#"
import grpc
channel = grpc.insecure_channel("odd.shop:90")
def ended(method):
    try: return channel.unary_unary(method)(b"x", timeout=20).decode()
    except grpc.RpcError as error: return error.code().name
print(*[ended(method) for method in ["/few.Calls/One"] * 6 + ["/many.Calls/One"] * 6])"#;

/// What the client's curl prints for one request or several.
fn curl(stage: &Stage, what: &str) -> String {
    stage.sh("shop/client", &format!("curl -sS -m 20 {what}")).ok().stdout
}

/// The statuses of several requests.
fn statuses(stage: &Stage, what: &str) -> Vec<String> {
    let told = curl(stage, &format!("-o /dev/null -w '%{{http_code}}\\n' {what}"));
    told.lines().map(str::to_owned).collect()
}

#[test]
fn routes_and_rules_about_traffic_hold_for_programs_of_others() {
    const GRPC: &str = "/usr/lib/python3/dist-packages/grpc/__init__.py";
    if skip("routes_and_rules_about_traffic_hold_for_programs_of_others", &["nginx", "curl", "/usr/bin/python3", GRPC])
    {
        return;
    }
    let servers: Vec<_> = ["one", "two", "three"]
        .map(|name| {
            (
                format!("{name}.yaml"),
                SERVER.replace("NAME", name).replace("LAST", if name == "one" { "yes" } else { "no" }),
            )
        })
        .into();
    let aborts = faults(
        "{fault: {delay: {percentage: {value: 100}, fixedDelay: 400ms}, abort: {percentage: {value: 100}, httpStatus: 418}}}",
    );
    let mut files = vec![("shop.yaml", SHOP), ("mesh.yaml", MESH), ("routes.yaml", ROUTES), ("faults.yaml", &aborts)];
    files.extend(servers.iter().map(|(name, text)| (&**name, &**text)));
    let stage = Stage::up(&files, &["--nodes", "2"]);

    sessions(&stage);
    rates(&stage);
    retries_and_timeouts(&stage);
    mistakes(&stage);
    made_failures(&stage);
    limits_of_destination_rules(&stage);
}

/// Who keeps the cookie stays at an endpoint as long as there is one.
fn sessions(stage: &Stage) {
    let jar = tempfile::tempdir().unwrap();
    let jar = jar.path().join("jar").to_str().unwrap().to_owned();
    let visit = |count: u32| {
        let said = curl(stage, &format!("-b {jar} -c {jar} 'http://web.shop/cart/[1-{count}]'"));
        said.lines().map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let first = visit(1);
    let cookie = std::fs::read_to_string(&jar).unwrap();
    assert!(cookie.contains("\tcart\t") && cookie.contains("\t/cart\t"), "{cookie}");
    assert_eq!(visit(30), first, "one endpoint takes all");
    assert_eq!(std::fs::read_to_string(&jar).unwrap(), cookie, "and gives no new cookie");
    let without = curl(stage, "'http://web.shop/cart/[1-60]' 'http://web.shop/else/[1-20]'");
    assert!(without.lines().collect::<BTreeSet<_>>().len() > 1, "{without}");
    assert!(!curl(stage, "-i http://web.shop/else").contains("set-cookie"));

    let gone = first.first().unwrap();
    let text = SERVER.replace("NAME", gone).replace("LAST", if gone == "one" { "yes" } else { "no" });
    stage.remove(&format!("{gone}.yaml"));
    stage.wait("the endpoint is gone", |ps| {
        ps["pods"].as_array()?.iter().all(|pod| pod["name"] != **gone).then_some(())
    });
    let next = visit(1);
    assert_ne!(next, first);
    let renewed = std::fs::read_to_string(&jar).unwrap();
    assert_ne!(renewed, cookie);
    // It does not go back.
    stage.write(&format!("{gone}.yaml"), &text);
    stage.wait("it is back", |ps| {
        ps["pods"].as_array()?.iter().any(|pod| pod["name"] == **gone && pod["ready"] == true).then_some(())
    });
    assert_eq!(visit(30), next);
    assert_eq!(std::fs::read_to_string(&jar).unwrap(), renewed);
}

/// A limit is its route's own.
fn rates(stage: &Stage) {
    assert_eq!(statuses(stage, "'http://odd.shop/limited/[1-5]'"), ["200", "200", "200", "429", "429"]);
    assert_eq!(statuses(stage, "'http://odd.shop/free/[1-20]'"), ["200"; 20]);
    let refused = curl(stage, "-i http://odd.shop/limited").to_lowercase();
    assert!(refused.contains("x-envoy-ratelimited: true") && refused.contains("retry-after: "), "{refused}");
    let ended = stage.sh("shop/client", &format!("/usr/bin/python3 -c '{CALLS}'")).ok().stdout;
    assert_eq!(ended, format!("x x x x UNAVAILABLE UNAVAILABLE{}\n", " x".repeat(6)));
    let told = run(stage.command("explain").args(["shop/client", "shop/odd:80", "--path", "/limited"])).stdout;
    assert!(told.contains("429"), "{told}");
    let totals = |counted: &str| {
        ["response_code=\"429\"", "grpc_response_status=\"14\""].map(|code| -> u32 {
            let lines = counted.lines().filter(|line| line.contains("response_flags=\"RL\"") && line.contains(code));
            lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u32>().unwrap()).sum()
        })
    };
    let counted = stage.told(&["metrics", "--metric", "istio_requests_total"], |counted| {
        let [requests, calls] = totals(counted);
        requests >= 3 && calls >= 2
    });
    assert_eq!(totals(&counted), [3, 2], "{counted}");
}

fn retries_and_timeouts(stage: &Stage) {
    // By an HTTPRoute and by a VirtualService: the third attempt is answered well.
    for (host, path) in [("odd", "/twice/route"), ("flaky", "/twice/service")] {
        assert_eq!(curl(stage, &format!("http://{host}.shop{path}")), "odd 3\n", "{host}");
        // A body is sent once.
        assert_eq!(statuses(stage, &format!("-X POST -d x http://{host}.shop{path}")), ["501"]);
        assert_eq!(statuses(stage, &format!("http://{host}.shop/slow")), ["504"]);
    }
    // Nobody promised more attempts than two more.
    assert_eq!(curl(stage, "-w '%{http_code}' http://flaky.shop/fail"), "odd 3\n503");
    let is_told = |line: &str| line.contains("/slow") && line.contains("response_flags=\"UT\"");
    stage.told(&["logs", "shop/gate"], |log| log.lines().any(is_told));
}

/// An edit that can't be followed is told with its cause, and what was in force stays.
fn mistakes(stage: &Stage) {
    let routes = ROUTES.replace("leno.mesh/rate-limit: 5/h", "leno.mesh/rate-limit: 5/day");
    let routes = routes.replace("{type: PathPrefix, value: /twice}", "{type: RegularExpression, value: '/twice['}");
    stage.write("routes.yaml", &routes);
    stage.write("faults.yaml", &faults("{match: [{uri: {prefix: /y}}], timeout: 1s}"));
    let causes = [
        ("HTTPRoute shop/limited", "leno.mesh/rate-limit=\"5/day\""),
        ("HTTPRoute shop/patient", "unclosed character class"),
        ("VirtualService shop/faulty", "spec.http[0].match is not done by Leno"),
    ];
    for command in ["logs", "ps"] {
        eventually("the causes are told", || {
            let told = run(&mut stage.command(command)).stdout;
            let is_told = |(object, why): &(&str, &str)| told.lines().any(|it| it.contains(object) && it.contains(why));
            if causes.iter().all(is_told) { Ok(()) } else { Err(format!("{command}: {told}")) }
        });
    }
    assert_eq!(statuses(stage, "http://odd.shop/limited"), ["429"]);
    assert_eq!(statuses(stage, "http://faulty.shop/y"), ["418"]);
    assert_eq!(curl(stage, "http://odd.shop/twice/mistaken"), "odd 3\n");
    stage.write("routes.yaml", ROUTES);
}

/// Faults hit the share of requests that they name.
fn made_failures(stage: &Stage) {
    let begun = Instant::now();
    assert_eq!(statuses(stage, "http://faulty.shop/x"), ["418"]);
    assert!(begun.elapsed() >= Duration::from_millis(400), "it is delayed: {:?}", begun.elapsed());
    stage.write("faults.yaml", &faults("{fault: {abort: {percentage: {value: 50}, httpStatus: 503}}}"));
    let seen = eventually("half of the requests fail", || {
        let mut seen = BTreeMap::<String, u32>::new();
        for status in statuses(stage, "'http://faulty.shop/[1-60]'") {
            *seen.entry(status).or_default() += 1;
        }
        if seen.contains_key("418") { Err(format!("{seen:?}")) } else { Ok(seen) }
    });
    // By chance alone, fewer than ten of sixty once in many millions of times.
    assert!(seen["200"] > 9 && seen["503"] > 9 && seen["200"] + seen["503"] == 60, "{seen:?}");
    stage.told(&["logs", "shop/gate"], |log| log.contains("response_flags=\"FI\""));
    stage.remove("faults.yaml");
    eventually("no request fails", || {
        let all = statuses(stage, "'http://faulty.shop/[1-20]'");
        if all.iter().all(|status| status == "200") { Ok(()) } else { Err(format!("{all:?}")) }
    });
}

fn limits_of_destination_rules(stage: &Stage) {
    // One request at a time: while one is served slowly, the others are told at once.
    let mut all = statuses(stage, "-Z --parallel-immediate 'http://faulty.shop/slow?[1-4]'");
    all.sort();
    assert_eq!(all, ["200", "503", "503", "503"]);
    stage.told(&["logs", "shop/gate"], |log| log.contains("response_flags=\"UO\""));

    // An endpoint that fails twice is left out, and the log says so.
    let all = statuses(stage, "'http://mixed.shop/fail?[1-20]'");
    assert_eq!(all.iter().filter(|status| **status == "503").count(), 2, "{all:?}");
    let is_ejected = |line: &str| line.ends_with(" 1");
    stage.told(&["metrics", "--metric", "leno_endpoint_ejections"], |told| told.lines().any(is_ejected));

    // Whose header is the same stays at an endpoint.
    let mut endpoints = BTreeSet::new();
    for user in 0..10 {
        let said = curl(stage, &format!("-H 'x-user: {user}' 'http://hashed.shop/[1-8]'"));
        let seen: BTreeSet<_> = said.lines().map(str::to_owned).collect();
        assert_eq!(seen.len(), 1, "{said}");
        endpoints.extend(seen);
    }
    assert!(endpoints.len() > 1, "{endpoints:?}");
}
