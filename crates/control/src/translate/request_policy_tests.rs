use leno_model::http::{Attribute, PolicyAction, PolicyTarget, TokenKeys, TokenRule};
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
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: waypoint, namespace: shop}
spec: {gatewayClassName: leno-waypoint, listeners: [{name: mesh, port: 15008, protocol: HBONE}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: ingress, namespace: shop}
spec: {gatewayClassName: nginx, listeners: [{name: http, port: 80, protocol: HTTP}]}
";

fn object(namespace: &str, spec: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: p, namespace: {namespace}}}\nspec: {spec}\n"
    )
}

fn shop() -> Translator {
    let mut translator = Translator::new(Options::default());
    translator.apply(upserts(SHOP));
    translator
}

fn id(namespace: &str) -> PolicyName {
    PolicyName { namespace: namespace.into(), name: "p".into() }
}

fn readers(translator: &Translator, namespace: &str) -> Vec<String> {
    translator.readers_of_policy(&id(namespace)).map(ToString::to_string).collect()
}

fn warnings(translator: &Translator, namespace: &str) -> String {
    let key = ObjectKey::new(Kind::AuthorizationPolicy, namespace, "p");
    translator.warnings().get(&key).map(|all| all.join("\n")).unwrap_or_default()
}

fn service(name: &str) -> ServiceName {
    service_name::service_name(&Options::default(), "shop", name)
}

const TO_WEB: &str = "targetRefs: [{kind: Service, group: '', name: web}]";

#[test]
fn a_policy_goes_to_the_waypoint_of_its_service_and_to_no_node() {
    let mut translator = shop();
    let spec = format!("{{{TO_WEB}, action: DENY, rules: [{{to: [{{operation: {{methods: [DELETE]}}}}]}}]}}");
    let delta = translator.apply(upserts(&object("shop", &spec)));
    assert_eq!(delta.request_policies.keys().collect::<Vec<_>>(), [&id("shop")]);
    assert!(delta.policies.is_empty() && delta.workloads.is_empty() && delta.services.is_empty());
    assert_eq!(readers(&translator, "shop"), ["shop/waypoint"]);
    assert_eq!(warnings(&translator, "shop"), "");
    let key = ObjectKey::new(Kind::AuthorizationPolicy, "shop", "p");
    assert_eq!(translator.enforced(&key), Some("enforced by waypoint shop/waypoint"));
    let policy = translator.mesh().request_policy(&id("shop")).expect("a policy").clone();
    assert_eq!(
        (policy.action, &policy.targets[..]),
        (PolicyAction::Deny, &[PolicyTarget::Service(service("web"))][..])
    );
    let test = &policy.rules[0].clauses[0].alternatives[0][0];
    assert_eq!((&test.attribute, &*test.values[0]), (&Attribute::Method, "DELETE"));
    // The service gets another waypoint. The one before serves it for a while, and keeps the policy.
    translator.apply(upserts(&SHOP.replace("use-waypoint: waypoint", "use-waypoint: other")));
    assert_eq!(readers(&translator, "shop"), ["shop/other", "shop/waypoint"]);
    assert_eq!(translator.enforced(&key), Some("enforced by waypoint shop/other"));
    // Another target: whoever served the one before has no more to do with it.
    let spec = spec.replace("name: web", "name: plain");
    let delta = translator.apply(upserts(&object("shop", &spec)));
    assert_eq!(delta.request_policies[&id("shop")].len(), 2);
    assert_eq!(readers(&translator, "shop"), [""; 0]);
    translator.apply([Change::Remove(key.clone())]);
    assert!(translator.mesh().request_policy(&id("shop")).is_none());
    assert!(translator.enforced(&key).is_none() && translator.policy_readers.is_empty());
}

