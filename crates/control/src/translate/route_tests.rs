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

#[test]
fn a_parent_of_the_wrong_group_is_told() {
    let mut translator = shop();
    let key = ObjectKey::new(Kind::HTTPRoute, "shop", "r");
    for (parent, told) in [
        ("kind: Service, name: web", "its group is gateway.networking.k8s.io"),
        ("group: apps, kind: Service, name: web", "its group is apps"),
        ("name: web", ""),
    ] {
        let spec = format!("{{parentRefs: [{{{parent}}}], rules: [{{backendRefs: [{{name: v2, port: 80}}]}}]}}");
        put(&mut translator, &route_object("HTTPRoute", "shop", "r", &spec));
        let warnings = translator.warnings().get(&key).map(|all| all.join("\n")).unwrap_or_default();
        assert!(warnings.contains(told) && warnings.is_empty() == told.is_empty(), "{parent}: {warnings}");
        assert_eq!(conditions(&translator, Kind::HTTPRoute, "shop", "r"), Vec::<String>::new(), "{parent}");
    }
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
        "sessionPersistence: {type: Header, sessionName: host}",
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

#[test]
fn a_rule_may_keep_sessions_at_one_endpoint() {
    let mut translator = shop();
    let with = |session: &str| {
        let spec = format!(
            "{{{TO_WEB}, rules: [{{backendRefs: [{{name: v2, port: 80}}], sessionPersistence: {{{session}}}}}]}}"
        );
        route_object("HTTPRoute", "shop", "web", &spec)
    };
    let permanent = "sessionName: who, type: Cookie, absoluteTimeout: 1h, cookieConfig: {lifetimeType: Permanent}";
    put(&mut translator, &with(permanent));
    assert_eq!(conditions(&translator, Kind::HTTPRoute, "shop", "web"), [GOOD]);
    let session = translator.mesh().route(&http("web")).expect("a route").rules[0].session.clone().expect("sessions");
    assert_eq!(session.token, leno_model::http::SessionToken::Cookie { permanent: true });
    assert_eq!(session.absolute_timeout, Some(std::time::Duration::from_secs(3600)));
    let refused = "Accepted false UnsupportedValue, ResolvedRefs true ResolvedRefs";
    for wrong in [
        "type: Header, sessionName: host",
        "type: Header, cookieConfig: {lifetimeType: Session}",
        "cookieConfig: {lifetimeType: Permanent}",
        "absoluteTimeout: 0s",
    ] {
        put(&mut translator, &with(wrong));
        assert_eq!(conditions(&translator, Kind::HTTPRoute, "shop", "web"), [refused], "{wrong}");
    }
    put(&mut translator, &with("type: Header"));
    assert_eq!(conditions(&translator, Kind::HTTPRoute, "shop", "web"), [GOOD]);
    // GEP-1619: a Service that keeps clients by itself does not go with it.
    put(
        &mut translator,
        "apiVersion: v1\nkind: Service\nmetadata: {name: v2, namespace: shop}\n\
         spec: {clusterIP: 10.0.0.2, sessionAffinity: ClientIP, ports: [{port: 80}], selector: {app: v2}}\n",
    );
    assert_eq!(conditions(&translator, Kind::HTTPRoute, "shop", "web"), [refused]);
}

fn connection_route(kind: &str, name: &str, parent: &str, more: &str) -> String {
    route_object(kind, "shop", name, &format!("{{parentRefs: [{{group: '', kind: Service, {parent}}}], {more}}}"))
}

#[test]
fn routes_of_connections_are_followed_where_nothing_says_that_there_are_requests() {
    let mut translator = shop();
    put(
        &mut translator,
        "apiVersion: v1\nkind: Service\nmetadata: {name: db, namespace: shop}\n\
         spec: {clusterIP: 10.0.0.7, ports: [{name: tcp, port: 5432}, {name: http, port: 80}], selector: {app: db}}\n",
    );
    let rules = "rules: [{backendRefs: [{name: v2, port: 80}]}]";
    put(&mut translator, &connection_route("TCPRoute", "db", "name: db, port: 5432", rules));
    assert_eq!(conditions(&translator, Kind::TCPRoute, "shop", "db"), [GOOD]);
    let id = |kind| RouteName { kind, namespace: "shop".into(), name: "db".into() };
    let held = translator.mesh().route(&id(RouteKind::Tcp)).expect("a route");
    assert_eq!((held.parents[0].port, held.rules.len(), held.hostnames.len()), (Some(5432), 1, 0));
    assert_eq!(translator.readers_of(&id(RouteKind::Tcp)).map(|name| &**name).collect::<Vec<_>>(), ["shop/waypoint"]);
    // A port that is declared to be HTTP, and a Service that has other ports, too.
    put(&mut translator, &connection_route("TCPRoute", "http", "name: db, port: 80", rules));
    let refused = "Accepted false NoMatchingParent, ResolvedRefs true ResolvedRefs";
    assert_eq!(conditions(&translator, Kind::TCPRoute, "shop", "http"), [refused]);
    put(&mut translator, &connection_route("TCPRoute", "http", "name: db", rules));
    assert_eq!(conditions(&translator, Kind::TCPRoute, "shop", "http"), [GOOD]);
    // A TLSRoute goes before them, as long as it is there.
    let named = format!("hostnames: [db.example], {rules}");
    put(&mut translator, &connection_route("TLSRoute", "db", "name: db, port: 5432", &named));
    assert_eq!(conditions(&translator, Kind::TLSRoute, "shop", "db"), [GOOD]);
    assert_eq!(&*translator.mesh().route(&id(RouteKind::Tls)).expect("a route").hostnames[0], "db.example");
    let conflicted = "Accepted false Conflicted, ResolvedRefs true ResolvedRefs";
    assert_eq!(conditions(&translator, Kind::TCPRoute, "shop", "db"), [conflicted]);
    assert!(translator.mesh().route(&id(RouteKind::Tcp)).is_none());
    translator.apply([Change::Remove(ObjectKey::new(Kind::TLSRoute, "shop", "db"))]);
    assert_eq!(conditions(&translator, Kind::TCPRoute, "shop", "db"), [GOOD]);
    // Backends are judged as those of requests are.
    let elsewhere = "rules: [{backendRefs: [{name: api, namespace: bank, port: 80}]}]";
    put(&mut translator, &connection_route("TCPRoute", "db", "name: db, port: 5432", elsewhere));
    let said = "Accepted true Accepted, ResolvedRefs false RefNotPermitted";
    assert_eq!(conditions(&translator, Kind::TCPRoute, "shop", "db"), [said]);
    put(
        &mut translator,
        "apiVersion: gateway.networking.k8s.io/v1\nkind: ReferenceGrant\nmetadata: {name: a, namespace: bank}\nspec: {from: [{group: gateway.networking.k8s.io, kind: TCPRoute, namespace: shop}], to: [{kind: Service}]}\n",
    );
    assert_eq!(conditions(&translator, Kind::TCPRoute, "shop", "db"), [GOOD]);
}

#[test]
fn a_route_may_let_through_so_many_requests() {
    let mut translator = shop();
    let with = |annotations: &str| {
        let route = route_object("HTTPRoute", "shop", "web", &to("{name: v2, port: 80}"));
        let meta = format!("{{name: web, namespace: shop, annotations: {{{annotations}}}}}");
        route.replace("{name: web, namespace: shop}\nspec", &format!("{meta}\nspec"))
    };
    put(&mut translator, &with("leno.mesh/rate-limit: 90/m, leno.mesh/rate-limit-burst: '5'"));
    assert_eq!(conditions(&translator, Kind::HTTPRoute, "shop", "web"), [GOOD]);
    let rate = |translator: &Translator| translator.mesh().route(&http("web")).expect("a route").rules[0].rate;
    let wanted = leno_model::http::RateLimit { requests: 90, per: std::time::Duration::from_secs(60), burst: 5 };
    assert_eq!(rate(&translator), Some(wanted));
    for wrong in [
        "leno.mesh/rate-limit: '100'",
        "leno.mesh/rate-limit: 0/s",
        "leno.mesh/rate-limit: 1/d",
        "leno.mesh/rate-limit: 1/s, leno.mesh/rate-limit-burst: many",
        "leno.mesh/rate-limit-burst: '5'",
    ] {
        put(&mut translator, &with(wrong));
        let refused = "Accepted false UnsupportedValue, ResolvedRefs true ResolvedRefs";
        assert_eq!(conditions(&translator, Kind::HTTPRoute, "shop", "web"), [refused], "{wrong}");
        assert_eq!(rate(&translator), Some(wanted), "the last good version stays");
    }
    put(&mut translator, &with("leno.mesh/rate-limit: 10/s"));
    assert_eq!(rate(&translator).map(|rate| rate.burst), Some(10));
}
