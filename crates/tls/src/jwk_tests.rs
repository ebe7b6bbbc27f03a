use leno_testkit::tokens::tokens;
use serde_json::{Value, json};

use super::*;

fn keys(set: &Value) -> KeySet {
    KeySet::parse(set.to_string().as_bytes()).expect("a key set")
}

/// The parts of a token: algorithm, key, message, signature.
fn parts(token: &str) -> (String, Option<String>, &str, Vec<u8>) {
    let (message, signature) = token.rsplit_once('.').expect("a signature");
    let header = URL_SAFE_NO_PAD.decode(message.split('.').next().expect("a header")).expect("base64");
    let header: Value = serde_json::from_slice(&header).expect("JSON");
    let text = |name: &str| header[name].as_str().map(str::to_owned);
    (text("alg").unwrap_or_default(), text("kid"), message, URL_SAFE_NO_PAD.decode(signature).unwrap_or_default())
}

fn verifies(keys: &KeySet, token: &str) -> bool {
    let (algorithm, id, message, signature) = parts(token);
    let Some(algorithm) = Algorithm::named(&algorithm) else { return false };
    keys.verifies(algorithm, id.as_deref(), message.as_bytes(), &signature)
}

#[test]
fn every_algorithm_is_verified_by_its_key_only() {
    let tokens = tokens();
    let all = keys(&tokens.jwks);
    assert!(all.skipped().is_empty(), "{:?}", all.skipped());
    assert_eq!(tokens.by_alg.len(), 10);
    for (name, token) in &tokens.by_alg {
        assert_eq!(Algorithm::named(name).map(|algorithm| algorithm.to_string()).as_deref(), Some(&**name));
        assert!(verifies(&all, token), "{name}");
        assert_eq!(verifies(&keys(&tokens.rotated), token), name == "ES384", "{name}");
        // The same signature under every other name of an algorithm.
        let (_, id, message, signature) = parts(token);
        for (other, algorithm) in Algorithm::ALL.iter().filter(|(other, _)| other != name) {
            let found = all.verifies(*algorithm, id.as_deref(), message.as_bytes(), &signature);
            assert!(!found, "{name} passes for {other}");
            assert!(!all.verifies(*algorithm, None, message.as_bytes(), &signature), "{name} passes for {other}");
        }
        let mut broken = signature.clone();
        broken[10] ^= 1;
        let algorithm = Algorithm::named(name).expect("known");
        assert!(!all.verifies(algorithm, id.as_deref(), message.as_bytes(), &broken), "{name}");
        assert!(!all.verifies(algorithm, id.as_deref(), message.as_bytes(), &[]), "{name}");
    }
    for name in ["none", "None", "HS256", "HS384", "HS512", "es256", "", "RS1"] {
        assert_eq!(Algorithm::named(name), None, "{name}");
    }
}

#[test]
fn a_key_that_its_set_restricts_is_used_for_nothing_else() {
    let tokens = tokens();
    let mut set = tokens.jwks.clone();
    set["keys"][0]["alg"] = json!("PS256");
    let restricted = keys(&set);
    assert!(!verifies(&restricted, &tokens.by_alg["RS256"]) && verifies(&restricted, &tokens.by_alg["PS256"]));
    for (member, value) in [
        ("use", json!("enc")),
        ("key_ops", json!(["sign"])),
        ("alg", json!("HS256")),
        ("alg", json!("ES256")),
        ("alg", json!("RSA-OAEP")),
        ("kty", json!("oct")),
        ("kid", json!(7)),
    ] {
        let mut set = tokens.jwks.clone();
        set["keys"][0][member] = value.clone();
        let left = keys(&set);
        assert_eq!(left.skipped().len(), 1, "{member}: {value}");
        assert!(!verifies(&left, &tokens.by_alg["RS256"]), "{member}: {value}");
    }
}

#[test]
fn what_is_no_key_set_is_refused() {
    let tokens = tokens();
    let refused = |text: &str| KeySet::parse(text.as_bytes()).expect_err("refused").to_string();
    assert!(refused("<html>").contains("RFC 7517") && refused("[]").contains("RFC 7517"));
    assert!(refused(r#"{"keys": []}"#).contains("it is empty"));
    let unusable = refused(&tokens.unusable.to_string());
    for why in ["1024 bits", "not for signatures", "type \"oct\""] {
        assert!(unusable.contains(why), "{why}: {unusable}");
    }
    assert!(refused(&" ".repeat(LONGEST_SET + 1)).contains("longer than"));
    let many = json!({"keys": vec![tokens.jwks["keys"][0].clone(); MOST_KEYS + 1]}).to_string();
    assert!(refused(&many).contains("65 keys"), "{many}");
    let mut off_curve = tokens.jwks.clone();
    off_curve["keys"][1]["x"] = off_curve["keys"][1]["y"].clone();
    assert!(!verifies(&keys(&off_curve), &tokens.by_alg["ES256"]));
}

#[test]
fn a_set_is_read_up_to_its_greatest_length_and_number_of_keys() {
    let tokens = tokens();
    let text = tokens.jwks.to_string();
    let padded = |length: usize| format!("{text}{}", " ".repeat(length - text.len()));
    assert!(KeySet::parse(padded(LONGEST_SET).as_bytes()).is_ok());
    let too_long = KeySet::parse(padded(LONGEST_SET + 1).as_bytes()).expect_err("too long");
    assert!(matches!(too_long, KeySetError::TooLong) && too_long.is_retryable(), "{too_long}");

    let key = &tokens.jwks["keys"][0];
    let set = |count: usize| KeySet::parse(json!({ "keys": vec![key.clone(); count] }).to_string().as_bytes());
    assert!(set(MOST_KEYS).is_ok());
    assert!(matches!(set(MOST_KEYS + 1), Err(KeySetError::TooMany(count)) if count == MOST_KEYS + 1));
}

#[test]
fn a_set_knows_its_keys_by_their_names() {
    let named = |id: Option<&str>| {
        let mut set = tokens().jwks.clone();
        let mut key = set["keys"][0].take();
        match id {
            Some(id) => key["kid"] = json!(id),
            None => drop(key.as_object_mut().expect("a key").remove("kid")),
        }
        keys(&json!({ "keys": [key] }))
    };
    for (id, has) in [(Some("k"), true), (Some("other"), false), (Some("K"), false), (None, false)] {
        assert_eq!(named(id).has("k"), has, "{id:?}");
    }
}
