use proptest::prelude::*;

use super::*;

fn host(host: &str, port: u16) -> Result<Authority, AuthorityError> {
    Ok(Authority::Host { host: host.to_owned(), port })
}

fn address(text: &str) -> Result<Authority, AuthorityError> {
    Ok(Authority::Address(text.parse().expect("address")))
}

#[test]
fn the_three_forms() {
    assert_eq!(parse_authority("10.0.0.1:80"), address("10.0.0.1:80"));
    assert_eq!(parse_authority("[fd00::1]:65535"), address("[fd00::1]:65535"));
    assert_eq!(parse_authority("web.default.svc.cluster.local:1"), host("web.default.svc.cluster.local", 1));
    assert_eq!(parse_authority("WEB:80"), host("web", 80));
}

#[test]
fn mapped_addresses_are_v4() {
    assert_eq!(parse_authority("[::ffff:10.0.0.1]:80"), address("10.0.0.1:80"));
}

#[test]
fn everything_else_is_refused() {
    use AuthorityError::{BadHost, BadIpv6, BadPort, Missing, NoPort, TooLong, UserInfo};
    for (text, error) in [
        ("", Missing),
        ("10.0.0.1", NoPort),
        ("web", NoPort),
        ("[fd00::1]", NoPort),
        ("[fd00::1]80", NoPort),
        (":80", BadHost),
        ("10.0.0.1:", BadPort),
        ("10.0.0.1:0", BadPort),
        ("10.0.0.1:080", BadPort),
        ("10.0.0.1:+80", BadPort),
        ("10.0.0.1:-1", BadPort),
        ("10.0.0.1:65536", BadPort),
        ("10.0.0.1:99999999999999999999", BadPort),
        ("10.0.0.1:80 ", BadPort),
        ("10.0.0.1:http", BadPort),
        ("10.0.0.1:٨٠", BadPort),
        ("fd00::1:80", BadIpv6),
        ("[fd00::1", BadIpv6),
        ("[]:80", BadIpv6),
        ("[10.0.0.1]:80", BadIpv6),
        ("[fe80::1%eth0]:80", BadIpv6),
        ("[[::1]]:80", NoPort),
        ("user@10.0.0.1:80", UserInfo),
        ("10.0.0.1:80@web:80", UserInfo),
        ("10.0.0.256:80", BadHost),
        ("10.0.1:80", BadHost),
        ("010.0.0.1:80", BadHost),
        ("2130706433:80", BadHost),
        ("0x7f000001:80", BadHost),
        ("127.0.0.0x1:80", BadHost),
        ("web.:80", BadHost),
        (".web:80", BadHost),
        ("a..b:80", BadHost),
        ("we b:80", BadHost),
        ("web/x:80", BadHost),
        ("wéb:80", BadHost),
        ("*:80", BadHost),
        ("web\0:80", BadHost),
        ("web%00:80", BadHost),
    ] {
        assert_eq!(parse_authority(text), Err(error), "{text:?}");
    }
    assert_eq!(parse_authority(&format!("{}:80", "a".repeat(64))), Err(BadHost));
    assert_eq!(parse_authority(&format!("{}:80", "a.".repeat(200))), Err(TooLong));
}

#[test]
fn names_are_as_long_as_dns_allows_and_no_longer() {
    use AuthorityError::{BadHost, TooLong};

    let label = "a".repeat(63);
    let longest = format!("{label}.{label}.{label}.{}", "a".repeat(61));
    assert_eq!(longest.len(), 253);
    assert_eq!(parse_authority(&format!("{longest}:65535")), host(&longest, 65535));
    assert_eq!(parse_authority(&format!("{longest}a:1")), Err(BadHost));
    assert_eq!(parse_authority(&format!("{longest}a:65535")), Err(TooLong));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn names_survive(name in "[a-z][a-z0-9_-]{0,5}(\\.[a-z][a-z0-9-]{0,3}){0,2}", port in 1..=u16::MAX) {
        let authority = parse_authority(&format!("{name}:{port}")).expect("a name and a port");
        prop_assert_eq!(authority.port(), port);
        prop_assert_eq!(authority.to_string(), format!("{name}:{port}"));
    }

    #[test]
    fn what_is_accepted_reads_the_same_again(text in "[0-9a-fA-F:.\\[\\]@%x +-]{0,24}") {
        if let Ok(authority) = parse_authority(&text) {
            prop_assert_ne!(authority.port(), 0);
            prop_assert_eq!(parse_authority(&authority.to_string()), Ok(authority));
        }
    }

    #[test]
    fn nothing_panics(text in any::<String>()) {
        let _ = parse_authority(&text);
    }

    #[test]
    fn addresses_survive(ip in any::<IpAddr>(), port in 1..=u16::MAX) {
        let address = SocketAddr::new(ip, port);
        let canonical = SocketAddr::new(ip.to_canonical(), port);
        prop_assert_eq!(parse_authority(&address.to_string()), Ok(Authority::Address(canonical)));
        prop_assert_eq!(Authority::Address(address).port(), port);
    }
}
