use super::*;

fn encode(text: &str) -> String {
    URL_SAFE_NO_PAD.encode(text)
}

fn token(claims: &str) -> String {
    format!("{}.{}.{}", encode(r#"{"alg":"ES256","kid":"k"}"#), encode(claims), encode("signature"))
}

fn claims(text: &str) -> Claims {
    Token::read(&token(text)).expect("a token").into_claims()
}

#[test]
fn a_token_is_three_parts() {
    let text = token(r#"{"iss":"i","sub":"s"}"#);
    let read = Token::read(&text).expect("a token");
    assert_eq!((&*read.algorithm, read.key.as_deref(), read.issuer()), ("ES256", Some("k"), "i"));
    assert_eq!(read.message, text.rsplit_once('.').expect("parts").0.as_bytes());
    assert_eq!(read.signature, b"signature");
    let header = |text: &str| format!("{}.{}.{}", encode(text), encode("{}"), encode("s"));
    for bad in [
        "",
        ".",
        "..",
        "a.b.c",
        &format!("{}.{}", encode(r#"{"alg":"ES256"}"#), encode("{}")),
        &format!("{text}."),
        &format!("{text}.x"),
        &format!(" {text}"),
        &format!("{text}="),
        &header("{}"),
        &header("[]"),
        &header(r#"{"alg":7}"#),
        &header(r#"{"alg":"ES256","kid":7}"#),
        &header(r#"{"alg":"ES256","alg":"none"}"#),
        &header(r#"{"alg":"ES256","crit":["x"]}"#),
        &token(r#"{"iss":["i"]}"#),
        &token(r#"{"sub":1}"#),
        &token(r#"{"a":{"b":1,"b":2}}"#),
        &token(r#"{"a":1"#),
        &token(&format!("{}1{}", "[".repeat(300), "]".repeat(300))),
        &token(&format!(r#"{{"a":"{}"}}"#, "x".repeat(LONGEST))),
    ] {
        assert!(Token::read(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_token_is_read_up_to_its_greatest_length() {
    let parts = format!("{}.{}.", encode(r#"{"alg":"ES256"}"#), encode(r#"{"iss":"i"}"#));
    let of_length = |length: usize| format!("{parts}{}", "A".repeat(length - parts.len()));
    assert_ne!((LONGEST - parts.len()) % 4, 1, "no base64 is that long");
    assert!(Token::read(&of_length(LONGEST)).is_ok());
    assert_eq!(Token::read(&of_length(LONGEST + 1)), Err(TokenError::TooLong));
}

#[test]
fn it_is_for_an_issuer_audiences_and_a_time() {
    let check = |claims: &str, audiences: &[&str], now| {
        let audiences: Vec<leno_model::Name> = audiences.iter().map(|it| (*it).into()).collect();
        Token::read(&token(claims)).expect("a token").check("i", &audiences, now)
    };
    assert_eq!(check(r#"{"iss":"i"}"#, &[], 1000), Ok(()));
    assert!(matches!(check(r#"{"iss":"I"}"#, &[], 1000), Err(TokenError::Issuer { .. })));
    assert!(matches!(check("{}", &[], 1000), Err(TokenError::Issuer { .. })));
    assert_eq!(check(r#"{"iss":"i","aud":["a","b"]}"#, &["b"], 1000), Ok(()));
    assert_eq!(check(r#"{"iss":"i","aud":"b"}"#, &["a", "b"], 1000), Ok(()));
    for none in [r#"{"iss":"i","aud":"a"}"#, r#"{"iss":"i"}"#, r#"{"iss":"i","aud":[]}"#] {
        assert!(matches!(check(none, &["b"], 1000), Err(TokenError::Audience(_))), "{none}");
    }
    assert!(matches!(check(r#"{"iss":"i","aud":7}"#, &[], 1000), Err(TokenError::Malformed(_))));
    let ends = r#"{"iss":"i","exp":1000}"#;
    assert_eq!((check(ends, &[], 1059), check(ends, &[], 1060)), (Ok(()), Err(TokenError::Expired(60))));
    let begins = r#"{"iss":"i","nbf":1000.5}"#;
    assert_eq!((check(begins, &[], 940), check(begins, &[], 939)), (Ok(()), Err(TokenError::NotYet(61))));
    for bad in [r#""1000""#, "-1", "1e40", "null", "true", "[]"] {
        for name in ["exp", "nbf"] {
            let claims = format!(r#"{{"iss":"i","{name}":{bad}}}"#);
            assert!(matches!(check(&claims, &[], 1000), Err(TokenError::Malformed(_))), "{claims}");
        }
    }
}

#[test]
fn claims_are_found_by_their_names() {
    let all = claims(
        r#"{"iss":"i","sub":"s","azp":"a","realm":{"roles":["x","y"]},"scope":"r w","flag":true,"mixed":["x",1]}"#,
    );
    assert_eq!((all.principal().as_deref(), all.presenter()), (Some("i/s"), Some("a")));
    assert_eq!(all.texts(&["realm", "roles"]), Some(vec!["x", "y"]));
    assert_eq!(all.texts(&["scope"]), Some(vec!["r", "w"]));
    assert_eq!(all.texts(&["azp"]), Some(vec!["a"]));
    for other in [&["flag"][..], &["mixed"], &["realm"], &["realm", "none"], &["azp", "x"], &["none"]] {
        assert_eq!(all.texts(other), None, "{other:?}");
    }
    // Only scopes are a list in one text.
    let spaced = claims(r#"{"scope":"r w","permission":"r w","name":"r w","realm":{"scope":"r w"}}"#);
    for list in ["scope", "permission"] {
        assert_eq!(spaced.texts(&[list]), Some(vec!["r", "w"]), "{list}");
    }
    for one in [&["name"][..], &["realm", "scope"]] {
        assert_eq!(spaced.texts(one), Some(vec!["r w"]), "{one:?}");
    }
    assert_eq!(claims(r#"{"iss":"i"}"#).principal(), None);
    assert_eq!(claims(r#"{"sub":"s"}"#).principal(), None);
}

#[test]
fn claims_are_kept_as_they_came_whatever_they_are() {
    let text = r#"{
        "nothing": null, "yes": true, "no": false, "less": -7, "most": 18446744073709551615, "part": 0.5,
        "text": "a\u00e4\n\"b", "list": [1, [null, "x"], []], "object": {"a": {"b": -1}, "c": {}}
    }"#;
    let read = claims(text);

    let plain: Map<String, Value> = serde_json::from_str(text).expect("an object");
    for (name, value) in &plain {
        assert_eq!(read.get([&**name]), Some(value), "{name}");
    }
    assert_eq!(read.encoded(), encode(text));
}

#[test]
fn only_what_others_may_bring_is_worth_another_try() {
    for later in [TokenError::NoKeys("none".to_owned()), TokenError::NotYet(5)] {
        assert!(later.is_retryable(), "{later}");
    }
    for never in [TokenError::TooLong, TokenError::Signature, TokenError::Expired(5), TokenError::Several] {
        assert!(!never.is_retryable(), "{never}");
    }
}
