//! The tokens of the proxies, and what the API server says of them.

use std::collections::HashMap;
use std::io::{self, Read as _};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use time::OffsetDateTime;

use crate::churn::{ACCOUNT, NAMESPACE, node_name};

/// What a token for a mesh's control plane is for: Istio's name for it, which all use.
const AUDIENCE: &str = "istio-ca";
/// How long a token is good, seconds: longer than any run.
const LIFE: i64 = 7 * 24 * 3600;
/// Bytes of a token's signature, which only the API server could check.
const SIGNATURE: usize = 256;

/// A token for each proxy, bound to its pod and node.
#[derive(Debug)]
pub(super) struct Tokens {
    tokens: Vec<String>,
    numbers: HashMap<String, usize>,
}

impl Tokens {
    /// Makes a token for each proxy.
    pub(super) fn new(proxies: usize) -> io::Result<Self> {
        let mut random = std::fs::File::open("/dev/urandom")?;
        let now = OffsetDateTime::now_utc().unix_timestamp();
        let mut token = |number| {
            let mut signature = [0; SIGNATURE];
            random.read_exact(&mut signature)?;
            let claims = json!({
                "aud": [AUDIENCE], "exp": now + LIFE, "iat": now, "nbf": now,
                "iss": "https://kubernetes.default.svc.cluster.local",
                "kubernetes.io": {
                    "namespace": NAMESPACE,
                    "node": {"name": node_name(number)},
                    "pod": {"name": pod_name(number), "uid": pod_uid(number)},
                    "serviceaccount": {"name": ACCOUNT},
                },
                "sub": format!("system:serviceaccount:{NAMESPACE}:{ACCOUNT}"),
            });
            let claims = claims.to_string();
            let parts = [&br#"{"alg":"RS256","kid":"lab"}"#[..], claims.as_bytes(), &signature];
            Ok(parts.map(|part| URL_SAFE_NO_PAD.encode(part)).join("."))
        };
        let tokens: Vec<String> = (0..proxies).map(&mut token).collect::<io::Result<_>>()?;
        let numbers = tokens.iter().cloned().zip(0..).collect();
        Ok(Self { tokens, numbers })
    }

    /// The tokens in the order of the proxies.
    pub(super) fn all(&self) -> &[String] {
        &self.tokens
    }

    /// The answer to a TokenReview.
    pub(super) fn review(&self, mut review: Value) -> Value {
        let known = review["spec"]["token"].as_str().and_then(|token| self.numbers.get(token));
        review["kind"] = "TokenReview".into();
        review["apiVersion"] = "authentication.k8s.io/v1".into();
        review["status"] = match known {
            None => json!({"authenticated": false, "error": "invalid bearer token"}),
            Some(number) => json!({
                "authenticated": true,
                "audiences": [AUDIENCE],
                "user": {
                    "username": format!("system:serviceaccount:{NAMESPACE}:{ACCOUNT}"),
                    "uid": "5f2d7a12-0000-4000-8000-000000000000",
                    "groups": [
                        "system:serviceaccounts", format!("system:serviceaccounts:{NAMESPACE}"), "system:authenticated",
                    ],
                    "extra": {
                        "authentication.kubernetes.io/node-name": [node_name(*number)],
                        "authentication.kubernetes.io/pod-name": [pod_name(*number)],
                        "authentication.kubernetes.io/pod-uid": [pod_uid(*number)],
                    },
                },
            }),
        };
        review
    }
}

fn pod_name(number: usize) -> String {
    format!("proxy-{number}")
}

fn pod_uid(number: usize) -> String {
    format!("5f2d7a13-0000-4000-8000-{number:012}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_its_proxys() {
        let tokens = Tokens::new(3).unwrap();
        let [first, second, _] = tokens.all() else { panic!("{tokens:?}") };
        assert_ne!(first, second);
        let claims = URL_SAFE_NO_PAD.decode(second.split('.').nth(1).unwrap()).unwrap();
        let claims: Value = serde_json::from_slice(&claims).unwrap();
        assert_eq!(
            (&claims["aud"], &claims["kubernetes.io"]["node"]["name"]),
            (&json!(["istio-ca"]), &json!("node-0001"))
        );
        let status = |token: &str| tokens.review(json!({"spec": {"token": token}}))["status"].take();
        let extra = &status(second)["user"]["extra"];
        assert_eq!(extra["authentication.kubernetes.io/node-name"], json!(["node-0001"]));
        let forged = format!("{}x", first);
        assert_eq!((&status(first)["authenticated"], &status(&forged)["authenticated"]), (&json!(true), &json!(false)));
    }
}
