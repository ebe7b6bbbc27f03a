//! Sessions that stay at one endpoint (Gateway API, GEP-1619): the token that a client is given and brings again.
//!
//! A token names an endpoint by a number that means something only among the endpoints of the rule's own backends, so a
//! forged one leads nowhere else. It is the same in all waypoints.

use http::header::{COOKIE, SET_COOKIE};
use http::{HeaderMap, HeaderName, HeaderValue};
use leno_model::http::{PathMatch, SessionPersistence, SessionToken};
use leno_model::{Name, ServiceName};

use super::error::RuleError;
use crate::balance::{mix, of_bytes};

/// Tokens of a request that are looked at; others are somebody's noise.
const MOST_TOKENS: usize = 8;

/// How far another waypoint's clock may be ahead, milliseconds.
const CLOCKS_DIFFER: u64 = 60_000;

/// Headers that can't carry a session's token, because they say something of the message, or would be read as a cookie.
const TAKEN: [&str; 12] = [
    "connection",
    "content-length",
    "content-type",
    "cookie",
    "expect",
    "host",
    "keep-alive",
    "set-cookie",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// The token of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token {
    /// The endpoint, as [`Scope::place`] numbers it.
    pub place: u64,
    /// When the session began, milliseconds since the Unix epoch.
    pub began: u64,
}

impl Token {
    /// Reads a token; `None` if it is none.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let (place, began) = text.split_once('-')?;
        let number = |digits: &str| {
            let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
            u64::from_str_radix(digits, 16).ok().filter(|_| plain && digits.len() <= 16)
        };
        Some(Self { place: number(place).filter(|_| place.len() == 16)?, began: number(began)? })
    }
}

impl std::fmt::Display for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}-{:x}", self.place, self.began)
    }
}

/// What numbers of endpoints mean: those of one backend of one rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scope(u64);

impl Scope {
    /// The number by which a token names the endpoint with this identity.
    pub fn place(self, endpoint: u64) -> u64 {
        mix(self.0 ^ endpoint)
    }
}

/// How the sessions of a rule are kept.
#[derive(Debug)]
pub struct Sessions {
    /// How a token is carried.
    carrier: Carrier,
    /// Longest age, milliseconds.
    age: Option<u64>,
    /// Of the rule.
    rule: u64,
}

#[derive(Debug)]
enum Carrier {
    Header(HeaderName),
    Cookie {
        name: Name,
        /// Seconds for which the client keeps it; `None` until its own session ends.
        kept: Option<u64>,
        /// For each match of the rule, the path below which the client brings it.
        paths: Vec<Name>,
    },
}

