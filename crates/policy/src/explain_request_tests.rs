use std::sync::Arc;

use leno_model::http::{
    Attribute, AttributeTest, Authorizer, Backend as RouteBackend, CheckedBody, Filter, Match, Parent, PathMatch,
    Policy, PolicyClause, PolicyRule, PolicyTarget, Redirect, Route, RouteKind, RouteName, Rule, Timeouts,
};
use leno_model::{Action, Authorization, Name, PolicyName, Scope};

use super::*;
use crate::explain::{Explanation, explain_request};
use crate::test_support::{at, endpoint, mesh, pod, policy_name, port, rule, service, waypoint_by_name};

fn asks(attribute: Attribute, value: &str) -> AttributeTest {
    AttributeTest { attribute, values: vec![value.into()], not_values: Vec::new() }
}

fn policy(name: &str, action: PolicyAction, target: &Service, tests: Vec<AttributeTest>) -> Policy {
    Policy {
        targets: vec![PolicyTarget::Service(target.id.clone())],
        rules: vec![PolicyRule { clauses: vec![PolicyClause { alternatives: vec![tests] }] }],
        ..Policy::new(policy_name(name), action)
    }
}

fn get(path: &str) -> Asked {
    Asked { method: "GET".to_owned(), path: path.to_owned(), headers: Vec::new() }
}

struct Shop {
    mesh: Mesh,
    client: Workload,
    web: Service,
    canary: Service,
}

/// A client, and a service behind a waypoint.
fn shop() -> Shop {
    let mut waypoint = service("waypoint", &["10.96.0.2"]);
    waypoint.ports = vec![port(15008, 15008)];
    let mut web = service("web", &["10.96.0.1"]);
    web.waypoint = Some(waypoint_by_name(&waypoint));
    let canary = service("canary", &["10.96.0.3"]);
    let client = pod("client", "10.0.0.1");
    let gateway = endpoint("gateway", "10.0.2.1", &[&waypoint]);
    let server = endpoint("web-1", "10.0.1.1", &[&web]);
    let other = endpoint("canary-1", "10.0.1.2", &[&canary]);
    let mesh = mesh(&[&web, &waypoint, &canary], &[&client, &gateway, &server, &other]);
    Shop { mesh, client, web, canary }
}

impl Shop {
    fn asked(&self, asked: &Asked) -> (Explanation, AtWaypoint) {
        let explanation = explain_request(&self.mesh, &self.client, at("10.96.0.1:80"), Some(asked));
        let at_waypoint = *explanation.at_waypoint.clone().expect("a waypoint");
        (explanation, at_waypoint)
    }
}

#[test]
fn a_request_is_judged_by_the_policies_of_its_service() {
    let mut shop = shop();
    let get_only = vec![asks(Attribute::Method, "GET")];
    shop.mesh.upsert_request_policy(Arc::new(policy("default/get", PolicyAction::Allow, &shop.web, get_only)));
    let admin = vec![asks(Attribute::Path, "/admin*")];
    shop.mesh.upsert_request_policy(Arc::new(policy("default/admin", PolicyAction::Deny, &shop.web, admin)));
    let (explanation, found) = shop.asked(&get("/a/../b?x=1"));
    assert_eq!(explanation.outcome, Outcome::Allowed, "{explanation}");
    let line = found.request.expect("a request");
    assert_eq!((&*line.host, &*line.path), ("web.default.svc.cluster.local", "/b"));
    assert_eq!(found.verdict.as_deref(), Some("allowed by rule 1 of policy default/get"));
    let asked: Vec<_> = found.policies.iter().map(|it| (&*it.policy, it.action, it.rule)).collect();
    assert_eq!(asked, [("default/admin", "DENY", None), ("default/get", "ALLOW", Some(1))]);
    assert_eq!(found.backends[0].to, "default/web.default.svc.cluster.local:80");
    let arrival = found.backends[0].endpoints[0].arrival.as_ref().expect("a decision");
    assert_eq!(arrival.source_identity.as_deref(), Some("spiffe://cluster.local/ns/default/sa/gateway"));

    let (denied, found) = shop.asked(&get("/%61dmin"));
    assert_eq!(denied.outcome, Outcome::Denied);
    assert!(found.verdict.is_some_and(|verdict| verdict.starts_with("denied by rule 1 of policy default/admin")));
    assert!(found.backends.is_empty() && denied.to_string().contains("DENY default/admin: rule 1 matches"), "{denied}");

    let (refused, found) = shop.asked(&get("/a%2fb"));
    assert_eq!((refused.outcome, found.refused.and_then(|it| it.status)), (Outcome::Refused, Some(400)));

    let unasked = explain_request(&shop.mesh, &shop.client, at("10.96.0.1:80"), None);
    assert_eq!(unasked.outcome, Outcome::AtWaypoint);
    assert!(unasked.to_string().contains("each request is asked DENY default/admin, ALLOW default/get"), "{unasked}");
}

