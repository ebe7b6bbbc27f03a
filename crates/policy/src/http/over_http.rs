//! How an external authoriser is asked over HTTP, and what its answer means (`envoyExtAuthzHttp`).
//!
//! The answer is an ordinary response: status 200 allows, any other denies, and one from 500 on is none. Which headers go which
//! way is the provider's to say. Those that decide where a message ends or goes, or that are one connection's own business, go
//! no way at all, whatever it says.

use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue, LOCATION, SET_COOKIE, WWW_AUTHENTICATE};
use leno_model::Name;
use leno_model::http::{AllowedBy, AnswerHeader, AuthorizerAnswer, DeniedBy, HeaderMeets, HttpCheck};

use super::authorizer::is_fixed;

/// Headers that an answer wants taken out of the request, as Envoy has it.
const REMOVE: HeaderName = HeaderName::from_static("x-envoy-auth-headers-to-remove");

/// Whether a header's name, in lower case, is one that a pattern means: itself, `x*`, or `*x`.
pub fn matches(pattern: &str, name: &str) -> bool {
    match (pattern.strip_suffix('*'), pattern.strip_prefix('*')) {
        (Some(start), _) => name.starts_with(start),
        (None, Some(end)) => name.ends_with(end),
        (None, None) => name == pattern,
    }
}

fn is_among(patterns: &[Name], name: &HeaderName) -> bool {
    patterns.iter().any(|pattern| matches(pattern, name.as_str()))
}

/// The headers of a question about a request with these.
pub fn question_headers(how: &HttpCheck, request: &HeaderMap) -> HeaderMap {
    let is_sent = |name: &HeaderName| *name == AUTHORIZATION || is_among(&how.request_headers, name);
    let mut out = HeaderMap::new();
    for (name, value) in request.iter().filter(|(name, _)| !is_fixed(name) && is_sent(name)) {
        let _ = out.try_append(name.clone(), value.clone());
    }
    for (name, value) in &how.added {
        let header = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(value));
        if let (Ok(name), Ok(value)) = header
            && !is_fixed(&name)
        {
            let _ = out.try_insert(name, value);
        }
    }
    out
}

/// What an answer means; `None` if it is none, which its status says.
pub fn answer(how: &HttpCheck, status: u16, headers: &HeaderMap, body: Vec<u8>) -> Option<AuthorizerAnswer> {
    match status {
        200 => Some(AuthorizerAnswer::Allowed(allowed(how, headers))),
        500.. => None,
        _ => Some(AuthorizerAnswer::Denied(denied(how, status, headers, body))),
    }
}

fn allowed(how: &HttpCheck, headers: &HeaderMap) -> AllowedBy {
    let named = headers.get_all(REMOVE).iter().flat_map(|value| value.as_bytes().split(|b| *b == b','));
    let named = named.map(|name| String::from_utf8_lossy(name.trim_ascii()).to_ascii_lowercase());
    let mut to_upstream = Vec::new();
    let mut to_client = Vec::new();
    for name in headers.keys().filter(|name| !is_fixed(name) && **name != REMOVE) {
        if is_among(&how.to_upstream, name) {
            take(headers, name, HeaderMeets::Overwrite, &mut to_upstream);
        }
        if is_among(&how.to_client_allowed, name) {
            // Each is a cookie of its own, and none takes the place of a program's.
            let first = if *name == SET_COOKIE { HeaderMeets::Append } else { HeaderMeets::Overwrite };
            take(headers, name, first, &mut to_client);
        }
    }
    AllowedBy {
        headers: to_upstream,
        remove: named.filter(|name| !name.is_empty()).collect(),
        response_headers: to_client,
        changes_query: false,
    }
}

fn denied(how: &HttpCheck, status: u16, headers: &HeaderMap, body: Vec<u8>) -> DeniedBy {
    let mut to_client = Vec::new();
    let is_sent = |name: &HeaderName| {
        how.to_client_denied.is_empty()
            || [WWW_AUTHENTICATE, LOCATION].contains(name)
            || is_among(&how.to_client_denied, name)
    };
    for name in headers.keys().filter(|name| !is_fixed(name) && is_sent(name)) {
        take(headers, name, HeaderMeets::Append, &mut to_client);
    }
    DeniedBy { code: status.into(), message: String::new(), status: Some(status.into()), headers: to_client, body }
}

/// All values of a header: the first meets what is there, the others come after it.
fn take(headers: &HeaderMap, name: &HeaderName, first: HeaderMeets, out: &mut Vec<AnswerHeader>) {
    for (index, value) in headers.get_all(name).iter().enumerate() {
        let how = if index == 0 { first } else { HeaderMeets::Append };
        out.push(AnswerHeader { name: name.as_str().to_owned(), value: value.as_bytes().to_vec(), how });
    }
}

#[cfg(test)]
#[path = "over_http_tests.rs"]
mod tests;