#[test]
fn gateways_and_classes_are_targets_as_istio_has_it() {
    let gateway =
        |name: &str| format!("{{targetRefs: [{{kind: Gateway, group: gateway.networking.k8s.io, name: {name}}}]}}");
    let class = "{targetRefs: [{kind: GatewayClass, group: gateway.networking.k8s.io, name: leno-waypoint}]}";
    let all = [PolicyTarget::Waypoint(service("waypoint"))];
    for (namespace, spec) in [("shop", gateway("waypoint")), ("istio-system", class.to_owned())] {
        let mut translator = shop();
        translator.apply(upserts(&object(namespace, &spec)));
        assert_eq!(readers(&translator, namespace), ["shop/waypoint"], "{spec}");
        assert_eq!(translator.mesh().request_policy(&id(namespace)).expect("a policy").targets, all);
        // The order in which the objects come does not matter.
        let mut other = Translator::new(Options::default());
        other.apply(upserts(&object(namespace, &spec)));
        assert!(other.mesh().request_policy(&id(namespace)).is_none());
        other.apply(upserts(SHOP));
        assert_eq!(other.mesh().request_policy(&id(namespace)), translator.mesh().request_policy(&id(namespace)));
    }
    let mut translator = shop();
    for (namespace, spec, why) in [
        ("shop", gateway("ingress"), "is not a waypoint"),
        ("shop", gateway("gone"), "there is no Gateway"),
        ("shop", class.to_owned(), "has to be in the root namespace"),
        (
            "shop",
            "{targetRefs: [{kind: ServiceEntry, group: networking.istio.io, name: x}]}".to_owned(),
            "ServiceEntry x",
        ),
        ("shop", "{targetRefs: [{kind: Service, name: web, namespace: bank}]}".to_owned(), "another namespace"),
        ("shop", "{targetRefs: [{kind: Service, name: gone}]}".to_owned(), "there is no Service"),
    ] {
        translator.apply(upserts(&object(namespace, &spec)));
        let warnings = warnings(&translator, namespace);
        assert!(warnings.contains(why) && warnings.contains("NOT enforced"), "{spec}: {warnings}");
        assert_eq!(readers(&translator, namespace), [""; 0], "{spec}");
    }
}

#[test]
fn every_field_becomes_a_test() {
    let mut translator = shop();
    let rules = "
  - from:
    - source: {principals: [a], notPrincipals: [b], namespaces: [c], ipBlocks: [10.0.0.0/8], remoteIpBlocks: [192.0.2.1]}
    - source: {serviceAccounts: [own, bank/theirs], requestPrincipals: ['*']}
    to:
    - operation: {hosts: [h], notHosts: [i], ports: ['80'], methods: [GET], notMethods: [PUT], paths: [/x, '/y/{*}']}
    when:
    - {key: 'request.headers[x-a]', values: [v], notValues: [w]}
    - {key: source.serviceAccount, values: [own]}
    - {key: 'request.auth.claims[realm][roles]', values: [admin]}
    - {key: connection.sni, values: [s]}";
    translator.apply(upserts(&object("shop", &format!("\n  {TO_WEB}\n  rules:{}", rules.replace('\n', "\n  ")))));
    let policy = translator.mesh().request_policy(&id("shop")).expect("a policy").clone();
    assert_eq!(policy.not_understood, None);
    let shown = |test: &leno_model::http::AttributeTest| {
        let list = |names: &[Name]| names.iter().map(|name| &**name).collect::<Vec<_>>().join("|");
        format!("{}={}!{}", test.attribute, list(&test.values), list(&test.not_values))
    };
    let clauses: Vec<Vec<Vec<String>>> = policy.rules[0]
        .clauses
        .iter()
        .map(|clause| clause.alternatives.iter().map(|all| all.iter().map(shown).collect()).collect())
        .collect();
    let expected: [&[&[&str]]; 6] = [
        &[
            &["source.principal=a!b", "source.namespace=c!", "source.ip=10.0.0.0/8!", "remote.ip=192.0.2.1/32!"],
            &["source.serviceAccount=shop/own|bank/theirs!", "request.auth.principal=*!"],
        ],
        &[&["hosts=h!i", "destination.port=80!", "methods=GET!PUT", "paths=/x|/y/{*}!"]],
        &[&["request.headers[x-a]=v!w"]],
        &[&["source.serviceAccount=shop/own!"]],
        &[&["request.auth.claims[realm][roles]=admin!"]],
        &[&["connection.sni=s!"]],
    ];
    assert_eq!(clauses, expected);
    let warnings = warnings(&translator, "shop");
    assert_eq!(warnings, "");
}

