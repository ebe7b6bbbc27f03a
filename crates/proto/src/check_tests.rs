#![allow(clippy::unwrap_used, reason = "test code")]

use super::*;

fn answer(response: &wire::CheckResponse) -> Result<AuthorizerAnswer, CheckError> {
    check_answer(&response.encode_to_vec())
}

fn status(code: i32) -> Option<crate::generated::google::rpc::Status> {
    Some(crate::generated::google::rpc::Status { code, message: "why".to_owned(), ..Default::default() })
}

fn option(name: &str, value: &str, append: Option<bool>, append_action: i32) -> wire::HeaderValueOption {
    let header = wire::HeaderValue { key: name.to_owned(), value: value.to_owned(), ..Default::default() };
    wire::HeaderValueOption { header: Some(header), append, append_action }
}

#[test]
fn a_question_has_the_numbers_of_the_public_protocol() {
    let asked = CheckedRequest {
        source: ("spiffe://td/ns/a/sa/b".to_owned(), "10.0.0.1:5".parse().unwrap()),
        destination: "10.0.0.2:80".parse().unwrap(),
        time: UNIX_EPOCH,
        id: "id",
        method: "GET",
        path: "/a?b",
        host: "web",
        protocol: "HTTP/2",
        size: None,
        headers: vec![("x", b"1"), ("x", b"\xff"), (PARTIAL_BODY, b"a lie")],
        body: None,
    };
    let bytes = check_request(&asked);
    let read = wire::CheckRequest::decode(&*bytes).unwrap().attributes.unwrap();
    let http = read.request.clone().unwrap().http.unwrap();
    assert_eq!((&*http.headers["x"], &*http.headers[":path"], http.size), ("1,\u{fffd}", "/a?b", -1));
    assert!(!http.headers.contains_key(PARTIAL_BODY));
    for (raw, is_partial, expected) in
        [(false, true, ("h\u{e9}!!", &b""[..])), (true, false, ("", b"h\xc3\xa9\xff\xc3"))]
    {
        let body = Some(ToldBody { bytes: b"h\xc3\xa9\xff\xc3", is_partial, raw });
        let bytes = check_request(&CheckedRequest { body, ..asked.clone() });
        let told = wire::CheckRequest::decode(&*bytes).unwrap().attributes.unwrap().request.unwrap().http.unwrap();
        assert_eq!((&*told.body, &*told.raw_body), expected);
        assert_eq!(told.headers[PARTIAL_BODY], is_partial.to_string());
        // body (11) and raw_body (12).
        let part = if raw { b"\x62\x05h\xc3" } else { b"\x5a\x05h\xc3" };
        assert!(bytes.windows(part.len()).any(|window| window == part), "{bytes:?}");
    }
    assert_eq!(read.source.unwrap().principal, "spiffe://td/ns/a/sa/b");
    // attributes (1), in it source (1), in it address (1), in it socket_address (1), in it address (2) and port_value (3).
    assert_eq!(bytes[0], 0x0a);
    let inner = [b"\x12\x08".as_slice(), b"10.0.0.1", b"\x18\x05"].concat();
    assert!(bytes.windows(inner.len()).any(|window| window == inner));
    // Of the request (4), http (2): method (2) and host (5), scheme (6).
    for part in [b"\x12\x03GET".as_slice(), b"\x2a\x03web", b"\x32\x04http"] {
        assert!(bytes.windows(part.len()).any(|window| window == part), "{part:?}");
    }
}

#[test]
fn only_a_clear_yes_allows() {
    assert_eq!(check_answer(&[]), Err(CheckError::NoStatus));
    assert!(matches!(check_answer(b"\x0a\x7f"), Err(CheckError::Garbage(_))));
    let allowed = wire::CheckResponse { status: status(0), http_response: None };
    assert_eq!(answer(&allowed), Ok(AuthorizerAnswer::Allowed(AllowedBy::default())));
    use wire::check_response::HttpResponse;
    let ok = || Some(HttpResponse::OkResponse(wire::OkHttpResponse::default()));
    let denied = || Some(HttpResponse::DeniedResponse(wire::DeniedHttpResponse::default()));
    let says = |status, http_response| answer(&wire::CheckResponse { status, http_response });
    assert_eq!(says(None, ok()), Err(CheckError::NoStatus));
    assert_eq!(says(status(0), denied()), Err(CheckError::Contradiction));
    for (status, response) in [(None, denied()), (status(7), ok()), (status(7), None), (status(-1), denied())] {
        assert!(matches!(says(status.clone(), response), Ok(AuthorizerAnswer::Denied(_))), "{status:?}");
    }
}

#[test]
fn headers_are_appended_only_where_that_is_said() {
    let of = |append, action| {
        let ok = wire::OkHttpResponse { headers: vec![option("x", "1", append, action)], ..Default::default() };
        let response = wire::check_response::HttpResponse::OkResponse(ok);
        match answer(&wire::CheckResponse { status: status(0), http_response: Some(response) }) {
            Ok(AuthorizerAnswer::Allowed(allowed)) => Ok(allowed.headers[0].how),
            Ok(denied) => panic!("{denied:?}"),
            Err(error) => Err(error),
        }
    };
    assert_eq!(of(None, 0), Ok(HeaderMeets::Overwrite));
    assert_eq!(of(Some(false), 0), Ok(HeaderMeets::Overwrite));
    assert_eq!(of(Some(true), 0), Ok(HeaderMeets::Append));
    assert_eq!(of(None, 1), Ok(HeaderMeets::OnlyIfAbsent));
    assert_eq!(of(None, 2), Ok(HeaderMeets::Overwrite));
    assert_eq!(of(None, 3), Ok(HeaderMeets::OnlyIfPresent));
    assert_eq!(of(None, 4), Err(CheckError::AppendAction(4)));
}
