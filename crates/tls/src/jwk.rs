//! Public keys that sign tokens: JSON Web Key sets (RFC 7517, RFC 7518 §6, RFC 8037), and whether one of them made a signature
//! (RFC 7515 §5.2).
//!
//! A key verifies only what it was made for: its own type and curve say which algorithms there are, and a token only chooses
//! among these. There is no algorithm with a shared secret, and none that signs nothing.

use std::fmt;

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ECDSA_P521_SHA512_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384,
    RSA_PSS_2048_8192_SHA512, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

/// A set of more keys is refused: each may have to be tried for a token.
pub const MOST_KEYS: usize = 64;

/// A longer set is refused, bytes.
pub const LONGEST_SET: usize = 256 << 10;

/// How a token is signed (RFC 7518 §3.1, RFC 8037 §3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are those of the RFCs")]
pub enum Algorithm {
    Rs256,
    Rs384,
    Rs512,
    Ps256,
    Ps384,
    Ps512,
    Es256,
    Es384,
    Es512,
    EdDsa,
}

impl Algorithm {
    const ALL: [(&'static str, Self); 10] = [
        ("RS256", Self::Rs256),
        ("RS384", Self::Rs384),
        ("RS512", Self::Rs512),
        ("PS256", Self::Ps256),
        ("PS384", Self::Ps384),
        ("PS512", Self::Ps512),
        ("ES256", Self::Es256),
        ("ES384", Self::Es384),
        ("ES512", Self::Es512),
        ("EdDSA", Self::EdDsa),
    ];

    /// The algorithm of this name; `None` for any other, such as `none` and those with a shared secret. Case counts.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, algorithm)| *algorithm)
    }

    fn rsa(self) -> Option<&'static RsaParameters> {
        Some(match self {
            Self::Rs256 => &RSA_PKCS1_2048_8192_SHA256,
            Self::Rs384 => &RSA_PKCS1_2048_8192_SHA384,
            Self::Rs512 => &RSA_PKCS1_2048_8192_SHA512,
            Self::Ps256 => &RSA_PSS_2048_8192_SHA256,
            Self::Ps384 => &RSA_PSS_2048_8192_SHA384,
            Self::Ps512 => &RSA_PSS_2048_8192_SHA512,
            _ => return None,
        })
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(_, algorithm)| algorithm == self).map_or("", |(name, _)| name);
        f.write_str(name)
    }
}

/// Why a set of keys can't be used.
#[derive(Debug, thiserror::Error)]
pub enum KeySetError {
    /// Longer than [`LONGEST_SET`].
    #[error("the key set is longer than {LONGEST_SET} bytes")]
    TooLong,
    /// Not of the form of RFC 7517.
    #[error("this is no JSON Web Key Set (RFC 7517): {0}")]
    Form(#[source] serde_json::Error),
    /// More than [`MOST_KEYS`].
    #[error("the key set has {0} keys; {MOST_KEYS} are the most that are read")]
    TooMany(usize),
    /// None of its keys can verify a signature.
    #[error("none of the key set's keys can verify a signature: {0}")]
    NoKey(String),
}

impl KeySetError {
    /// Whether the same source may give a good set later.
    pub fn is_retryable(&self) -> bool {
        true
    }
}

/// Public keys by which tokens may be signed.
#[derive(Debug)]
pub struct KeySet {
    keys: Vec<Key>,
    skipped: Vec<String>,
}

#[derive(Debug)]
struct Key {
    id: Option<String>,
    /// The only algorithm, if the set names one.
    only: Option<Algorithm>,
    material: Material,
}

enum Material {
    Rsa { n: Vec<u8>, e: Vec<u8> },
    Point { algorithm: Algorithm, verification: &'static dyn VerificationAlgorithm, bytes: Vec<u8> },
}

impl fmt::Debug for Material {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rsa { .. } => "RSA",
            Self::Point { .. } => "a point of a curve",
        })
    }
}

#[derive(Deserialize)]
struct RawSet {
    keys: Vec<serde_json::Value>,
}

