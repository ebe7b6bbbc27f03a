use std::time::Duration;

use leno_model::http::{Abort, Fault, RequestDefaults};
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
metadata: {name: api, namespace: bank}
spec: {clusterIP: 10.0.0.3, ports: [{port: 80}], selector: {app: api}}
";

fn object(namespace: &str, name: &str, created: &str, spec: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: {name}, namespace: {namespace}, \
         creationTimestamp: \"{created}\"}}\nspec: {{{spec}}}\n"
    )
}

const OLD: &str = "2020-01-01T00:00:00Z";
const NEW: &str = "2021-01-01T00:00:00Z";

fn with(spec: &str) -> Translator {
    let mut translator = Translator::new(Options::default());
    translator.apply(upserts(SHOP));
    translator.apply(upserts(&object("shop", "v", OLD, spec)));
    translator
}

fn of_web(translator: &Translator) -> Option<RequestDefaults> {
    let service = service_name::service_name(&Options::default(), "shop", "web");
    translator.mesh().request_defaults_of(&service).map(|defaults| (**defaults).clone())
}

fn warnings(translator: &Translator, namespace: &str, name: &str) -> String {
    let key = ObjectKey::new(Kind::VirtualService, namespace, name);
    translator.warnings().get(&key).map(|all| all.join("\n")).unwrap_or_default()
}

#[test]
fn what_is_said_of_all_requests_goes_to_the_services_waypoint() {
    let spec = "hosts: [web], http: [{timeout: 2s, retries: {attempts: 3, perTryTimeout: 500ms, retryOn: '5xx,connect-failure'},
      route: [{destination: {host: web}}],
      fault: {delay: {percentage: {value: 0.5}, fixedDelay: 5s}, abort: {percentage: {value: 100}, grpcStatus: UNAVAILABLE}}}]";
    let translator = with(spec);
    assert_eq!(warnings(&translator, "shop", "v"), "");
    let defaults = of_web(&translator).expect("there");
    assert_eq!(
        (defaults.timeout, defaults.attempt_timeout),
        (Some(Duration::from_secs(2)), Some(Duration::from_millis(500)))
    );
    let retry = defaults.retry.as_ref().expect("retries");
    assert_eq!((retry.attempts, retry.codes.len()), (Some(3), 100));
    let fault = Fault { delay: Some((5_000, Duration::from_secs(5))), abort: Some((1_000_000, Abort::Grpc(14))) };
    assert_eq!(defaults.fault, Some(fault));
    let readers: Vec<_> = translator.readers_of_defaults(&defaults.id).map(ToString::to_string).collect();
    assert_eq!(readers, ["shop/waypoint"]);
}

#[test]
fn what_can_not_be_done_refuses_the_whole() {
    for (spec, why) in [
        ("http: [{match: [{uri: {prefix: /x}}], timeout: 1s}]", "spec.http[0].match"),
        ("http: [{timeout: 1s}, {timeout: 2s}]", "has to have one entry"),
        ("tcp: [{route: []}]", "spec.tcp"),
        ("http: [{rewrite: {uri: /x}}]", "spec.http[0].rewrite"),
        ("http: [{route: [{destination: {host: web, subset: v1}}]}]", "another Service, port or subset"),
        ("http: [{route: [{destination: {host: other}}]}]", "another Service, port or subset"),
        ("http: [{retries: {attempts: 1, retryOn: next-years}}]", "next-years"),
        ("http: [{fault: {abort: {grpcStatus: SOME}}}]", "SOME"),
        ("http: [{fault: {delay: {percent: 5}}}]", "fixedDelay"),
        ("http: [{fault: {delay: {percent: 5, fixedDelay: 2h}}}]", "from 1ms to 1h"),
        ("http: [{fault: {abort: {httpStatus: 99}}}]", "httpStatus from 200 to 599"),
        ("http: [{retries: {perTryTimeout: 1s}}]", "retries.attempts"),
        ("http: [{retries: {attempts: 1, perTryTimeout: 10us}}]", "at least 1ms"),
    ] {
        let translator = with(&format!("hosts: [web], {spec}"));
        let said = warnings(&translator, "shop", "v");
        assert!(said.contains("not even in part") && said.contains(why), "{spec}: {said}");
        assert!(said.contains("no version before is known") && !said.contains("stays in force"), "{spec}: {said}");
        assert_eq!(of_web(&translator), None, "{spec}");
    }
}

