//! Tests of one value, compiled once.

use http::HeaderName;
use leno_model::Name;
use leno_model::http::{PathMatch, ValueMatch, ValueTest};
use regex::bytes::{Regex, RegexBuilder};

use super::error::RuleError;
use super::path;
use super::request::Request;

/// Most memory of a compiled expression. Compiling a larger one fails: a route must not be a way to fill a proxy.
const LARGEST: usize = 256 * 1024;

/// The expression, which the whole text has to match.
pub(super) fn expression(value: &Name) -> Result<Regex, RuleError> {
    // Alone, too: `a)|(b` would become one by the brackets around it.
    let problem = |error: regex::Error| {
        let told = error.to_string();
        // The library draws the place on several lines; its last one has the cause.
        let cause = told.lines().next_back().unwrap_or_default();
        RuleError::Regex { value: value.clone(), problem: cause.trim_start_matches("error: ").to_owned() }
    };
    let builder = |text: &str| RegexBuilder::new(text).unicode(false).size_limit(LARGEST).build();
    builder(value).map_err(problem)?;
    builder(&format!("^(?:{value})$")).map_err(problem)
}

/// A test of a value.
#[derive(Debug, Clone)]
pub(super) enum Test {
    Exact(Name),
    Regex(Regex),
}

impl Test {
    pub(super) fn new(test: &ValueTest) -> Result<Self, RuleError> {
        Ok(match test {
            ValueTest::Exact(value) => Self::Exact(value.clone()),
            ValueTest::Regex(value) => Self::Regex(expression(value)?),
        })
    }

    pub(super) fn passes(&self, value: &[u8]) -> bool {
        match self {
            Self::Exact(want) => want.as_bytes() == value,
            Self::Regex(regex) => regex.is_match(value),
        }
    }
}

/// A test of a header.
#[derive(Debug, Clone)]
pub(super) struct HeaderTest {
    name: HeaderName,
    test: Test,
}

impl HeaderTest {
    pub(super) fn new(wanted: &ValueMatch) -> Result<Self, RuleError> {
        Ok(Self { name: header_name(&wanted.name)?, test: Test::new(&wanted.value)? })
    }

    pub(super) fn passes(&self, request: &Request<'_>) -> bool {
        if self.name == http::header::HOST
            && let Some(port) = request.host_port
            && self.test.passes(format!("{}:{port}", request.host).as_bytes())
        {
            return true;
        }
        request.header(&self.name).is_some_and(|value| self.test.passes(&value))
    }

    /// The header's name and the exact value that it must have, if it must have one.
    pub(super) fn exact(&self) -> Option<(&HeaderName, &Name)> {
        match &self.test {
            Test::Exact(value) if self.name != http::header::HOST => Some((&self.name, value)),
            _ => None,
        }
    }
}

/// The name of a header; a route may write `:authority` for `host`.
pub(super) fn header_name(name: &Name) -> Result<HeaderName, RuleError> {
    if &**name == ":authority" {
        return Ok(http::header::HOST);
    }
    HeaderName::from_bytes(name.as_bytes()).map_err(|_| RuleError::HeaderName(name.clone()))
}

/// A test of a path. Its values have the same form as a request's.
#[derive(Debug, Clone)]
pub(super) enum PathTest {
    Exact(Name),
    /// Without a slash at its end; empty for `/`.
    Prefix(Name),
    Regex(Name, Regex),
}

impl PathTest {
    pub(super) fn new(wanted: &PathMatch) -> Result<Self, RuleError> {
        Ok(match wanted {
            PathMatch::Exact(value) => Self::Exact(normal(value)?),
            PathMatch::Prefix(value) => Self::Prefix(normal(value)?.trim_end_matches('/').into()),
            PathMatch::Regex(value) => Self::Regex(value.clone(), expression(value)?),
        })
    }
}

/// A path that a user wrote, in the form that requests' paths have. A user may write it decoded.
pub(super) fn normal(value: &Name) -> Result<Name, RuleError> {
    let encoded = value.chars().fold(String::with_capacity(value.len()), |mut text, character| {
        if character == ' ' || !character.is_ascii() {
            let mut bytes = [0; 4];
            character.encode_utf8(&mut bytes).bytes().for_each(|byte| text.push_str(&format!("%{byte:02X}")));
        } else {
            text.push(character);
        }
        text
    });
    match path::normalise(encoded.as_bytes()) {
        Ok(path) => Ok(path.as_ref().into()),
        Err(_) if value.contains('?') => Err(RuleError::Path {
            value: value.clone(),
            problem: "paths are compared without the query; leave out what begins with ?".to_owned(),
        }),
        Err(error) => Err(RuleError::Path { value: value.clone(), problem: format!("it {}", error.what()) }),
    }
}
