//! JSON Web Tokens (RFC 7519) in their compact form (RFC 7515 §7.1): what one says, once its signature has been verified. Who
//! verifies it is the caller's choice, so that nothing here knows cryptography.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};

use super::unique_json::Unique;

/// A longer token is refused, bytes.
pub const LONGEST: usize = 16 << 10;

/// How far clocks may be apart, seconds. Istio's value.
const LEEWAY: u64 = 60;

/// Why a token is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Longer than [`LONGEST`].
    #[error("the token is longer than {LONGEST} bytes")]
    TooLong,
    /// Not three parts in base64url with JSON objects in the first two.
    #[error("the token is malformed: {0}")]
    Malformed(String),
    /// Its header names extensions that have to be understood (RFC 7515 §4.1.11).
    #[error("the token asks for extensions (crit), of which none is known")]
    Critical,
    /// It is signed in a way that is not accepted, or not at all.
    #[error("the token's algorithm {0:?} is not accepted: only RS, PS and ES with 256, 384 and 512, and EdDSA are")]
    Algorithm(String),
    /// Another issuer.
    #[error("the token's issuer is {found:?}, not {wanted:?}")]
    Issuer {
        /// What it says.
        found: String,
        /// What it must say.
        wanted: String,
    },
    /// For others.
    #[error("the token is for other audiences: {0:?}")]
    Audience(Vec<String>),
    /// No longer valid.
    #[error("the token ended {0} s ago")]
    Expired(u64),
    /// Not yet valid.
    #[error("the token begins in {0} s")]
    NotYet(u64),
    /// None of the keys made its signature.
    #[error("the token's signature is by none of the issuer's keys")]
    Signature,
    /// There are no keys to verify it by.
    #[error("the issuer's keys are not known: {0}")]
    NoKeys(String),
    /// The request has more than one.
    #[error("the request carries several different tokens, and which one counts would be a guess")]
    Several,
}

impl TokenError {
    /// Whether the same token may be accepted later.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::NoKeys(_) | Self::NotYet(_))
    }
}

/// A token as it was read, not verified.
#[derive(Debug, Clone, PartialEq)]
pub struct Token<'t> {
    /// Name of the algorithm.
    pub algorithm: String,
    /// Name of the key, if it has one.
    pub key: Option<String>,
    /// What is signed.
    pub message: &'t [u8],
    /// The signature.
    pub signature: Vec<u8>,
    claims: Claims,
}

/// What a verified token says.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Claims {
    all: Map<String, Value>,
    /// The second part of the token, as it came.
    encoded: String,
}

impl<'t> Token<'t> {
    /// Reads a token.
    ///
    /// # Errors
    /// If it is not of the compact form, or says something twice.
    pub fn read(text: &'t str) -> Result<Self, TokenError> {
        if text.len() > LONGEST {
            return Err(TokenError::TooLong);
        }
        let malformed = |what: &str, why: &dyn std::fmt::Display| TokenError::Malformed(format!("{what}: {why}"));
        let parts = text.rsplit_once('.').and_then(|(message, signature)| {
            let (header, payload) = message.split_once('.')?;
            Some((message, header, payload, signature))
        });
        let (message, header, payload, signature) =
            parts.ok_or_else(|| TokenError::Malformed("it has not the three parts of a JWT".to_owned()))?;
        let decode = |what: &str, part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|error| malformed(what, &error));
        let object = |what: &str, part: &str| {
            let Unique(value) =
                serde_json::from_slice(&decode(what, part)?).map_err(|error| malformed(what, &error))?;
            match value {
                Value::Object(object) => Ok(object),
                _ => Err(malformed(what, &"is no JSON object")),
            }
        };
        let header = object("header", header)?;
        if header.contains_key("crit") {
            return Err(TokenError::Critical);
        }
        let text_of = |name: &str| match header.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(malformed(name, &"is no text")),
        };
        let algorithm = text_of("alg")?.ok_or_else(|| malformed("header", &"names no algorithm"))?;
        let claims = Claims { all: object("claims", payload)?, encoded: payload.to_owned() };
        for name in ["iss", "sub", "azp"] {
            if claims.all.get(name).is_some_and(|value| !value.is_string()) {
                return Err(malformed(name, &"is no text"));
            }
        }
        let (key, signature) = (text_of("kid")?, decode("signature", signature)?);
        Ok(Self { algorithm, key, message: message.as_bytes(), signature, claims })
    }

    /// The issuer that it names.
    pub fn issuer(&self) -> &str {
        self.claims.text("iss")
    }

    /// Checks what it says of itself, at `now` in seconds since the Unix epoch. Of `audiences` it has to name one, unless there
    /// are none.
    ///
    /// # Errors
    /// If it is another issuer's, for others, or for another time.
    pub fn check(&self, issuer: &str, audiences: &[leno_model::Name], now: u64) -> Result<(), TokenError> {
        if self.issuer() != issuer {
            let (found, wanted) = (self.issuer().to_owned(), issuer.to_owned());
            return Err(TokenError::Issuer { found, wanted });
        }
        let own = self.claims.audiences()?;
        if !audiences.is_empty() && !audiences.iter().any(|wanted| own.iter().any(|own| *own == **wanted)) {
            return Err(TokenError::Audience(own));
        }
        if let Some(end) = self.claims.time("exp")?
            && now >= end.saturating_add(LEEWAY)
        {
            return Err(TokenError::Expired(now.saturating_sub(end)));
        }
        if let Some(begin) = self.claims.time("nbf")?
            && now.saturating_add(LEEWAY) < begin
        {
            return Err(TokenError::NotYet(begin - now));
        }
        Ok(())
    }

    /// What it says. Only for a token whose signature was verified.
    pub fn into_claims(self) -> Claims {
        self.claims
    }
}