#[test]
fn the_pods_own_policies_see_the_waypoint() {
    let mut shop = shop();
    let others = leno_model::Match {
        not_principals: vec![leno_model::StringMatch::Suffix("/sa/nobody".into())],
        ..leno_model::Match::default()
    };
    shop.mesh.upsert_policy(Arc::new(Authorization {
        id: policy_name("default/closed"),
        scope: Scope::WorkloadSelector,
        action: Action::Deny,
        rules: vec![rule(vec![others])],
        dry_run: false,
        not_understood: None,
    }));
    let mut server = (**shop.mesh.endpoints(&shop.web.id).map(|it| &it.workload).next().expect("one")).clone();
    server.authorization_policies.push(policy_name("default/closed"));
    shop.mesh.upsert_workload(Arc::new(server));
    let (explanation, _) = shop.asked(&get("/"));
    assert_eq!(explanation.outcome, Outcome::Denied);
    let text = explanation.to_string();
    assert!(text.contains("denied by policy default/closed: peer is cluster.local/ns/default/sa/gateway"), "{text}");
}

fn route(shop: &Shop, rules: Vec<Rule>) -> Route {
    Route {
        id: RouteName { kind: RouteKind::Http, namespace: "default".into(), name: "r".into() },
        created: 0,
        parents: vec![Parent { service: shop.web.id.clone(), port: None, consumer: None }],
        hostnames: Vec::new(),
        rules,
        not_understood: None,
    }
}

fn to(path: &str, backends: Vec<RouteBackend>, filters: Vec<Filter>) -> Rule {
    Rule {
        name: Some(Name::from(path.trim_start_matches('/'))),
        matches: vec![Match { path: PathMatch::Prefix(path.into()), ..Match::all() }],
        filters,
        backends,
        timeouts: Timeouts::default(),
        retry: None,
        session: None,
        rate: None,
    }
}

#[test]
fn a_request_follows_its_route() {
    let mut shop = shop();
    let backend = |service: &Service, weight| RouteBackend {
        weight,
        target: BackendTarget::Service { service: service.id.clone(), port: 80 },
        filters: Vec::new(),
    };
    let both = vec![backend(&shop.web, 3), backend(&shop.canary, 1)];
    let gone = vec![RouteBackend { weight: 1, target: BackendTarget::Invalid("gone".into()), filters: Vec::new() }];
    let rules = vec![
        to("/both", both, Vec::new()),
        to(
            "/old",
            Vec::new(),
            vec![Filter::Redirect(Redirect { scheme: None, hostname: None, path: None, port: None, status: 301 })],
        ),
        to("/gone", gone, Vec::new()),
    ];
    shop.mesh.upsert_route(Arc::new(route(&shop, rules)));
    let (explanation, found) = shop.asked(&get("/both/x"));
    assert_eq!(explanation.outcome, Outcome::Allowed, "{explanation}");
    assert_eq!(found.rule.expect("a rule").rule, "rule both of HTTPRoute default/r");
    let shares: Vec<_> = found.backends.iter().map(|it| (it.share, it.endpoints.len())).collect();
    assert_eq!(shares, [((3, 4), 1), ((1, 4), 1)]);
    let (explanation, found) = shop.asked(&get("/old"));
    assert_eq!(explanation.outcome, Outcome::AnsweredByRoute, "{explanation}");
    assert_eq!(found.answer.map(|it| it.status), Some(301));
    let (explanation, found) = shop.asked(&get("/gone"));
    assert_eq!(explanation.outcome, Outcome::Refused, "{explanation}");
    assert_eq!(found.backends[0].refused.as_ref().map(|it| &*it.reason), Some("gone"));
    let (explanation, found) = shop.asked(&get("/other"));
    assert_eq!((explanation.outcome, found.refused.and_then(|it| it.status)), (Outcome::Refused, Some(404)));
}