#[test]
fn the_last_good_version_stays_until_another_object_counts() {
    let good = "hosts: [web], http: [{timeout: 2s}]";
    let mut translator = with(good);
    let before = of_web(&translator).expect("there");
    let bad = "hosts: [web], http: [{timeout: 5s, match: [{uri: {prefix: /x}}]}]";
    translator.apply(upserts(&object("shop", "v", OLD, bad)));
    assert_eq!(of_web(&translator), Some(before));
    let said = warnings(&translator, "shop", "v");
    assert!(said.contains("spec.http[0].match") && said.contains("the version before stays in force"), "{said}");
    // The same object, good again; then one that is refused and no longer about the service, for which a newer one counts.
    translator.apply(upserts(&object("shop", "v", OLD, "hosts: [web], http: [{timeout: 3s}]")));
    assert_eq!(of_web(&translator).and_then(|it| it.timeout), Some(Duration::from_secs(3)));
    translator.apply(upserts(&object("shop", "newer", NEW, "hosts: [web], http: [{timeout: 4s}]")));
    assert_eq!(of_web(&translator).and_then(|it| it.timeout), Some(Duration::from_secs(3)));
    translator.apply(upserts(&object("shop", "v", OLD, &bad.replace("[web]", "[elsewhere]"))));
    assert_eq!(of_web(&translator).and_then(|it| it.timeout), Some(Duration::from_secs(4)));
    // The other way round: it is refused and about nothing here, and then comes the other one.
    translator.apply([Change::Remove(ObjectKey::new(Kind::VirtualService, "shop", "newer"))]);
    translator.apply(upserts(&object("shop", "v", OLD, good)));
    translator.apply(upserts(&object("shop", "v", OLD, &bad.replace("[web]", "[elsewhere]"))));
    assert_eq!(of_web(&translator).and_then(|it| it.timeout), Some(Duration::from_secs(2)));
    translator.apply(upserts(&object("shop", "newer", NEW, "hosts: [web], http: [{timeout: 4s}]")));
    assert_eq!(of_web(&translator).and_then(|it| it.timeout), Some(Duration::from_secs(4)));
    translator.apply([
        Change::Remove(ObjectKey::new(Kind::VirtualService, "shop", "v")),
        Change::Remove(ObjectKey::new(Kind::VirtualService, "shop", "newer")),
    ]);
    assert_eq!(of_web(&translator), None);
}

#[test]
fn what_is_not_understood_refuses_the_whole() {
    let text = r#"{"metadata": {"name": "v", "namespace": "shop"},
        "spec": {"hosts": ["web"], "http": [{"timeout": "1s", "nextYears": {}}]}}"#;
    let read = &mut serde_json::Deserializer::from_str(text);
    let decoded = leno_objects::decode(Kind::VirtualService, leno_objects::Mode::Lenient, read).expect("read");
    let mut translator = Translator::new(Options::default());
    translator.apply(upserts(SHOP));
    translator.apply([Change::upsert(decoded.object)]);
    let said = warnings(&translator, "shop", "v");
    assert!(said.contains("not understood") && said.contains("not even in part"), "{said}");
    assert_eq!(of_web(&translator), None);
}

#[test]
fn what_happens_to_no_request_is_said() {
    let translator = with(
        "hosts: [web], http: [{retries: {attempts: 1, retryOn: 'unavailable,503'}, \
         fault: {delay: {fixedDelay: 1s}, abort: {httpStatus: 500}}}]",
    );
    let said = warnings(&translator, "shop", "v");
    assert!(said.contains("fault.delay has no percentage, so it happens to NO request"), "{said}");
    assert!(said.contains("fault.abort has no percentage") && said.contains("\"unavailable\" is ignored"), "{said}");
    let defaults = of_web(&translator).expect("there");
    assert_eq!(defaults.retry.map(|retry| retry.codes), Some(vec![503]));
    let fault = Fault { delay: Some((0, Duration::from_secs(1))), abort: Some((0, Abort::Status(500))) };
    assert_eq!(defaults.fault, Some(fault));
}

#[test]
fn one_counts_for_a_service_and_none_beside_a_route() {
    let mut translator = with("hosts: [web.shop.svc.cluster.local], http: [{timeout: 1s}]");
    translator.apply(upserts(&object("shop", "newer", NEW, "hosts: [web], http: [{timeout: 2s}]")));
    assert_eq!(of_web(&translator).and_then(|it| it.timeout), Some(Duration::from_secs(1)));
    assert!(warnings(&translator, "shop", "newer").contains("VirtualService shop/v is older"));
    translator.apply([Change::Remove(ObjectKey::new(Kind::VirtualService, "shop", "v"))]);
    assert_eq!(of_web(&translator).and_then(|it| it.timeout), Some(Duration::from_secs(2)));
    assert_eq!(warnings(&translator, "shop", "newer"), "");
    // Of another namespace, and of somebody's gateways.
    translator.apply(upserts(&object(
        "bank",
        "theirs",
        OLD,
        "hosts: [web.shop.svc.cluster.local], http: [{timeout: 3s}]",
    )));
    assert!(warnings(&translator, "bank", "theirs").contains("is no Service of namespace bank"));
    translator.apply(upserts(&object("shop", "edge", OLD, "hosts: [web], gateways: [edge], http: [{timeout: 4s}]")));
    assert_eq!(warnings(&translator, "shop", "edge"), "");
    assert_eq!(of_web(&translator).and_then(|it| it.timeout), Some(Duration::from_secs(2)));
    let route = "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: route, namespace: shop}
spec:
  parentRefs: [{group: '', kind: Service, name: web}]
  rules: [{backendRefs: [{name: web, port: 80}]}]
";
    translator.apply(upserts(route));
    assert!(warnings(&translator, "shop", "newer").contains("only that counts"));
}
