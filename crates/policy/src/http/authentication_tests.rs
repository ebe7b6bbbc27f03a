use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use leno_model::http::{Attribute, AttributeTest, Policy, PolicyAction, PolicyClause, PolicyRule};
use leno_model::{Identity, PolicyName};

use super::*;
use crate::Connection;
use crate::http::{Guard, Subject};

/// Signatures say whose they are.
struct Says;

impl Keys for Says {
    fn made(&self, keys: &TokenKeys, token: &Token<'_>) -> Result<bool, TokenError> {
        match keys {
            TokenKeys::Inline(name) => Ok(token.signature == name.as_bytes()),
            _ => Err(TokenError::NoKeys("none".to_owned())),
        }
    }
}

fn token(issuer: &str, by: &str, claims: &str) -> String {
    let parts = [r#"{"alg":"ES256"}"#, &format!(r#"{{"iss":"{issuer}","sub":"ann"{claims}}}"#), by];
    parts.map(|part| URL_SAFE_NO_PAD.encode(part)).join(".")
}

fn rule(issuer: &str) -> TokenRule {
    TokenRule {
        issuer: issuer.into(),
        audiences: Vec::new(),
        keys: TokenKeys::Inline(issuer.into()),
        headers: Vec::new(),
        params: Vec::new(),
        cookies: Vec::new(),
        forward: false,
        payload_header: None,
        claim_headers: Vec::new(),
    }
}

fn policy(action: PolicyAction, tokens: Vec<TokenRule>, rules: Vec<PolicyRule>) -> Policy {
    let id = PolicyName { namespace: "shop".into(), name: "p".into() };
    Policy { rules, tokens, ..Policy::new(id, action) }
}

fn guard(tokens: Vec<TokenRule>) -> Guard {
    Guard::new(&[policy(PolicyAction::Authenticate, tokens, Vec::new())])
}

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    pairs.iter().map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_str(v).expect("a value"))).collect()
}

fn request<'a>(headers: &'a HeaderMap, query: Option<&'a str>) -> Request<'a> {
    Request { method: "GET", host: "web", host_port: None, path: "/", query, headers, source_namespace: None }
}

