use http::Request;

use super::*;

fn parts(version: Version, uri: &str, headers: &[(&str, &str)]) -> Parts {
    let mut request = Request::builder().version(version).uri(uri);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).expect("a request").into_parts().0
}

fn http1(headers: &[(&str, &str)]) -> Result<(Parts, Asks), Refusal> {
    let mut head = parts(Version::HTTP_11, "/p?q=1", headers);
    let asks = prepare(&mut head, || None)?;
    Ok((head, asks))
}

#[test]
fn what_concerns_one_connection_is_not_passed_on() {
    let (head, asks) = http1(&[
        ("host", "web"),
        ("connection", "keep-alive, x-mine , Host, content-length"),
        ("x-mine", "1"),
        ("keep-alive", "timeout=5"),
        ("proxy-connection", "keep-alive"),
        ("te", "gzip, trailers"),
        ("transfer-encoding", "chunked"),
        ("upgrade", "websocket"),
        ("expect", "100-continue"),
        ("content-length", "3"),
        ("x-other", "2"),
    ])
    .expect("sound");
    let mut left = head.headers.keys().map(HeaderName::as_str).collect::<Vec<_>>();
    left.sort_unstable();
    assert_eq!(left, ["content-length", "host", "te", "x-other"]);
    assert_eq!((head.headers[TE].as_bytes(), asks.upgrade), (&b"trailers"[..], false));
    assert_eq!((asks.path.as_str(), asks.authority.as_str()), ("/p?q=1", "web"));
}

#[test]
fn a_websocket_passes_and_http2_by_upgrade_does_not() {
    let (head, asks) = http1(&[("host", "web"), ("connection", "Upgrade"), ("upgrade", "websocket")]).expect("sound");
    assert!(asks.upgrade);
    assert_eq!(
        (&head.headers[CONNECTION], &head.headers[UPGRADE]),
        (&HeaderValue::from_static("upgrade"), &HeaderValue::from_static("websocket"))
    );
    for protocol in
        ["h2c", "H2C", "foo, h2c", "HTTP/2.0", "TLS/1.0", "foo", "h2", "websocket, TLS/1.0", "websockets", ""]
    {
        let headers = [
            ("host", "web"),
            ("connection", "upgrade, http2-settings"),
            ("upgrade", protocol),
            ("http2-settings", "AA"),
        ];
        let (head, asks) = http1(&headers).expect("passes as an ordinary request");
        assert!(
            !asks.upgrade && !head.headers.contains_key(UPGRADE) && !head.headers.contains_key(HTTP2_SETTINGS),
            "{protocol}"
        );
    }
}

#[test]
fn a_request_has_one_host() {
    assert!(http1(&[]).is_err(), "none");
    assert!(http1(&[("host", "a"), ("host", "a")]).is_err(), "two");
    for bad in ["", "a b", "user@a", "a/b", "a,b"] {
        assert!(http1(&[("host", bad)]).is_err(), "{bad:?}");
    }
    let mut head = parts(Version::HTTP_11, "http://target:81/", &[("host", "other")]);
    let asks = prepare(&mut head, || None).expect("the target wins");
    assert_eq!(asks.authority, "target:81");
    let mut head = parts(Version::HTTP_2, "http://target/", &[("host", "other")]);
    assert!(prepare(&mut head, || None).is_err(), "two different ones");
    let mut head = parts(Version::HTTP_10, "/", &[]);
    assert_eq!(prepare(&mut head, || Some(Authority::from_static("web:80"))).expect("HTTP/1.0").authority, "web:80");
}

#[test]
fn a_target_is_written_for_the_endpoint() {
    let (mut head, asks) = http1(&[("host", "web:80"), ("te", "trailers")]).expect("sound");
    aim(&mut head, &asks, Kind::Http2);
    assert_eq!((head.uri.to_string(), head.headers.contains_key(HOST)), ("http://web:80/p?q=1".to_owned(), false));
    aim(&mut head, &asks, Kind::Http1);
    assert_eq!(
        (head.uri.to_string(), &head.headers[HOST], &head.headers[CONNECTION]),
        ("/p?q=1".to_owned(), &HeaderValue::from_static("web:80"), &HeaderValue::from_static("te"))
    );
}

#[test]
fn a_client_of_grpc_says_how_long_it_waits() {
    let timeout = |text: &'static str| {
        let mut headers = HeaderMap::new();
        headers.insert("grpc-timeout", HeaderValue::from_static(text));
        grpc_timeout(&headers)
    };
    for (text, expected) in [
        ("1H", Duration::from_secs(3600)),
        ("2M", Duration::from_secs(120)),
        ("99999999S", Duration::from_secs(99_999_999)),
        ("500m", Duration::from_millis(500)),
        ("7u", Duration::from_micros(7)),
        ("0n", Duration::ZERO),
    ] {
        assert_eq!(timeout(text), Some(expected), "{text}");
    }
    for wrong in ["", "S", "1", "1s", "+1S", "-1S", "999999999S", "1.5S", "1 S"] {
        assert_eq!(timeout(wrong), None, "{wrong}");
    }
}