fn authentication(spec: &str) -> String {
    object("shop", spec).replace("AuthorizationPolicy", "RequestAuthentication")
}

#[test]
fn a_request_authentication_goes_to_waypoints_only() {
    let mut translator = shop();
    let key = ObjectKey::new(Kind::RequestAuthentication, "shop", "p");
    let named = PolicyName::authentication("shop".into(), "p");
    let rules = "jwtRules: [{issuer: i, audiences: [a], jwksUri: 'https://i/keys', timeout: 2s, fromHeaders: [{name: x-t, \
                 prefix: 'T '}], fromParams: [t], fromCookies: [c], forwardOriginalToken: true, outputPayloadToHeader: x-p, \
                 outputClaimToHeaders: [{header: x-u, claim: a.b}]}]";
    let delta = translator.apply(upserts(&authentication(&format!("{{{TO_WEB}, {rules}}}"))));
    assert!(delta.policies.is_empty(), "a node proxy sees no requests");
    let readers: Vec<String> = translator.readers_of_policy(&named).map(ToString::to_string).collect();
    assert_eq!(readers, ["shop/waypoint"]);
    let policy = translator.mesh().request_policy(&named).expect("a policy").clone();
    assert_eq!(
        (policy.action, &policy.targets[..], &policy.not_understood),
        (PolicyAction::Authenticate, &[PolicyTarget::Service(service("web"))][..], &None)
    );
    let (uri, timeout) = ("https://i/keys".into(), std::time::Duration::from_secs(2));
    let expected = TokenRule {
        issuer: "i".into(),
        audiences: vec!["a".into()],
        keys: TokenKeys::At { uri, timeout },
        headers: vec![("x-t".into(), "T ".into())],
        params: vec!["t".into()],
        cookies: vec!["c".into()],
        forward: true,
        payload_header: Some("x-p".into()),
        claim_headers: vec![("x-u".into(), vec!["a".into(), "b".into()])],
    };
    assert_eq!(policy.tokens, [expected]);
    assert_eq!(translator.warnings().get(&key), None);
    // An AuthorizationPolicy of the same name is another one.
    translator.apply(upserts(&object("shop", &format!("{{{TO_WEB}}}"))));
    assert!(translator.mesh().request_policy(&id("shop")).is_some());
    translator.apply([Change::Remove(key.clone())]);
    assert!(
        translator.mesh().request_policy(&named).is_none() && translator.mesh().request_policy(&id("shop")).is_some()
    );
    // What can't be enforced to the letter is told, and closes what it is attached to unless it only accepts no token.
    for (spec, why, closed) in [
        (format!("{{{TO_WEB}, jwtRules: [{{issuer: i}}]}}"), "neither jwks nor jwksUri", false),
        (format!("{{{TO_WEB}, jwtRules: [{{issuer: i, jwksUri: 'file:///k'}}]}}"), "no http or https address", false),
        (format!("{{{TO_WEB}, jwtRules: [{{issuer: i, jwks: '<html>'}}]}}"), "no JSON Web Key Set", false),
        (
            format!("{{{TO_WEB}, jwtRules: [{{issuer: i, jwks: '{{\"keys\": []}}'}}]}}"),
            "it is empty: its tokens are DENIED",
            false,
        ),
        (
            format!("{{{TO_WEB}, jwtRules: [{{issuer: i, jwks: x, outputPayloadToHeader: host}}]}}"),
            "spec.jwtRules[0]",
            true,
        ),
        ("{jwtRules: [{issuer: i, jwks: x}]}".to_owned(), "no targetRefs", false),
    ] {
        // Not as an edit of the one before, which might stay in force.
        translator.apply([Change::Remove(key.clone())]);
        translator.apply(upserts(&authentication(&spec)));
        let warnings = translator.warnings().get(&key).map(|all| all.join("\n")).unwrap_or_default();
        assert!(warnings.contains(why), "{spec}: {warnings}");
        let policy = translator.mesh().request_policy(&named);
        assert_eq!(policy.is_some_and(|policy| policy.not_understood.is_some()), closed, "{spec}");
    }
}

