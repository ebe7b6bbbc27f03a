use std::net::SocketAddr;
use std::sync::Arc;

use http::HeaderMap;
use leno_model::{Identity, Mesh, Workload};
use leno_policy::Connection;
use leno_policy::http::{Guard, Request, Subject};
use proptest::prelude::*;

use super::*;

fn port(service_port: u16, target_port: u16) -> Port {
    Port { service_port, target_port, app_protocol: leno_model::AppProtocol::default(), transport: Transport::Tcp }
}

fn policy(name: &str, action: PolicyAction, rules: Vec<PolicyRule>) -> Policy {
    let id = PolicyName { namespace: "shop".into(), name: name.into() };
    Policy { rules, ..Policy::new(id, action) }
}

/// Whether the stand-in lets a connection pass.
fn passes(stand_in: Option<&Authorization>, source: Option<&Identity>, from: &str, port: u16) -> bool {
    let mut workload = Workload::new("w", "shop", "web-1");
    workload.addresses = vec![[10, 0, 0, 1].into()];
    let mut mesh = Mesh::default();
    if let Some(policy) = stand_in {
        workload.authorization_policies.push(policy.id.clone());
        mesh.upsert_policy(Arc::new(policy.clone()));
    }
    let connection = Connection {
        source,
        source_ip: from.parse().expect("an address"),
        destination: SocketAddr::from(([10, 0, 0, 1], port)),
    };
    leno_policy::authorize(&mesh, &workload, &connection).is_allowed()
}

/// Whether a waypoint lets a request pass.
fn waypoint(policies: &[Policy], source: Option<&Identity>, from: &str, port: u16, method: &str) -> bool {
    let connection = Connection {
        source,
        source_ip: from.parse().expect("an address"),
        destination: SocketAddr::from(([10, 96, 0, 1], port)),
    };
    let headers = HeaderMap::new();
    let request = Request {
        method,
        host: "web",
        host_port: None,
        path: "/",
        query: None,
        headers: &headers,
        source_namespace: source.map(|source| &**source.namespace()),
    };
    Guard::new(policies).judge(&Subject::new(connection, Some(&request))).verdict.is_ok()
}

fn stand_in(service_has_ports: bool, ports: &[Port], policies: &[Policy]) -> Option<Authorization> {
    let ports = Ports::new(service_has_ports, ports);
    super::stand_in(ports.name(&"shop".into(), "web"), &ports, policies.iter())
}

fn id(account: &str) -> Identity {
    format!("spiffe://cluster.local/ns/shop/sa/{account}").parse().expect("an id")
}

fn asks(attribute: Attribute, values: &[&str], not_values: &[&str]) -> AttributeTest {
    let names = |texts: &[&str]| texts.iter().map(|text| Name::from(*text)).collect();
    AttributeTest { attribute, values: names(values), not_values: names(not_values) }
}

fn rule(clauses: Vec<Vec<Vec<AttributeTest>>>) -> PolicyRule {
    PolicyRule { clauses: clauses.into_iter().map(|alternatives| PolicyClause { alternatives }).collect() }
}

#[test]
fn a_deny_rule_about_paths_denies_whoever_it_is_about() {
    let to = vec![asks(Attribute::Path, &["/admin*"], &[])];
    let from = vec![asks(Attribute::Principal, &[], &["cluster.local/ns/shop/sa/ops"])];
    let policies = [policy("p", PolicyAction::Deny, vec![rule(vec![vec![from], vec![to]])])];
    let made = stand_in(true, &[port(80, 8080)], &policies);
    assert_eq!(made.as_ref().map(|made| made.id.to_string()).as_deref(), Some("shop/without_waypoint_web_80-8080"));
    assert!(passes(made.as_ref(), Some(&id("ops")), "10.0.0.9", 8080));
    assert!(!passes(made.as_ref(), Some(&id("web")), "10.0.0.9", 8080));
    assert!(!passes(made.as_ref(), None, "10.0.0.9", 8080), "who proves nothing is not ops");
    assert!(passes(made.as_ref(), Some(&id("web")), "10.0.0.9", 9090), "another port is not the service's");
    let anywhere = stand_in(false, &[], &policies);
    assert!(!passes(anywhere.as_ref(), Some(&id("web")), "10.0.0.9", 9090), "a service without ports is any port");
}

