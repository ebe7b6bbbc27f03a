use ipnet::IpNet;
use leno_model::{Scope, ServiceAccountMatch, StringMatch};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::test_support::{at, identity, ip, mesh, pod, policy, policy_name, rule};

const ALICE: &str = "spiffe://cluster.local/ns/default/sa/alice";

fn exact(text: &str) -> StringMatch {
    StringMatch::Exact(text.into())
}

fn decide_for(policies: Vec<Authorization>, source: Option<&Identity>) -> Decision {
    let web = pod("web", "10.0.0.9");
    let mut mesh = mesh(&[], &[&web]);
    for policy in policies {
        mesh.upsert_policy(policy.into());
    }
    let connection = Connection { source, source_ip: ip("10.0.0.1"), destination: at("10.0.0.9:8080") };
    authorize(&mesh, &web, &connection)
}

fn from_alice() -> Match {
    Match { principals: vec![exact("cluster.local/ns/default/sa/alice")], ..Match::default() }
}

fn words(decision: &Decision) -> String {
    decision.to_string()
}

#[test]
fn without_policies_everybody_passes() {
    let decision = decide_for(vec![], None);
    assert_eq!(decision.verdict, Verdict::Allow(AllowReason::NoAllowPolicy));
}

#[test]
fn deny_wins_over_allow_and_says_who() {
    let all = || vec![Rule::default()];
    let alice = identity(ALICE);
    let policies = vec![policy("default/a", Action::Allow, all()), policy("default/no", Action::Deny, all())];
    assert_eq!(
        words(&decide_for(policies.clone(), Some(&alice))),
        "denied by policy default/no: peer is cluster.local/ns/default/sa/alice"
    );
    assert_eq!(words(&decide_for(policies, None)), "denied by policy default/no: peer has no identity (plaintext)");
}

#[test]
fn with_allow_policies_one_must_match() {
    let alice = identity(ALICE);
    let bob = identity("spiffe://cluster.local/ns/default/sa/bob");
    let policies = || {
        vec![
            policy("default/a", Action::Allow, vec![rule(vec![from_alice()])]),
            policy("default/b", Action::Allow, vec![]),
        ]
    };
    assert_eq!(words(&decide_for(policies(), Some(&alice))), "allowed by policy default/a");
    assert_eq!(
        words(&decide_for(policies(), Some(&bob))),
        "not allowed: no ALLOW policy of default/web matched (checked default/a, default/b): \
         peer is cluster.local/ns/default/sa/bob"
    );
}

#[test]
fn a_long_list_is_counted() {
    let policies = (0..7).map(|i| policy(&format!("default/p{i}"), Action::Allow, vec![])).collect();
    let text = words(&decide_for(policies, None));
    assert!(text.contains("default/p4 and 2 more)"), "{text}");
}

#[test]
fn empty_lists_mean_what_istio_says() {
    let alice = identity(ALICE);
    let deny = |rules| decide_for(vec![policy("default/p", Action::Deny, rules)], Some(&alice)).is_allowed();
    assert!(deny(vec![]), "no rules: never matches");
    assert!(!deny(vec![Rule { clauses: vec![] }]), "no clauses: matches all");
    assert!(!deny(vec![rule(vec![])]), "no matches: matches all");
    assert!(deny(vec![rule(vec![Match::default()])]), "only empty matches: matches nothing");
    assert!(!deny(vec![rule(vec![Match::default(), from_alice()])]), "an empty match is skipped");
}