#[test]
fn what_is_not_understood_is_sent_closed() {
    for (rule, why) in [
        ("{to: [{operation: {paths: ['/a;b']}}]}", "spec.rules[0]"),
        ("{to: [{operation: {paths: ['/{*}/{x}']}}]}", "whole segments"),
        ("{when: [{key: experimental.envoy.filters.x, values: [a]}]}", "no attribute"),
        (
            "{when: [{key: experimental.envoy.filters.x, values: [a]}], to: [{operation: {paths: ['/a;b']}}]}",
            "filters.x\"; spec.rules[0]: ",
        ),
    ] {
        let mut translator = shop();
        translator.apply(upserts(&object("shop", &format!("{{{TO_WEB}, rules: [{rule}]}}"))));
        let policy = translator.mesh().request_policy(&id("shop")).expect("a policy").clone();
        assert!(policy.not_understood.is_some() && policy.rules.is_empty(), "{rule}");
        let warnings = warnings(&translator, "shop");
        assert!(warnings.contains(why) && warnings.contains("DENIED"), "{warnings}");
    }
    let mut translator = shop();
    let spec = format!("{{{TO_WEB}, action: CUSTOM, provider: {{name: x}}, rules: [{{}}]}}");
    translator.apply(upserts(&object("shop", &spec)));
    assert_eq!(translator.mesh().request_policy(&id("shop")).expect("a policy").action, PolicyAction::Deny);
}

#[test]
fn an_edit_that_can_not_be_read_leaves_the_version_before_in_force() {
    let only_b = "rules: [{from: [{source: {principals: [b]}}]}]";
    let bad = "rules: [{to: [{operation: {paths: ['/{*}/{x}']}}]}]";
    let put = |translator: &mut Translator, spec: &str| translator.apply(upserts(&object("shop", spec)));
    let held = |translator: &Translator| translator.mesh().request_policy(&id("shop")).map(|it| (**it).clone());
    let mut translator = shop();
    put(&mut translator, &format!("{{{TO_WEB}, {only_b}}}"));
    let good = held(&translator).expect("a policy");
    for _ in 0..2 {
        put(&mut translator, &format!("{{{TO_WEB}, action: DENY, {bad}}}"));
        assert_eq!(held(&translator).as_ref(), Some(&good));
        assert_eq!(readers(&translator, "shop"), ["shop/waypoint"]);
        let said = warnings(&translator, "shop");
        assert!(said.contains("spec.rules[0]: ") && said.contains("the version before stays in force"), "{said}");
        assert!(!said.contains("DENIED"), "{said}");
    }
    // It follows the mesh as it would if it were the newest one.
    translator.apply([Change::Remove(ObjectKey::new(Kind::Service, "shop", "web"))]);
    assert!(warnings(&translator, "shop").contains("there is no Service shop/web"));
    translator.apply(upserts(SHOP));
    assert_eq!(held(&translator).as_ref(), Some(&good));
    // For something else than before, nothing is known that was good.
    let elsewhere = format!("{{targetRefs: [{{kind: Service, group: '', name: plain}}], {bad}}}");
    put(&mut translator, &elsewhere);
    assert!(held(&translator).expect("a policy").not_understood.is_some());
    assert!(warnings(&translator, "shop").contains("DENIED"));
    put(&mut translator, &format!("{{{TO_WEB}, {bad}}}"));
    assert!(held(&translator).expect("a policy").not_understood.is_some(), "what was good before counts no more");
    // A good version ends it, and so does removal.
    put(&mut translator, &format!("{{{TO_WEB}, {only_b}}}"));
    assert_eq!((held(&translator), warnings(&translator, "shop")), (Some(good.clone()), String::new()));
    put(&mut translator, &format!("{{{TO_WEB}, {bad}}}"));
    translator.apply([Change::Remove(ObjectKey::new(Kind::AuthorizationPolicy, "shop", "p"))]);
    assert_eq!((held(&translator), warnings(&translator, "shop")), (None, String::new()));
    put(&mut translator, &format!("{{{TO_WEB}, {bad}}}"));
    assert!(held(&translator).expect("a policy").not_understood.is_some());
}