#[test]
fn allow_policies_together_refuse_what_none_of_them_allows() {
    let who = |account: &str| vec![vec![asks(Attribute::Principal, &[&format!("*/sa/{account}")], &[])]];
    let get = || vec![vec![asks(Attribute::Method, &["GET"], &[])]];
    let a = policy("a", PolicyAction::Allow, vec![rule(vec![who("web")]), rule(vec![who("reader"), get()])]);
    let b = policy("b", PolicyAction::Allow, vec![rule(vec![who("ops")])]);
    let both = [a, b];
    let made = stand_in(true, &[port(80, 8080)], &both);
    for (account, allowed) in [("web", true), ("ops", true), ("reader", false), ("other", false)] {
        assert_eq!(passes(made.as_ref(), Some(&id(account)), "10.0.0.9", 8080), allowed, "{account}");
        assert!(passes(made.as_ref(), Some(&id(account)), "10.0.0.9", 1), "{account}");
    }
    assert!(!passes(made.as_ref(), None, "10.0.0.9", 8080));
    // Nothing is left of a rule that asks for a method only, so nobody is allowed.
    let only = [policy("p", PolicyAction::Allow, vec![rule(vec![get()])])];
    let made = stand_in(true, &[port(80, 8080)], &only);
    assert!(!passes(made.as_ref(), Some(&id("web")), "10.0.0.9", 8080));
    // An ALLOW policy without rules allows nobody; one with an empty rule everybody.
    let none = [policy("p", PolicyAction::Allow, Vec::new())];
    assert!(!passes(stand_in(true, &[port(80, 8080)], &none).as_ref(), Some(&id("web")), "10.0.0.9", 8080));
    assert_eq!(stand_in(true, &[port(80, 8080)], &[policy("p", PolicyAction::Allow, vec![rule(Vec::new())])]), None);
}

#[test]
fn ports_of_rules_are_the_services() {
    let to = |port: &str| vec![rule(vec![vec![vec![asks(Attribute::DestinationPort, &[port], &[])]]])];
    let ports = [port(80, 8080), port(81, 8080), port(9, 9090)];
    let deny = |port| stand_in(true, &ports, &[policy("p", PolicyAction::Deny, to(port))]);
    let allow = |port| stand_in(true, &ports, &[policy("p", PolicyAction::Allow, to(port))]);
    let open = |made: Option<Authorization>| {
        [8080, 9090, 80].map(|port| passes(made.as_ref(), Some(&id("web")), "10.0.0.9", port))
    };
    assert_eq!(open(deny("80")), [false, true, true], "81 leads there, too");
    assert_eq!(open(deny("9")), [true, false, true]);
    assert_eq!(open(allow("80")), [false, false, true], "81, which is not allowed, leads there, too");
    assert_eq!(open(allow("9")), [false, true, true]);
}

#[test]
fn what_is_not_understood_lets_nobody_in_and_what_is_logged_everybody() {
    let mut one = policy("p", PolicyAction::Allow, Vec::new());
    one.not_understood = Some("why".into());
    let made = stand_in(true, &[port(80, 8080)], &[one.clone()]);
    assert!(!passes(made.as_ref(), Some(&id("web")), "10.0.0.9", 8080));
    one.dry_run = true;
    assert_eq!(stand_in(true, &[port(80, 8080)], &[one]), None);
    let audit = policy("p", PolicyAction::Audit, vec![rule(Vec::new())]);
    assert_eq!(stand_in(true, &[port(80, 8080)], &[audit]), None);
}

#[test]
fn many_rules_stay_few() {
    let rules = (0..40).map(|n| {
        let who = asks(Attribute::Principal, &[&format!("*/sa/a{n}")], &[]);
        rule(vec![vec![vec![who]], vec![vec![asks(Attribute::SourceIp, &["10.0.0.0/8"], &[])]]])
    });
    let made = stand_in(true, &[port(80, 8080)], &[policy("p", PolicyAction::Allow, rules.collect())]);
    assert!(made.as_ref().is_some_and(|made| made.rules.len() <= MOST_RULES));
    assert!(passes(made.as_ref(), Some(&id("a0")), "10.0.0.9", 8080));
    assert!(!passes(made.as_ref(), Some(&id("a0")), "11.0.0.9", 8080));
    assert!(!passes(made.as_ref(), Some(&id("a39")), "10.0.0.9", 8080), "it has no room, so it is not allowed");
    assert!(!passes(made.as_ref(), Some(&id("other")), "10.0.0.9", 8080));
}