#[test]
fn an_unknown_policy_refuses() {
    let mut web = pod("web", "10.0.0.9");
    web.authorization_policies.push(policy_name("default/later"));
    let mut mesh = mesh(&[], &[&web]);
    let connection = Connection { source: None, source_ip: ip("10.0.0.1"), destination: at("10.0.0.9:1") };
    let decision = authorize(&mesh, &web, &connection);
    assert_eq!(
        words(&decision),
        "denied: policy default/later applies to default/web but has not arrived from the control plane: \
         peer has no identity (plaintext)"
    );
    let Verdict::Deny(reason) = decision.verdict else { panic!("denied") };
    assert!(reason.is_retryable());
    assert_eq!(reason.policy(), Some(&policy_name("default/later")));
    // A policy that is known and allows can't make up for one that is not.
    mesh.upsert_policy(policy("default/all", Action::Allow, vec![Rule::default()]).into());
    assert!(!authorize(&mesh, &web, &connection).is_allowed());
    // What refuses whatever that one says is the reason: nobody need wait for it.
    for (certain, words) in [
        (policy("default/certain", Action::Deny, vec![Rule::default()]), "denied by policy default/certain"),
        (
            Authorization { not_understood: Some("why".into()), ..policy("default/certain", Action::Allow, vec![]) },
            "describes policy default/certain in a way",
        ),
    ] {
        let mut mesh = mesh.clone();
        mesh.upsert_policy(certain.into());
        let decision = authorize(&mesh, &web, &connection);
        assert!(self::words(&decision).contains(words), "{decision:?}");
        let Verdict::Deny(reason) = decision.verdict else { panic!("denied") };
        assert!(!reason.is_retryable());
        assert_eq!(reason.policy(), Some(&policy_name("default/certain")));
    }
    let later = Authorization { scope: Scope::WorkloadSelector, ..policy("default/later", Action::Deny, vec![]) };
    mesh.upsert_policy(later.into());
    assert!(authorize(&mesh, &web, &connection).is_allowed());
}

#[test]
fn peer_authentication_is_called_by_its_name() {
    let plaintext = || vec![rule(vec![Match { not_principals: vec![StringMatch::Presence], ..Match::default() }])];
    let strict = policy("default/istio_converted_static_strict", Action::Deny, plaintext());
    assert_eq!(
        words(&decide_for(vec![strict.clone()], None)),
        "denied by policy default/istio_converted_static_strict (PeerAuthentication requires mTLS): \
         peer has no identity (plaintext)"
    );
    assert!(decide_for(vec![strict], Some(&identity(ALICE))).is_allowed());
    let own = policy("default/converted_peer_authentication_db", Action::Deny, plaintext());
    let text = words(&decide_for(vec![own], None));
    assert!(text.contains("(PeerAuthentication default/db requires mTLS)"), "{text}");
}

#[test]
fn dry_runs_are_told_and_not_enforced() {
    let trial = |name, action, rules| Authorization { dry_run: true, ..policy(name, action, rules) };
    let all = || vec![Rule::default()];
    let decision = decide_for(
        vec![
            trial("default/a", Action::Deny, all()),
            trial("default/b", Action::Allow, vec![]),
            trial("default/c", Action::Allow, all()),
            trial("default/d", Action::Deny, vec![]),
        ],
        None,
    );
    assert!(decision.is_allowed());
    let notes: Vec<String> = decision.dry_run.iter().map(ToString::to_string).collect();
    assert_eq!(
        notes,
        [
            "dry-run policy default/a would deny this connection",
            "dry-run policy default/b would not allow this connection",
            "dry-run policy default/c would allow this connection",
        ]
    );
}

#[test]
fn without_identity_only_absence_matches() {
    let denies = |m| !decide_for(vec![policy("default/p", Action::Deny, vec![rule(vec![m])])], None).is_allowed();
    let account = || ServiceAccountMatch { namespace: "".into(), service_account: "".into() };
    assert!(!denies(Match { principals: vec![StringMatch::Prefix("".into())], ..Match::default() }));
    assert!(denies(Match { not_principals: vec![StringMatch::Presence], ..Match::default() }));
    assert!(!denies(Match { namespaces: vec![StringMatch::Presence], ..Match::default() }));
    assert!(denies(Match { namespaces: vec![exact("")], ..Match::default() }));
    assert!(!denies(Match { service_accounts: vec![account()], ..Match::default() }));
    assert!(denies(Match { not_service_accounts: vec![account()], ..Match::default() }));
}

#[test]
fn mapped_addresses_are_compared_as_v4() {
    let web = pod("web", "10.0.0.9");
    let mut mesh = mesh(&[], &[&web]);
    let m = Match { source_ips: vec!["10.0.0.0/24".parse().expect("range")], ..Match::default() };
    mesh.upsert_policy(policy("default/p", Action::Deny, vec![rule(vec![m])]).into());
    let connection =
        Connection { source: None, source_ip: ip("::ffff:10.0.0.1"), destination: at("[::ffff:10.0.0.9]:1") };
    assert!(!authorize(&mesh, &web, &connection).is_allowed());
}

