use std::time::Duration;

use leno_model::http::{Balancing, HashOf, RetryBudget};
use leno_objects::Kind;

use super::*;
use crate::testing::upserts;

const SHOP: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {istio.io/use-waypoint: waypoint}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.0.0.1, ports: [{name: http, port: 80}], selector: {app: web}}
---
apiVersion: v1
kind: Service
metadata: {name: plain, namespace: shop, labels: {istio.io/use-waypoint: none}}
spec: {clusterIP: 10.0.0.2, ports: [{port: 80}], selector: {app: plain}}
---
apiVersion: v1
kind: Service
metadata: {name: api, namespace: bank}
spec: {clusterIP: 10.0.0.3, ports: [{port: 80}], selector: {app: api}}
";

fn rule(namespace: &str, name: &str, created: &str, spec: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: {name}, namespace: {namespace}, \
         creationTimestamp: \"{created}\"}}\nspec: {{{spec}}}\n"
    )
}

const OLD: &str = "2020-01-01T00:00:00Z";
const NEW: &str = "2021-01-01T00:00:00Z";

fn shop() -> Translator {
    let mut translator = Translator::new(Options::default());
    translator.apply(upserts(SHOP));
    translator
}

fn put(translator: &mut Translator, yaml: &str) -> Delta {
    translator.apply(upserts(yaml))
}

fn of(translator: &Translator, namespace: &str, service: &str) -> Option<String> {
    let service = service_name::service_name(&Options::default(), namespace, service);
    translator.mesh().endpoint_policy_of(&service).map(|policy| policy.id.to_string())
}

fn warnings(translator: &Translator, namespace: &str, name: &str) -> String {
    let key = ObjectKey::new(Kind::DestinationRule, namespace, name);
    translator.warnings().get(&key).map(|all| all.join("\n")).unwrap_or_default()
}

fn readers(translator: &Translator, namespace: &str, name: &str) -> Vec<String> {
    let id = PolicyName { namespace: namespace.into(), name: name.into() };
    translator.readers_of_endpoint_policy(&id).map(ToString::to_string).collect()
}

#[test]
fn a_rule_goes_to_the_waypoints_of_its_service() {
    let mut translator = shop();
    let delta = put(&mut translator, &rule("shop", "r", OLD, "host: web"));
    assert_eq!(delta.endpoint_policies.len(), 1);
    assert!(delta.services.is_empty() && delta.workloads.is_empty());
    assert_eq!((of(&translator, "shop", "web").as_deref(), &*warnings(&translator, "shop", "r")), (Some("shop/r"), ""));
    assert_eq!(readers(&translator, "shop", "r"), ["shop/waypoint"]);
    // The same again, and what has nothing to do with it.
    assert!(put(&mut translator, &rule("shop", "r", OLD, "host: web")).is_empty());
    translator.apply([Change::Remove(ObjectKey::new(Kind::DestinationRule, "shop", "r"))]);
    assert_eq!((of(&translator, "shop", "web"), readers(&translator, "shop", "r")), (None, vec![]));
}

#[test]
fn a_route_brings_a_rule_to_another_waypoint() {
    let mut translator = shop();
    put(&mut translator, &rule("bank", "r", OLD, "host: api"));
    assert!(readers(&translator, "bank", "r").is_empty());
    assert!(warnings(&translator, "bank", "r").contains("no waypoint stands before"));
    let route = "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: route, namespace: shop}
spec:
  parentRefs: [{group: '', kind: Service, name: web}]
  rules: [{backendRefs: [{name: api, namespace: bank, port: 80}]}]
---
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: grant, namespace: bank}
spec:
  from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: shop}]
  to: [{group: '', kind: Service}]
";
    put(&mut translator, route);
    assert_eq!(readers(&translator, "bank", "r"), ["shop/waypoint"]);
    let delta = translator.apply([Change::Remove(ObjectKey::new(Kind::HTTPRoute, "shop", "route"))]);
    assert!(readers(&translator, "bank", "r").is_empty());
    assert!(delta.endpoint_policies.values().flatten().any(|reader| &**reader == "shop/waypoint"));
}

