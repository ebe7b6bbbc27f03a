use std::net::{IpAddr, SocketAddr};

use leno_model::{Authorization, Clause, Identity, Match, Rule, Scope, StringMatch};
use leno_policy::{Connection, authorize};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::authorization::authorization;
use super::*;
use crate::testing::load;
use leno_objects::{Object, PolicyAction, Source};

const HEAD: &str = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n";

fn policy(metadata: &str, spec: &str) -> AuthorizationPolicy {
    match load(&format!("{HEAD}metadata: {{name: p, {metadata}}}\nspec: {spec}\n")).pop() {
        Some(Object::AuthorizationPolicy(policy)) => policy,
        other => panic!("{other:?}"),
    }
}

fn translated(spec: &str) -> (Authorization, Vec<String>) {
    let (policy, warnings) = authorization(&Options::default(), &policy("namespace: a", spec));
    (policy.expect("sent"), warnings)
}

fn rule(matches: &[Match]) -> Rule {
    Rule { clauses: vec![Clause { matches: matches.to_vec() }] }
}

fn ports(ports: &[u16]) -> Match {
    Match { destination_ports: ports.to_vec(), ..Match::default() }
}

#[test]
fn scopes() {
    let scope = |metadata: &str, spec: &str| {
        authorization(&Options::default(), &policy(metadata, spec)).0.map(|policy| policy.scope)
    };
    let selector = "{selector: {matchLabels: {app: a}}}";
    assert_eq!(scope("namespace: a", "{}"), Some(Scope::Namespace));
    assert_eq!(scope("namespace: istio-system", "{}"), Some(Scope::Global));
    assert_eq!(scope("namespace: a", selector), Some(Scope::WorkloadSelector));
    assert_eq!(scope("namespace: istio-system", selector), Some(Scope::WorkloadSelector));
    assert_eq!(scope("namespace: a", "{selector: {}}"), Some(Scope::Namespace));
    assert_eq!(scope("namespace: a", "{targetRefs: [{kind: Service, name: a}]}"), None);
    assert_eq!(scope("namespace: a", "{targetRef: {kind: Gateway, name: a}}"), None);
    assert_eq!(scope("namespace: a", "{action: AUDIT}"), None);
}

#[test]
fn dry_run_by_annotation() {
    let dry = |value: &str| {
        let metadata = format!("annotations: {{istio.io/dry-run: \"{value}\"}}");
        authorization(&Options::default(), &policy(&metadata, "{}")).0.is_some_and(|policy| policy.dry_run)
    };
    assert!(dry("true"));
    assert!(!dry("false"));
}

#[test]
fn no_rules_and_the_empty_rule() {
    assert_eq!(translated("{}").0.rules, []);
    assert_eq!(translated("{rules: [{}]}").0.rules, [Rule::default()]);
}

