//! What a waypoint does beyond routing, on a cluster: it asks an authoriser, reads tokens, keeps sessions and limits.

use std::fs;
use std::thread;

use leno_e2e::{Namespace, Pod};
use serde_json::Value;

use crate::mesh::{AMBIENT, SYSTEM, Stand};
use crate::stand::{self, comes_true};

/// Services for both pods. Ports that pass unread say so by their names, and have a Service of their own: a policy that looks at
/// requests denies connections that are none.
const SERVICES: &str = "apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {tier: web}
  ports: [{name: http, port: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: unread}
spec:
  selector: {tier: web}
  ports: [{name: tcp, port: 9000}, {name: tls, port: 9443}]
---
apiVersion: v1
kind: Service
metadata: {name: one}
spec:
  selector: {app: one}
  ports: [{name: http, port: 8080}, {name: tcp, port: 9000}, {name: tls, port: 9443}]
---
apiVersion: v1
kind: Service
metadata: {name: two}
spec:
  selector: {app: two}
  ports: [{name: http, port: 8080}, {name: tcp, port: 9000}, {name: tls, port: 9443}]
---
apiVersion: v1
kind: Service
metadata: {name: authorizer, labels: {istio.io/use-waypoint: none}}
spec:
  selector: {app: authorizer}
  ports: [{name: grpc, port: 9191}]
";

/// Sessions for what is below /kept, a limit for what is below /limited.
const ROUTES: &str = "apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web}
spec:
  parentRefs: [{group: '', kind: Service, name: web, port: 8080}]
  rules:
  - name: kept
    matches: [{path: {type: PathPrefix, value: /kept}}]
    sessionPersistence: {type: Header, sessionName: x-session}
    backendRefs: [{name: one, port: 8080}, {name: two, port: 8080}]
  - backendRefs: [{name: web, port: 8080}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata:
  name: limited
  annotations: {leno.mesh/rate-limit: 3/h}
spec:
  parentRefs: [{group: '', kind: Service, name: web, port: 8080}]
  rules:
  - matches: [{path: {type: PathPrefix, value: /limited}}]
    backendRefs: [{name: web, port: 8080}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: TCPRoute
metadata: {name: lines}
spec:
  parentRefs: [{group: '', kind: Service, name: unread, port: 9000}]
  rules: [{backendRefs: [{name: two, port: 9000}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: one}
spec:
  parentRefs: [{group: '', kind: Service, name: unread, port: 9443}]
  hostnames: [one.example]
  rules: [{backendRefs: [{name: one, port: 9443}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: two}
spec:
  parentRefs: [{group: '', kind: Service, name: unread, port: 9443}]
  hostnames: [two.example]
  rules: [{backendRefs: [{name: two, port: 9443}]}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: one}
spec: {host: one, trafficPolicy: {connectionPool: {http: {http2MaxRequests: 1}}}}
";

/// The key was made for this test, and signed one token with it.
const POLICIES: &str = r#"apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: ask}
spec:
  targetRefs: [{group: '', kind: Service, name: web}]
  action: CUSTOM
  provider: {name: e2e}
  rules: [{to: [{operation: {paths: ['/asked*']}}]}]
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: users}
spec:
  targetRefs: [{group: '', kind: Service, name: web}]
  jwtRules:
  - issuer: https://inline.example
    jwks: '{"keys":[{"kty":"EC","crv":"P-256","kid":"one","alg":"ES256","x":"SYfBkL58bfkxg4vddOsYpYB_8eKu3J8fRzchTKh8JU4","y":"DyY-oNt2IQk7YYpTk3cuPekn8TgEUTMjoKvWelOIUNM"}]}'
    outputClaimToHeaders: [{header: x-who, claim: sub}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: users}
spec:
  targetRefs: [{group: '', kind: Service, name: web}]
  action: DENY
  rules:
  - from: [{source: {notRequestPrincipals: ['*']}}]
    to: [{operation: {paths: ['/users*']}}]
"#;

/// Of `ann`, until the year 2100.
const TOKEN: &str = "authorization: Bearer eyJhbGciOiJFUzI1NiIsImtpZCI6Im9uZSJ9.eyJpc3MiOiJodHRwczovL2lubGluZS5leGFtcGxlIiwic3ViIjoiYW5uIiwiZXhwIjo0MTAyNDQ0ODAwfQ.RHO0URkJCK4WRYRnMqW48CQAFMfLJQ-8zGcAA1FhG864x0EhlvviXCrILNwhJY4Q7S6P6JZVVPR7y7u7M54LhA";

struct Shop<'a> {
    namespace: Namespace,
    /// Given back when the chapter ends, however it does.
    _providers: Providers<'a>,
}

impl Shop<'_> {
    fn ask(&self, options: &[&str], url: &str) -> Result<String, String> {
        self.namespace.ask_by("client", options, &[url.to_owned()]).unwrap().remove(0).outcome
    }

    fn http(&self, headers: &[&str], path: &str) -> String {
        let options: Vec<_> = headers.iter().flat_map(|header| ["-header", header]).collect();
        self.ask(&options, &format!("http://web:8080{path}")).unwrap_or_else(|why| why)
    }

    fn comes(&self, what: &str, headers: &[&str], path: &str, wanted: impl Fn(&str) -> bool) {
        comes_true(what, || {
            let said = self.http(headers, path);
            let is = wanted(&said);
            if !is {
                eprintln!("{what}: not yet: {said}");
            }
            is
        });
    }
}

/// The external authorisers of the mesh's configuration.
struct Providers<'a>(&'a Stand);

impl<'a> Providers<'a> {
    fn set(stand: &'a Stand, list: &str) -> Self {
        let this = Self(stand);
        this.to(list).unwrap();
        this
    }

    fn to(&self, list: &str) -> Result<(), leno_e2e::Error> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), format!("meshConfig: {{extensionProviders: {list}}}\n")).unwrap();
        self.0.leno.run(&["upgrade", "--wait", "--timeout", "3m", "-f", file.path().to_str().unwrap()])?;
        // The kubelet brings a changed ConfigMap to a pod when it looks at the pod, once a minute by itself.
        let touched = format!("e2e/touched={}", list.len());
        let pods = "app.kubernetes.io/name=leno-control";
        let kubectl = self.0.cluster.kubectl();
        kubectl.run(&["annotate", "pods", "--namespace", SYSTEM, "--selector", pods, "--overwrite", &touched]).map(drop)
    }
}

