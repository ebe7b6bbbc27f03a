//! SPIFFE ids, from certificates of peers and from policies.
#![no_main]

use leno_model::Identity;

libfuzzer_sys::fuzz_target!(|uri: &str| {
    if let Ok(identity) = uri.parse::<Identity>() {
        assert_eq!(identity.to_string(), uri);
    }
});
