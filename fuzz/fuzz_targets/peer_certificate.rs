//! Certificates that peers show, before anybody has verified them.
#![no_main]

libfuzzer_sys::fuzz_target!(|der: &[u8]| {
    if let Some(identity) = leno_tls::fuzzing::peer_certificate(der) {
        assert_eq!(identity.to_string().parse().ok(), Some(identity));
    }
});