fn asked(guard: &Guard, pairs: &[(&'static str, &str)], query: Option<&str>) -> Result<Option<String>, TokenError> {
    let headers = headers(pairs);
    let caller = guard.authenticate(&request(&headers, query), &Says, 1000)?;
    Ok(caller.claims().map(|claims| claims.principal().expect("a principal")))
}

#[test]
fn a_token_stands_where_a_rule_looks() {
    let guard = guard(vec![rule("i")]);
    let good = token("i", "i", "");
    let ann = Ok(Some("i/ann".to_owned()));
    for scheme in ["Bearer ", "bearer ", "BEARER   ", "Bearer\t"] {
        assert_eq!(asked(&guard, &[("authorization", &format!("{scheme}{good}"))], None), ann, "{scheme}");
    }
    assert_eq!(asked(&guard, &[], Some(&format!("a=b&access_token={good}"))), ann);
    assert_eq!(asked(&guard, &[], Some(&format!("access%5Ftoken={good}"))), ann, "a program decodes it, too");
    for (name, value) in
        [("authorization", "Basic eDp5"), ("authorization", &good), ("x-token", &good), ("cookie", &good)]
    {
        assert_eq!(asked(&guard, &[(name, value)], None), Ok(None), "{name}: {value}");
    }
    assert!(asked(&guard, &[("authorization", "Bearer ")], None).is_err(), "an empty one is a bad one");
    let elsewhere = TokenRule {
        headers: vec![("x-token".into(), "".into()), ("x-other".into(), "Token ".into())],
        params: vec!["t".into()],
        cookies: vec!["session".into()],
        ..rule("i")
    };
    let guard = self::guard(vec![elsewhere]);
    assert_eq!(asked(&guard, &[("x-token", &good)], None), ann);
    assert_eq!(asked(&guard, &[("x-other", &format!("Token {good}"))], None), ann);
    assert_eq!(asked(&guard, &[("cookie", &format!("a=b; session={good}"))], None), ann);
    assert_eq!(asked(&guard, &[("cookie", "a=b"), ("cookie", &format!("session=\"{good}\""))], None), ann);
    assert_eq!(asked(&guard, &[], Some(&format!("t={good}"))), ann);
    assert_eq!(asked(&guard, &[("authorization", &format!("Bearer {good}"))], None), Ok(None));
}

#[test]
fn one_bad_token_is_enough() {
    let guard = guard(vec![rule("i"), TokenRule { headers: vec![("x-token".into(), "".into())], ..rule("j") }]);
    let (good, theirs) = (format!("Bearer {}", token("i", "i", "")), token("j", "j", ""));
    let bad = format!("Bearer {}", token("i", "stranger", ""));
    assert_eq!(asked(&guard, &[("authorization", &good)], None), Ok(Some("i/ann".to_owned())));
    assert_eq!(
        asked(&guard, &[("authorization", &good), ("authorization", &good)], None),
        Ok(Some("i/ann".to_owned()))
    );
    assert_eq!(asked(&guard, &[("authorization", &bad)], None), Err(TokenError::Signature));
    for pair in
        [[("authorization", &*good), ("authorization", &*bad)], [("authorization", &*bad), ("authorization", &*good)]]
    {
        assert_eq!(asked(&guard, &pair, None), Err(TokenError::Signature));
    }
    assert_eq!(asked(&guard, &[("x-token", &theirs)], None), Ok(Some("j/ann".to_owned())));
    assert_eq!(asked(&guard, &[("authorization", &good), ("x-token", &theirs)], None), Err(TokenError::Several));
    assert!(matches!(asked(&guard, &[("x-token", &good)], None), Err(TokenError::Malformed(_))));
    let issuer_of_another_place = asked(&guard, &[("x-token", &token("i", "i", ""))], None);
    assert!(matches!(issuer_of_another_place, Err(TokenError::Issuer { .. })), "{issuer_of_another_place:?}");
    let together = format!("{good}, {good}");
    assert!(asked(&guard, &[("authorization", &together)], None).is_err());
    let many: Vec<String> = (0..20).map(|n| format!("Bearer {}", token("i", "i", &format!(r#","n":{n}"#)))).collect();
    let many: Vec<_> = many.iter().map(|value| ("authorization", &**value)).collect();
    assert_eq!(asked(&guard, &many, None), Err(TokenError::Several));
}

#[test]
fn two_rules_for_one_place_are_alternatives() {
    let guard = guard(vec![rule("i"), rule("j")]);
    for issuer in ["i", "j"] {
        let value = format!("Bearer {}", token(issuer, issuer, ""));
        assert_eq!(asked(&guard, &[("authorization", &value)], None), Ok(Some(format!("{issuer}/ann"))));
    }
    let value = format!("Bearer {}", token("j", "i", ""));
    for rules in [["i", "j"], ["j", "i"]] {
        let guard = self::guard(rules.map(rule).to_vec());
        assert_eq!(
            asked(&guard, &[("authorization", &value)], None),
            Err(TokenError::Signature),
            "not: another issuer"
        );
    }
}

#[test]
fn no_more_than_eight_tokens_are_read() {
    /// Counts the signatures that are looked at.
    struct Counting(std::cell::Cell<usize>);
    impl Keys for Counting {
        fn made(&self, _: &TokenKeys, _: &Token<'_>) -> Result<bool, TokenError> {
            self.0.set(self.0.get() + 1);
            Ok(false)
        }
    }
    for (count, read, expected) in [(8, 1, TokenError::Signature), (9, 0, TokenError::Several)] {
        let all: Vec<String> =
            (0..count).map(|n| format!("Bearer {}", token("i", "i", &format!(r#","n":{n}"#)))).collect();
        let headers = headers(&all.iter().map(|value| ("authorization", &**value)).collect::<Vec<_>>());
        let keys = Counting(0.into());
        assert_eq!(guard(vec![rule("i")]).authenticate(&request(&headers, None), &keys, 1000), Err(expected));
        assert_eq!(keys.0.get(), read, "{count}");
    }
}

#[test]
fn a_program_is_told_what_its_waypoint_knows_and_nothing_else() {
    let rule = TokenRule {
        headers: vec![("authorization".into(), "Bearer ".into())],
        params: vec!["t".into()],
        cookies: vec!["s".into()],
        payload_header: Some("x-claims".into()),
        claim_headers: vec![
            ("x-sub".into(), vec!["sub".into()]),
            ("x-n".into(), vec!["a".into(), "n".into()]),
            ("x-list".into(), vec!["list".into()]),
            ("x-none".into(), vec!["none".into()]),
            ("x-line".into(), vec!["line".into()]),
        ],
        ..rule("i")
    };
    let good = token("i", "i", r#","a":{"n":7},"list":["x"],"line":"a\\r\\nx-b: c""#.replace("\\\\", "\\").as_str());
    let told = |forward: bool, pairs: &[(&'static str, &str)], query: Option<&str>| {
        let guard = guard(vec![TokenRule { forward, ..rule.clone() }]);
        let mut headers = headers(pairs);
        let caller = guard.authenticate(&request(&headers, query), &Says, 1000).expect("good");
        let rewritten = guard.tell(&caller, query, &mut headers);
        let mut lines: Vec<String> =
            headers.iter().map(|(name, value)| format!("{name}={}", value.to_str().expect("text"))).collect();
        lines.sort();
        (lines, rewritten.query)
    };
    let lies = [("x-claims", "lie"), ("x-sub", "root"), ("x-none", "lie"), ("x-kept", "1"), ("x-line", "lie")];
    assert_eq!(told(false, &lies, None), (vec!["x-kept=1".to_owned()], None));
    let bearer = format!("Bearer {good}");
    let payload = good.split('.').nth(1).expect("claims");
    let says =
        [format!("x-claims={payload}"), "x-list=WyJ4Il0=".to_owned(), "x-n=7".to_owned(), "x-sub=ann".to_owned()];
    let all = [&lies[..], &[("authorization", "Basic x"), ("authorization", &bearer)]].concat();
    let (lines, query) = told(false, &all, Some("a=b"));
    assert_eq!((&lines[0][..], query), ("authorization=Basic x", None));
    assert_eq!(lines[1], says[0]);
    assert_eq!(lines[2..], ["x-kept=1", &says[1], &says[2], &says[3]]);
    let (lines, _) = told(true, &[("authorization", &bearer)], None);
    assert_eq!(lines[0], format!("authorization={bearer}"));
    let (_, query) = told(false, &[], Some(&format!("a=b&t={good}&c=%20d")));
    assert_eq!(query.as_deref(), Some("a=b&c=%20d"));
    let (lines, _) = told(false, &[("cookie", &format!("a=b; s={good}; c=d"))], None);
    assert_eq!(lines[0], "cookie=a=b; c=d");
    let (lines, _) = told(false, &[("cookie", "a=b;c=d"), ("authorization", &bearer)], None);
    assert_eq!(lines[0], "cookie=a=b;c=d", "without a token in it, as it came");
}

#[test]
fn guards_are_told_apart_by_whose_tokens_they_take() {
    let (i, none) = (guard(vec![rule("i")]), guard(Vec::new()));
    assert!(i.takes_tokens_as(&guard(vec![rule("i")])) && none.takes_tokens_as(&Guard::default()));
    for other in [guard(vec![rule("j")]), guard(vec![rule("i"), rule("j")]), Guard::default()] {
        assert!(!i.takes_tokens_as(&other) && !other.takes_tokens_as(&i));
    }
    assert_eq!([i.takes_no_tokens(), none.takes_no_tokens()], [false, true]);
    assert_eq!([i.is_empty(), none.is_empty()], [false, true]);
}

#[test]
fn a_query_may_have_a_token_where_a_rule_looks_for_one() {
    let (unsaid, named) = (guard(vec![rule("i")]), guard(vec![TokenRule { params: vec!["t".into()], ..rule("i") }]));
    for (query, where_unsaid, where_named) in [
        (None, false, false),
        (Some(""), false, false),
        (Some("a=access_token"), false, false),
        (Some("a=b&access_token=x"), true, false),
        (Some("access%5Ftoken"), true, false),
        (Some("a=b&t=x"), false, true),
    ] {
        assert_eq!(unsaid.finds_tokens_in(query), where_unsaid, "{query:?}");
        assert_eq!(named.finds_tokens_in(query), where_named, "{query:?}");
        assert!(!guard(Vec::new()).finds_tokens_in(query), "{query:?}");
    }
}

#[test]
fn policies_ask_for_what_a_token_says() {
    let asks = |attribute: Attribute, values: &[&str], not: &[&str]| {
        let names = |texts: &[&str]| texts.iter().map(|text| Name::from(*text)).collect();
        let test = AttributeTest { attribute, values: names(values), not_values: names(not) };
        PolicyRule { clauses: vec![PolicyClause { alternatives: vec![vec![test]] }] }
    };
    let source: Identity = "spiffe://cluster.local/ns/shop/sa/web".parse().expect("an id");
    let connection =
        Connection { source: Some(&source), source_ip: [10, 0, 0, 9].into(), destination: ([10, 96, 0, 1], 80).into() };
    let passes = |action, rule: &PolicyRule, token: Option<&str>| {
        let guard = Guard::new(&[
            policy(PolicyAction::Authenticate, vec![self::rule("i")], Vec::new()),
            Policy {
                id: PolicyName { namespace: "shop".into(), name: "q".into() },
                ..policy(action, Vec::new(), vec![rule.clone()])
            },
        ]);
        let bearer = format!("Bearer {}", token.unwrap_or_default());
        let headers = headers(&token.map(|_| ("authorization", &*bearer)).into_iter().collect::<Vec<_>>());
        let request = request(&headers, None);
        let caller = guard.authenticate(&request, &Says, 1000).expect("good");
        guard.judge(&Subject::new(connection, Some(&request)).by(&caller)).verdict.is_ok()
    };
    let token = |claims: &str| token("i", "i", claims);
    let roles = || Attribute::Claim(vec!["realm".into(), "roles".into()]);
    let (allow, deny) = (PolicyAction::Allow, PolicyAction::Deny);
    let full = token(r#","aud":["a","b"],"azp":"app","realm":{"roles":["x","y"]},"n":3"#);
    for (rule, with, without) in [
        (asks(Attribute::RequestPrincipal, &["i/ann"], &[]), true, false),
        (asks(Attribute::RequestPrincipal, &["*"], &[]), true, false),
        (asks(Attribute::RequestPrincipal, &[], &["*"]), false, true),
        (asks(Attribute::RequestPrincipal, &["i/bob"], &[]), false, false),
        (asks(Attribute::Audience, &["b"], &[]), true, false),
        (asks(Attribute::Audience, &["*"], &["a"]), false, false),
        (asks(Attribute::Presenter, &["app"], &[]), true, false),
        (asks(roles(), &["y"], &[]), true, false),
        (asks(roles(), &["z"], &[]), false, false),
        (asks(roles(), &[], &["z"]), true, true),
    ] {
        assert_eq!(passes(allow, &rule, Some(&full)), with, "{rule:?}");
        assert_eq!(passes(allow, &rule, None), without, "{rule:?}");
        assert_eq!(passes(deny, &rule, Some(&full)), !with, "{rule:?}");
        assert_eq!(passes(deny, &rule, None), !without, "{rule:?}");
    }
    // A claim that no pattern can be compared with is taken in the stricter way.
    let number = asks(Attribute::Claim(vec!["n".into()]), &["3"], &[]);
    assert!(!passes(allow, &number, Some(&full)) && !passes(deny, &number, Some(&full)));
    // Nobody has looked for tokens: not even the absence of one is known.
    let guard = Guard::new(&[policy(deny, Vec::new(), vec![asks(Attribute::RequestPrincipal, &["i/ann"], &[])])]);
    let none = HeaderMap::new();
    assert!(guard.judge(&Subject::new(connection, Some(&request(&none, None)))).verdict.is_err());
    assert!(guard.judge(&Subject::new(connection, None)).verdict.is_err());
}

#[test]
fn what_cannot_be_a_header_is_refused() {
    for bad in ["host", "Content-Length", "a b", ""] {
        let rule = TokenRule { payload_header: Some(bad.into()), ..rule("i") };
        assert!(Compiled::new(&rule).is_err(), "{bad}");
        let policy = policy(PolicyAction::Authenticate, vec![rule], Vec::new());
        assert_eq!(crate::http::mistakes(&policy).len(), 1, "{bad}");
    }
}
