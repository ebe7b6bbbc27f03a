//! Whose token does a request carry? The rules of RequestAuthentications, compiled once.
//!
//! Every token that stands where a rule looks has to be accepted by one of the rules that look there. So a bad token refuses a
//! request, also beside a good one, and a request without any passes as nobody's.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{AUTHORIZATION, COOKIE};
use http::{HeaderMap, HeaderName, HeaderValue};
use leno_model::Name;
use leno_model::http::{TokenKeys, TokenRule};
use serde_json::Value;

use super::conditions::header_name;
use super::error::RuleError;
use super::request::Request;
use super::token::{Claims, Token, TokenError};

/// Query parameter that carries a token where a rule names no place. RFC 6750 §2.3.
const ACCESS_TOKEN: &str = "access_token";

/// The scheme of RFC 6750 §2.1, with the space behind it.
const BEARER: &str = "Bearer ";

/// More tokens than these in one request are refused unread.
const MOST_TOKENS: usize = 8;

/// Says who made a signature.
pub trait Keys {
    /// Whether one of these keys made the signature of this token.
    ///
    /// # Errors
    /// If the keys are not known, or the algorithm is not accepted.
    fn made(&self, keys: &TokenKeys, token: &Token<'_>) -> Result<bool, TokenError>;
}

/// A rule, compiled once.
#[derive(Debug, Clone)]
pub(super) struct Compiled {
    rule: TokenRule,
    headers: Vec<(HeaderName, Name)>,
    payload_header: Option<HeaderName>,
    claim_headers: Vec<(HeaderName, Vec<Name>)>,
}

/// The rules for tokens that count for a service.
#[derive(Debug, Default)]
pub(super) struct Authentication {
    rules: Vec<Compiled>,
}

/// A request whose token was accepted, or that has none.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Caller {
    /// What its token says, and which rule accepted it.
    accepted: Option<(Claims, usize)>,
}

/// What the program is to be sent in place of what came.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rewritten {
    /// The query; `None` if it stays.
    pub query: Option<String>,
}

impl Compiled {
    pub(super) fn new(rule: &TokenRule) -> Result<Self, RuleError> {
        let output = |name: &Name| {
            let header = header_name(name)?;
            let reserved = ["host", "content-length", "transfer-encoding", "connection", "te", "upgrade"];
            if reserved.contains(&header.as_str()) { Err(RuleError::HeaderName(name.clone())) } else { Ok(header) }
        };
        let mut headers = rule
            .headers
            .iter()
            .map(|(name, prefix)| Ok((header_name(name)?, prefix.clone())))
            .collect::<Result<Vec<_>, RuleError>>()?;
        if rule.headers.is_empty() && rule.params.is_empty() && rule.cookies.is_empty() {
            headers.push((AUTHORIZATION, BEARER.into()));
        }
        Ok(Self {
            headers,
            payload_header: rule.payload_header.as_ref().map(output).transpose()?,
            claim_headers: rule
                .claim_headers
                .iter()
                .map(|(name, claim)| Ok((output(name)?, claim.clone())))
                .collect::<Result<_, RuleError>>()?,
            rule: rule.clone(),
        })
    }

    fn params(&self) -> impl Iterator<Item = &str> {
        let rule = &self.rule;
        let unsaid = rule.headers.is_empty() && rule.params.is_empty() && rule.cookies.is_empty();
        rule.params.iter().map(|name| &**name).chain(unsaid.then_some(ACCESS_TOKEN))
    }

    /// The tokens that stand where the rule looks.
    fn tokens(&self, request: &Request<'_>) -> Result<Vec<String>, TokenError> {
        let mut found = Vec::new();
        for (name, prefix) in &self.headers {
            for value in request.headers.get_all(name) {
                let Some(rest) = behind(value.as_bytes(), prefix) else { continue };
                found.push(text(rest)?);
            }
        }
        for name in self.params() {
            let query = request.query.unwrap_or_default().as_bytes();
            let values = form_urlencoded::parse(query).filter(|(key, _)| key == name);
            found.extend(values.map(|(_, value)| value.into_owned()));
        }
        for name in &self.rule.cookies {
            for (key, value) in cookies(request.headers) {
                if key == name.as_bytes() {
                    found.push(text(value)?);
                }
            }
        }
        Ok(found)
    }

