//! What a request is addressed to: path and host in their one form, which routes compare and programs are sent. The form is
//! final, and no program that decodes once reads more in it than it shows. And the token of a session, which has one form, too.
#![no_main]

use leno_policy::http::{Token, host, path};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    if let Ok(form) = path::normalise(input) {
        assert_eq!(path::normalise(form.as_bytes()).as_deref(), Ok(&*form));
        assert!(form.starts_with('/') && !form.contains("//") && !form.contains(['\\', ';', '#', '?']));
        assert!(form.split('/').all(|segment| segment != "." && segment != ".."));
        assert!(["%2F", "%5C", "%00", "%2E", "%252F", "%255C", "%252E"].iter().all(|hidden| !form.contains(hidden)));
    }
    if let Ok(form) = host::normalise(input) {
        assert!(!form.name.bytes().any(|byte| byte.is_ascii_uppercase() || byte.is_ascii_control() || byte == b'/'));
        assert_eq!(host::normalise(form.name.as_bytes()).map(|again| again.name), Ok(form.name.clone()));
    }
    if let Some(token) = Token::parse(input) {
        assert_eq!(Token::parse(token.to_string().as_bytes()), Some(token));
    }
});