fn tests_of(connections_only: bool) -> impl Strategy<Value = AttributeTest> {
    let attributes = if connections_only { 4 } else { 7 };
    let lists = prop::collection::vec(0..2_usize, 0..2);
    (0..attributes, lists.clone(), lists).prop_map(|(attribute, is, not)| {
        let (attribute, words) = match attribute {
            0 => (Attribute::Principal, ["cluster.local/ns/shop/sa/a", "*/sa/b"]),
            1 => (Attribute::Namespace, ["shop", "ba*"]),
            2 => (Attribute::ServiceAccount, ["shop/a", "bank/b"]),
            3 => (Attribute::SourceIp, ["10.0.0.0/24", "10.0.1.1"]),
            4 => (Attribute::DestinationPort, ["80", "9"]),
            5 => (Attribute::Method, ["GET", "P*"]),
            _ => (Attribute::Sni, ["x", "*"]),
        };
        let words = |list: Vec<usize>| list.into_iter().map(|index| Name::from(words[index])).collect();
        AttributeTest { attribute, values: words(is), not_values: words(not) }
    })
}

fn policies(connections_only: bool) -> impl Strategy<Value = Vec<Policy>> {
    // An alternative asks for each attribute once.
    let alternative = prop::collection::vec(tests_of(connections_only), 0..3).prop_map(|mut tests| {
        tests.retain(|test| !test.values.is_empty() || !test.not_values.is_empty());
        tests.sort_by_key(|test| test.attribute.to_string());
        tests.dedup_by_key(|test| test.attribute.to_string());
        tests
    });
    let clauses = prop::collection::vec(prop::collection::vec(alternative, 1..3), 0..3);
    let rules = prop::collection::vec(clauses.prop_map(rule), 0..3);
    let action = prop_oneof![Just(PolicyAction::Allow), Just(PolicyAction::Deny)];
    let one = (action, rules).prop_map(|(action, rules)| policy("p", action, rules));
    prop::collection::vec(one, 0..3)
}

fn callers() -> Vec<Option<Identity>> {
    let ids = ["shop/sa/a", "shop/sa/b", "bank/sa/b", "other/sa/c"];
    let ids = ids.map(|id| Some(format!("spiffe://cluster.local/ns/{id}").parse().expect("an id")));
    ids.into_iter().chain([None]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever a waypoint would refuse, the stand-in refuses.
    #[test]
    fn nothing_passes_that_a_waypoint_would_refuse(policies in policies(false)) {
        let made = stand_in(true, &[port(80, 8080), port(81, 8080), port(9, 9090)], &policies);
        for source in callers() {
            for from in ["10.0.0.9", "10.0.1.1", "192.0.2.1"] {
                for (asked, target) in [(80, 8080), (81, 8080), (9, 9090)] {
                    for method in ["GET", "PUT", "DELETE"] {
                        if passes(made.as_ref(), source.as_ref(), from, target) {
                            prop_assert!(waypoint(&policies, source.as_ref(), from, asked, method));
                        }
                    }
                }
            }
        }
    }

    /// Of rules about connections it is the same.
    #[test]
    fn rules_about_connections_are_kept_to_the_letter(policies in policies(true)) {
        let made = stand_in(true, &[port(80, 8080)], &policies);
        for source in callers() {
            for from in ["10.0.0.9", "10.0.1.1", "192.0.2.1"] {
                let (here, there) = (
                    passes(made.as_ref(), source.as_ref(), from, 8080),
                    waypoint(&policies, source.as_ref(), from, 80, "GET"),
                );
                prop_assert_eq!(here, there, "{:?} from {}: {:?}", source, from, made);
            }
        }
    }
}