#[test]
fn every_l4_field() {
    let spec = r#"
  rules:
  - from:
    - source:
        principals: [cluster.local/ns/a/sa/x, "*", "*/sa/x", "cluster.local/*"]
        notPrincipals: [cluster.local/ns/a/sa/n]
        namespaces: [a]
        notNamespaces: [b]
        ipBlocks: [10.0.0.1, 10.1.2.3/8]
        notIpBlocks: ["fd00::/8"]
    - source: {serviceAccounts: [x, b/y], notServiceAccounts: [c/z]}
    to: [{operation: {ports: ["80"], notPorts: ["81"]}}]
    when:
    - {key: destination.ip, values: [10.0.0.0/8], notValues: [10.0.0.9]}
    - {key: destination.port, values: ["80"]}
    - {key: source.principal, notValues: ["*"]}
"#;
    let (policy, warnings) = translated(spec);
    assert_eq!(warnings, Vec::<String>::new());
    let exact = |text: &str| StringMatch::Exact(text.into());
    let account = |namespace: &str, name: &str| leno_model::ServiceAccountMatch {
        namespace: namespace.into(),
        service_account: name.into(),
    };
    let net = |text: &str| text.parse().expect("a block");
    let clauses = [
        Clause {
            matches: vec![
                Match {
                    principals: vec![
                        exact("cluster.local/ns/a/sa/x"),
                        StringMatch::Presence,
                        StringMatch::Suffix("/sa/x".into()),
                        StringMatch::Prefix("cluster.local/".into()),
                    ],
                    not_principals: vec![exact("cluster.local/ns/a/sa/n")],
                    namespaces: vec![exact("a")],
                    not_namespaces: vec![exact("b")],
                    source_ips: vec![net("10.0.0.1/32"), net("10.0.0.0/8")],
                    not_source_ips: vec![net("fd00::/8")],
                    ..Match::default()
                },
                Match {
                    service_accounts: vec![account("a", "x"), account("b", "y")],
                    not_service_accounts: vec![account("c", "z")],
                    ..Match::default()
                },
            ],
        },
        Clause { matches: vec![Match { not_destination_ports: vec![81], ..ports(&[80]) }] },
        Clause {
            matches: vec![Match {
                destination_ips: vec![net("10.0.0.0/8")],
                not_destination_ips: vec![net("10.0.0.9/32")],
                ..Match::default()
            }],
        },
        Clause { matches: vec![ports(&[80])] },
        Clause { matches: vec![Match { not_principals: vec![StringMatch::Presence], ..Match::default() }] },
    ];
    assert_eq!(policy.rules, [Rule { clauses: clauses.to_vec() }]);
}

/// Fields that need a waypoint, and what is left of the rules.
#[test]
fn what_cannot_be_enforced_makes_it_stricter() {
    let cases: [(&str, Vec<Rule>, &[&str]); 9] = [
        (
            "{rules: [{to: [{operation: {paths: [/a], ports: [\"80\"]}}]}]}",
            vec![],
            &["spec.rules[0].to[0].operation: paths needs a waypoint", "allows nothing"],
        ),
        (
            "{rules: [{to: [{operation: {methods: [GET]}}, {operation: {ports: [\"80\"]}}]}]}",
            vec![rule(&[ports(&[80])])],
            &[
                "spec.rules[0].to[0].operation: methods needs a waypoint (targetRefs instead of a selector): this alternative is dropped, so it allows nothing",
            ],
        ),
        (
            "{rules: [{when: [{key: \"request.headers[x]\", values: [v]}]}, {to: [{operation: {ports: [\"81\"]}}]}]}",
            vec![rule(&[ports(&[81])])],
            &[
                "spec.rules[0].when[0]: attribute request.headers[x] needs a waypoint (targetRefs instead of a selector): rule dropped, so it allows nothing",
            ],
        ),
        (
            "{action: DENY, rules: [{to: [{operation: {paths: [/a], ports: [\"80\"]}}]}]}",
            vec![rule(&[ports(&[80])])],
            &[
                "paths needs a waypoint (targetRefs instead of a selector): ignored, so the rule denies whatever they are",
            ],
        ),
        (
            "{action: DENY, rules: [{to: [{operation: {paths: [/a]}}]}]}",
            vec![Rule::default()],
            &["ignored, so the rule denies whatever the operation is"],
        ),
        (
            "{action: DENY, rules: [{to: [{operation: {paths: [/a]}}, {operation: {ports: [\"80\"]}}]}]}",
            vec![Rule::default()],
            &["ignored, so the rule denies whatever the operation is"],
        ),
        (
            "{action: DENY, rules: [{from: [{source: {requestPrincipals: [\"*\"]}}], to: [{operation: {ports: [\"80\"]}}]}]}",
            vec![rule(&[ports(&[80])])],
            &["requestPrincipals needs a waypoint"],
        ),
        (
            "{action: DENY, rules: [{when: [{key: connection.sni, values: [x]}]}]}",
            vec![Rule::default()],
            &["attribute connection.sni needs a waypoint"],
        ),
        (
            "{action: CUSTOM, provider: {name: opa}, rules: [{to: [{operation: {ports: [\"80\"]}}]}]}",
            vec![rule(&[ports(&[80])])],
            &["action CUSTOM needs a waypoint", "DENIED"],
        ),
    ];
    for (spec, rules, words) in cases {
        let (policy, warnings) = translated(spec);
        assert_eq!(policy.rules, rules, "{spec}");
        let all = warnings.join("\n");
        for word in words {
            assert!(all.contains(word), "{spec}\n{all}\nlacks {word}");
        }
    }
}

