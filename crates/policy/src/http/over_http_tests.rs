#![allow(clippy::unwrap_used, reason = "test code")]

use super::*;
use crate::http::authorizer::{Allowed, Denied};

fn headers(of: &[(&str, &str)]) -> HeaderMap {
    let parse = |(name, value): &(&str, &str)| {
        (HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap())
    };
    let mut out = HeaderMap::new();
    for (name, value) in of.iter().map(parse) {
        out.append(name, value);
    }
    out
}

fn text(headers: &HeaderMap) -> Vec<String> {
    let mut out: Vec<String> =
        headers.iter().map(|(name, value)| format!("{name}={}", value.to_str().unwrap())).collect();
    out.sort();
    out
}

fn names(of: &[&str]) -> Vec<Name> {
    of.iter().map(|name| Name::from(*name)).collect()
}

/// What belongs to one connection, or says where a message ends or whom it is for.
const FIXED: &[(&str, &str)] = &[
    ("host", "evil"),
    ("content-length", "5"),
    ("transfer-encoding", "chunked"),
    ("connection", "x-a"),
    ("upgrade", "websocket"),
    ("te", "trailers"),
    ("trailer", "x"),
    ("expect", "100-continue"),
    ("keep-alive", "1"),
    ("proxy-authorization", "x"),
];

#[test]
fn a_pattern_is_a_name_or_one_of_its_ends() {
    for (pattern, name, expected) in [
        ("x-a", "x-a", true),
        ("x-a", "x-ab", false),
        ("x-*", "x-ab", true),
        ("x-*", "ax-", false),
        ("*-id", "x-id", true),
        ("*-id", "x-ids", false),
        ("*", "any", true),
    ] {
        assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
    }
}

#[test]
fn a_question_has_the_headers_that_are_named_and_authorization() {
    let mut request = headers(&[
        ("authorization", "Bearer x"),
        ("cookie", "a=1"),
        ("cookie", "b=2"),
        ("x-a-1", "1"),
        ("my-id", "2"),
        ("x-real", "client"),
        ("secret", "3"),
        ("x-envoy-auth-partial-body", "lie"),
    ]);
    let least = HttpCheck::default();
    assert_eq!(text(&question_headers(&least, &request)), ["authorization=Bearer x"]);
    let how = HttpCheck {
        request_headers: names(&["cookie", "x-*", "*-id"]),
        added: vec![("x-real".into(), "fixed".into()), ("x-new".into(), "1".into())],
        ..HttpCheck::default()
    };
    let expected = [
        "authorization=Bearer x",
        "cookie=a=1",
        "cookie=b=2",
        "my-id=2",
        "x-a-1=1",
        "x-envoy-auth-partial-body=lie",
        "x-new=1",
        "x-real=fixed",
    ];
    assert_eq!(text(&question_headers(&how, &request)), expected);
    request.extend(headers(FIXED));
    let all = HttpCheck {
        request_headers: names(&["*"]),
        added: vec![("host".into(), "evil".into()), ("transfer-encoding".into(), "chunked".into())],
        ..HttpCheck::default()
    };
    let sent = question_headers(&all, &request);
    assert!(sent.contains_key("secret") && FIXED.iter().all(|(name, _)| !sent.contains_key(*name)), "{sent:?}");
}

#[test]
fn status_200_alone_allows_and_changes_what_is_named() {
    let mut said = headers(&[
        ("x-user", "ann"),
        ("x-user", "bob"),
        ("set-cookie", "a=1"),
        ("set-cookie", "b=2"),
        ("x-seen", "1"),
        ("other", "1"),
        ("x-envoy-auth-headers-to-remove", "Secret, x-b"),
    ]);
    said.extend(headers(FIXED));
    let how = HttpCheck {
        to_upstream: names(&["x-u*", "*ost", "*-length"]),
        to_client_allowed: names(&["set-cookie", "x-seen", "connection", "transfer-*"]),
        ..HttpCheck::default()
    };
    let Some(AuthorizerAnswer::Allowed(allowed)) = answer(&how, 200, &said, Vec::new()) else { panic!("allowed") };
    let allowed = Allowed::new(&allowed).unwrap();
    let mut request = headers(&[("x-user", "root"), ("secret", "1"), ("x-b", "1"), ("host", "web")]);
    allowed.change_request(&mut request);
    assert_eq!(text(&request), ["host=web", "x-user=ann", "x-user=bob"]);
    let mut response = headers(&[("set-cookie", "own=1"), ("x-seen", "0"), ("content-length", "9")]);
    allowed.change_response(&mut response);
    let expected = ["content-length=9", "set-cookie=a=1", "set-cookie=b=2", "set-cookie=own=1", "x-seen=1"];
    assert_eq!(text(&response), expected);

    let least = HttpCheck::default();
    let Some(AuthorizerAnswer::Allowed(nothing)) = answer(&least, 200, &headers(&[("x", "1")]), Vec::new()) else {
        panic!("allowed")
    };
    assert_eq!(nothing, AllowedBy::default());
    // Nobody takes out what says whom a message is for.
    let reaching = headers(&[("x-envoy-auth-headers-to-remove", "host")]);
    let Some(AuthorizerAnswer::Allowed(reaching)) = answer(&least, 200, &reaching, Vec::new()) else {
        panic!("allowed")
    };
    assert!(Allowed::new(&reaching).is_err());
    for status in [500, 503, 599, 600, 999] {
        assert_eq!(answer(&least, status, &said, Vec::new()), None, "{status}");
    }
    for status in [100, 101, 199, 201, 204, 302, 401, 499] {
        assert!(matches!(answer(&least, status, &said, Vec::new()), Some(AuthorizerAnswer::Denied(_))), "{status}");
    }
}

#[test]
fn a_denial_is_passed_on_with_its_body_and_the_headers_that_are_named() {
    let mut said = headers(&[
        ("location", "/login"),
        ("www-authenticate", "Basic"),
        ("set-cookie", "a=1"),
        ("set-cookie", "b=2"),
        ("x-why", "1"),
    ]);
    said.extend(headers(FIXED));
    let of = |how: &HttpCheck, status| match answer(how, status, &said, b"\xffno".to_vec()) {
        Some(AuthorizerAnswer::Denied(denied)) => Denied::new(&denied),
        other => panic!("{other:?}"),
    };
    let all = of(&HttpCheck::default(), 302);
    let expected = ["location=/login", "set-cookie=a=1", "set-cookie=b=2", "www-authenticate=Basic", "x-why=1"];
    assert_eq!(
        (all.status, text(&all.headers), &*all.body),
        (302, expected.map(str::to_owned).to_vec(), &b"\xffno"[..])
    );
    let some = HttpCheck { to_client_denied: names(&["x-*", "content-length"]), ..HttpCheck::default() };
    assert_eq!(text(&of(&some, 401).headers), ["location=/login", "www-authenticate=Basic", "x-why=1"]);
    assert_eq!(of(&some, 101).status, 403, "no other protocol");
}
