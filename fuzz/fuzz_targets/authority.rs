//! `:authority` of a CONNECT, from any peer with a certificate.
#![no_main]

use leno_policy::authority::parse_authority;

libfuzzer_sys::fuzz_target!(|text: &str| {
    let _ = parse_authority(text);
});