#[test]
fn a_request_that_passes_no_waypoint_is_only_a_connection() {
    let shop = shop();
    let explanation = explain_request(&shop.mesh, &shop.client, at("10.96.0.3:80"), Some(&get("/")));
    assert_eq!(explanation.outcome, Outcome::Allowed);
    assert!(explanation.at_waypoint.is_none());
    assert!(explanation.to_string().contains("nobody looks at its requests"), "{explanation}");
}

#[test]
fn an_authoriser_is_said_to_be_asked_and_not_taken_for_granted() {
    let mut shop = shop();
    let authorizer = Authorizer {
        provider: "opa".into(),
        namespace: "".into(),
        hostname: "opa.auth.svc.cluster.local".into(),
        port: 9191,
        timeout: std::time::Duration::from_secs(1),
        fail_open: false,
        status_on_error: 403,
        body: Some(CheckedBody { most: 8192, partial: false, raw: false }),
        http: None,
    };
    let custom = policy("default/ask", PolicyAction::Custom, &shop.web, vec![asks(Attribute::Path, "/asked*")]);
    let asks_it = |it: &Authorizer| Policy { authorizer: Some(it.clone().into()), ..custom.clone() };
    let open = Authorizer { fail_open: true, ..authorizer.clone() };
    for (authorizer, outcome, says) in [
        (&authorizer, Outcome::Refused, "refused with status 403"),
        (&open, Outcome::Allowed, "The request passes without it (failOpen)"),
    ] {
        shop.mesh.upsert_request_policy(Arc::new(asks_it(authorizer)));
        let (explanation, _) = shop.asked(&get("/asked"));
        let text = explanation.to_string();
        assert_eq!(explanation.outcome, outcome, "{text}");
        assert!(text.contains("opa.auth.svc.cluster.local is no Service that the mesh knows"), "{text}");
        assert!(text.contains(says) && !text.contains("waypoint asks"), "{text}");
    }
    let opa = leno_model::ServiceName { namespace: "auth".into(), hostname: authorizer.hostname.clone() };
    let mut opa = Service { id: opa, ..shop.canary.clone() };
    shop.mesh.upsert_service(Arc::new(opa.clone()));
    let (explanation, _) = shop.asked(&get("/asked"));
    assert!(explanation.to_string().contains("passes without it"), "{explanation}");
    assert!(explanation.to_string().contains("has no port 9191; it has 80"), "{explanation}");
    opa.ports[0].service_port = 9191;
    shop.mesh.upsert_service(Arc::new(opa));
    shop.mesh.upsert_request_policy(Arc::new(asks_it(&authorizer)));
    let (explanation, found) = shop.asked(&get("/asked"));
    assert_eq!(explanation.outcome, Outcome::AtWaypoint, "{explanation}");
    assert!(
        found.verdict.as_deref().is_some_and(|said| said.ends_with(", if every authoriser allows it")),
        "{found:?}"
    );
    let text = explanation.to_string();
    assert!(text.contains("CUSTOM default/ask: rule 1 matches"), "{text}");
    assert!(text.contains("asks the authoriser \"opa\" (opa.auth.svc.cluster.local:9191)"), "{text}");
    assert!(text.contains("Without an answer within 1s the request gets status 403"), "{text}");
    assert!(text.contains("told up to 8192 bytes of its body; a longer one gets status 413"), "{text}");
    let (explanation, found) = shop.asked(&get("/other"));
    assert_eq!((explanation.outcome, found.asks_authorizers), (Outcome::Allowed, false), "{explanation}");

    let deny = policy("default/no", PolicyAction::Deny, &shop.web, vec![asks(Attribute::Path, "/asked/no")]);
    shop.mesh.upsert_request_policy(Arc::new(deny));
    assert_eq!(shop.asked(&get("/asked/no")).0.outcome, Outcome::Denied, "whatever the authoriser says");
}

