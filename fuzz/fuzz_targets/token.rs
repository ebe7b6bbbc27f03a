//! Tokens that clients send, and key sets that issuers of tokens do.
#![no_main]

use leno_policy::http::token::Token;
use leno_tls::jwk::{Algorithm, KeySet};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(token) = Token::read(text)
    {
        let _ = token.check("issuer", &["audience".into()], 1_800_000_000);
        let _ = Algorithm::named(&token.algorithm);
        let claims = token.into_claims();
        assert!(claims.principal().is_none_or(|principal| principal.contains('/')));
        let _ = claims.texts(&["a", "b"]);
    }
    if let Ok(keys) = KeySet::parse(data) {
        for name in ["RS256", "PS512", "ES256", "ES512", "EdDSA"] {
            let Some(algorithm) = Algorithm::named(name) else { continue };
            assert!(!keys.verifies(algorithm, None, b"message", &[0; 64]));
        }
    }
});