impl Drop for Providers<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.to("[]") {
            eprintln!("the authorisers stay configured: {error}");
        }
    }
}

pub(crate) fn work(stand: &Stand) {
    let (here, there) = stand::two_nodes(&stand.cluster);
    let namespace = Namespace::new(&stand.cluster, "e2e-waypoint-features", &[AMBIENT]).unwrap();
    let authorizer = format!("authorizer.{}.svc.cluster.local", namespace.name());
    let list = format!("[{{name: e2e, envoyExtAuthzGrpc: {{service: {authorizer}, port: 9191, timeout: 5s}}}}]");
    namespace.apply(SERVICES).unwrap();
    let [one, two] = [("one", &here), ("two", &there)].map(|(name, node)| Pod::new(name, node).label("tier", "web"));
    namespace.start(&[one, two, Pod::new("client", &there), Pod::new("authorizer", &here)]).unwrap();
    let apply = ["waypoint", "apply", "--enroll-namespace", "--wait", "--timeout", "60s", "-n", namespace.name()];
    stand.leno.run(&apply).unwrap();
    namespace.apply(ROUTES).unwrap();
    namespace.apply(POLICIES).unwrap();
    let shop = Shop { namespace, _providers: Providers::set(stand, &list) };

    authorisers_are_asked(&shop);
    tokens_are_read(&shop);
    sessions_stay(&shop);
    limits_hold(&shop);
    what_passes_unread_is_routed(&shop);
    what_is_misspelt_is_refused_at_once(&shop);
}

fn authorisers_are_asked(shop: &Shop<'_>) {
    shop.comes("the authoriser says no", &[], "/asked", |said| said == "418 not today");
    let passed = |said: &str| said.starts_with("200 ") && said.contains("x-user=[\"ann\"] x-pass=[]");
    shop.comes("it lets pass who says so", &["x-pass: yes"], "/asked?show=x-user&show=x-pass", passed);
    let open = shop.http(&[], "/open?show=x-user");
    assert!(open.starts_with("200 ") && open.ends_with("x-user=[]"), "nobody is asked about the rest: {open}");
}

fn tokens_are_read(shop: &Shop<'_>) {
    shop.comes("who has no token is refused", &[], "/users", |said| said.starts_with("403 "));
    let named = |said: &str| said.starts_with("200 ") && said.contains("x-who=[\"ann\"]");
    shop.comes("who has one is let in, and named", &[TOKEN], "/users?show=x-who", named);
    let forged = TOKEN.replace(".RHO0", ".RHO1");
    assert!(shop.http(&[&forged], "/users").starts_with("401 "), "a forged one is refused");
    assert!(shop.http(&[&forged], "/open").starts_with("401 "), "and so wherever it is shown");
}