/// Puts a version of a policy that has a part which nobody knows.
fn put_unknown(translator: &mut Translator, yaml: &str) {
    let mut objects = crate::testing::load(yaml);
    match &mut objects[0] {
        leno_objects::Object::AuthorizationPolicy(it) => it.not_understood = vec!["spec.next: unknown".to_owned()],
        leno_objects::Object::RequestAuthentication(it) => it.not_understood = vec!["spec.next: unknown".to_owned()],
        other => panic!("{other:?}"),
    }
    translator.apply(objects.into_iter().map(Change::upsert));
}

#[test]
fn a_policy_of_node_proxies_or_of_tokens_stays_as_it_was_too() {
    let mut translator = shop();
    let spec = |app: &str| format!("{{selector: {{matchLabels: {{app: {app}}}}}, rules: [{{}}]}}");
    let held = |translator: &Translator| translator.mesh().policy(&id("shop")).expect("a policy").action;
    translator.apply(upserts(&object("shop", &spec("web"))));
    put_unknown(&mut translator, &object("shop", &spec("web")));
    let said = warnings(&translator, "shop");
    assert!(said.contains("stays in force: spec.next"), "{said}");
    assert_eq!(held(&translator), leno_model::Action::Allow);
    put_unknown(&mut translator, &object("shop", &spec("plain")));
    assert_eq!(held(&translator), leno_model::Action::Deny, "other pods had no such policy");

    let spec = format!("{{{TO_WEB}, jwtRules: [{{issuer: a, jwks: '{{\"keys\": []}}'}}]}}");
    let name = PolicyName::authentication("shop".into(), "p");
    translator.apply(upserts(&authentication(&spec)));
    let good = translator.mesh().request_policy(&name).cloned();
    assert!(good.as_ref().is_some_and(|it| it.not_understood.is_none()), "{good:?}");
    put_unknown(&mut translator, &authentication(&spec.replace("issuer: a", "issuer: b")));
    assert_eq!(translator.mesh().request_policy(&name).cloned(), good);
}

#[test]
fn a_port_that_no_service_has_is_pointed_out() {
    let mut translator = shop();
    let spec = format!("{{{TO_WEB}, action: DENY, rules: [{{to: [{{operation: {{ports: ['80', '8080']}}}}]}}]}}");
    translator.apply(upserts(&object("shop", &spec)));
    let warnings = warnings(&translator, "shop");
    assert!(warnings.contains("port 8080 is none of") && !warnings.contains("port 80 "), "{warnings}");
}

/// Whether a pod lets a connection in.
fn lets_in(translator: &Translator, account: &str, port: u16) -> bool {
    let mesh = translator.mesh();
    let pod = mesh.workload("Kubernetes//Pod/shop/plain-1").expect("a pod").clone();
    for policy in &pod.authorization_policies {
        assert!(mesh.policy(policy).is_some(), "{policy} is named and not there");
    }
    let source = format!("spiffe://cluster.local/ns/shop/sa/{account}").parse().expect("an id");
    let connection = leno_policy::Connection {
        source: Some(&source),
        source_ip: [10, 1, 0, 9].into(),
        destination: ([10, 1, 0, 1], port).into(),
    };
    leno_policy::authorize(mesh, &pod, &connection).is_allowed()
}

const PLAIN_POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: plain-1, namespace: shop, labels: {app: plain}, annotations: {ambient.istio.io/redirection: enabled}}
spec: {containers: [{name: c}]}
status: {podIP: 10.1.0.1, phase: Running}
";

