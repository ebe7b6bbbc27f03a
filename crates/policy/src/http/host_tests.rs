use super::*;

fn form(host: &str) -> Result<(String, Option<u16>), HostError> {
    normalise(host.as_bytes()).map(|host| (host.name.into_owned(), host.port))
}

#[test]
fn hosts_have_one_form_or_are_refused() {
    type Form = Result<(&'static str, Option<u16>), HostError>;
    let table: &[(&str, Form)] = &[
        ("web", Ok(("web", None))),
        ("WEB.Default", Ok(("web.default", None))),
        ("web.default.", Ok(("web.default", None))),
        ("web:80", Ok(("web", Some(80)))),
        ("web.:80", Ok(("web", Some(80)))),
        ("my_db:5432", Ok(("my_db", Some(5432)))),
        ("10.0.0.1:8080", Ok(("10.0.0.1", Some(8080)))),
        ("[FD00::1]", Ok(("[fd00::1]", None))),
        ("[fd00:0:0::1]:80", Ok(("[fd00::1]", Some(80)))),
        ("xn--bcher-kva.example", Ok(("xn--bcher-kva.example", None))),
        ("", Err(HostError::Missing)),
        (":80", Err(HostError::Malformed)),
        (".", Err(HostError::Malformed)),
        ("web..default", Err(HostError::Malformed)),
        (".web", Err(HostError::Malformed)),
        ("web:", Err(HostError::Malformed)),
        ("web:+80", Err(HostError::Malformed)),
        ("web:65536", Err(HostError::Malformed)),
        ("web:80:80", Err(HostError::Malformed)),
        ("fd00::1", Err(HostError::Malformed)),
        ("[fd00::1", Err(HostError::Malformed)),
        ("[fd00::1]x", Err(HostError::Malformed)),
        ("[web]", Err(HostError::Malformed)),
        ("user@web", Err(HostError::Malformed)),
        ("web/a", Err(HostError::Malformed)),
        ("web a", Err(HostError::Malformed)),
        ("web,other", Err(HostError::Malformed)),
        ("bücher", Err(HostError::Malformed)),
        ("*.web", Err(HostError::Malformed)),
        ("web%2eother", Err(HostError::Malformed)),
    ];
    for (host, expected) in table {
        let expected = expected.map(|(name, port)| (name.to_owned(), port));
        assert_eq!(form(host), expected, "{host}");
    }
}

#[test]
fn a_request_has_one_host() {
    fn host<'a>(target: Option<&'a str>, headers: &[&'a str]) -> Result<String, HostError> {
        of_request(target.map(str::as_bytes), headers.iter().map(|h| h.as_bytes())).map(|host| host.name.into_owned())
    }
    assert_eq!(host(None, &["web"]), Ok("web".into()));
    assert_eq!(host(Some("web:80"), &[]), Ok("web".into()));
    assert_eq!(host(Some("web"), &["WEB"]), Ok("web".into()));
    assert_eq!(host(Some("web"), &["other"]), Err(HostError::Several));
    assert_eq!(host(Some("web"), &["web:80"]), Err(HostError::Several));
    assert_eq!(host(None, &["web", "web"]), Err(HostError::Several));
    assert_eq!(host(None, &[]), Err(HostError::Missing));
    assert_eq!(host(None, &[""]), Err(HostError::Missing));
}