#[test]
fn principals_that_match_nobody_are_told() {
    let source = |principal: &str| format!("{{rules: [{{from: [{{source: {{principals: [\"{principal}\"]}}}}]}}]}}");
    let (policy, warnings) = translated(&source("spiffe://cluster.local/ns/a/sa/x"));
    assert_eq!(warnings, Vec::<String>::new());
    let principals = &policy.rules[0].clauses[0].matches[0].principals;
    assert_eq!(principals, &[StringMatch::Exact("cluster.local/ns/a/sa/x".into())]);
    let (_, warnings) = translated(&source("example.org/ns/a/sa/x"));
    assert!(warnings[0].contains("matches nobody: the trust domain of this mesh is cluster.local"), "{warnings:?}");
}

// ---- the meaning of policies, told a second time and directly ---------------------------------

#[derive(Debug, Clone)]
struct Attempt {
    source: Option<Identity>,
    source_ip: IpAddr,
    destination: SocketAddr,
}

/// Whether `text` is of the form `pattern`.
fn like(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some(("", "")) => !text.is_empty(),
        Some((start, end)) => text.starts_with(start) && text.ends_with(end),
    }
}

/// `values` and `not_values` of one attribute, `holds` telling whether one value does.
fn listed<T>(values: &[T], not_values: &[T], holds: impl Fn(&T) -> bool) -> bool {
    (values.is_empty() || values.iter().any(&holds)) && !not_values.iter().any(&holds)
}

/// `unknown`: what to take for a field that only a waypoint can tell.
fn source_matches(source: &Source, a: &Attempt, namespace: &str, unknown: bool) -> bool {
    let principal = a.source.as_ref().map(Identity::principal).unwrap_or_default();
    let peer_namespace = a.source.as_ref().map(|id| id.namespace().to_string()).unwrap_or_default();
    let account = |text: &String| {
        let (ns, sa) = text.split_once('/').unwrap_or((namespace, text));
        a.source.as_ref().is_some_and(|id| &**id.namespace() == ns && &**id.service_account() == sa)
    };
    let needs_waypoint = !source.request_principals.is_empty() || !source.not_remote_ip_blocks.is_empty();
    (!needs_waypoint || unknown)
        && listed(&source.principals, &source.not_principals, |p| a.source.is_some() && like(p, &principal))
        && listed(&source.namespaces, &source.not_namespaces, |p| like(p, &peer_namespace))
        && listed(&source.service_accounts, &source.not_service_accounts, account)
        && listed(&source.ip_blocks, &source.not_ip_blocks, |block| block.0.contains(&a.source_ip))
}

fn rule_matches(rule: &leno_objects::Rule, a: &Attempt, namespace: &str, unknown: bool) -> bool {
    let port = |text: &String| *text == a.destination.port().to_string();
    let from = rule.from.is_empty() || rule.from.iter().any(|from| source_matches(&from.source, a, namespace, unknown));
    let to = rule.to.is_empty()
        || rule.to.iter().any(|to| {
            let needs_waypoint = !to.operation.paths.is_empty() || !to.operation.not_methods.is_empty();
            (!needs_waypoint || unknown) && listed(&to.operation.ports, &to.operation.not_ports, port)
        });
    let when = rule.when.iter().all(|when| {
        let (yes, no) = (&when.values, &when.not_values);
        let contains =
            |block: &String, ip| block.parse::<leno_objects::IpBlock>().is_ok_and(|block| block.0.contains(&ip));
        match when.key.as_str() {
            "source.ip" => listed(yes, no, |block| contains(block, a.source_ip)),
            "destination.ip" => listed(yes, no, |block| contains(block, a.destination.ip())),
            "destination.port" => listed(yes, no, port),
            "source.namespace" => {
                let source = Source { namespaces: yes.clone(), not_namespaces: no.clone(), ..Source::default() };
                source_matches(&source, a, namespace, unknown)
            }
            _ => unknown,
        }
    });
    from && to && when
}

