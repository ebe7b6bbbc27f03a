//! Answers of external authorisers: what they change of a request, and what a client gets that is refused.
#![no_main]

use http::HeaderMap;
use leno_model::http::AuthorizerAnswer;
use leno_policy::http::authorizer::{Allowed, Denied};
use leno_proto::check::check_answer;

libfuzzer_sys::fuzz_target!(|data: &[u8]| match check_answer(data) {
    Ok(AuthorizerAnswer::Allowed(answer)) => {
        let Ok(allowed) = Allowed::new(&answer) else { return };
        for change in [Allowed::change_request, Allowed::change_response] {
            let mut headers = HeaderMap::new();
            headers.insert("host", "web".parse().expect("a value"));
            headers.insert("content-length", "5".parse().expect("a value"));
            change(&allowed, &mut headers);
            assert_eq!((&headers["host"], &headers["content-length"]), (&"web".parse().unwrap(), &"5".parse().unwrap()));
            assert!(!headers.contains_key("transfer-encoding") && !headers.contains_key("connection"));
        }
    }
    Ok(AuthorizerAnswer::Denied(answer)) => {
        let denied = Denied::new(&answer);
        assert!((200..600).contains(&denied.status));
        assert!(!denied.headers.contains_key("content-length") && !denied.headers.contains_key("transfer-encoding"));
    }
    Err(_) => {}
});
