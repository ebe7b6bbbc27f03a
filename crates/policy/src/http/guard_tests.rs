use std::net::SocketAddr;

use http::{HeaderMap, HeaderName, HeaderValue};
use leno_model::Identity;
use leno_model::http::{Attribute, AttributeTest, PolicyClause};
use proptest::prelude::*;

use super::super::Request;
use super::*;
use crate::Connection;

fn names(values: &[&str]) -> Vec<Name> {
    values.iter().map(|value| Name::from(*value)).collect()
}

fn is(attribute: Attribute, values: &[&str]) -> AttributeTest {
    AttributeTest { attribute, values: names(values), not_values: Vec::new() }
}

fn not(attribute: Attribute, values: &[&str]) -> AttributeTest {
    AttributeTest { attribute, values: Vec::new(), not_values: names(values) }
}

fn header(name: &str) -> Attribute {
    Attribute::Header(name.into())
}

/// One rule with one clause of one alternative.
fn rule(tests: Vec<AttributeTest>) -> PolicyRule {
    PolicyRule { clauses: vec![PolicyClause { alternatives: vec![tests] }] }
}

fn policy(name: &str, action: PolicyAction, rules: Vec<PolicyRule>) -> Policy {
    let id = PolicyName { namespace: "shop".into(), name: name.into() };
    Policy { rules, ..Policy::new(id, action) }
}

#[derive(Debug, Clone)]
struct Asked {
    source: Option<Identity>,
    from: SocketAddr,
    to: SocketAddr,
    method: &'static str,
    host: &'static str,
    host_port: Option<u16>,
    path: &'static str,
    headers: HeaderMap,
}

fn asked() -> Asked {
    Asked {
        source: Some("spiffe://cluster.local/ns/shop/sa/web".parse().expect("an identity")),
        from: "10.1.0.1:4711".parse().expect("an address"),
        to: "10.96.0.1:80".parse().expect("an address"),
        method: "GET",
        host: "api.example",
        host_port: None,
        path: "/admin/users",
        headers: HeaderMap::new(),
    }
}