/// Istio's order of evaluation over those policies that apply to a pod labelled `app: web` in
/// namespace `a`.
fn allowed(policies: &[AuthorizationPolicy], a: &Attempt) -> bool {
    let applies = |policy: &&AuthorizationPolicy| {
        let near = ["a", "istio-system"].contains(&&*policy.metadata.namespace);
        let selected =
            policy.spec.selector.as_ref().is_none_or(|s| s.match_labels.get("app").is_none_or(|v| &**v == "web"));
        near && selected && policy.metadata.annotations.is_empty()
    };
    let of = |action: PolicyAction| policies.iter().filter(applies).filter(move |policy| policy.spec.action == action);
    let matches = |policy: &AuthorizationPolicy, unknown| {
        policy.spec.rules.iter().any(|rule| rule_matches(rule, a, &policy.metadata.namespace, unknown))
    };
    // Nobody knows what an unenforceable field would say: assume whatever refuses.
    if of(PolicyAction::Deny).chain(of(PolicyAction::Custom)).any(|policy| matches(policy, true)) {
        return false;
    }
    let mut allow = of(PolicyAction::Allow).peekable();
    allow.peek().is_none() || allow.any(|policy| matches(policy, false))
}

fn some<T: Clone + std::fmt::Debug + 'static>(values: Vec<T>) -> impl Strategy<Value = Vec<T>> {
    // Mostly none, for a rule that restricts everything matches nothing.
    prop_oneof![3 => Just(Vec::new()), 2 => subsequence(values.clone(), 1..=values.len())]
}

fn texts(values: &[&str]) -> Vec<String> {
    values.iter().map(|text| (*text).to_owned()).collect()
}

fn any_source() -> impl Strategy<Value = Source> {
    let principals = texts(&["cluster.local/ns/a/sa/x", "*", "*/sa/y", "cluster.local/ns/b/*"]);
    let namespaces = texts(&["a", "b*", "*"]);
    let accounts = texts(&["x", "b/y"]);
    let blocks: Vec<_> = ["10.0.0.1", "10.0.0.0/30", "fd00::/64"].iter().map(|b| b.parse().expect("a block")).collect();
    let named = (
        some(principals.clone()),
        some(principals),
        some(namespaces.clone()),
        some(namespaces),
        some(blocks.clone()),
        some(blocks),
        prop::bool::weighted(0.2),
    )
        .prop_map(
            |(principals, not_principals, namespaces, not_namespaces, ip_blocks, not_ip_blocks, waypoint)| Source {
                principals,
                not_principals,
                namespaces,
                not_namespaces,
                ip_blocks,
                not_ip_blocks,
                request_principals: if waypoint { texts(&["*"]) } else { Vec::new() },
                ..Source::default()
            },
        );
    let by_account = (some(accounts.clone()), some(accounts)).prop_map(|(service_accounts, not_service_accounts)| {
        Source { service_accounts, not_service_accounts, ..Source::default() }
    });
    prop_oneof![named, by_account].prop_filter("restricts", |source| *source != Source::default())
}

fn any_operation() -> impl Strategy<Value = leno_objects::Operation> {
    let numbers = texts(&["80", "81"]);
    (some(numbers.clone()), some(numbers), prop::bool::weighted(0.3))
        .prop_map(|(ports, not_ports, waypoint)| leno_objects::Operation {
            ports,
            not_ports,
            paths: if waypoint { texts(&["/a"]) } else { Vec::new() },
            ..leno_objects::Operation::default()
        })
        .prop_filter("restricts", |operation| *operation != leno_objects::Operation::default())
}

