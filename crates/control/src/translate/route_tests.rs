use leno_model::http::{BackendTarget, PathMatch, RouteKind};
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
spec: {clusterIP: 10.0.0.1, ports: [{name: http, port: 80}, {name: admin, port: 81}], selector: {app: web}}
---
apiVersion: v1
kind: Service
metadata: {name: v2, namespace: shop}
spec: {clusterIP: 10.0.0.2, ports: [{port: 80}], selector: {app: v2}}
---
apiVersion: v1
kind: Service
metadata: {name: api, namespace: bank}
spec: {clusterIP: 10.0.0.3, ports: [{port: 80}], selector: {app: api}}
";

fn route_object(kind: &str, namespace: &str, name: &str, spec: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: {kind}\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec: {spec}\n"
    )
}

const TO_WEB: &str = "parentRefs: [{group: '', kind: Service, name: web, namespace: shop}]";

fn to(backend: &str) -> String {
    format!("{{{TO_WEB}, rules: [{{backendRefs: [{backend}]}}]}}")
}

fn shop() -> Translator {
    let mut translator = Translator::new(Options::default());
    translator.apply(upserts(SHOP));
    translator
}

fn put(translator: &mut Translator, yaml: &str) -> Delta {
    translator.apply(upserts(yaml))
}

fn conditions(translator: &Translator, kind: Kind, namespace: &str, name: &str) -> Vec<String> {
    let parents = translator.route_status(&ObjectKey::new(kind, namespace, name));
    let of = |parent: &ParentStatus| {
        let one = |c: &crate::status::Condition| format!("{} {} {}", c.kind, c.holds, c.reason);
        parent.conditions.iter().map(one).collect::<Vec<_>>().join(", ")
    };
    parents.iter().map(of).collect()
}

fn http(name: &str) -> RouteName {
    RouteName { kind: RouteKind::Http, namespace: "shop".into(), name: name.into() }
}

const GOOD: &str = "Accepted true Accepted, ResolvedRefs true ResolvedRefs";

#[test]
fn a_route_is_told_to_the_waypoint_before_its_service_and_to_no_other() {
    let mut translator = shop();
    let delta = put(&mut translator, &route_object("HTTPRoute", "shop", "web", &to("{name: v2, port: 80}")));
    assert_eq!(conditions(&translator, Kind::HTTPRoute, "shop", "web"), [GOOD]);
    assert_eq!(translator.readers_of(&http("web")).map(|name| &**name).collect::<Vec<_>>(), ["shop/waypoint"]);
    assert_eq!(delta.routes.keys().collect::<Vec<_>>(), [&http("web")]);
    assert!(delta.services.is_empty() && delta.workloads.is_empty(), "nothing else is touched");
    let route = translator.mesh().route(&http("web")).expect("a route");
    let to =
        BackendTarget::Service { service: service_name::service_name(&Options::default(), "shop", "v2"), port: 80 };
    assert_eq!(route.rules[0].backends[0].target, to);
    // The service gets another waypoint: the route moves.
    let moved = SHOP.replace("use-waypoint: waypoint", "use-waypoint: other");
    let delta = put(&mut translator, &moved);
    let no_more = delta.routes.get(&http("web")).expect("the route");
    assert_eq!(no_more.iter().map(|name| &**name).collect::<Vec<_>>(), ["shop/waypoint"]);
    assert_eq!(translator.readers_of(&http("web")).map(|name| &**name).collect::<Vec<_>>(), ["shop/other"]);
    // And it goes with its object.
    translator.apply([Change::Remove(ObjectKey::new(Kind::HTTPRoute, "shop", "web"))]);
    assert!(translator.mesh().route(&http("web")).is_none() && translator.route_status.is_empty());
}

#[test]
fn parents_that_are_none_say_why() {
    let mut translator = shop();
    let parent =
        |parent: &str| format!("{{parentRefs: [{parent}], rules: [{{backendRefs: [{{name: v2, port: 80}}]}}]}}");
    let mut said = |reference: &str| {
        put(&mut translator, &route_object("HTTPRoute", "shop", "web", &parent(reference)));
        let first = conditions(&translator, Kind::HTTPRoute, "shop", "web").first().cloned();
        first.map(|text| text.split(',').next().unwrap_or_default().to_owned())
    };
    let service = |rest: &str| format!("{{group: '', kind: Service, name: web{rest}}}");
    assert_eq!(said(&service("")).as_deref(), Some("Accepted true Accepted"));
    assert_eq!(said(&service(", port: 81")).as_deref(), Some("Accepted true Accepted"));
    assert_eq!(said(&service(", sectionName: admin")).as_deref(), Some("Accepted true Accepted"));
    assert_eq!(said(&service(", sectionName: admin, port: 80")).as_deref(), Some("Accepted false NoMatchingParent"));
    assert_eq!(said(&service(", port: 82")).as_deref(), Some("Accepted false NoMatchingParent"));
    assert_eq!(said(&service(", namespace: bank")).as_deref(), Some("Accepted false NoMatchingParent"));
    let entry = "{group: networking.istio.io, kind: ServiceEntry, name: web}";
    assert_eq!(said(entry).as_deref(), Some("Accepted false InvalidKind"));
    assert_eq!(said("{name: gateway}"), None, "a gateway's route is not this control plane's business");
}

