use super::*;

/// What a policy stands for is read from its name, so names of different things are never taken for each other.
#[test]
fn a_policys_name_says_what_it_stands_for() {
    let all = [
        PolicyName::static_strict("istio-system".into()),
        PolicyName::converted("shop", "db"),
        PolicyName::through_waypoint("shop".into(), "db"),
        PolicyName::authentication("shop".into(), "db"),
        PolicyName::without_waypoint("shop".into(), "db", "80-81"),
        PolicyName { namespace: "shop".into(), name: "db".into() },
    ];
    let says = |of: fn(&PolicyName) -> bool| all.iter().map(of).collect::<Vec<_>>();
    assert_eq!(says(PolicyName::is_static_strict), [true, false, false, false, false, false]);
    assert_eq!(says(PolicyName::is_through_waypoint), [false, false, true, false, false, false]);
    let names = |of: fn(&PolicyName) -> Option<&str>| all.iter().map(of).collect::<Vec<_>>();
    assert_eq!(names(PolicyName::converted_from), [None, Some("db"), None, None, None, None]);
    assert_eq!(names(PolicyName::authentication_from), [None, None, None, Some("db"), None, None]);
    assert_eq!(names(PolicyName::stands_in_for), [None, None, None, None, Some("db"), None]);

    assert_eq!(all[0].to_string(), "istio-system/istio_converted_static_strict", "Istio's own name");
    assert_eq!(all[1].to_string(), "shop/converted_peer_authentication_db", "Istio's own name");
}

#[test]
fn strings_are_compared_as_they_are() {
    let exact = |text: &str| StringMatch::Exact(text.into());
    let prefix = |text: &str| StringMatch::Prefix(text.into());
    let suffix = |text: &str| StringMatch::Suffix(text.into());
    for (test, matching, others) in [
        (exact("ab"), vec!["ab"], vec!["", "a", "abc", "AB"]),
        (prefix("ab"), vec!["ab", "abc"], vec!["", "a", "cab", "ABC"]),
        (suffix("ab"), vec!["ab", "cab"], vec!["", "b", "abc", "CAB"]),
        (prefix(""), vec!["", "a"], vec![]),
        (StringMatch::Presence, vec!["a", " "], vec![""]),
    ] {
        assert!(matching.iter().all(|value| test.matches(value)), "{test}: {matching:?}");
        assert!(!others.iter().any(|value| test.matches(value)), "{test}: {others:?}");
    }
    let written = [exact("ab"), prefix("ab"), suffix("ab"), StringMatch::Presence].map(|test| test.to_string());
    assert_eq!(written, ["ab", "ab*", "*ab", "*"]);
}

#[test]
fn only_a_match_without_attributes_is_empty() {
    assert!(Match::default().is_empty());
    assert!(!Match { not_destination_ports: vec![80], ..Match::default() }.is_empty());
    assert!(!Match { namespaces: vec![StringMatch::Presence], ..Match::default() }.is_empty());
}
