//! Answers of external authorisers over HTTP: whatever they say, what decides where a message ends or goes stays as it is.
#![no_main]

use http::{HeaderMap, HeaderName, HeaderValue};
use leno_model::http::{AuthorizerAnswer, HttpCheck};
use leno_policy::http::authorizer::{Allowed, Denied, is_fixed};
use leno_policy::http::over_http::{answer, question_headers};

libfuzzer_sys::fuzz_target!(|data: (u16, Vec<(Vec<u8>, Vec<u8>)>, Vec<String>)| {
    let (status, pairs, patterns) = data;
    let mut said = HeaderMap::new();
    for (name, value) in &pairs {
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
            let _ = said.try_append(name, value);
        }
    }
    let patterns: Vec<_> = patterns.into_iter().map(|text| text.as_str().into()).collect();
    let how = HttpCheck {
        request_headers: patterns.clone(),
        to_upstream: patterns.clone(),
        to_client_denied: patterns.clone(),
        to_client_allowed: patterns,
        ..HttpCheck::default()
    };
    assert!(question_headers(&how, &said).keys().all(|name| !is_fixed(name)));
    match answer(&how, status, &said, Vec::new()) {
        Some(AuthorizerAnswer::Allowed(allowed)) => {
            assert_eq!(status, 200);
            let Ok(allowed) = Allowed::new(&allowed) else { return };
            for change in [Allowed::change_request, Allowed::change_response] {
                let mut headers = HeaderMap::new();
                headers.insert("host", "web".parse().expect("a value"));
                headers.insert("content-length", "5".parse().expect("a value"));
                change(&allowed, &mut headers);
                assert_eq!((&headers["host"], &headers["content-length"]), (&"web".parse().unwrap(), &"5".parse().unwrap()));
                assert_eq!(headers.keys().filter(|name| is_fixed(name)).count(), 2);
            }
        }
        Some(AuthorizerAnswer::Denied(denied)) => {
            let denied = Denied::new(&denied);
            assert!((200..600).contains(&denied.status) && denied.headers.keys().all(|name| !is_fixed(name)));
        }
        None => assert!(status >= 500),
    }
});