#[test]
fn examine_lists_every_policy_asked() {
    let mut web = pod("web", "10.0.0.9");
    web.authorization_policies.push(policy_name("default/later"));
    let mut mesh = mesh(&[], &[&web]);
    mesh.upsert_policy(policy("default/a", Action::Allow, vec![Rule::default()]).into());
    let connection = Connection { source: None, source_ip: ip("10.0.0.1"), destination: at("10.0.0.9:1") };
    let (decision, checked) = examine(&mesh, &web, &connection);
    assert_eq!(decision, authorize(&mesh, &web, &connection));
    let unknown =
        Checked { policy: policy_name("default/later"), action: None, arrived: false, dry_run: false, matched: false };
    let known = Checked {
        policy: policy_name("default/a"),
        action: Some(Action::Allow),
        arrived: true,
        dry_run: false,
        matched: true,
    };
    assert_eq!(checked, [known, unknown]);
}

#[test]
fn a_proxys_own_policies_are_those_that_select_it() {
    let mut own = pod("waypoint", "10.0.0.9");
    let connection = Connection { source: None, source_ip: ip("10.0.0.1"), destination: at("10.0.0.9:15008") };
    let deny = |scope, name: &str| Authorization { scope, ..policy(name, Action::Deny, vec![Rule::default()]) };
    let mut mesh = mesh(&[], &[&own]);
    for scope in [Scope::Global, Scope::Namespace] {
        mesh.upsert_policy(deny(scope, &format!("default/{scope:?}")).into());
    }
    assert!(!authorize(&mesh, &own, &connection).is_allowed());
    assert!(authorize_selected(&mesh, &own, &connection).is_allowed(), "they are about what it stands before");

    own.authorization_policies.push(policy_name("default/mine"));
    let unknown = authorize_selected(&mesh, &own, &connection);
    assert!(matches!(unknown.verdict, Verdict::Deny(DenyReason::UnknownPolicy { .. })), "{unknown}");
    mesh.upsert_policy(deny(Scope::WorkloadSelector, "default/mine").into());
    let denied = authorize_selected(&mesh, &own, &connection);
    assert_eq!(words(&denied), "denied by policy default/mine: peer has no identity (plaintext)");
}

/// The rules once more, from their wording: slow, by tables, sharing nothing with the code.
mod reference {
    use super::*;

    fn any(list: impl IntoIterator<Item = bool>) -> Option<bool> {
        let results: Vec<bool> = list.into_iter().collect();
        if results.is_empty() { None } else { Some(results.contains(&true)) }
    }

    fn text(test: &StringMatch, value: &str) -> bool {
        match test {
            StringMatch::Exact(s) => **s == *value,
            StringMatch::Prefix(s) => value.get(..s.len()) == Some(s),
            StringMatch::Suffix(s) => value.len() >= s.len() && value.get(value.len() - s.len()..) == Some(s),
            StringMatch::Presence => value.chars().next().is_some(),
        }
    }

    fn inside(net: &IpNet, ip: IpAddr) -> bool {
        let bits = |ip: IpAddr| match ip {
            IpAddr::V4(v4) => (u128::from(u32::from(v4)) << 96, 4),
            IpAddr::V6(v6) => (u128::from(v6), 6),
        };
        let ((net_bits, net_family), (ip_bits, ip_family)) = (bits(net.addr()), bits(ip));
        let length = u32::from(net.prefix_len());
        let mask = if length == 0 { 0 } else { u128::MAX << (128 - length) };
        net_family == ip_family && (net_bits & mask) == (ip_bits & mask)
    }