impl Sessions {
    /// For the rule that is called `label`, with these paths.
    pub(super) fn new<'p>(
        label: &str,
        wanted: &SessionPersistence,
        paths: impl Iterator<Item = &'p PathMatch>,
    ) -> Result<Self, RuleError> {
        let rule = of_bytes(label.as_bytes());
        // One name for each rule, so that a client of several rules keeps a token for each.
        let own = || Name::from(format!("leno-session-{:08x}", rule >> 32));
        let name = wanted.name.clone().unwrap_or_else(own);
        let problem = |why: &str| RuleError::Session { name: name.clone(), problem: why.to_owned() };
        if wanted.absolute_timeout.is_some_and(|age| age.is_zero()) {
            return Err(problem("an absolute timeout of 0 would end every session at once; leave it out"));
        }
        let token = |name: &str| {
            let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
            !name.is_empty() && name.bytes().all(plain)
        };
        if !token(&name) {
            return Err(problem("its name has other characters than letters, digits, '-', '_' and '.'"));
        }
        let carrier = match wanted.token {
            SessionToken::Header => {
                let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| problem("it is no header's name"))?;
                if TAKEN.contains(&header.as_str()) {
                    return Err(problem("this header says something else"));
                }
                Carrier::Header(header)
            }
            SessionToken::Cookie { permanent } => {
                let age = wanted.absolute_timeout.filter(|_| permanent);
                if permanent && age.is_none() {
                    return Err(problem("a permanent cookie needs an absolute timeout"));
                }
                let kept = age.map(|age| age.as_secs() + u64::from(age.subsec_nanos() > 0));
                Carrier::Cookie { name, kept, paths: paths.map(cookie_path).collect() }
            }
        };
        let age = wanted.absolute_timeout.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
        Ok(Self { carrier, age, rule })
    }

    /// What carries the token, in words.
    pub fn carrier(&self) -> String {
        match &self.carrier {
            Carrier::Header(name) => format!("the header {name}"),
            Carrier::Cookie { name, .. } => format!("the cookie {name}"),
        }
    }

    /// What tokens mean at a backend of the rule.
    pub fn scope(&self, service: &ServiceName, port: u16) -> Scope {
        let name = of_bytes(service.namespace.as_bytes()) ^ mix(of_bytes(service.hostname.as_bytes()));
        Scope(mix(self.rule ^ mix(name ^ u64::from(port))))
    }

    /// The tokens that a request brings whose session goes on at `now`, milliseconds since the Unix epoch.
    pub fn tokens(&self, headers: &HeaderMap, now: u64) -> impl Iterator<Item = Token> {
        let goes_on = move |token: &Token| {
            let lasts = |age: u64| now < token.began.saturating_add(age);
            token.began <= now.saturating_add(CLOCKS_DIFFER) && self.age.is_none_or(lasts)
        };
        let (cookie, header) = match &self.carrier {
            Carrier::Cookie { name, .. } => (Some(cookies(headers, name)), None),
            Carrier::Header(name) => (None, Some(headers.get_all(name).iter().map(HeaderValue::as_bytes))),
        };
        let texts = cookie.into_iter().flatten().chain(header.into_iter().flatten());
        texts.take(MOST_TOKENS).filter_map(Token::parse).filter(goes_on)
    }

    /// Tells the client of a request that made the match `matched` its token. `is_new` says whether it has none that is like it.
    pub fn tell(&self, token: Token, is_new: bool, matched: usize, headers: &mut HeaderMap) {
        match &self.carrier {
            // Always, because a client may take what the latest response says.
            Carrier::Header(name) => {
                if let Ok(value) = HeaderValue::try_from(token.to_string()) {
                    headers.insert(name, value);
                }
            }
            Carrier::Cookie { name, kept, paths } if is_new => {
                let path = paths.get(matched).map_or("/", |path| path);
                let kept = kept.map(|seconds| format!("; Max-Age={seconds}")).unwrap_or_default();
                // Not `Secure`: inside a mesh, a program's own requests are in the clear.
                let line = format!("{name}={token}; Path={path}{kept}; HttpOnly; SameSite=Strict");
                if let Ok(value) = HeaderValue::try_from(line) {
                    headers.append(SET_COOKIE, value);
                }
            }
            Carrier::Cookie { .. } => {}
        }
    }
}

/// The values of cookies with this name (RFC 6265 §4.2.1).
fn cookies<'h>(headers: &'h HeaderMap, name: &str) -> impl Iterator<Item = &'h [u8]> {
    let lines = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes);
    let pairs = lines.flat_map(|line| line.split(|b| *b == b';')).map(<[u8]>::trim_ascii);
    pairs.filter_map(move |pair| pair.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
}

/// The path below which all that makes a match lies; of a regular expression, as far as its beginning is plain.
fn cookie_path(path: &PathMatch) -> Name {
    match path {
        PathMatch::Exact(path) => whole(path),
        PathMatch::Prefix(path) => whole(path.trim_end_matches('/')),
        PathMatch::Regex(text) => {
            let special = |c: char| "\\.+*?()|[]{}^$".contains(c);
            // Of alternatives, each begins in its own way.
            let end = if text.contains('|') { 0 } else { text.find(special).unwrap_or(text.len()) };
            let plain = &text[..end];
            whole(plain.rfind('/').map_or("", |slash| &plain[..slash]))
        }
    }
}

/// `path` in a cookie's `Path`; that of everything if it can't stand there.
fn whole(path: &str) -> Name {
    let plain = |b: u8| b.is_ascii_graphic() && b != b';';
    if path.starts_with('/') && path.bytes().all(plain) { path.into() } else { "/".into() }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