#[test]
fn where_no_waypoint_stands_the_pods_stand_in() {
    let mut translator = shop();
    translator.apply(upserts(PLAIN_POD));
    assert!(lets_in(&translator, "web", 80));
    let spec = "{targetRefs: [{kind: Service, group: '', name: plain}], action: DENY, rules: [{from: [{source: {notPrincipals: \
                ['*/sa/ops']}}], to: [{operation: {paths: [/admin]}}]}]}";
    let delta = translator.apply(upserts(&object("shop", spec)));
    assert!(delta.workloads.len() == 1 && delta.policies.len() == 1, "{delta:?}");
    assert!(!lets_in(&translator, "web", 80) && lets_in(&translator, "ops", 80) && lets_in(&translator, "web", 81));
    let said = warnings(&translator, "shop");
    assert!(said.contains("no waypoint stands before Service shop/plain") && said.contains("DENIED"), "{said}");
    // Stricter: the pods hear of it under the same name.
    let delta = translator.apply(upserts(&object("shop", &spec.replace("ops", "nobody"))));
    assert!(delta.workloads.is_empty() && delta.policies.len() == 1, "{delta:?}");
    assert!(!lets_in(&translator, "ops", 80));
    // The service gets a waypoint: in one step, the pod lets in the waypoint only, and the stand-in is gone.
    let with = SHOP.replace("use-waypoint: none", "use-waypoint: waypoint");
    let delta = translator.apply(upserts(&with));
    assert!(delta.workloads.len() == 1 && delta.policies.len() == 2, "{delta:?}");
    assert!(lets_in(&translator, "waypoint", 80) && !lets_in(&translator, "web", 80));
    assert_eq!(readers(&translator, "shop"), ["shop/waypoint"]);
    assert_eq!(translator.mesh().policies().filter(|policy| policy.id.stands_in_for().is_some()).count(), 0);
    // Its Gateway goes: the service asks for it all the same, so nobody gets in.
    translator.apply([Change::Remove(ObjectKey::new(Kind::Gateway, "shop", "waypoint"))]);
    assert!(!lets_in(&translator, "web", 80) && !lets_in(&translator, "ops", 80));
    // Unless it says that it may be reached without: then the pods stand in.
    let around = with
        .split("---\napiVersion: gateway")
        .next()
        .expect("some")
        .replace("metadata: {name: shop,", "metadata: {name: shop, annotations: {leno.mesh/waypoint-bypass: allowed},");
    translator.apply(upserts(&around));
    assert!(!lets_in(&translator, "web", 80) && !lets_in(&translator, "waypoint", 80));
    assert!(lets_in(&translator, "web", 81));
    // The policy goes.
    translator.apply([Change::Remove(ObjectKey::new(Kind::AuthorizationPolicy, "shop", "p"))]);
    assert!(lets_in(&translator, "web", 80));
    assert!(translator.made.is_empty() && translator.made_for.is_empty());
}