    /// `None`: the match has no attribute.
    fn one(m: &Match, c: &Connection<'_>) -> Option<bool> {
        let id = c.source.map(|id| id.to_string());
        let parts: Option<Vec<&str>> = id.as_deref().map(|id| id.split('/').collect());
        let principal = id.as_deref().map(|id| &id["spiffe://".len()..]);
        let namespace = parts.as_ref().map_or("", |p| p[4]);
        let account = |want: &ServiceAccountMatch| {
            parts.as_ref().is_some_and(|p| p[4] == &*want.namespace && p[6] == &*want.service_account)
        };
        let principal_is = |want: &StringMatch| principal.is_some_and(|p| text(want, p));
        let not = |result: Option<bool>| result.map(|r| !r);
        let attributes = [
            any(m.namespaces.iter().map(|t| text(t, namespace))),
            not(any(m.not_namespaces.iter().map(|t| text(t, namespace)))),
            any(m.principals.iter().map(principal_is)),
            not(any(m.not_principals.iter().map(principal_is))),
            any(m.service_accounts.iter().map(account)),
            not(any(m.not_service_accounts.iter().map(account))),
            any(m.source_ips.iter().map(|n| inside(n, c.source_ip))),
            not(any(m.not_source_ips.iter().map(|n| inside(n, c.source_ip)))),
            any(m.destination_ips.iter().map(|n| inside(n, c.destination.ip()))),
            not(any(m.not_destination_ips.iter().map(|n| inside(n, c.destination.ip())))),
            any(m.destination_ports.iter().map(|p| *p == c.destination.port())),
            not(any(m.not_destination_ports.iter().map(|p| *p == c.destination.port()))),
        ];
        let populated: Vec<bool> = attributes.into_iter().flatten().collect();
        if populated.is_empty() { None } else { Some(!populated.contains(&false)) }
    }

    fn matches(policy: &Authorization, c: &Connection<'_>) -> bool {
        for rule in &policy.rules {
            let mut all = true;
            for clause in &rule.clauses {
                let results: Vec<Option<bool>> = clause.matches.iter().map(|m| one(m, c)).collect();
                all &= results.is_empty() || results.contains(&Some(true));
            }
            if all {
                return true;
            }
        }
        false
    }

    pub(super) fn allowed(policies: &[Authorization], unknown: bool, c: &Connection<'_>) -> bool {
        let enforced = |action| policies.iter().filter(move |p| !p.dry_run && p.action == action);
        if enforced(Action::Deny).any(|p| matches(p, c)) || unknown {
            return false;
        }
        enforced(Action::Allow).count() == 0 || enforced(Action::Allow).any(|p| matches(p, c))
    }
}

fn names() -> impl Strategy<Value = Name> {
    select(vec!["a", "b", "ab", "cluster.local"]).prop_map(Name::from)
}

fn strings() -> impl Strategy<Value = Vec<StringMatch>> {
    let pieces = || {
        select(vec!["", "a", "b", "ab", "cluster.local/ns/a/sa/b", "cluster.local/ns/a", "sa/a", "/sa/ab"])
            .prop_map(Name::from)
    };
    let one = prop_oneof![
        pieces().prop_map(StringMatch::Exact),
        pieces().prop_map(StringMatch::Prefix),
        pieces().prop_map(StringMatch::Suffix),
        Just(StringMatch::Presence),
    ];
    rarely(one)
}

/// Mostly nothing, so that whole matches have a chance to hold.
fn rarely<T: Clone + fmt::Debug>(one: impl Strategy<Value = T>) -> impl Strategy<Value = Vec<T>> {
    (0..4_u8, vec(one, 1..3)).prop_map(|(chance, list)| if chance == 0 { list } else { Vec::new() })
}

fn nets() -> impl Strategy<Value = Vec<IpNet>> {
    let all = ["0.0.0.0/0", "10.0.0.0/31", "10.0.0.1/32", "::/0", "fd00::/127", "fd00::1/128"];
    rarely(select(all.map(|n| n.parse::<IpNet>().expect("range")).to_vec()))
}

fn addresses() -> impl Strategy<Value = IpAddr> {
    select(["10.0.0.0", "10.0.0.1", "10.0.0.2", "fd00::", "fd00::1", "fd00::2"].map(ip).to_vec())
}

fn accounts() -> impl Strategy<Value = Vec<ServiceAccountMatch>> {
    rarely(
        (names(), names()).prop_map(|(namespace, service_account)| ServiceAccountMatch { namespace, service_account }),
    )
}