#[test]
fn one_rule_counts_for_a_service() {
    let mut translator = shop();
    put(&mut translator, &rule("istio-system", "all", OLD, "host: '*'"));
    assert_eq!(of(&translator, "shop", "web").as_deref(), Some("istio-system/all"));
    assert_eq!(of(&translator, "bank", "api").as_deref(), Some("istio-system/all"));
    put(&mut translator, &rule("shop", "wide", OLD, "host: '*.shop.svc.cluster.local'"));
    assert_eq!(of(&translator, "shop", "web").as_deref(), Some("shop/wide"));
    put(&mut translator, &rule("shop", "second", NEW, "host: web.shop.svc.cluster.local"));
    assert_eq!(of(&translator, "shop", "web").as_deref(), Some("shop/second"));
    put(&mut translator, &rule("shop", "first", OLD, "host: web"));
    assert_eq!(of(&translator, "shop", "web").as_deref(), Some("shop/first"));
    assert_eq!(of(&translator, "shop", "plain").as_deref(), Some("shop/wide"));
    assert!(warnings(&translator, "shop", "second").contains("DestinationRule shop/first counts for web.shop"));
    // A client's rule does not count at a waypoint, which is the Service's.
    put(&mut translator, &rule("bank", "theirs", OLD, "host: web.shop.svc.cluster.local"));
    assert_eq!(of(&translator, "shop", "web").as_deref(), Some("shop/first"));
    assert!(warnings(&translator, "bank", "theirs").contains("belongs to namespace shop"));
    put(&mut translator, &rule("shop", "lost", OLD, "host: wbe"));
    assert!(warnings(&translator, "shop", "lost").contains("wbe.shop.svc.cluster.local"));
}

#[test]
fn all_fields_are_honoured_or_said_to_be_ignored() {
    let mut translator = shop();
    let spec = "host: web, exportTo: ['.'], subsets: [{name: v1, labels: {version: v1}}], trafficPolicy: {
      loadBalancer: {consistentHash: {httpCookie: {name: who, ttl: 0s}, maglev: {tableSize: 7}}, warmup: {duration: 1s},
                     localityLbSetting: {enabled: false, failover: [{from: a, to: b}]}},
      connectionPool: {tcp: {maxConnections: 5, connectTimeout: 1s, idleTimeout: 1h},
                       http: {http1MaxPendingRequests: 1, http2MaxRequests: 2, maxRequestsPerConnection: 3, maxRetries: 4,
                              idleTimeout: 5s, h2UpgradePolicy: UPGRADE, maxConcurrentStreams: 9}},
      outlierDetection: {consecutiveErrors: 3, consecutiveGatewayErrors: 2, baseEjectionTime: 15s, maxEjectionPercent: 50},
      tls: {mode: SIMPLE}, tunnel: {targetHost: x, targetPort: 1}, retryBudget: {percent: 10, budgetInterval: 1s},
      portLevelSettings: [{port: {number: 80}, loadBalancer: {simple: ROUND_ROBIN}, tls: {mode: ISTIO_MUTUAL}}]}";
    put(&mut translator, &rule("shop", "r", OLD, spec));
    let said = warnings(&translator, "shop", "r");
    for field in [
        "spec.subsets is ignored",
        "spec.exportTo is ignored",
        "loadBalancer.consistentHash.httpCookie.ttl",
        "loadBalancer.warmup is ignored",
        "localityLbSetting.failover is ignored",
        "connectionPool.tcp.idleTimeout is ignored",
        "http.h2UpgradePolicy is ignored",
        "http.maxConcurrentStreams is ignored",
        "outlierDetection.consecutiveErrors is ignored",
        "spec.trafficPolicy.tls is ignored: mode SIMPLE",
        "trafficPolicy.tunnel is ignored",
        "retryBudget.budgetInterval is ignored",
    ] {
        assert!(said.contains(field), "{field}: {said}");
    }
    assert_eq!(said.lines().count(), 12, "{said}");
    let policy = translator.mesh().endpoint_policies().next().expect("one").clone();
    let rules = &policy.rules;
    assert_eq!(rules.balancing, Some(Balancing::Hash(HashOf::Cookie("who".into()))));
    assert!(rules.anywhere);
    assert_eq!((rules.max_connections, rules.max_pending, rules.max_requests), (Some(5), Some(1), Some(2)));
    assert_eq!((rules.max_requests_per_connection, rules.max_retries), (Some(3), Some(4)));
    assert_eq!(rules.connect_timeout, Some(Duration::from_secs(1)));
    assert_eq!(rules.idle_timeout, Some(Duration::from_secs(5)));
    let ejection = rules.ejection.as_ref().expect("ejection");
    assert_eq!((ejection.consecutive_5xx, ejection.consecutive_gateway), (Some(5), Some(2)));
    assert_eq!((ejection.consecutive_local, ejection.max_percent), (None, 50));
    assert_eq!((ejection.base, ejection.interval), (Duration::from_secs(15), Duration::from_secs(10)));
    assert_eq!(rules.retry_budget, Some(RetryBudget { per_million: 100_000, at_least: 3 }));
    // A port's settings stand alone.
    let of_port = policy.of_port(80);
    assert_eq!((&of_port.balancing, of_port.max_connections), (&Some(Balancing::RoundRobin), None));
    assert_eq!((of_port.ejection.as_ref(), of_port.retry_budget), (None, rules.retry_budget));
    assert_eq!(policy.of_port(81), rules);
}