impl Claims {
    /// `issuer/subject`; `None` if one of them is missing.
    pub fn principal(&self) -> Option<String> {
        let (issuer, subject) = (self.text("iss"), self.text("sub"));
        (!issuer.is_empty() && !subject.is_empty()).then(|| format!("{issuer}/{subject}"))
    }

    /// Whom it was issued to (`azp`).
    pub fn presenter(&self) -> Option<&str> {
        Some(self.text("azp")).filter(|text| !text.is_empty())
    }

    /// Whom it is for.
    ///
    /// # Errors
    /// If `aud` is neither a text nor a list of texts.
    pub fn audiences(&self) -> Result<Vec<String>, TokenError> {
        let malformed = || TokenError::Malformed("aud: is neither a text nor a list of texts".to_owned());
        match self.all.get("aud") {
            None => Ok(Vec::new()),
            Some(Value::String(one)) => Ok(vec![one.clone()]),
            Some(Value::Array(all)) => {
                all.iter().map(|one| one.as_str().map(str::to_owned).ok_or_else(malformed)).collect()
            }
            Some(_) => Err(malformed()),
        }
    }

    /// The claim to which these names lead.
    pub fn get<'n>(&self, names: impl IntoIterator<Item = &'n str>) -> Option<&Value> {
        let mut names = names.into_iter();
        let first = self.all.get(names.next()?)?;
        names.try_fold(first, |value, name| value.as_object()?.get(name))
    }

    /// The texts of a claim that is a text or a list of texts; `None` if it is something else. Scopes are a list in one text (RFC
    /// 8693 §4.2), as Istio reads them.
    pub fn texts(&self, names: &[&str]) -> Option<Vec<&str>> {
        match self.get(names.iter().copied())? {
            Value::String(text) if matches!(names, ["scope" | "permission"]) => Some(text.split(' ').collect()),
            Value::String(text) => Some(vec![text]),
            Value::Array(all) => all.iter().map(Value::as_str).collect(),
            _ => None,
        }
    }

    /// The claims as the token has them, in base64url.
    pub fn encoded(&self) -> &str {
        &self.encoded
    }

    fn text(&self, name: &str) -> &str {
        self.all.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    /// A time (RFC 7519 §2, NumericDate), in whole seconds; a fraction counts for the stricter reading of `exp`.
    fn time(&self, name: &str) -> Result<Option<u64>, TokenError> {
        let bad = || TokenError::Malformed(format!("{name}: is no time"));
        match self.all.get(name) {
            None => Ok(None),
            Some(Value::Number(number)) => match (number.as_u64(), number.as_f64()) {
                (Some(whole), _) => Ok(Some(whole)),
                (None, Some(seconds)) if (0.0..1e15).contains(&seconds) => Ok(Some(seconds as u64)),
                _ => Err(bad()),
            },
            Some(_) => Err(bad()),
        }
    }
}

#[cfg(test)]
#[path = "token_tests.rs"]
mod tests;