#[test]
fn the_host_that_is_asked_about_is_the_server_name_of_what_passes_unread() {
    let mut shop = shop();
    let mut web = shop.web.clone();
    web.ports[0].app_protocol = AppProtocol::Tls;
    shop.mesh.upsert_service(Arc::new(web));
    let allow = policy("default/named", PolicyAction::Allow, &shop.web, vec![asks(Attribute::Sni, "a.example")]);
    shop.mesh.upsert_request_policy(Arc::new(allow));
    for (host, outcome) in [("A.example", Outcome::Allowed), ("b.example", Outcome::Denied)] {
        let named = Asked { headers: vec![("host".to_owned(), host.to_owned())], ..get("/") };
        let (explanation, _) = shop.asked(&named);
        assert_eq!(explanation.outcome, outcome, "{explanation}");
        assert!(explanation.to_string().contains("only the host plays a part"), "{explanation}");
        let names_it = explanation.to_string().contains("and the client asks for server name \"b.example\"");
        assert_eq!(names_it, outcome == Outcome::Denied, "{explanation}");
    }
    let unnamed = explain_request(&shop.mesh, &shop.client, at("10.96.0.1:80"), None);
    assert_eq!(unnamed.outcome, Outcome::Denied, "{unnamed}");
    assert!(unnamed.to_string().contains("none was asked about: --header host=NAME"), "{unnamed}");
}

#[test]
fn the_policies_of_a_backend_are_named_too() {
    let mut shop = shop();
    shop.canary.waypoint.clone_from(&shop.web.waypoint);
    shop.mesh.upsert_service(Arc::new(shop.canary.clone()));
    let target = BackendTarget::Service { service: shop.canary.id.clone(), port: 80 };
    let backends = vec![RouteBackend { weight: 1, target, filters: Vec::new() }];
    shop.mesh.upsert_route(Arc::new(route(&shop, vec![to("/", backends, Vec::new())])));
    let own = policy("default/own", PolicyAction::Allow, &shop.canary, vec![asks(Attribute::Path, "/a")]);
    shop.mesh.upsert_request_policy(Arc::new(own));
    let (explanation, found) = shop.asked(&get("/a"));
    assert_eq!(explanation.policies().into_iter().collect::<Vec<_>>(), ["default/own"], "{explanation}");
    assert_eq!(found.backends[0].policies[0].rule, Some(1));
    assert!(
        explanation.to_string().contains("policy of the Service: ALLOW default/own: rule 1 matches"),
        "{explanation}"
    );
    let elsewhere = explain_request(&shop.mesh, &shop.client, at("10.96.0.3:80"), None);
    assert_eq!(elsewhere.policies().into_iter().collect::<Vec<_>>(), ["default/own"], "requests may be: {elsewhere}");
}

