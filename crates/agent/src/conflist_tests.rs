use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const ENTRY: &str = r#"{"type":"leno-cni","socket":"/s"}"#;

const BRIDGE: &str = r#"{
  "cniVersion": "1.0.0",
  "name": "net",
  "plugins": [
    { "type": "bridge", "mtu": 1.50 },
    {"type": "portmap"}
  ]
}
"#;

fn with(text: &str) -> Option<String> {
    List::parse(text).unwrap().with(ENTRY).unwrap()
}

#[test]
fn the_entry_comes_last_and_looks_like_its_neighbours() {
    let expected = r#"{
  "cniVersion": "1.0.0",
  "name": "net",
  "plugins": [
    { "type": "bridge", "mtu": 1.50 },
    {"type": "portmap"},
    {"type":"leno-cni","socket":"/s"}
  ]
}
"#;
    assert_eq!(with(BRIDGE).as_deref(), Some(expected));
    assert_eq!(with(expected), None, "it is there already");
    assert_eq!(List::parse(expected).unwrap().without().as_deref(), Some(BRIDGE));
    assert_eq!(List::parse(BRIDGE).unwrap().without(), None);
    assert_eq!(List::parse(BRIDGE).unwrap().first(), Some("bridge"));
}

#[test]
fn an_entry_that_is_another_or_elsewhere_is_replaced() {
    for plugins in [
        json!([{"type": "leno-cni"}, {"type": "bridge"}, {"type": "portmap"}]),
        json!([{"type": "bridge"}, {"type": "leno-cni", "socket": "/s"}, {"type": "portmap"}]),
        json!([{"type": "bridge"}, {"type": "portmap"}, {"type": "leno-cni", "socket": "/other"}]),
        json!([{"type": "leno-cni"}, {"type": "leno-cni"}, {"type": "bridge"}, {"type": "portmap"}, {"type": "leno-cni"}]),
    ] {
        let text = json!({"name": "net", "plugins": plugins}).to_string();
        let changed: Value = serde_json::from_str(&with(&text).unwrap()).unwrap();
        let kinds: Vec<_> = changed["plugins"].as_array().unwrap().iter().map(|plugin| &plugin["type"]).collect();
        assert_eq!(kinds, ["bridge", "portmap", "leno-cni"], "{text}");
        assert_eq!(changed["plugins"][2]["socket"], "/s");
    }
}

#[test]
fn what_is_no_list_is_left_alone() {
    let parse = |text| List::parse(text).unwrap_err();
    assert_eq!(parse(r#"{"type": "bridge"}"#), Unusable::NoList);
    assert!(matches!(parse(""), Unusable::Unreadable(_)));
    assert!(matches!(parse(r#"{"plugins": [{"type": 3}]}"#), Unusable::Unreadable(_)));
    assert!(matches!(parse(r#"{"plugins": [1]}"#), Unusable::Unreadable(_)));
    for empty in [r#"{"plugins": []}"#, r#"{"plugins": [{"type": "leno-cni"}]}"#] {
        assert_eq!(List::parse(empty).unwrap().with(ENTRY), Err(Unusable::Empty));
    }
    assert_eq!(
        List::parse(r#"{"plugins": [ {"type": "leno-cni"} ]}"#).unwrap().without().unwrap(),
        r#"{"plugins": [  ]}"#
    );
}

fn blank() -> impl Strategy<Value = String> {
    proptest::collection::vec(prop_oneof![Just(' '), Just('\n'), Just('\t'), Just('\r')], 0..3)
        .prop_map(String::from_iter)
}

/// A list as some other program may write it.
fn list() -> impl Strategy<Value = String> {
    let plugin = ("[a-z]{1,8}", blank(), blank(), "[a-zä\"]{0,5}").prop_map(|(kind, a, b, note)| {
        format!("{{{a}\"type\":{b}\"{kind}\",\"note\":{}}}", serde_json::to_string(&note).unwrap())
    });
    (proptest::collection::vec((plugin, blank(), blank()), 1..5), blank(), any::<bool>()).prop_map(
        |(plugins, space, behind)| {
            let plugins: Vec<_> = plugins.into_iter().map(|(plugin, a, b)| format!("{a}{plugin}{b}")).collect();
            let rest = if behind { ",\"name\":\"n\"" } else { "" };
            format!("{space}{{\"cniVersion\":\"1.0.0\",{space}\"plugins\":[{}]{rest}{space}}}", plugins.join(","))
        },
    )
}

proptest! {
    #[test]
    fn taking_it_out_undoes_putting_it_in(text in list()) {
        let changed = with(&text).unwrap();
        let value: Value = serde_json::from_str(&changed).unwrap();
        let plugins = value["plugins"].as_array().unwrap();
        prop_assert_eq!(&plugins[plugins.len() - 1]["type"], "leno-cni");
        prop_assert_eq!(plugins.len(), List::parse(&text).unwrap().plugins.len() + 1);
        prop_assert_eq!(with(&changed), None);
        let removed = List::parse(&changed).unwrap().without();
        prop_assert_eq!(removed, Some(text));
    }

    #[test]
    fn nothing_makes_it_fall_over(text in "\\PC{0,60}") {
        if let Ok(list) = List::parse(&text) {
            let _ = (list.with(ENTRY), list.without());
        }
    }
}
