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
    let label = "a".repeat(63);
    let longest = format!("{label}.{label}.{label}.{}", "a".repeat(61));
    assert_eq!(form(&longest), Ok((longest.clone(), None)));
    assert_eq!(form(&format!("{longest}.")), Ok((longest.clone(), None)));
    assert_eq!(form(&format!("{longest}a")), Err(HostError::Malformed));
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

#[test]
fn what_is_in_this_form_is_borrowed() {
    for (host, borrowed) in [("web.default", true), ("web:80", true), ("web.", true), ("Web", false)] {
        let name = normalise(host.as_bytes()).expect("a host").name;
        assert_eq!(matches!(name, Cow::Borrowed(_)), borrowed, "{host}");
    }
}

#[test]
fn each_reason_has_its_label_and_none_goes_by_itself() {
    let all = [HostError::Missing, HostError::Several, HostError::Malformed];
    assert_eq!(all.map(HostError::label), ["host_missing", "host_several", "host_malformed"]);
    assert!(!all.into_iter().any(HostError::is_retryable));
}