/// A token of nobody's making: its signature is that of no key.
fn token(issuer: &str, subject: &str) -> String {
    use base64::Engine as _;
    let parts = [r#"{"alg":"ES256"}"#, &format!(r#"{{"iss":"{issuer}","sub":"{subject}","nbf":1900000000}}"#), "x"];
    parts.map(|part| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(part)).join(".")
}

fn takes_tokens(service: &Service) -> Policy {
    let rule = leno_model::http::TokenRule {
        issuer: "https://a.example".into(),
        audiences: Vec::new(),
        keys: leno_model::http::TokenKeys::At {
            uri: "https://a.example/keys".into(),
            timeout: std::time::Duration::from_secs(1),
        },
        headers: Vec::new(),
        params: Vec::new(),
        cookies: Vec::new(),
        forward: true,
        payload_header: None,
        claim_headers: Vec::new(),
    };
    Policy {
        tokens: vec![rule],
        rules: Vec::new(),
        ..policy("default/users", PolicyAction::Authenticate, service, Vec::new())
    }
}

fn with_token(path: &str, token: &str) -> Asked {
    Asked { headers: vec![("authorization".to_owned(), format!("Bearer {token}"))], ..get(path) }
}

#[test]
fn what_hangs_on_a_token_is_not_taken_for_granted() {
    let mut shop = shop();
    shop.mesh.upsert_request_policy(Arc::new(takes_tokens(&shop.web)));
    let ann = vec![asks(Attribute::RequestPrincipal, "https://a.example/ann")];
    shop.mesh.upsert_request_policy(Arc::new(policy("default/ann", PolicyAction::Allow, &shop.web, ann)));

    let (explanation, found) = shop.asked(&with_token("/", &token("https://a.example", "ann")));
    assert_eq!(explanation.outcome, Outcome::AtWaypoint, "{explanation}");
    assert_eq!(
        found.verdict.as_deref(),
        Some(
            "depends on the token, which explain does not verify: with an accepted token of issuer https://a.example allowed \
             by rule 1 of policy default/ann; else its client gets status 401"
        )
    );
    assert_eq!(found.unverified_token_of.as_deref(), Some("https://a.example"));
    assert!(!explanation.to_string().contains("403") && !found.backends.is_empty(), "{explanation}");
    let json = serde_json::to_value(&explanation).expect("JSON");
    assert_eq!(
        (&json["outcome"], &json["at_waypoint"]["unverified_token_of"]),
        (&"at_waypoint".into(), &"https://a.example".into())
    );

    // Another's token is no good even if it is accepted, and a third one can't be accepted.
    let (explanation, found) = shop.asked(&with_token("/", &token("https://a.example", "bob")));
    assert_eq!((explanation.outcome, found.unverified_token_of), (Outcome::Denied, None), "{explanation}");
    assert!(explanation.to_string().contains("without an accepted one it gets status 401"), "{explanation}");
    for bad in [token("https://b.example", "ann"), "nonsense".to_owned()] {
        let (explanation, found) = shop.asked(&with_token("/", &bad));
        assert_eq!((explanation.outcome, found.refused.and_then(|it| it.status)), (Outcome::Refused, Some(401)));
    }
    let (explanation, _) = shop.asked(&get("/"));
    assert_eq!(explanation.outcome, Outcome::Denied, "without a token: {explanation}");
}

#[test]
fn a_backend_looks_at_the_token_too() {
    let mut shop = shop();
    shop.canary.waypoint.clone_from(&shop.web.waypoint);
    shop.mesh.upsert_service(Arc::new(shop.canary.clone()));
    let target = BackendTarget::Service { service: shop.canary.id.clone(), port: 80 };
    let backends = vec![RouteBackend { weight: 1, target, filters: Vec::new() }];
    shop.mesh.upsert_route(Arc::new(route(&shop, vec![to("/", backends, Vec::new())])));
    shop.mesh.upsert_request_policy(Arc::new(takes_tokens(&shop.canary)));
    let ann = vec![asks(Attribute::RequestPrincipal, "https://a.example/ann")];
    shop.mesh.upsert_request_policy(Arc::new(policy("default/ann", PolicyAction::Allow, &shop.canary, ann)));
    let rows = [("ann", Outcome::AtWaypoint, None), ("bob", Outcome::Refused, Some(403))];
    for (subject, outcome, status) in rows {
        let (explanation, found) = shop.asked(&with_token("/", &token("https://a.example", subject)));
        let refused = found.backends[0].refused.as_ref().and_then(|it| it.status);
        assert_eq!((explanation.outcome, refused), (outcome, status), "{explanation}");
    }
    let (explanation, found) = shop.asked(&with_token("/", "nonsense"));
    let refused = found.backends[0].refused.as_ref().and_then(|it| it.status);
    assert_eq!((explanation.outcome, refused), (Outcome::Refused, Some(401)), "{explanation}");
}

#[test]
fn what_a_virtual_service_does_to_requests_without_a_route_is_said() {
    use leno_model::http::{Abort, Fault, RequestDefaults};
    let mut shop = shop();
    let second = std::time::Duration::from_secs(1);
    let mut defaults = RequestDefaults {
        id: policy_name("default/slow"),
        services: vec![shop.web.id.clone()],
        timeout: Some(second),
        attempt_timeout: None,
        retry: None,
        fault: Some(Fault { delay: Some((500_000, second)), abort: Some((1, Abort::Status(503))) }),
    };
    shop.mesh.upsert_request_defaults(Arc::new(defaults.clone()));
    let (explanation, found) = shop.asked(&get("/"));
    assert_eq!(explanation.outcome, Outcome::Allowed, "{explanation}");
    assert!(
        explanation.to_string().contains("note: VirtualService default/slow has 50 % of requests wait 1s"),
        "{explanation}"
    );
    assert_eq!(found.notes.len(), 3, "{explanation}");

    defaults.fault = Some(Fault { delay: None, abort: Some((1_000_000, Abort::Status(503))) });
    shop.mesh.upsert_request_defaults(Arc::new(defaults));
    let (explanation, found) = shop.asked(&get("/"));
    assert_eq!((explanation.outcome, found.refused.and_then(|it| it.status)), (Outcome::Refused, Some(503)));

    // What follows a route is the route's business.
    let target = BackendTarget::Service { service: shop.web.id.clone(), port: 80 };
    let backends = vec![RouteBackend { weight: 1, target, filters: Vec::new() }];
    shop.mesh.upsert_route(Arc::new(route(&shop, vec![to("/", backends, Vec::new())])));
    let (explanation, found) = shop.asked(&get("/"));
    assert_eq!((explanation.outcome, found.notes.len()), (Outcome::Allowed, 0), "{explanation}");
}

#[test]
fn a_backend_behind_another_waypoint_is_reached_through_it() {
    let mut shop = shop();
    let mut second = service("second", &["10.96.0.4"]);
    second.ports = vec![port(15008, 15008)];
    shop.mesh.upsert_service(Arc::new(second.clone()));
    shop.mesh.upsert_workload(Arc::new(endpoint("second-1", "10.0.2.2", &[&second])));
    let target = BackendTarget::Service { service: shop.canary.id.clone(), port: 80 };
    let backends = vec![RouteBackend { weight: 1, target, filters: Vec::new() }];
    shop.mesh.upsert_route(Arc::new(route(&shop, vec![to("/", backends, Vec::new())])));
    assert_eq!(shop.asked(&get("/")).0.outcome, Outcome::Allowed);
    for addresses in [shop.canary.addresses.clone(), Vec::new()] {
        let canary = Service { waypoint: Some(waypoint_by_name(&second)), addresses, ..shop.canary.clone() };
        shop.mesh.upsert_service(Arc::new(canary));
        let mut pod = endpoint("canary-1", "10.0.1.2", &[&shop.canary]);
        pod.authorization_policies.push(PolicyName::through_waypoint("default".into(), "second"));
        shop.mesh.upsert_workload(Arc::new(pod));
        let (explanation, found) = shop.asked(&get("/"));
        assert_eq!(explanation.outcome, Outcome::AtWaypoint, "{explanation}");
        let endpoint = &found.backends[0].endpoints[0];
        assert_eq!(endpoint.workload.as_ref().map(|it| &*it.workload), Some("default/second-1"));
        assert!(explanation.to_string().contains("canary.default.svc.cluster.local is behind another waypoint"));
    }
}