#[test]
fn a_rule_for_some_clients_or_with_an_unknown_part_is_not_in_force() {
    let mut translator = shop();
    put(&mut translator, &rule("shop", "r", OLD, "host: web, workloadSelector: {matchLabels: {app: x}}"));
    assert_eq!(of(&translator, "shop", "web"), None);
    assert!(warnings(&translator, "shop", "r").contains("for some of them is NOT in force"));
    put_unknown(&mut translator, "host: web");
    assert_eq!(of(&translator, "shop", "web"), None);
    assert!(warnings(&translator, "shop", "r").contains("by this version of Leno: spec.trafficPolicy.next"));
}

/// Puts a version of the rule `shop/r` that has a part which nobody knows.
fn put_unknown(translator: &mut Translator, spec: &str) {
    let mut rule = crate::testing::load(&rule("shop", "r", OLD, spec));
    let leno_objects::Object::DestinationRule(one) = &mut rule[0] else { panic!("a rule") };
    one.not_understood = vec!["spec.trafficPolicy.next: unknown".to_owned()];
    translator.apply(rule.into_iter().map(Change::upsert));
}

#[test]
fn the_last_good_version_stays_in_force() {
    let limits = "host: web, trafficPolicy: {connectionPool: {tcp: {maxConnections: 7}}}";
    let mut translator = shop();
    put(&mut translator, &rule("shop", "r", OLD, limits));
    let held = |translator: &Translator| {
        let id = PolicyName { namespace: "shop".into(), name: "r".into() };
        translator.mesh().endpoint_policy(&id).map(|policy| policy.of_port(80).max_connections)
    };
    assert_eq!(held(&translator), Some(Some(7)));
    put_unknown(&mut translator, "host: web, trafficPolicy: {connectionPool: {tcp: {maxConnections: 9}}}");
    assert_eq!((of(&translator, "shop", "web").as_deref(), held(&translator)), (Some("shop/r"), Some(Some(7))));
    // Another rule for the host counts, and when it goes, nothing is known of what was before it.
    put(&mut translator, &rule("shop", "other", NEW, "host: web"));
    assert_eq!((of(&translator, "shop", "web").as_deref(), held(&translator)), (Some("shop/other"), None));
    translator.apply([Change::Remove(ObjectKey::new(Kind::DestinationRule, "shop", "other"))]);
    assert_eq!(of(&translator, "shop", "web"), None);
    // A version for another host leaves nothing of the one before.
    put(&mut translator, &rule("shop", "r", OLD, limits));
    put_unknown(&mut translator, "host: plain");
    assert_eq!(held(&translator), None);
    assert!(readers(&translator, "shop", "r").is_empty());
}