const PROVIDERS: &str = "
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data:
  mesh: |
    {\"extensionProviders\": [
      {\"name\": \"opa\", \"envoyExtAuthzGrpc\": {\"service\": \"opa.auth.svc.cluster.local\", \"port\": 9191, \"failOpen\": FAIL}},
      {\"name\": \"web\", \"envoyExtAuthzHttp\": {\"service\": \"opa.auth.svc.cluster.local\", \"port\": 8000, \"pathPrefix\": \"check\"}}
    ]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: shop}
data: {mesh: '{}'}
";

const OPA: &str = "
apiVersion: v1
kind: Service
metadata: {name: opa, namespace: auth}
spec: {clusterIP: 10.0.0.9, ports: [{name: grpc, port: 9191}], selector: {app: opa}}
";

#[test]
fn an_authoriser_that_is_not_there_is_told_of() {
    let mut translator = shop();
    let spec = format!("{{{TO_WEB}, action: CUSTOM, provider: {{name: opa}}, rules: [{{}}]}}");
    translator.apply(upserts(&object("shop", &spec)));
    translator.apply(upserts(&PROVIDERS.replace("FAIL", "false")));
    let said = warnings(&translator, "shop");
    let missing = "what matches gets status 403: there is no Service opa.auth.svc.cluster.local";
    assert!(said.contains(missing), "{said}");
    translator.apply(upserts(&PROVIDERS.replace("FAIL", "true")));
    let said = warnings(&translator, "shop");
    assert!(said.contains("what matches PASSES, because the provider is failOpen"), "{said}");
    // It follows the Service, and nothing of it changes what waypoints are told.
    assert!(translator.apply(upserts(OPA)).request_policies.is_empty());
    assert_eq!(warnings(&translator, "shop"), "");
    translator.apply(upserts(&OPA.replace("9191", "9292")));
    assert!(warnings(&translator, "shop").contains("the Service opa.auth.svc.cluster.local has no port 9191"));
    let delta = translator.apply([Change::Remove(ObjectKey::new(Kind::Service, "auth", "opa"))]);
    assert!(delta.request_policies.is_empty());
    assert!(warnings(&translator, "shop").contains("there is no Service"));
    // One that names the namespace means no other.
    let elsewhere = PROVIDERS.replace("FAIL", "false").replace("opa.auth.svc", "web/opa.auth.svc");
    translator.apply(upserts(&elsewhere).into_iter().chain(upserts(OPA)));
    assert!(warnings(&translator, "shop").contains("in the namespace web"));
}

#[test]
fn a_custom_policy_asks_whom_the_mesh_configuration_names() {
    let custom = |provider: &str| {
        format!(
            "{{{TO_WEB}, action: CUSTOM, provider: {{name: {provider}}}, rules: [{{to: [{{operation: {{paths: [/a]}}}}]}}]}}"
        )
    };
    let mut translator = shop();
    translator.apply(upserts(OPA));
    translator.apply(upserts(&object("shop", &custom("opa"))));
    let policy = |translator: &Translator| translator.mesh().request_policy(&id("shop")).expect("a policy").clone();
    assert_eq!((policy(&translator).action, policy(&translator).rules.len()), (PolicyAction::Deny, 1));
    let said = warnings(&translator, "shop");
    assert!(said.contains("DENIED: no provider \"opa\" is known, because there is no ConfigMap"), "{said}");
    let because = policy(&translator).denied_because.clone().unwrap_or_default();
    assert!(because.starts_with("action CUSTOM has nobody to ask: no provider"), "{because}");

    let delta = translator.apply(upserts(&PROVIDERS.replace("FAIL", "false")));
    assert_eq!(delta.request_policies.keys().collect::<Vec<_>>(), [&id("shop")]);
    let asking = policy(&translator);
    let authorizer = asking.authorizer.clone().expect("an authoriser");
    assert_eq!((asking.action, asking.rules.len(), asking.denied_because.clone()), (PolicyAction::Custom, 1, None));
    assert_eq!(
        (&*authorizer.hostname, authorizer.port, authorizer.fail_open),
        ("opa.auth.svc.cluster.local", 9191, false)
    );
    assert_eq!(warnings(&translator, "shop"), "");
    assert_eq!(readers(&translator, "shop"), ["shop/waypoint"]);

    translator.apply(upserts(&PROVIDERS.replace("FAIL", "true")));
    assert!(policy(&translator).authorizer.as_ref().is_some_and(|it| it.fail_open), "it follows the configuration");
    assert!(translator.apply(upserts(&PROVIDERS.replace("FAIL", "true"))).is_empty());
    translator.apply(upserts(&object("shop", &custom("web"))));
    assert_eq!(policy(&translator).action, PolicyAction::Deny);
    assert!(warnings(&translator, "shop").contains("envoyExtAuthzHttp.pathPrefix is not a path"));
    let key = ObjectKey::new(Kind::ConfigMap, "istio-system", "istio");
    assert!(translator.warnings()[&key][0].contains("envoyExtAuthzHttp"));

    translator.apply(upserts(&object("shop", &custom("opa"))));
    assert_eq!(policy(&translator).action, PolicyAction::Custom);
    translator.apply([Change::Remove(key.clone())]);
    assert_eq!((policy(&translator).action, policy(&translator).authorizer.clone()), (PolicyAction::Deny, None));
    assert!(translator.warnings().get(&key).is_none());
}

#[test]
fn a_custom_policy_asks_before_tokens_are_looked_at() {
    let mut translator = shop();
    translator.apply(upserts(&PROVIDERS.replace("FAIL", "false")));
    let spec = format!(
        "{{{TO_WEB}, action: CUSTOM, provider: {{name: opa}}, rules: [{{from: [{{source: {{requestPrincipals: ['*']}}}}]}}]}}"
    );
    translator.apply(upserts(&object("shop", &spec)));
    assert!(warnings(&translator, "shop").contains("before tokens are looked at"));
}
