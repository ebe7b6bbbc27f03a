#![allow(clippy::unwrap_used, reason = "test code")]

use super::*;

fn header(name: &str, value: &[u8], how: HeaderMeets) -> AnswerHeader {
    AnswerHeader { name: name.to_owned(), value: value.to_vec(), how }
}

fn text(headers: &HeaderMap) -> Vec<String> {
    let line = |(name, value): (&HeaderName, &HeaderValue)| format!("{name}={}", value.to_str().unwrap());
    let mut out: Vec<String> = headers.iter().map(line).collect();
    out.sort();
    out
}

#[test]
fn headers_meet_those_that_are_there() {
    let mut headers = HeaderMap::new();
    for (name, value) in [("a", "1"), ("a", "2"), ("b", "1"), ("c", "1"), ("d", "1"), ("e", "1")] {
        headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    let answer = AllowedBy {
        remove: vec!["E".to_owned(), "missing".to_owned()],
        headers: vec![
            header("A", b"3", HeaderMeets::Overwrite),
            header("b", b"2", HeaderMeets::Append),
            header("c", b"2", HeaderMeets::OnlyIfAbsent),
            header("d", b"2", HeaderMeets::OnlyIfPresent),
            header("e", b"2", HeaderMeets::OnlyIfPresent),
            header("f", b"1", HeaderMeets::OnlyIfAbsent),
            header("g", b"1", HeaderMeets::Append),
        ],
        response_headers: vec![header("set-cookie", b"x", HeaderMeets::Append)],
        changes_query: false,
    };
    let allowed = Allowed::new(&answer).unwrap();
    allowed.change_request(&mut headers);
    assert_eq!(text(&headers), ["a=3", "b=1", "b=2", "c=1", "d=2", "f=1", "g=1"]);
    assert!(allowed.changes_response());
    let mut response = HeaderMap::new();
    allowed.change_response(&mut response);
    assert_eq!(text(&response), ["set-cookie=x"]);
}

#[test]
fn an_answer_that_reaches_too_far_is_not_followed_at_all() {
    for name in FIXED.iter().copied().chain([":path", ":authority", "", "a b", "x\r\ny", "Content-Length"]) {
        let removes = AllowedBy { remove: vec![name.to_owned()], ..AllowedBy::default() };
        assert!(Allowed::new(&removes).is_err(), "{name:?}");
        let of = || vec![header("good", b"1", HeaderMeets::Overwrite), header(name, b"1", HeaderMeets::Overwrite)];
        assert!(Allowed::new(&AllowedBy { headers: of(), ..AllowedBy::default() }).is_err(), "{name:?}");
        assert!(Allowed::new(&AllowedBy { response_headers: of(), ..AllowedBy::default() }).is_err(), "{name:?}");
    }
    for value in [b"a\r\nhost: evil".as_slice(), b"a\nb", b"a\0"] {
        let headers = vec![header("x", value, HeaderMeets::Overwrite)];
        assert!(Allowed::new(&AllowedBy { headers, ..AllowedBy::default() }).is_err(), "{value:?}");
    }
    assert_eq!(Allowed::new(&AllowedBy { changes_query: true, ..AllowedBy::default() }), Err(Unusable::Query));
}

#[test]
fn a_denial_stays_one_whatever_it_says() {
    let of = |status, headers, body: &str| {
        Denied::new(&DeniedBy { code: 7, status, headers, body: body.into(), ..DeniedBy::default() })
    };
    for (says, status) in [(None, 403), (Some(401), 401), (Some(302), 302), (Some(200), 200), (Some(599), 599)] {
        assert_eq!(of(says, Vec::new(), "").status, status);
    }
    for bad in [101, 100, 0, -1, 600, 65_936] {
        assert_eq!(of(Some(bad), Vec::new(), "").status, 403, "{bad}");
    }
    let headers = vec![
        header("location", b"/login", HeaderMeets::Overwrite),
        header("content-length", b"1000", HeaderMeets::Overwrite),
        header("transfer-encoding", b"chunked", HeaderMeets::Overwrite),
        header("x", b"a\r\nb", HeaderMeets::Overwrite),
    ];
    let denied = of(Some(302), headers, "go there");
    assert_eq!((text(&denied.headers), &*denied.body), (vec!["location=/login".to_owned()], &b"go there"[..]));
    assert_eq!(of(Some(304), Vec::new(), "text").body, b"");
}

#[test]
fn what_cannot_be_followed_is_told_in_short_and_may_be_better_next_time() {
    let name = format!("a b{}", "x".repeat(1000));
    let bad = AllowedBy {
        remove: vec![name.clone()],
        headers: Vec::new(),
        response_headers: Vec::new(),
        changes_query: false,
    };
    let told = Allowed::new(&bad).expect_err("no header");
    assert_eq!(told, Unusable::Header(name[..64].to_owned()));
    assert!(told.is_retryable());
    let quiet = AllowedBy { remove: vec!["x-a".to_owned()], ..bad };
    assert!(!Allowed::new(&quiet).expect("good").changes_response());
}