#[test]
fn a_backend_that_cannot_be_used_is_said_and_answers_500() {
    let mut translator = shop();
    let mut said = |backend: &str| {
        put(&mut translator, &route_object("HTTPRoute", "shop", "web", &to(backend)));
        let text = conditions(&translator, Kind::HTTPRoute, "shop", "web").concat();
        let route = translator.mesh().route(&http("web")).expect("accepted all the same");
        let invalid = matches!(route.rules[0].backends[0].target, BackendTarget::Invalid(_));
        assert_eq!(invalid, text != GOOD);
        text.split(", ").nth(1).unwrap_or_default().to_owned()
    };
    assert_eq!(said("{name: gone, port: 80}"), "ResolvedRefs false BackendNotFound");
    assert_eq!(said("{name: v2, port: 8080}"), "ResolvedRefs false BackendNotFound");
    assert_eq!(said("{name: v2}"), "ResolvedRefs false BackendNotFound");
    assert_eq!(said("{kind: Pod, name: v2, port: 80}"), "ResolvedRefs false InvalidKind");
    assert_eq!(said("{name: api, namespace: bank, port: 80}"), "ResolvedRefs false RefNotPermitted");
    put(
        &mut translator,
        "apiVersion: gateway.networking.k8s.io/v1\nkind: ReferenceGrant\nmetadata: {name: a, namespace: bank}\nspec: {from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: shop}], to: [{kind: Service, name: api}]}\n",
    );
    assert_eq!(conditions(&translator, Kind::HTTPRoute, "shop", "web"), [GOOD], "the grant has its effect at once");
    // A Service that comes later, too.
    put(&mut translator, &route_object("HTTPRoute", "shop", "web", &to("{name: late, port: 80}")));
    assert_ne!(conditions(&translator, Kind::HTTPRoute, "shop", "web"), [GOOD]);
    put(
        &mut translator,
        "apiVersion: v1\nkind: Service\nmetadata: {name: late, namespace: shop}\nspec: {clusterIP: 10.0.0.9, ports: [{port: 80}]}\n",
    );
    assert_eq!(conditions(&translator, Kind::HTTPRoute, "shop", "web"), [GOOD]);
}

#[test]
fn a_route_that_cannot_be_followed_leaves_the_last_version_in_force() {
    let mut translator = shop();
    put(&mut translator, &route_object("HTTPRoute", "shop", "web", &to("{name: v2, port: 80}")));
    let before = translator.mesh().route(&http("web")).cloned();
    let bad = [
        "matches: [{path: {type: RegularExpression, value: '('}}]",
        "filters: [{type: ExtensionRef, extensionRef: {group: x, kind: Why, name: z}}]",
        "filters: [{type: RequestRedirect, requestRedirect: {statusCode: 300}}]",
        "filters: [{type: RequestRedirect}]",
        "filters: [{type: RequestMirror, requestMirror: {backendRef: {name: v2, port: 80}, percent: 1, fraction: {numerator: 1}}}]",
        "filters: [{type: RequestMirror}]",
        "sessionPersistence: {}",
        "timeouts: {request: 1s, backendRequest: 2s}",
        "matches: [{path: {type: Exact, value: a}}]",
    ];
    for bad in bad {
        let spec = format!("{{{TO_WEB}, rules: [{{backendRefs: [{{name: web, port: 80}}]}}, {{{bad}}}]}}");
        let delta = put(&mut translator, &route_object("HTTPRoute", "shop", "web", &spec));
        assert!(delta.routes.is_empty(), "{bad}");
        assert_eq!(translator.mesh().route(&http("web")).cloned(), before, "{bad}");
        let said = conditions(&translator, Kind::HTTPRoute, "shop", "web").concat();
        assert!(said.starts_with("Accepted false UnsupportedValue"), "{bad}: {said}");
        // The other rule is sound.
        assert!(said.ends_with("PartiallyInvalid true UnsupportedValue"), "{bad}: {said}");
        let key = ObjectKey::new(Kind::HTTPRoute, "shop", "web");
        assert!(translator.warnings()[&key][0].contains("spec.rules[1]"), "{:?}", translator.warnings());
    }
    let both = "filters: [{type: RequestRedirect, requestRedirect: {port: 81}}, {type: URLRewrite, urlRewrite: {hostname: a}}]";
    put(&mut translator, &route_object("HTTPRoute", "shop", "web", &format!("{{{TO_WEB}, rules: [{{{both}}}]}}")));
    let said = conditions(&translator, Kind::HTTPRoute, "shop", "web").concat();
    assert!(said.starts_with("Accepted false IncompatibleFilters") && !said.contains("PartiallyInvalid"), "{said}");
}