fn with(headers: &[(&'static str, &'static str)]) -> Asked {
    let mut asked = asked();
    for (name, value) in headers {
        asked.headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    asked
}

impl Asked {
    fn of<T>(&self, http: bool, judge: impl FnOnce(&Subject<'_>) -> T) -> T {
        self.seen(http, |subject| judge(&subject))
    }

    fn seen<T>(&self, http: bool, judge: impl FnOnce(Subject<'_>) -> T) -> T {
        let request = Request {
            method: self.method,
            host: self.host,
            host_port: self.host_port,
            path: self.path,
            query: None,
            headers: &self.headers,
            source_namespace: self.source.as_ref().map(|source| &**source.namespace()),
        };
        let connection = Connection { source: self.source.as_ref(), source_ip: self.from.ip(), destination: self.to };
        let subject = Subject::new(connection, http.then_some(&request));
        assert_eq!(subject.has_request(), http);
        judge(subject)
    }

    fn passes(&self, policies: &[Policy]) -> bool {
        self.of(true, |subject| Guard::new(policies).judge(subject).verdict.is_ok())
    }

    fn passes_unread(&self, policies: &[Policy]) -> bool {
        self.of(false, |subject| Guard::new(policies).judge(subject).verdict.is_ok())
    }
}

/// Each attribute with values of which one matches [`asked`], and values of which none does.
#[test]
fn every_attribute_is_compared_as_istio_has_it() {
    use Attribute::*;
    let table: &[(Attribute, &[&str], &[&str])] = &[
        (Principal, &["cluster.local/ns/shop/sa/web"], &["cluster.local/ns/shop/sa/we", "web"]),
        (Principal, &["spiffe://cluster.local/ns/shop/sa/web"], &["spiffe://other/ns/shop/sa/web"]),
        (Principal, &["*/sa/web"], &["*/sa/api"]),
        (Principal, &["cluster.local/ns/shop/*"], &["cluster.local/ns/bank/*"]),
        (Principal, &["*"], &[]),
        (Namespace, &["bank", "sh*"], &["bank", "Shop"]),
        (ServiceAccount, &["shop/web"], &["shop/api", "bank/web"]),
        (SourceIp, &["10.1.0.0/16"], &["10.2.0.0/16", "10.1.0.2"]),
        (SourceIp, &["10.1.0.1", "::/0"], &["::1"]),
        (RemoteIp, &["10.1.0.0/16"], &["10.2.0.0/16"]),
        (DestinationIp, &["10.96.0.1"], &["10.96.0.2"]),
        (DestinationPort, &["443", "80"], &["443"]),
        (Host, &["api.example"], &["api", "other.example"]),
        (Host, &["API.Example", "x"], &["x"]),
        (Host, &["*.example"], &["*.exampl"]),
        (Host, &["api.example."], &["other.example."]),
        (Host, &["*.example."], &["*.exampl."]),
        (Host, &["*"], &["*.", "."]),
        (Host, &["api.*"], &["apix*"]),
        (Host, &["api.example:80"], &["api.example:81"]),
        (Host, &["api.example:*"], &["other:*"]),
        (Host, &["*"], &[]),
        (Method, &["GET", "PUT"], &["PUT", "get"]),
        (Method, &["G*"], &["P*"]),
        (Path, &["/admin/users"], &["/admin", "/admin/users/"]),
        (Path, &["/admin*"], &["/adm/*"]),
        (Path, &["*/users"], &["*/user"]),
        (Path, &["/admin/{*}"], &["/admin/{*}/x"]),
        (Path, &["/{**}"], &["/x/{**}"]),
        (Header(":authority".into()), &["api.example"], &["other"]),
        (Header("host".into()), &["api.example"], &["other"]),
        (Header(":method".into()), &["GET"], &["POST"]),
        (Header(":path".into()), &["/admin/users"], &["/"]),
    ];
    for (attribute, matching, others) in table {
        for (values, matches) in [(matching, true), (others, false)] {
            if values.is_empty() {
                continue;
            }
            let rules =
                |test: fn(Attribute, &[&str]) -> AttributeTest| vec![rule(vec![test(attribute.clone(), values)])];
            let what = format!("{attribute} {values:?}");
            assert_eq!(asked().passes(&[policy("p", PolicyAction::Allow, rules(is))]), matches, "ALLOW {what}");
            assert_eq!(asked().passes(&[policy("p", PolicyAction::Deny, rules(is))]), !matches, "DENY {what}");
            assert_eq!(asked().passes(&[policy("p", PolicyAction::Allow, rules(not))]), !matches, "ALLOW not {what}");
            assert_eq!(asked().passes(&[policy("p", PolicyAction::Deny, rules(not))]), matches, "DENY not {what}");
        }
    }
}

#[test]
fn headers_are_compared_in_the_stricter_way() {
    let allow = |values: &[&str]| [policy("p", PolicyAction::Allow, vec![rule(vec![is(header("x-role"), values)])])];
    let deny = |values: &[&str]| [policy("p", PolicyAction::Deny, vec![rule(vec![is(header("x-role"), values)])])];
    assert!(with(&[("x-role", "admin")]).passes(&allow(&["admin"])));
    assert!(!with(&[("x-role", "Admin")]).passes(&allow(&["admin"])));
    assert!(!with(&[]).passes(&allow(&["*"])), "absent");
    assert!(!with(&[("x-role", "")]).passes(&allow(&["*"])), "empty");
    assert!(with(&[]).passes(&deny(&["*"])), "absent");
    // A program may take the first or the last of two, or both as one.
    let two = with(&[("x-role", "guest"), ("x-role", "admin")]);
    assert!(!two.passes(&allow(&["admin"])) && !two.passes(&allow(&["guest*"])));
    assert!(!two.passes(&deny(&["admin"])) && !two.passes(&deny(&["guest"])) && !two.passes(&deny(&["guest,admin"])));
    let not_guest = vec![rule(vec![not(header("x-role"), &["guest"])])];
    assert!(!two.passes(&[policy("p", PolicyAction::Allow, not_guest.clone())]));
    assert!(!two.passes(&[policy("p", PolicyAction::Deny, not_guest.clone())]));
    assert!(with(&[]).passes(&[policy("p", PolicyAction::Allow, not_guest)]), "absent is not guest");
}

#[test]
fn a_claimed_address_is_not_believed() {
    let block = |action, test: fn(Attribute, &[&str]) -> AttributeTest, value| {
        [policy("p", action, vec![rule(vec![test(Attribute::RemoteIp, &[value])])])]
    };
    for name in ["x-forwarded-for", "forwarded"] {
        let forwarded = with(&[(name, "10.1.0.1")]);
        for value in ["10.1.0.0/16", "192.0.2.0/24"] {
            for test in [is, not] {
                assert!(!forwarded.passes(&block(PolicyAction::Allow, test, value)));
                assert!(!forwarded.passes(&block(PolicyAction::Deny, test, value)));
            }
        }
        let source = [policy("p", PolicyAction::Allow, vec![rule(vec![is(Attribute::SourceIp, &["10.1.0.1"])])])];
        assert!(forwarded.passes(&source), "the connection's own address");
    }
}

#[test]
fn deny_goes_before_allow_and_allow_needs_a_match() {
    let get = || vec![rule(vec![is(Attribute::Method, &["GET"])])];
    let post = || vec![rule(vec![is(Attribute::Method, &["POST"])])];
    let (allow, deny) = (PolicyAction::Allow, PolicyAction::Deny);
    assert!(asked().passes(&[]));
    assert!(!asked().passes(&[policy("a", allow, get()), policy("d", deny, get())]));
    assert!(!asked().passes(&[policy("a", allow, post())]));
    assert!(asked().passes(&[policy("a", allow, post()), policy("b", allow, get())]));
    assert!(asked().passes(&[policy("d", deny, post())]));
    assert!(!asked().passes(&[policy("a", allow, Vec::new())]), "an empty ALLOW policy allows nothing");
    assert!(asked().passes(&[policy("d", deny, Vec::new())]), "an empty DENY policy denies nothing");
    assert!(asked().passes(&[policy("a", allow, vec![PolicyRule::default()])]), "an empty rule matches");
    assert!(!asked().passes(&[policy("d", deny, vec![PolicyRule::default()])]));
    assert!(asked().passes(&[policy("u", PolicyAction::Audit, get())]));
    // A refusal names those that count.
    let trial = Policy { dry_run: true, ..policy("t", allow, post()) };
    asked().of(true, |subject| match Guard::new(&[trial, policy("a", allow, post())]).judge(subject).verdict {
        Err(Denied::NoAllowMatched { checked, .. }) => assert_eq!(checked, [policy("a", allow, post()).id]),
        other => panic!("{other:?}"),
    });
}

#[test]
fn what_cannot_be_enforced_lets_nobody_in() {
    let paths = |path| rule(vec![is(Attribute::Path, &[path])]);
    let bad = policy("b", PolicyAction::Allow, vec![paths("/a;b"), paths("/a"), paths("b")]);
    assert_eq!(mistakes(&bad).iter().map(|(index, _)| *index).collect::<Vec<_>>(), [0, 2]);
    let everybody = policy("a", PolicyAction::Allow, vec![PolicyRule::default()]);
    assert!(!asked().passes(&[bad.clone(), everybody.clone()]));
    let strange = Policy { not_understood: Some("new".into()), ..everybody.clone() };
    assert!(!asked().passes(std::slice::from_ref(&strange)));
    assert!(asked().passes(&[Policy { dry_run: true, ..strange }]), "a dry run refuses nobody");
    asked().of(true, |subject| {
        let guard = Guard::new([&bad]);
        let error = guard.judge(subject).verdict.unwrap_err().to_string();
        assert!(error.contains("policy shop/b can't be enforced") && error.contains("/a;b"), "{error}");
    });
}

#[test]
fn a_connection_that_is_passed_on_unread_gets_the_stricter_reading() {
    let peer = || is(Attribute::Principal, &["*/sa/web"]);
    let get = || is(Attribute::Method, &["GET"]);
    let other = || is(Attribute::Principal, &["*/sa/api"]);
    let both = |tests: Vec<AttributeTest>| vec![rule(tests)];
    let of_requests = [
        get(),
        not(Attribute::Path, &["/x"]),
        is(Attribute::Host, &["*"]),
        is(header("x"), &["*"]),
        is(Attribute::Sni, &["a"]),
    ];
    for test in of_requests {
        assert!(!asked().passes_unread(&[policy("p", PolicyAction::Allow, both(vec![peer(), test.clone()]))]));
        assert!(!asked().passes_unread(&[policy("p", PolicyAction::Deny, both(vec![peer(), test.clone()]))]));
        assert!(asked().passes_unread(&[policy("p", PolicyAction::Deny, both(vec![other(), test]))]));
    }
    assert!(asked().passes_unread(&[policy("p", PolicyAction::Allow, both(vec![peer()]))]));
    let rules = [both(vec![get()]), both(vec![peer()])].concat();
    assert!(asked().passes_unread(&[policy("p", PolicyAction::Allow, rules)]), "its other rule matches");
}

#[test]
fn the_server_name_of_a_connection_is_what_its_client_asks_for() {
    let named = |policies: &[Policy], name: Option<&str>| {
        let guard = Guard::new(policies);
        assert!(guard.needs_server_name());
        asked().seen(false, |subject| guard.judge(&subject.asking_for(name)).verdict.is_ok())
    };
    let with = |action, test: AttributeTest| [policy("p", action, vec![rule(vec![test])])];
    let allow = with(PolicyAction::Allow, is(Attribute::Sni, &["A.example", "*.b.example"]));
    for (name, passes) in
        [(Some("a.example"), true), (Some("x.b.example"), true), (Some("c.example"), false), (None, false)]
    {
        assert_eq!(named(&allow, name), passes, "{name:?}");
    }
    // Whoever asks for none asks for none of these.
    let deny = with(PolicyAction::Deny, not(Attribute::Sni, &["a.example"]));
    for (name, passes) in [(Some("a.example"), true), (Some("c.example"), false), (None, false)] {
        assert_eq!(named(&deny, name), passes, "{name:?}");
    }
    // A request came without TLS of its program's own.
    assert!(!asked().passes(&allow) && !asked().passes(&deny));
    assert!(asked().passes(&with(PolicyAction::Deny, is(Attribute::Sni, &["*"]))));
    assert!(!Guard::new(&with(PolicyAction::Deny, is(Attribute::Path, &["*"]))).needs_server_name());
}

#[test]
fn who_proves_nothing_is_nobody() {
    let nobody = Asked { source: None, ..asked() };
    for attribute in [Attribute::Principal, Attribute::Namespace] {
        assert!(!nobody.passes(&[policy("p", PolicyAction::Allow, vec![rule(vec![is(attribute.clone(), &["*"])])])]));
        assert!(!nobody.passes(&[policy("p", PolicyAction::Deny, vec![rule(vec![not(attribute, &["*"])])])]));
    }
}

#[test]
fn dry_runs_and_audits_are_told_and_decide_nothing() {
    let get = || vec![rule(vec![is(Attribute::Method, &["GET"])])];
    let post = || vec![rule(vec![is(Attribute::Method, &["POST"])])];
    let dry = |name, action, rules| Policy { dry_run: true, ..policy(name, action, rules) };
    let policies = [
        policy("audit", PolicyAction::Audit, get()),
        policy("other-audit", PolicyAction::Audit, post()),
        dry("deny", PolicyAction::Deny, get()),
        dry("allow", PolicyAction::Allow, get()),
        dry("none", PolicyAction::Allow, post()),
    ];
    asked().of(true, |subject| {
        let guard = Guard::new(&policies);
        let judgement = guard.judge(subject);
        assert_eq!(judgement.verdict, Ok(None));
        let notes: Vec<_> = judgement.notes.iter().map(|note| (&*note.policy.name, note.says)).collect();
        let told = [
            ("audit", Says::Audit),
            ("deny", Says::WouldDeny),
            ("allow", Says::WouldAllow),
            ("none", Says::WouldNotAllow),
        ];
        assert_eq!(notes, told);
    });
}

fn attribute_test() -> impl Strategy<Value = AttributeTest> {
    let of = |attribute: Attribute, values: Vec<&'static str>| {
        let list = || prop::collection::vec(prop::sample::select(values.clone()).prop_map(Name::from), 0..3);
        (list(), list()).prop_map(move |(values, not_values)| AttributeTest {
            attribute: attribute.clone(),
            values,
            not_values,
        })
    };
    prop_oneof![
        of(Attribute::Method, vec!["GET", "POST", "G*", "*"]),
        of(Attribute::Path, vec!["/a", "/a*", "*b", "/{*}", "/a/{**}"]),
        of(Attribute::Namespace, vec!["shop", "bank", "sh*"]),
        of(header("x-one"), vec!["1", "2", "*"]),
        of(Attribute::DestinationPort, vec!["80", "81"]),
    ]
}

fn a_policy() -> impl Strategy<Value = Policy> {
    let tests = prop::collection::vec(attribute_test(), 0..3);
    let clause = prop::collection::vec(tests, 1..3).prop_map(|alternatives| PolicyClause { alternatives });
    let rule = prop::collection::vec(clause, 0..3).prop_map(|clauses| PolicyRule { clauses });
    let rules = prop::collection::vec(rule, 0..3);
    (any::<bool>(), rules)
        .prop_map(|(allow, rules)| policy("p", if allow { PolicyAction::Allow } else { PolicyAction::Deny }, rules))
}

/// The plainest reading: the attribute's value as a text, and each pattern as an expression.
fn naive_passes(test: &AttributeTest, asked: &Asked) -> bool {
    let value = match &test.attribute {
        Attribute::Method => asked.method.to_owned(),
        Attribute::Path => asked.path.to_owned(),
        Attribute::Namespace => asked.source.as_ref().map(|it| it.namespace().to_string()).unwrap_or_default(),
        Attribute::Header(name) => {
            asked.headers.get(&**name).map(|it| it.to_str().expect("text").to_owned()).unwrap_or_default()
        }
        Attribute::DestinationPort => asked.to.port().to_string(),
        other => unreachable!("{other}"),
    };
    let fits = |pattern: &Name| {
        let expression = match &**pattern {
            "*" => ".+".to_owned(),
            text if text.contains('{') => text.replace("{**}", ".*").replace("{*}", "[^/]+"),
            text => text.replace('*', ".*"),
        };
        regex::Regex::new(&format!("^{expression}$")).expect("an expression").is_match(&value)
    };
    (test.values.is_empty() || test.values.iter().any(fits)) && !test.not_values.iter().any(fits)
}

fn naive(policies: &[Policy], asked: &Asked) -> bool {
    let matches = |policy: &&Policy| {
        policy.rules.iter().any(|rule| {
            rule.clauses.iter().all(|clause| {
                clause.alternatives.iter().any(|tests| tests.iter().all(|test| naive_passes(test, asked)))
            })
        })
    };
    let of = |action| policies.iter().filter(move |policy| policy.action == action);
    !of(PolicyAction::Deny).any(|policy| matches(&policy))
        && (of(PolicyAction::Allow).next().is_none() || of(PolicyAction::Allow).any(|policy| matches(&policy)))
}

proptest! {
    #[test]
    fn the_guard_decides_as_the_plainest_reading(
        policies in prop::collection::vec(a_policy(), 0..4),
        method in prop::sample::select(vec!["GET", "POST"]),
        path in prop::sample::select(vec!["/", "/a", "/ab", "/a/b", "/a/"]),
        one in prop::option::of(prop::sample::select(vec!["1", "2", "3"])),
        known: bool,
    ) {
        let mut asked = Asked { method, path, ..asked() };
        asked.headers.extend(one.map(|value| (HeaderName::from_static("x-one"), HeaderValue::from_static(value))));
        if !known {
            asked.source = None;
        }
        prop_assert_eq!(asked.passes(&policies), naive(&policies, &asked));
    }
}

fn authorizer(provider: &str) -> Arc<Authorizer> {
    let timeout = std::time::Duration::from_secs(1);
    let (namespace, hostname) = ("".into(), "opa.shop.svc.cluster.local".into());
    let provider = provider.into();
    Arc::new(Authorizer {
        provider,
        namespace,
        hostname,
        port: 1,
        timeout,
        fail_open: true,
        status_on_error: 403,
        body: None,
        http: None,
    })
}

#[test]
fn authorisers_are_asked_once_each_and_until_then_nothing_passes() {
    let custom = |name, provider, rules| Policy {
        authorizer: Some(authorizer(provider)),
        ..policy(name, PolicyAction::Custom, rules)
    };
    let get = || vec![rule(vec![is(Attribute::Method, &["GET"])])];
    let post = || vec![rule(vec![is(Attribute::Method, &["POST"])])];
    let token = vec![rule(vec![is(Attribute::RequestPrincipal, &["x"])])];
    let policies = [
        custom("a", "one", get()),
        custom("b", "one", get()),
        custom("c", "two", post()),
        custom("d", "three", token),
        Policy { dry_run: true, ..custom("e", "four", get()) },
        policy("allow", PolicyAction::Allow, post()),
    ];
    asked().of(true, |subject| {
        let guard = Guard::new(&policies[..5]);
        assert!(!guard.asks_nobody() && !guard.is_empty());
        let asked: Vec<_> = guard.to_ask(subject).iter().map(|(by, whom)| (&*by.name, &*whom.provider)).collect();
        assert_eq!(asked, [("a", "one"), ("d", "three")]);
        let judgement = guard.judge(subject);
        let denied = judgement.verdict.unwrap_err();
        assert!(!denied.is_retryable());
        let denied = denied.to_string();
        assert!(denied.contains("policy shop/a") && denied.contains("\"one\""), "{denied}");
    });
    asked().seen(true, |subject| {
        let (subject, guard) = (subject.authorized(), Guard::new(&policies[..5]));
        let judgement = guard.judge(&subject);
        assert_eq!(judgement.verdict, Ok(None));
        let notes: Vec<_> = judgement.notes.iter().map(|note| (&*note.policy.name, note.says)).collect();
        assert_eq!(notes, [("e", Says::WouldAsk)]);
        assert!(Guard::new(&policies).judge(&subject).verdict.is_err(), "the others are asked, too");
    });
    assert!(!asked().passes_unread(&policies[..1]), "what is no request can't be asked about");
    let unasked = Policy {
        denied_because: Some("nobody to ask".into()),
        ..policy("u", PolicyAction::Deny, vec![rule(Vec::new())])
    };
    asked().of(true, |subject| {
        let denied = Guard::new([&unasked]).judge(subject).verdict.expect_err("denied").to_string();
        assert!(denied.contains("rule 1 of policy shop/u (nobody to ask): "), "{denied}");
    });
    for others in [&[][..], &policies[5..]] {
        let guard = Guard::new(others);
        assert_eq!((guard.asks_nobody(), guard.is_empty()), (true, others.is_empty()));
    }
    let nobody = [Policy { authorizer: None, ..custom("n", "x", post()) }];
    assert!(!asked().passes(&nobody), "a policy without an authoriser lets nobody in");
}