prop_compose! {
    fn matches()(
        strings in [strings(), strings(), strings(), strings()],
        nets in [nets(), nets(), nets(), nets()],
        ports in [rarely(80..83_u16), rarely(80..83_u16)],
        accounts in [accounts(), accounts()],
    ) -> Match {
        let [namespaces, not_namespaces, principals, not_principals] = strings;
        let [source_ips, not_source_ips, destination_ips, not_destination_ips] = nets;
        let [destination_ports, not_destination_ports] = ports;
        let [service_accounts, not_service_accounts] = accounts;
        Match {
            namespaces,
            not_namespaces,
            principals,
            not_principals,
            source_ips,
            not_source_ips,
            destination_ips,
            not_destination_ips,
            destination_ports,
            not_destination_ports,
            service_accounts,
            not_service_accounts,
        }
    }
}

fn policies() -> impl Strategy<Value = Vec<Authorization>> {
    let clauses = vec(vec(matches(), 0..3).prop_map(|matches| Clause { matches }), 0..3);
    let rules = vec(clauses.prop_map(|clauses| Rule { clauses }), 0..3);
    let one = (rules, any::<bool>(), 0..5_u8, select(vec![Scope::Global, Scope::Namespace, Scope::WorkloadSelector]));
    vec(one, 0..4).prop_map(|list| {
        let build = |(index, (rules, deny, trial, scope)): (usize, (Vec<Rule>, bool, u8, Scope))| Authorization {
            id: policy_name(&format!("default/p{index}")),
            scope,
            action: if deny { Action::Deny } else { Action::Allow },
            rules,
            dry_run: trial == 0,
            not_understood: None,
        };
        list.into_iter().enumerate().map(build).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_the_reference(
        policies in policies(),
        unknown in 0..8_u8,
        source in proptest::option::weighted(0.8, (names(), names(), names())),
        source_ip in addresses(),
        destination_ip in addresses(),
        port in 80..83_u16,
    ) {
        let source = source.map(|(domain, ns, sa)| Identity::new(domain, ns, sa).expect("valid"));
        let mut web = pod("web", "10.0.0.9");
        web.authorization_policies =
            policies.iter().filter(|p| p.scope == Scope::WorkloadSelector).map(|p| p.id.clone()).collect();
        let mut mesh = mesh(&[], &[&web]);
        for policy in &policies {
            mesh.upsert_policy(policy.clone().into());
        }
        if unknown == 0 {
            web.authorization_policies.push(policy_name("default/unknown"));
        }
        let destination = SocketAddr::new(destination_ip, port);
        let connection = Connection { source: source.as_ref(), source_ip, destination };
        let decision = authorize(&mesh, &web, &connection);
        prop_assert_eq!(decision.is_allowed(), reference::allowed(&policies, unknown == 0, &connection), "{}", decision);
    }
}

#[test]
fn a_policy_that_was_not_understood_lets_nobody_in_and_says_so() {
    let mut mesh = Mesh::default();
    let closed = Authorization {
        not_understood: Some("from the future".into()),
        ..policy("default/p", Action::Allow, vec![Rule::default()])
    };
    mesh.upsert_policy(Arc::new(closed.clone()));
    let web = pod("web", "10.0.0.9");
    let connection = Connection { source: None, source_ip: ip("10.0.0.1"), destination: at("10.0.0.9:80") };
    let (decision, asked) = examine(&mesh, &web, &connection);
    assert!(!decision.is_allowed());
    let words = decision.to_string();
    for part in ["policy default/p", "from the future", "upgrade the proxy", "peer has no identity"] {
        assert!(words.contains(part), "{words}");
    }
    let expected = Checked { policy: closed.id.clone(), action: None, arrived: true, dry_run: false, matched: false };
    assert_eq!(asked, [expected]);
    // On trial it decides nothing.
    mesh.upsert_policy(Arc::new(Authorization { dry_run: true, ..closed }));
    assert!(authorize(&mesh, &web, &connection).is_allowed());
}

#[test]
fn a_workload_that_was_not_understood_lets_nobody_in() {
    let web = Workload { not_understood: Some("from the future".into()), ..pod("web", "10.0.0.9") };
    let connection = Connection { source: None, source_ip: ip("10.0.0.1"), destination: at("10.0.0.9:80") };
    let decision = authorize(&Mesh::default(), &web, &connection);
    assert!(!decision.is_allowed());
    assert!(decision.to_string().contains("workload default/web"), "{decision}");
}