#[test]
fn a_rule_may_send_several_copies_each_by_its_share() {
    let mut translator = shop();
    let copy =
        |more: &str| format!("{{type: RequestMirror, requestMirror: {{backendRef: {{name: v2, port: 80}}{more}}}}}");
    let all = ["", ", percent: 42", ", fraction: {numerator: 1, denominator: 1000}"].map(copy).join(", ");
    let spec = format!("{{{TO_WEB}, rules: [{{filters: [{all}], backendRefs: [{{name: web, port: 80}}]}}]}}");
    for (object, kind) in [("HTTPRoute", RouteKind::Http), ("GRPCRoute", RouteKind::Grpc)] {
        put(&mut translator, &route_object(object, "shop", "web", &spec));
        let name = RouteName { kind, ..http("web") };
        let route = translator.mesh().route(&name).cloned().expect("a route");
        let shares = route.rules[0].filters.iter().map(|filter| match filter {
            leno_model::http::Filter::Mirror(mirror) => (mirror.numerator, mirror.denominator),
            other => panic!("{other:?}"),
        });
        assert_eq!(shares.collect::<Vec<_>>(), [(1, 1), (42, 100), (1, 1000)]);
    }
}

#[test]
fn a_consumers_route_is_for_its_own_namespace() {
    let mut translator = shop();
    // What the service's own namespace has is reached by who reaches the service: no grant is needed.
    let spec = "{parentRefs: [{group: '', kind: Service, name: web, namespace: shop}], rules: [{backendRefs: [{name: v2, namespace: shop, port: 80}]}]}";
    put(&mut translator, &route_object("HTTPRoute", "bank", "web", spec));
    assert_eq!(conditions(&translator, Kind::HTTPRoute, "bank", "web"), [GOOD]);
    let id = RouteName { kind: RouteKind::Http, namespace: "bank".into(), name: "web".into() };
    let route = translator.mesh().route(&id).expect("a route");
    assert_eq!(route.parents[0].consumer.as_deref(), Some("bank"));
}

#[test]
fn a_grpc_route_goes_before_an_http_route_of_the_same_port() {
    let mut translator = shop();
    put(&mut translator, &route_object("HTTPRoute", "shop", "web", &to("{name: v2, port: 80}")));
    let spec = "{parentRefs: [{group: '', kind: Service, name: web, port: 80}], rules: [{matches: [{method: {service: a.B, method: C}}, {method: {service: a.B}}, {method: {method: C.D}}, {}], backendRefs: [{name: v2, port: 80}]}]}";
    put(&mut translator, &route_object("GRPCRoute", "shop", "calls", spec));
    assert_eq!(conditions(&translator, Kind::GRPCRoute, "shop", "calls"), [GOOD]);
    let said = conditions(&translator, Kind::HTTPRoute, "shop", "web").concat();
    assert!(said.starts_with("Accepted false Conflicted"), "{said}");
    assert!(translator.mesh().route(&http("web")).is_none());
    let id = RouteName { kind: RouteKind::Grpc, namespace: "shop".into(), name: "calls".into() };
    let route = translator.mesh().route(&id).expect("a route");
    let paths: Vec<&PathMatch> = route.rules[0].matches.iter().map(|one| &one.path).collect();
    let expected = [
        PathMatch::Exact("/a.B/C".into()),
        PathMatch::Prefix("/a.B".into()),
        PathMatch::Regex("/[^/]+/C\\.D".into()),
        PathMatch::Prefix("/".into()),
    ];
    assert_eq!(paths, expected.iter().collect::<Vec<_>>());
    // On its other port the HTTPRoute stands.
    let other = TO_WEB.replace("name: web", "name: web, port: 81");
    let spec = format!("{{{other}, rules: [{{backendRefs: [{{name: v2, port: 80}}]}}]}}");
    put(&mut translator, &route_object("HTTPRoute", "shop", "web", &spec));
    assert_eq!(conditions(&translator, Kind::HTTPRoute, "shop", "web"), [GOOD]);
    translator.apply([Change::Remove(ObjectKey::new(Kind::GRPCRoute, "shop", "calls"))]);
    put(&mut translator, &route_object("HTTPRoute", "shop", "web", &to("{name: v2, port: 80}")));
    assert_eq!(conditions(&translator, Kind::HTTPRoute, "shop", "web"), [GOOD]);
}

#[test]
fn a_route_without_a_waypoint_says_that_it_has_no_effect() {
    let mut translator = shop();
    let spec = "{parentRefs: [{group: '', kind: Service, name: api}], rules: [{backendRefs: [{name: api, port: 80}]}]}";
    put(&mut translator, &route_object("HTTPRoute", "bank", "api", spec));
    let key = ObjectKey::new(Kind::HTTPRoute, "bank", "api");
    assert!(translator.warnings()[&key][0].contains("has no effect there"), "{:?}", translator.warnings());
    let id = RouteName { kind: RouteKind::Http, namespace: "bank".into(), name: "api".into() };
    assert_eq!(translator.readers_of(&id).count(), 0);
}
