use super::*;
use crate::{Decoded, Kind, Mode, Object, decode};

fn read(kind: Kind, mode: Mode, yaml: &str) -> Result<Decoded, String> {
    serde_saphyr::with_deserializer_from_str(yaml, |from| decode(kind, mode, from)).map_err(|e| e.to_string())
}

const WHOLE: &str = "
metadata: {name: web, namespace: shop, creationTimestamp: 2026-01-31T12:00:00Z}
spec:
  parentRefs:
  - {group: '', kind: Service, name: web, port: 80}
  rules:
  - name: first
    matches:
    - path: {type: Exact, value: /a}
      method: GET
      headers: [{name: X-A, value: b}, {type: RegularExpression, name: x-c, value: 'd.*'}]
      queryParams: [{name: q, value: '1'}]
    filters:
    - type: RequestHeaderModifier
      requestHeaderModifier: {set: [{name: a, value: b}], add: [{name: c, value: d}], remove: [e]}
    - type: RequestMirror
      requestMirror: {backendRef: {name: copy, port: 80}, fraction: {numerator: 1, denominator: 4}}
    - type: URLRewrite
      urlRewrite: {hostname: b.example, path: {type: ReplacePrefixMatch, replacePrefixMatch: /x}}
    - type: CORS
      cors: {allowOrigins: ['https://*.example'], allowCredentials: true, maxAge: 60}
    backendRefs:
    - {name: v1, port: 80, weight: 9}
    - {name: v2, port: 80, filters: [{type: ResponseHeaderModifier, responseHeaderModifier: {remove: [server]}}]}
    timeouts: {request: 1m30s, backendRequest: 500ms}
    retry: {codes: [503], attempts: 2, backoff: 100ms}
    sessionPersistence: {type: Cookie, sessionName: s, absoluteTimeout: 1h, cookieConfig: {lifetimeType: Permanent}}
";

#[test]
fn a_route_with_everything() {
    let decoded = read(Kind::HTTPRoute, Mode::Strict, WHOLE).expect("a route");
    assert_eq!(decoded.warnings, Vec::<String>::new());
    let Object::HTTPRoute(route) = decoded.object else { panic!() };
    let rule = &route.spec.rules.as_ref().expect("rules")[0];
    assert_eq!((rule.backend_refs[0].weight, rule.backend_refs[1].weight), (9, 1));
    let timeouts = rule.timeouts.as_ref().expect("timeouts");
    assert_eq!(timeouts.request, Some(RouteDuration(Duration::from_secs(90))));
    assert_eq!(rule.filters[1].request_mirror.as_ref().expect("a mirror").backend_ref.name, "copy");
    assert_eq!(rule.matches[0].headers[1].kind, ValueMatchType::RegularExpression);
}

#[test]
fn a_file_is_refused_for_what_is_no_value() {
    let refused = |from: &str, to: &str, expected: &str| {
        let yaml = WHOLE.replace(from, to);
        assert_ne!(yaml, WHOLE, "{from}");
        let error = read(Kind::HTTPRoute, Mode::Strict, &yaml).expect_err(to);
        assert!(error.contains(expected), "{error}");
    };
    refused("method: GET", "method: GETT", "spec.rules[0].matches[0].method: \"GETT\" is not one of");
    refused("type: Exact, value: /a", "type: Exakt, value: /a", "did you mean Exact?");
    refused("500ms", "500q", "is not a duration such as");
    refused("numerator: 1,", "numerator: 5,", "must not be greater than the denominator");
    refused("codes: [503]", "codes: [200]", "200 is not a status code from 400 to 599");
    refused("replacePrefixMatch: /x", "replaceFullPath: /x", "needs the field of this name and no other");
    refused("backoff", "backof", "did you mean backoff?");
}

#[test]
fn an_api_server_may_be_newer_and_the_route_knows_what_is_missing() {
    let yaml = WHOLE.replace("type: Exact, value: /a", "type: Glob, value: /a");
    let Object::HTTPRoute(route) = read(Kind::HTTPRoute, Mode::Lenient, &yaml).expect("a route").object else {
        panic!()
    };
    assert_eq!(route.not_understood.len(), 1);
    assert!(route.not_understood[0].contains("Glob"), "{:?}", route.not_understood);
}

#[test]
fn durations_are_those_of_the_gateway_api() {
    let parsed = |text: &str| text.parse::<RouteDuration>().map(|duration| duration.0);
    assert_eq!(parsed("1h2m3s4ms"), Ok(Duration::from_millis(3_723_004)));
    assert_eq!(parsed("0s"), Ok(Duration::ZERO));
    for bad in ["", "1", "s", "1.5s", "-1s", "123456s", "1d", "1s ", "1h1m1s1ms1ms"] {
        assert!(parsed(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_grpc_route_and_a_grant() {
    let yaml = "
metadata: {name: api, namespace: shop}
spec:
  parentRefs: [{group: '', kind: Service, name: api}]
  rules:
  - matches: [{method: {service: shop.Api, method: Get}, headers: [{name: a, value: b}]}]
    backendRefs: [{name: api, port: 9000}]
";
    let Object::GRPCRoute(route) = read(Kind::GRPCRoute, Mode::Strict, yaml).expect("a route").object else { panic!() };
    let method = route.spec.rules[0].matches[0].method.as_ref().expect("a method");
    assert_eq!(method.service.as_deref(), Some("shop.Api"));
    let neither = yaml.replace("{service: shop.Api, method: Get}", "{type: Exact}");
    let error = read(Kind::GRPCRoute, Mode::Strict, &neither).expect_err("neither");
    assert!(error.contains("needs a service or a method"), "{error}");
    let yaml = "
metadata: {name: web, namespace: store}
spec:
  from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: shop}]
  to: [{group: '', kind: Service}]
";
    read(Kind::ReferenceGrant, Mode::Strict, yaml).expect("a grant");
}
