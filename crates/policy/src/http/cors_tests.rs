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

#[test]
fn a_response_says_what_the_rules_say_in_place_of_what_the_program_says() {
    let asked = headers(&[("origin", "https://shop.example")]);
    let told = |origins: &[&str], credentials| {
        let answer = rules(origins, credentials).of_response(&request("GET", &asked)).expect("an answer");
        let mut response = headers(&[
            ("access-control-allow-origin", "https://evil.example"),
            ("access-control-allow-credentials", "true"),
            ("vary", "accept"),
            ("x-own", "1"),
        ]);
        Origins::apply(&answer, &mut response);
        text(&response)
    };
    let of_one = ["access-control-allow-origin: https://shop.example", "access-control-expose-headers: x-id"];
    assert_eq!(
        told(&["https://shop.example"], false),
        [&of_one[..], &["vary: Origin", "vary: accept", "x-own: 1"]].concat()
    );
    let with_credentials = told(&["*"], true);
    assert_eq!(with_credentials[0], "access-control-allow-credentials: true");
    assert_eq!(with_credentials[1..], [&of_one[..], &["vary: Origin", "vary: accept", "x-own: 1"]].concat());
    let of_all = ["access-control-allow-origin: *", "access-control-expose-headers: x-id", "vary: accept", "x-own: 1"];
    assert_eq!(told(&["*"], false), of_all);
    assert_eq!(told(&["https://other.example"], true), ["vary: accept", "x-own: 1"]);
    assert!(rules(&["*"], false).of_response(&request("GET", &HeaderMap::new())).is_none());
}

#[test]
fn an_origins_port_is_what_stands_behind_its_host() {
    for (allowed, origin, passes) in [
        ("http://[fd00::1]", "http://[fd00::1]", true),
        ("http://[fd00::1]", "http://[fd00::2]", false),
        ("http://[fd00::1]", "http://[fd00::1]:80", true),
        ("http://[fd00::1]:8080", "http://[fd00::1]:8080", true),
        ("http://[fd00::1]:8080", "http://[fd00::1]", false),
        ("https://a.example", "https://a.example:443", true),
        ("https://a.example", "https://a.example:80", false),
        ("https://a.example", "https://a.example:x", false),
    ] {
        let asked = headers(&[("origin", origin)]);
        let answer = rules(&[allowed], false).of_response(&request("GET", &asked)).expect("an answer");
        assert_eq!(answer.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN), passes, "{allowed} {origin}");
    }
}