    fn accepts(&self, text: &str, keys: &dyn Keys, now: u64) -> Result<Claims, TokenError> {
        let token = Token::read(text)?;
        token.check(&self.rule.issuer, &self.rule.audiences, now)?;
        // A check costs nothing, a signature much.
        if keys.made(&self.rule.keys, &token)? { Ok(token.into_claims()) } else { Err(TokenError::Signature) }
    }
}

/// What of a header's value stands behind a prefix. A scheme of RFC 9110 §11.1 is compared without case, and any number of
/// spaces may follow it.
fn behind<'v>(value: &'v [u8], prefix: &str) -> Option<&'v [u8]> {
    let scheme = prefix.trim_end_matches(' ');
    let rest = value.split_at_checked(scheme.len()).filter(|(start, _)| start.eq_ignore_ascii_case(scheme.as_bytes()));
    let (_, rest) = rest?;
    if scheme.len() == prefix.len() {
        return Some(rest.trim_ascii());
    }
    (rest.first() == Some(&b' ') || rest.first() == Some(&b'\t')).then(|| rest.trim_ascii())
}

fn text(bytes: &[u8]) -> Result<String, TokenError> {
    let text = std::str::from_utf8(bytes).map_err(|_| TokenError::Malformed("it: is not of ASCII".to_owned()))?;
    Ok(text.to_owned())
}

/// Name and value of each cookie, in all headers (RFC 6265 §5.4).
fn cookies(headers: &HeaderMap) -> impl Iterator<Item = (&[u8], &[u8])> {
    let pairs = headers.get_all(COOKIE).iter().flat_map(|value| value.as_bytes().split(|b| *b == b';'));
    pairs.filter_map(|pair| {
        let at = pair.iter().position(|b| *b == b'=')?;
        let (name, value) = (pair[..at].trim_ascii(), pair[at + 1..].trim_ascii());
        let quoted = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\""));
        Some((name, quoted.unwrap_or(value)))
    })
}