/// The pod that answered.
fn pod(said: &str) -> &str {
    said.split(' ').nth(1).unwrap_or_default()
}

fn sessions_stay(shop: &Shop<'_>) {
    let url = "http://web:8080/kept/a";
    let first = shop.ask(&["-show", "x-session"], url).unwrap();
    let (_, token) = first.rsplit_once("x-session=[\"").unwrap_or_else(|| panic!("no session began: {first}"));
    let header = format!("x-session: {}", token.trim_end_matches("\"]"));
    for _ in 0..12 {
        let said = shop.http(&[&header], "/kept/a");
        assert_eq!(pod(&said), pod(&first), "{said}");
    }
    // By chance, all of forty go to one pod once in a million million runs.
    let urls = vec![url.to_owned(); 40];
    let answers = shop.namespace.ask("client", &urls).unwrap();
    let at = |name: &str| answers.iter().any(|it| it.outcome.as_ref().is_ok_and(|said| pod(said) == name));
    assert!(at("one") && at("two"), "without a session, requests are spread: {answers:?}");
}

fn limits_hold(shop: &Shop<'_>) {
    let urls = vec!["http://web:8080/limited".to_owned(); 8];
    let answers = shop.namespace.ask("client", &urls).unwrap();
    let with =
        |status: &str| answers.iter().filter(|it| it.outcome.as_ref().is_ok_and(|s| s.starts_with(status))).count();
    assert_eq!((with("200 "), with("429 ")), (3, 5), "{answers:?}");

    comes_true("one request at a time is let through", || {
        let slow = || shop.ask(&[], "http://one:8080/?wait=1s").unwrap_or_else(|why| why);
        let answers = thread::scope(|scope| {
            let asked = [(); 3].map(|()| scope.spawn(slow));
            asked.map(|asked| asked.join().unwrap())
        });
        let with = |status: &str| answers.iter().filter(|said| said.starts_with(status)).count();
        with("200 ") >= 1 && with("503 ") >= 1
    });
}

fn what_passes_unread_is_routed(shop: &Shop<'_>) {
    let from = |url: &str, name: &str| {
        comes_true(&format!("{url} is answered by {name}"), || {
            let answers = shop.namespace.ask("client", &vec![url.to_owned(); 4]).unwrap();
            answers.iter().all(|it| it.outcome.as_ref().is_ok_and(|said| said.starts_with(&format!("{name} sees "))))
        });
    };
    from("tcp://unread:9000", "two");
    from("tls://one.example@unread:9443", "one");
    from("tls://two.example@unread:9443", "two");
    let nobodys = shop.ask(&[], "tls://other.example@unread:9443");
    assert!(nobodys.is_err(), "a name that no route has is refused: {nobodys:?}");
}

/// By the API server, so nobody has to look at a status.
fn what_is_misspelt_is_refused_at_once(shop: &Shop<'_>) {
    let object = |group: &str, kind: &str, spec: &str| {
        format!("apiVersion: {group}.istio.io/v1\nkind: {kind}\nmetadata: {{name: slip}}\nspec: {spec}\n")
    };
    for (object, field) in [
        (object("security", "AuthorizationPolicy", "{rules: [{from: [{source: {principal: [a]}}]}]}"), "principal"),
        (object("security", "PeerAuthentication", "{mtsl: {mode: STRICT}}"), "mtsl"),
        (object("security", "RequestAuthentication", "{jwtRules: [{issuer: a, jwk: b}]}"), "jwk"),
        (object("networking", "DestinationRule", "{host: web, trafficPolicies: {}}"), "trafficPolicies"),
        (object("networking", "VirtualService", "{hosts: [web], http: [{timeOut: 1s}]}"), "timeOut"),
    ] {
        let refused = shop.namespace.apply(&object).expect_err("it is misspelt").to_string();
        assert!(refused.contains("not declared in schema") && refused.contains(field), "{refused}");
    }
    // What Istio has and Leno does not honour can be stored; its status tells.
    let trust = object("security", "AuthorizationPolicy", "{rules: [{from: [{source: {trustDomains: [a]}}]}]}");
    shop.namespace.apply(&trust).unwrap();
    let kubectl = shop.namespace.kubectl();
    comes_true("its status tells of a field that is not honoured", || {
        let get = ["get", "authorizationpolicy", "slip", "--namespace", shop.namespace.name()];
        let policy: Value = kubectl.json(&get).unwrap();
        let conditions = policy["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|it| it["message"].as_str().is_some_and(|message| message.contains("trustDomains")))
    });
}