fn any_condition() -> impl Strategy<Value = leno_objects::When> {
    let ips = texts(&["10.0.0.1", "10.0.0.0/30"]);
    let on = |key: &'static str, values: Vec<String>| {
        (some(values.clone()), some(values))
            .prop_filter("restricts", |(yes, no)| !yes.is_empty() || !no.is_empty())
            .prop_map(move |(values, not_values)| leno_objects::When { key: key.to_owned(), values, not_values })
    };
    prop_oneof![
        on("source.ip", ips.clone()),
        on("destination.ip", ips),
        on("destination.port", texts(&["80", "81"])),
        on("source.namespace", texts(&["a", "b"])),
        on("request.headers[x]", texts(&["y"])),
    ]
}

fn any_policy(index: usize) -> impl Strategy<Value = AuthorizationPolicy> {
    let rule = (
        prop::collection::vec(any_source().prop_map(|source| leno_objects::From { source }), 0..3),
        prop::collection::vec(any_operation().prop_map(|operation| leno_objects::To { operation }), 0..3),
        prop::collection::vec(any_condition(), 0..2),
    )
        .prop_map(|(from, to, when)| leno_objects::Rule { from, to, when });
    (
        select(vec!["a", "b", "istio-system"]),
        select(vec![None, Some(""), Some("web"), Some("db")]),
        select(vec![
            PolicyAction::Allow,
            PolicyAction::Deny,
            PolicyAction::Allow,
            PolicyAction::Custom,
            PolicyAction::Audit,
        ]),
        prop::collection::vec(rule, 0..3),
        prop::bool::weighted(0.1),
    )
        .prop_map(move |(namespace, app, action, rules, dry_run)| {
            let mut policy = AuthorizationPolicy::default();
            policy.metadata.name = format!("p{index}").into();
            policy.metadata.namespace = namespace.into();
            if dry_run {
                policy.metadata.annotations.insert("istio.io/dry-run".into(), "true".into());
            }
            policy.spec.selector = app.map(|app| {
                let labels = (!app.is_empty()).then(|| ("app".into(), app.into()));
                leno_objects::WorkloadSelector { match_labels: labels.into_iter().collect() }
            });
            policy.spec.action = action;
            policy.spec.rules = rules;
            policy
        })
}

fn any_attempt() -> impl Strategy<Value = Attempt> {
    let identities: Vec<Option<Identity>> = vec![
        None,
        Identity::new("cluster.local", "a", "x").ok(),
        Identity::new("cluster.local", "b", "y").ok(),
        Identity::new("cluster.local", "bb", "x").ok(),
    ];
    let ips: Vec<IpAddr> =
        ["10.0.0.1", "10.0.0.2", "10.9.0.1", "fd00::1"].iter().map(|ip| ip.parse().expect("ip")).collect();
    (select(identities), select(ips.clone()), select(ips), select(vec![80, 81, 82]))
        .prop_map(|(source, source_ip, ip, port)| Attempt { source, source_ip, destination: SocketAddr::new(ip, port) })
}

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: a, labels: {app: web}}
spec: {containers: [{name: c}]}
status: {podIP: 10.0.0.1}
";

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    /// Translated and evaluated by the proxy's rules, policies decide as they read.
    #[test]
    fn the_proxy_decides_as_the_policy_reads(
        policies in (any_policy(0), any_policy(1), any_policy(2)),
        count in 1..=3usize,
        attempts in prop::collection::vec(any_attempt(), 8),
    ) {
        let policies = [policies.0, policies.1, policies.2];
        let policies = &policies[..count];
        let mut translator = Translator::new(Options::default());
        let objects = policies.iter().cloned().map(Object::from).chain(load(POD));
        translator.apply(objects.map(Change::upsert));
        let mesh = translator.mesh();
        let workload = mesh.workload("Kubernetes//Pod/a/web").expect("there");
        for attempt in &attempts {
            let connection = Connection {
                source: attempt.source.as_ref(),
                source_ip: attempt.source_ip,
                destination: attempt.destination,
            };
            let decision = authorize(mesh, workload, &connection);
            prop_assert_eq!(decision.is_allowed(), allowed(policies, attempt), "{:?} {:?}", attempt, decision);
        }
    }
}