impl Authentication {
    pub(super) fn add(&mut self, rules: Vec<Compiled>) {
        self.rules.extend(rules);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    pub(super) fn looks_into(&self, query: &str) -> bool {
        let mut keys = form_urlencoded::parse(query.as_bytes()).map(|(key, _)| key);
        !self.is_empty() && keys.any(|key| self.rules.iter().any(|rule| rule.params().any(|name| name == key)))
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.rules.iter().map(|rule| &rule.rule).eq(other.rules.iter().map(|rule| &rule.rule))
    }

    /// Whose token the request carries.
    pub(super) fn authenticate(&self, request: &Request<'_>, keys: &dyn Keys, now: u64) -> Result<Caller, TokenError> {
        // Each token once, with the rules that look where it stands.
        let mut found: Vec<(String, Vec<usize>)> = Vec::new();
        for (index, rule) in self.rules.iter().enumerate() {
            for token in rule.tokens(request)? {
                match found.iter().position(|(known, _)| *known == token) {
                    Some(at) => found[at].1.push(index),
                    None if found.len() == MOST_TOKENS => return Err(TokenError::Several),
                    None => found.push((token, vec![index])),
                }
            }
        }
        let mut accepted: Option<(Claims, usize)> = None;
        for (token, rules) in found {
            let mut why = None;
            let mut claims = None;
            for index in rules {
                match self.rules[index].accepts(&token, keys, now) {
                    Ok(by) => {
                        claims = Some((by, index));
                        break;
                    }
                    // Of several reasons, one that is not only another issuer's.
                    Err(error) => match &why {
                        Some(known) if !matches!(known, TokenError::Issuer { .. }) => {}
                        _ => why = Some(error),
                    },
                }
            }
            let Some(claims) = claims else {
                return Err(why.unwrap_or(TokenError::Signature));
            };
            if accepted.replace(claims).is_some() {
                return Err(TokenError::Several);
            }
        }
        Ok(Caller { accepted })
    }

    /// Changes the head of a request: takes out what only a waypoint may say, and tokens that the program is not to get, and
    /// tells it of the claims.
    pub(super) fn rewrite(&self, caller: &Caller, query: Option<&str>, headers: &mut HeaderMap) -> Rewritten {
        for rule in &self.rules {
            for name in rule.payload_header.iter().chain(rule.claim_headers.iter().map(|(name, _)| name)) {
                headers.remove(name);
            }
        }
        let Some((claims, index)) = &caller.accepted else { return Rewritten::default() };
        let rule = &self.rules[*index];
        let mut rewritten = Rewritten::default();
        if !rule.rule.forward {
            rule.take_out(query, headers, &mut rewritten);
        }
        if let Some(name) = &rule.payload_header
            && let Ok(value) = HeaderValue::from_str(claims.encoded())
        {
            headers.insert(name, value);
        }
        for (name, path) in &rule.claim_headers {
            let Some(value) = claims.get(path.iter().map(|name| &**name)).and_then(told) else { continue };
            headers.insert(name, value);
        }
        rewritten
    }
}

impl Compiled {
    /// Takes the tokens out of a request.
    fn take_out(&self, query: Option<&str>, headers: &mut HeaderMap, out: &mut Rewritten) {
        for (name, prefix) in &self.headers {
            let is_token = |value: &HeaderValue| behind(value.as_bytes(), prefix).is_some();
            if headers.get_all(name).iter().any(is_token) {
                let others: Vec<HeaderValue> =
                    headers.get_all(name).iter().filter(|value| !is_token(value)).cloned().collect();
                headers.remove(name);
                for value in others {
                    headers.append(name, value);
                }
            }
        }
        if let Some(query) = query {
            let carries = |pair: &str| {
                let key = form_urlencoded::parse(pair.as_bytes()).next().map(|(key, _)| key.into_owned());
                key.is_some_and(|key| self.params().any(|name| name == key))
            };
            if query.split('&').any(carries) {
                let rest: Vec<&str> = query.split('&').filter(|pair| !carries(pair)).collect();
                out.query = Some(rest.join("&"));
            }
        }
        let wanted = |name: &[u8]| self.rule.cookies.iter().any(|cookie| cookie.as_bytes() == name);
        if !self.rule.cookies.is_empty() && cookies(headers).any(|(name, _)| wanted(name)) {
            let mut kept = Vec::new();
            for value in headers.get_all(COOKIE) {
                for pair in value.as_bytes().split(|b| *b == b';') {
                    let name = pair.split(|b| *b == b'=').next().unwrap_or_default().trim_ascii();
                    if !wanted(name) && !pair.trim_ascii().is_empty() {
                        kept.push(pair.trim_ascii().to_vec());
                    }
                }
            }
            headers.remove(COOKIE);
            if !kept.is_empty()
                && let Ok(value) = HeaderValue::from_bytes(&kept.join(&b"; "[..]))
            {
                headers.insert(COOKIE, value);
            }
        }
    }
}

/// A claim as a header says it: a text, number or truth value as it is, everything else as JSON in base64, as Istio does.
fn told(claim: &Value) -> Option<HeaderValue> {
    let text = match claim {
        Value::Null => return None,
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) => claim.to_string(),
        Value::Array(_) | Value::Object(_) => STANDARD.encode(claim.to_string()),
    };
    // What no header can hold is not said: a part of it would be something else.
    HeaderValue::from_str(&text).ok()
}

impl Caller {
    /// What the request's token says; `None` if it has none.
    pub fn claims(&self) -> Option<&Claims> {
        self.accepted.as_ref().map(|(claims, _)| claims)
    }
}

#[cfg(test)]
#[path = "authentication_tests.rs"]
mod tests;
