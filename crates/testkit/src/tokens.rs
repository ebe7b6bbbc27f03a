//! Tokens (JSON Web Tokens) made by another program, `tokens/make.py`: good ones, and those that nobody must accept.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// Keys of an issuer, and tokens.
#[derive(Debug, Deserialize)]
pub struct Tokens {
    /// The issuer of all good ones. Their subject is `ann` and their audience `web`, and they end in the year 2100.
    pub issuer: String,
    /// Its keys.
    pub jwks: Value,
    /// Only one of them, that of ES384.
    pub rotated: Value,
    /// Keys that can't verify a signature.
    pub unusable: Value,
    /// A good one for each algorithm.
    pub by_alg: BTreeMap<String, String>,
    /// Good ones with other claims, by what is different.
    pub of_claims: BTreeMap<String, String>,
    /// Those that nobody must accept, by what is wrong.
    pub bad: BTreeMap<String, String>,
}

/// All of them.
pub fn tokens() -> Tokens {
    serde_json::from_str(include_str!("tokens/tokens.json")).expect("what make.py wrote")
}