/// The members that count. Values of the wrong type make the key unusable.
#[derive(Deserialize)]
struct RawKey {
    kty: String,
    kid: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
    key_ops: Option<Vec<String>>,
    alg: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl KeySet {
    /// Reads a set. Keys that can't verify a signature are left out: those for other uses, of unknown types, and RSA keys of less
    /// than 2048 bits.
    ///
    /// # Errors
    /// If it can't be read, or no key is left.
    pub fn parse(text: &[u8]) -> Result<Self, KeySetError> {
        if text.len() > LONGEST_SET {
            return Err(KeySetError::TooLong);
        }
        let RawSet { keys: raw } = serde_json::from_slice(text).map_err(KeySetError::Form)?;
        if raw.len() > MOST_KEYS {
            return Err(KeySetError::TooMany(raw.len()));
        }
        let (mut keys, mut skipped) = (Vec::new(), Vec::new());
        for (index, raw) in raw.into_iter().enumerate() {
            let read = serde_json::from_value(raw).map_err(|error| error.to_string()).and_then(Key::new);
            match read {
                Ok(key) => keys.push(key),
                Err(why) => skipped.push(format!("keys[{index}]: {why}")),
            }
        }
        if keys.is_empty() {
            let why = if skipped.is_empty() { "it is empty".to_owned() } else { skipped.join("; ") };
            return Err(KeySetError::NoKey(why));
        }
        Ok(Self { keys, skipped })
    }

    /// Which keys were left out, and why.
    pub fn skipped(&self) -> &[String] {
        &self.skipped
    }

    /// Whether one of the keys made `signature` over `message` with `algorithm`. If the token names a key, only that one and
    /// those without a name are tried.
    pub fn verifies(&self, algorithm: Algorithm, id: Option<&str>, message: &[u8], signature: &[u8]) -> bool {
        let may = |key: &&Key| {
            key.only.is_none_or(|only| only == algorithm)
                && id.is_none_or(|id| key.id.as_deref().is_none_or(|own| own == id))
        };
        self.keys.iter().filter(may).any(|key| key.verifies(algorithm, message, signature))
    }

    /// Whether one of the keys has this name.
    pub fn has(&self, id: &str) -> bool {
        self.keys.iter().any(|key| key.id.as_deref() == Some(id))
    }
}

impl Key {
    fn new(raw: RawKey) -> Result<Self, String> {
        if raw.usage.as_deref().is_some_and(|usage| usage != "sig") {
            return Err("it is not for signatures".to_owned());
        }
        if raw.key_ops.as_ref().is_some_and(|ops| !ops.iter().any(|op| op == "verify")) {
            return Err("it is not for verifying".to_owned());
        }
        let only = match &raw.alg {
            Some(name) => Some(Algorithm::named(name).ok_or_else(|| format!("algorithm {name:?} is not accepted"))?),
            None => None,
        };
        let bytes = |name: &str, value: &Option<String>| {
            let text = value.as_ref().ok_or_else(|| format!("it has no {name}"))?;
            URL_SAFE_NO_PAD.decode(text).map_err(|error| format!("{name}: {error}"))
        };
        let material = match (&*raw.kty, raw.crv.as_deref()) {
            ("RSA", _) => {
                let n = bytes("n", &raw.n)?;
                let n: Vec<u8> = n.into_iter().skip_while(|byte| *byte == 0).collect();
                if n.len() < 256 || n.len() > 1024 {
                    return Err(format!("an RSA key of {} bits is not accepted (2048 to 8192 are)", n.len() * 8));
                }
                Material::Rsa { n, e: bytes("e", &raw.e)? }
            }
            ("EC", Some(curve)) => {
                let (algorithm, verification, length): (_, &'static dyn VerificationAlgorithm, _) = match curve {
                    "P-256" => (Algorithm::Es256, &ECDSA_P256_SHA256_FIXED, 32),
                    "P-384" => (Algorithm::Es384, &ECDSA_P384_SHA384_FIXED, 48),
                    "P-521" => (Algorithm::Es512, &ECDSA_P521_SHA512_FIXED, 66),
                    other => return Err(format!("curve {other:?} is not known")),
                };
                let (x, y) = (bytes("x", &raw.x)?, bytes("y", &raw.y)?);
                if x.len() != length || y.len() != length {
                    return Err(format!("x and y of curve {curve} have {length} bytes"));
                }
                // Uncompressed (SEC 1, §2.3.3).
                Material::Point { algorithm, verification, bytes: [&[4][..], &x, &y].concat() }
            }
            ("OKP", Some("Ed25519")) => {
                let bytes = bytes("x", &raw.x)?;
                if bytes.len() != 32 {
                    return Err("x of Ed25519 has 32 bytes".to_owned());
                }
                Material::Point { algorithm: Algorithm::EdDsa, verification: &ED25519, bytes }
            }
            (kind, _) => return Err(format!("type {kind:?} is not accepted")),
        };
        let fits = match (only, &material) {
            (None, _) => true,
            (Some(only), Material::Rsa { .. }) => only.rsa().is_some(),
            (Some(only), Material::Point { algorithm, .. }) => only == *algorithm,
        };
        if !fits {
            return Err("its algorithm does not go with its type".to_owned());
        }
        Ok(Self { id: raw.kid, only, material })
    }

    fn verifies(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        match &self.material {
            Material::Rsa { n, e } => {
                let key = RsaPublicKeyComponents { n: &n[..], e: &e[..] };
                algorithm.rsa().is_some_and(|how| key.verify(how, message, signature).is_ok())
            }
            Material::Point { algorithm: own, verification, bytes } => {
                *own == algorithm && UnparsedPublicKey::new(*verification, bytes).verify(message, signature).is_ok()
            }
        }
    }
}

#[cfg(test)]
#[path = "jwk_tests.rs"]
mod tests;
