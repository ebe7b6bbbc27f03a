//! What a service account's token says about itself.
//!
//! Nothing here is proved: it only saves the API server questions about what can't be a good token, and tells until
//! when its answer may be remembered.

use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

/// Longest token, bytes. Kubernetes' own have one to two thousand.
const MAX_TOKEN: usize = 16 << 10;

#[derive(Debug, Deserialize)]
struct Claims {
    #[serde(default)]
    aud: Audiences,
    exp: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Audiences {
    One(String),
    Several(Vec<String>),
}

impl Default for Audiences {
    fn default() -> Self {
        Self::Several(Vec::new())
    }
}

/// Until when the token claims to be good.
///
/// # Errors
/// If it can't be a good token for `audience`; in words for whoever sent it.
pub(crate) fn expiry(token: &str, audience: &str, now: SystemTime) -> Result<SystemTime, String> {
    let not_one = || "it is not a service account's token (a JWT); project one with serviceAccountToken".to_owned();
    let mut parts = token.split('.');
    let (Some(_), Some(claims), Some(_), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
        return Err(not_one());
    };
    if token.len() > MAX_TOKEN {
        return Err(format!("it is longer than {MAX_TOKEN} bytes"));
    }
    let claims = URL_SAFE_NO_PAD.decode(claims).map_err(|_| not_one())?;
    let claims: Claims = serde_json::from_slice(&claims).map_err(|_| not_one())?;
    let audiences = match &claims.aud {
        Audiences::One(one) => std::slice::from_ref(one),
        Audiences::Several(all) => all,
    };
    if !audiences.iter().any(|own| own == audience) {
        return Err(format!(
            "it is for {}, not for {audience:?}; set the audience of the projected serviceAccountToken",
            if audiences.is_empty() { "no audience".to_owned() } else { format!("{audiences:?}") }
        ));
    }
    let Some(end) = claims.exp.and_then(|end| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(end))) else {
        return Err("it never expires; use a projected serviceAccountToken".to_owned());
    };
    if end <= now {
        return Err(
            "it has expired; does the proxy read the projected file again, and are the clocks right?".to_owned()
        );
    }
    Ok(end)
}

#[cfg(test)]
pub(crate) fn token(claims: &serde_json::Value) -> String {
    let part = |value: &str| URL_SAFE_NO_PAD.encode(value);
    format!("{}.{}.{}", part("{\"alg\":\"RS256\"}"), part(&claims.to_string()), part("signature"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_cannot_be_a_good_token_is_told_why() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let read = |claims: serde_json::Value| expiry(&token(&claims), "istio-ca", now);
        let end = SystemTime::UNIX_EPOCH + Duration::from_secs(2000);
        assert_eq!(read(json!({"aud": ["x", "istio-ca"], "exp": 2000, "sub": "s"})), Ok(end));
        assert_eq!(read(json!({"aud": "istio-ca", "exp": 2000})), Ok(end));
        assert!(read(json!({"aud": ["kubernetes"], "exp": 2000})).is_err_and(|why| why.contains("audience")));
        assert!(read(json!({"exp": 2000})).is_err_and(|why| why.contains("no audience")));
        assert!(read(json!({"aud": ["istio-ca"], "exp": 1000})).is_err_and(|why| why.contains("expired")));
        assert!(read(json!({"aud": ["istio-ca"]})).is_err_and(|why| why.contains("never expires")));
        for other in ["", "a.b", "a.b.c", "a.b.c.d", "0123456789abcdef0123456789abcdef"] {
            assert!(expiry(other, "istio-ca", now).is_err_and(|why| why.contains("not a service account")), "{other}");
        }
        let long = format!("{}.x", token(&json!({})).repeat(1000).replace('.', "A"));
        assert!(expiry(&long, "istio-ca", now).is_err());
    }
}
