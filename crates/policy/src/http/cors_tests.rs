use super::*;

fn rules(origins: &[&str], credentials: bool) -> Origins {
    let names = |list: &[&str]| list.iter().map(|name| Name::from(*name)).collect();
    Origins::new(&Cors {
        allow_origins: names(origins),
        allow_credentials: credentials,
        allow_methods: names(&["GET", "PUT"]),
        allow_headers: names(&["*"]),
        expose_headers: names(&["x-id"]),
        max_age: 5,
    })
    .expect("rules")
}

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    pairs.iter().map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_str(v).expect("a value"))).collect()
}

fn request<'a>(method: &'a str, headers: &'a HeaderMap) -> Request<'a> {
    Request { method, host: "web", host_port: None, path: "/", query: None, headers, source_namespace: None }
}

fn text(headers: &HeaderMap) -> Vec<String> {
    let mut lines: Vec<_> =
        headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().expect("text"))).collect();
    lines.sort();
    lines
}

#[test]
fn a_preflight_is_answered() {
    let asked = headers(&[
        ("origin", "https://shop.example"),
        ("access-control-request-method", "PUT"),
        ("access-control-request-headers", "x-a, x-b"),
    ]);
    let answer = rules(&["https://*.example", "https://shop.example"], true).preflight(&request("OPTIONS", &asked));
    assert_eq!(
        text(&answer.expect("an answer")),
        [
            "access-control-allow-credentials: true",
            "access-control-allow-headers: x-a, x-b",
            "access-control-allow-methods: GET, PUT",
            "access-control-allow-origin: https://shop.example",
            "access-control-max-age: 5",
            "vary: Origin"
        ]
    );
    let answer = rules(&["*"], false).preflight(&request("OPTIONS", &asked)).expect("an answer");
    assert_eq!(answer[ACCESS_CONTROL_ALLOW_ORIGIN], "*");
    assert_eq!(answer[ACCESS_CONTROL_ALLOW_HEADERS], "*");
    assert!(rules(&["*"], false).preflight(&request("GET", &asked)).is_none(), "not a preflight");
    let without = headers(&[("origin", "https://shop.example")]);
    assert!(rules(&["*"], false).preflight(&request("OPTIONS", &without)).is_none(), "not a preflight");
}

#[test]
fn an_origin_that_is_not_allowed_is_told_nothing() {
    let asked = headers(&[("origin", "https://evil.example"), ("access-control-request-method", "PUT")]);
    let rules = rules(&["https://shop.example"], true);
    assert_eq!(rules.preflight(&request("OPTIONS", &asked)), Some(HeaderMap::new()));
    let mut response = headers(&[("access-control-allow-origin", "*"), ("x-id", "1")]);
    let answer = rules.of_response(&request("GET", &asked)).expect("an answer");
    Origins::apply(&answer, &mut response);
    assert_eq!(text(&response), ["x-id: 1"]);
}

#[test]
fn origins_are_compared_as_wholes() {
    let allows = |rule: &str, origin: &str| {
        let asked = headers(&[("origin", origin)]);
        rules(&[rule], true).allowed(&request("GET", &asked)).is_some()
    };
    assert!(allows("https://shop.example", "https://shop.example"));
    assert!(allows("https://shop.example", "https://SHOP.example:443"));
    assert!(allows("http://shop.example:8080", "http://shop.example:8080"));
    assert!(allows("https://*.example", "https://a.b.example"));
    assert!(allows("https://*", "https://anything"));
    assert!(!allows("https://shop.example", "http://shop.example"));
    assert!(!allows("https://shop.example", "https://shop.example:8443"));
    assert!(!allows("https://shop.example", "https://shop.example.evil"));
    assert!(!allows("https://shop.example", "https://notshop.example"));
    assert!(!allows("https://*.example", "https://example"));
    assert!(!allows("https://*.example", "https://.example"));
    assert!(!allows("https://shop.example", "null"));
    for bad in ["shop.example", "ftp://shop.example", "https://", "https://a/b", "https://a:b", "https://a*b"] {
        assert!(Allowed::new(&bad.into()).is_err(), "{bad}");
    }
}
