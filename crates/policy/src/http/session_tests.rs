use std::time::Duration;

use super::*;

const NOW: u64 = 1_700_000_000_000;

fn persistence(token: SessionToken, age: Option<Duration>) -> SessionPersistence {
    SessionPersistence { name: Some("who".into()), token, absolute_timeout: age }
}

fn sessions(token: SessionToken, age: Option<Duration>) -> Sessions {
    let path = PathMatch::Prefix("/a/".into());
    Sessions::new("rule 1 of HTTPRoute shop/web", &persistence(token, age), [&path].into_iter()).expect("sessions")
}

fn service(name: &str) -> ServiceName {
    ServiceName { namespace: "shop".into(), hostname: name.into() }
}

fn brought(name: &'static str, values: &[&str]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for value in values {
        headers.append(name, HeaderValue::from_str(value).expect("a value"));
    }
    headers
}

const COOKIE_ONLY: SessionToken = SessionToken::Cookie { permanent: false };

#[test]
fn a_token_is_read_as_it_was_written() {
    let token = Token { place: 7, began: NOW };
    assert_eq!(Token::parse(token.to_string().as_bytes()), Some(token));
    for wrong in
        ["", "-", "7-1", "0000000000000007", "0000000000000007-", "000000000000000G-1", "+000000000000007-1", "é"]
    {
        assert_eq!(Token::parse(wrong.as_bytes()), None, "{wrong}");
    }
}

#[test]
fn a_request_brings_its_tokens_among_others() {
    let token = Token { place: 7, began: NOW - 10 };
    let all = format!("other=1; who=x; who={token}; whom={token}");
    let found: Vec<_> = sessions(COOKIE_ONLY, None).tokens(&brought("cookie", &["a=b", &all]), NOW).collect();
    assert_eq!(found, [token]);
    let found: Vec<_> =
        sessions(SessionToken::Header, None).tokens(&brought("who", &["x", &token.to_string()]), NOW).collect();
    assert_eq!(found, [token]);
}

#[test]
fn a_session_ends_by_age_and_does_not_begin_in_the_future() {
    let goes_on = |age: Option<u64>, began: u64| {
        let token = Token { place: 7, began }.to_string();
        sessions(SessionToken::Header, age.map(Duration::from_millis)).tokens(&brought("who", &[&token]), NOW).count()
            == 1
    };
    assert_eq!([goes_on(None, 0), goes_on(Some(100), NOW - 99), goes_on(Some(100), NOW - 100)], [true, true, false]);
    assert_eq!([goes_on(None, NOW + 1), goes_on(None, NOW + 120_000)], [true, false]);
}

#[test]
fn a_number_means_something_at_one_backend_of_one_rule_only() {
    let (one, path) = (sessions(COOKIE_ONLY, None), PathMatch::Prefix("/".into()));
    let other = Sessions::new("rule 2 of HTTPRoute shop/web", &persistence(COOKIE_ONLY, None), [&path].into_iter());
    let other = other.expect("sessions");
    let place = one.scope(&service("web"), 80).place(1);
    assert_eq!(place, sessions(SessionToken::Header, None).scope(&service("web"), 80).place(1));
    // The same at every waypoint, and at its next version.
    assert_eq!(one.scope(&service("web"), 80).place(u64::MAX), 0xae5bed8fb42842cf);
    for scope in [one.scope(&service("web"), 81), one.scope(&service("v2"), 80), other.scope(&service("web"), 80)] {
        assert_ne!(place, scope.place(1));
    }
}

#[test]
fn a_client_is_told_what_the_rule_says() {
    let token = Token { place: 7, began: NOW };
    let told = |sessions: &Sessions, is_new| {
        let mut headers = HeaderMap::new();
        sessions.tell(token, is_new, 0, &mut headers);
        headers
            .into_iter()
            .map(|(name, value)| format!("{}: {}", name.unwrap(), value.to_str().unwrap()))
            .collect::<Vec<_>>()
    };
    let line = format!("set-cookie: who={token}; Path=/a; HttpOnly; SameSite=Strict");
    assert_eq!(told(&sessions(COOKIE_ONLY, Some(Duration::from_secs(9))), true), [line]);
    let line = format!("set-cookie: who={token}; Path=/a; Max-Age=10; HttpOnly; SameSite=Strict");
    let permanent = sessions(SessionToken::Cookie { permanent: true }, Some(Duration::from_millis(9001)));
    assert_eq!((told(&permanent, true), told(&permanent, false)), (vec![line], Vec::new()));
    let header = sessions(SessionToken::Header, None);
    assert_eq!(
        [told(&header, true), told(&header, false)].concat(),
        [format!("who: {token}"), format!("who: {token}")]
    );
}

#[test]
fn a_cookie_is_for_the_path_of_its_match() {
    let of = |path: PathMatch| cookie_path(&path).to_string();
    assert_eq!(of(PathMatch::Prefix("/".into())), "/");
    assert_eq!(of(PathMatch::Prefix("/a/b/".into())), "/a/b");
    assert_eq!(of(PathMatch::Exact("/a/b".into())), "/a/b");
    assert_eq!(of(PathMatch::Regex("/p1/p2/[^/]*/p3".into())), "/p1/p2");
    assert_eq!(of(PathMatch::Regex("/a/bc?".into())), "/a");
    assert_eq!(of(PathMatch::Regex("/a/b|/c".into())), "/");
    assert_eq!(of(PathMatch::Regex("(?i)/a/b".into())), "/");
    // What would end the attribute, or can't stand in one.
    assert_eq!(of(PathMatch::Exact("/a;b".into())), "/");
    assert_eq!(of(PathMatch::Exact("/a b".into())), "/");
    assert_eq!(of(PathMatch::Exact("a".into())), "/");
}

#[test]
fn what_can_not_be_kept_is_refused() {
    let refused = |name: &str, token, age: Option<u64>| {
        let wanted =
            SessionPersistence { name: Some(name.into()), token, absolute_timeout: age.map(Duration::from_secs) };
        Sessions::new("r", &wanted, std::iter::empty()).is_err()
    };
    assert!(refused("host", SessionToken::Header, None) && refused("Cookie", SessionToken::Header, None));
    assert!(refused("a;b", COOKIE_ONLY, None) && refused("", COOKIE_ONLY, None));
    assert!(refused("a", SessionToken::Cookie { permanent: true }, None) && refused("a", COOKIE_ONLY, Some(0)));
    assert!(!refused("host", COOKIE_ONLY, None) && !refused("x-session", SessionToken::Header, Some(1)));
}

#[test]
fn each_rule_has_a_name_of_its_own_where_none_is_given() {
    let name = |label: &str| {
        let wanted = SessionPersistence { name: None, token: COOKIE_ONLY, absolute_timeout: None };
        Sessions::new(label, &wanted, std::iter::empty()).expect("sessions").carrier()
    };
    assert!(name("a").starts_with("the cookie leno-session-") && name("a") != name("b"));
}
