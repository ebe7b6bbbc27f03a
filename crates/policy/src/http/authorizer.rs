//! What becomes of a request, and of its client, by the answer of an external authoriser.
//!
//! An authoriser is believed about whether a request may pass, and about headers that mean something to programs only. It can't
//! say where a message ends, whom it is for or what protocol a connection has: an answer that tries is not followed at all.

use std::sync::Arc;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use leno_model::http::{AllowedBy, AnswerHeader, Authorizer, DeniedBy, HeaderMeets};
use leno_model::{Mesh, Name, Service, ServiceName};

use crate::routing::RouteError;

/// Headers that decide where a message ends or goes, or that are one connection's own business (RFC 9110 §7.6.1).
const FIXED: [&str; 13] = [
    "connection",
    "content-length",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "expect",
];

/// In a question to an authoriser: how many waypoints have asked about it, or about what it asks about. In the answer of one that
/// refuses to ask once more: that it does. Nobody else has a say in it.
pub const DEPTH: HeaderName = HeaderName::from_static("x-leno-authorizer-depth");

/// Why an authoriser can't be asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreachable {
    /// The mesh does not know its service.
    #[error("{0} is no Service that the mesh knows")]
    Unknown(Name),
    /// Its service has no such port.
    #[error(transparent)]
    Port(RouteError),
}

/// The service of an authoriser, for a waypoint in a namespace.
///
/// # Errors
/// If there is none with the authoriser's port.
pub fn service<'m>(mesh: &'m Mesh, asking: &str, authorizer: &Authorizer) -> Result<&'m Arc<Service>, Unreachable> {
    let Authorizer { namespace, hostname, .. } = authorizer;
    let found = match &**namespace {
        "" => mesh.service_by_hostname(hostname, asking),
        _ => mesh.service(&ServiceName { namespace: namespace.clone(), hostname: hostname.clone() }),
    };
    let found = found.ok_or_else(|| Unreachable::Unknown(hostname.clone()))?;
    let offered: Vec<u16> = found.ports.iter().map(|own| own.service_port).collect();
    if offered.contains(&authorizer.port) {
        return Ok(found);
    }
    Err(Unreachable::Port(RouteError::NoSuchPort { service: found.id.clone(), port: authorizer.port, offered }))
}

/// Why an answer that allows can't be followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// A header that is not an authoriser's to change.
    #[error(
        "its answer changes {0:?}, which is not an authoriser's to change: it decides where a message ends or goes"
    )]
    Fixed(String),
    /// What is no header.
    #[error("its answer has {0:?}, which is no header that a message can have")]
    Header(String),
    /// The query.
    #[error("its answer changes the request's query, which this version of Leno does not do")]
    Query,
}

impl Unusable {
    /// Whether the same question may have a better answer. It may: what the authoriser answers is its own.
    pub fn is_retryable(&self) -> bool {
        true
    }
}

/// What changes on a request's way: names and values that a message can have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allowed {
    remove: Vec<HeaderName>,
    request: Vec<Header>,
    response: Vec<Header>,
}

type Header = (HeaderName, HeaderValue, HeaderMeets);

impl Allowed {
    /// Checks all that an answer changes.
    ///
    /// # Errors
    /// If there is something that is not to be done. Half of an answer would be another one.
    pub fn new(answer: &AllowedBy) -> Result<Self, Unusable> {
        if answer.changes_query {
            return Err(Unusable::Query);
        }
        Ok(Self {
            remove: answer.remove.iter().map(|name| changeable(name)).collect::<Result<_, _>>()?,
            request: answer.headers.iter().map(header).collect::<Result<_, _>>()?,
            response: answer.response_headers.iter().map(header).collect::<Result<_, _>>()?,
        })
    }

    /// Changes the headers of the request: first it removes.
    pub fn change_request(&self, headers: &mut HeaderMap) {
        for name in &self.remove {
            headers.remove(name);
        }
        apply(&self.request, headers);
    }

    /// Whether the response is changed.
    pub fn changes_response(&self) -> bool {
        !self.response.is_empty()
    }

    /// Changes the headers of the response.
    pub fn change_response(&self, headers: &mut HeaderMap) {
        apply(&self.response, headers);
    }
}

/// What a client gets whose request may not pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denied {
    /// Status.
    pub status: u16,
    /// Headers, all of which a message can have.
    pub headers: HeaderMap,
    /// Body.
    pub body: Vec<u8>,
}

/// The status of a denial that names none, as Envoy has it.
const FORBIDDEN: u16 = 403;

impl Denied {
    /// What can be followed of a denial. Nothing about it makes the request pass.
    pub fn new(answer: &DeniedBy) -> Self {
        let mut headers = HeaderMap::new();
        let good: Vec<Header> = answer.headers.iter().filter_map(|one| header(one).ok()).collect();
        apply(&good, &mut headers);
        // What is below is no last response, and 101 would be another protocol.
        let status = answer.status.and_then(|status| u16::try_from(status).ok());
        let status = status.filter(|status| (200..600).contains(status)).unwrap_or(FORBIDDEN);
        let body = if matches!(status, 204 | 205 | 304) { Vec::new() } else { answer.body.clone() };
        Self { status, headers, body }
    }
}

/// Whether a header decides where a message ends or goes, or is one connection's own business.
pub fn is_fixed(name: &HeaderName) -> bool {
    FIXED.contains(&name.as_str())
}

fn apply(changes: &[Header], headers: &mut HeaderMap) {
    for (name, value, how) in changes {
        let is_there = headers.contains_key(name);
        match how {
            HeaderMeets::Append => drop(headers.try_append(name.clone(), value.clone())),
            HeaderMeets::OnlyIfAbsent if is_there => {}
            HeaderMeets::OnlyIfPresent if !is_there => {}
            HeaderMeets::Overwrite | HeaderMeets::OnlyIfAbsent | HeaderMeets::OnlyIfPresent => {
                drop(headers.try_insert(name.clone(), value.clone()));
            }
        }
    }
}

fn header(one: &AnswerHeader) -> Result<Header, Unusable> {
    let name = changeable(&one.name)?;
    let value = HeaderValue::from_bytes(&one.value).map_err(|_| Unusable::Header(shown(&one.name)))?;
    Ok((name, value, one.how))
}

fn changeable(name: &str) -> Result<HeaderName, Unusable> {
    // A name with a colon before it is none of these.
    let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| Unusable::Header(shown(name)))?;
    if is_fixed(&header) { Err(Unusable::Fixed(header.to_string())) } else { Ok(header) }
}

/// As much of a stranger's text as a log takes.
fn shown(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
#[path = "authorizer_tests.rs"]
mod tests;
