//! What an `envoyExtAuthzHttp` provider says that one of gRPC does not.

use http::header::{HeaderName, HeaderValue};
use leno_model::Name;
use leno_model::http::HttpCheck;
use leno_policy::http::authorizer::is_fixed;
use serde_json::{Map, Value};

/// The fields that are read here.
pub(super) const FIELDS: [&str; 7] = [
    "pathPrefix",
    "includeRequestHeadersInCheck",
    "includeHeadersInCheck",
    "includeAdditionalHeadersInCheck",
    "headersToUpstreamOnAllow",
    "headersToDownstreamOnDeny",
    "headersToDownstreamOnAllow",
];

/// What a question has anyway, so naming it changes nothing.
const ALWAYS_SENT: [&str; 2] = ["host", "content-length"];

/// Reads [`FIELDS`].
///
/// # Errors
/// If one of them can't be honoured, with its name.
pub(super) fn read(kind: &str, fields: &Map<String, Value>) -> Result<HttpCheck, String> {
    let mut out = HttpCheck::default();
    let mut older = Vec::new();
    for (field, value) in fields {
        let at = format!("{kind}.{field}");
        match field.as_str() {
            "pathPrefix" => out.path_prefix = path_prefix(&at, value)?,
            "includeRequestHeadersInCheck" => out.request_headers = patterns(&at, value, &ALWAYS_SENT)?,
            "includeHeadersInCheck" => older = patterns(&at, value, &ALWAYS_SENT)?,
            "includeAdditionalHeadersInCheck" => out.added = added(&at, value)?,
            "headersToUpstreamOnAllow" => out.to_upstream = patterns(&at, value, &[])?,
            "headersToDownstreamOnDeny" => out.to_client_denied = patterns(&at, value, &["content-length"])?,
            "headersToDownstreamOnAllow" => out.to_client_allowed = patterns(&at, value, &[])?,
            _ => {}
        }
    }
    // The older name counts where the newer one is not used.
    if out.request_headers.is_empty() {
        out.request_headers = older;
    }
    Ok(out)
}

/// What stands before each question's path, which begins with `/` and is normalised already. What both make together has to be a
/// path in its one form too, so that the authoriser judges the path that policies and origins see.
fn path_prefix(at: &str, value: &Value) -> Result<Name, String> {
    let path = value.as_str().ok_or_else(|| format!("{at} is no text"))?;
    let is_plain = |b: u8| b.is_ascii_graphic() && !b"?#%\\\"<>^`{|}".contains(&b);
    let mut parts = path.split('/');
    let begins = parts.next() == Some("");
    let is_path = begins && parts.all(|part| !matches!(part, "" | "." | "..") && part.bytes().all(is_plain));
    if path.is_empty() || is_path {
        Ok(path.into())
    } else {
        Err(format!("{at} is not a path such as /check, without dots, escapes and a slash at its end"))
    }
}

/// Names of headers, or their beginnings or ends. One that no message of a proxy may pass on is a mistake, unless it is one of
/// these, which there is in any case.
fn patterns(at: &str, value: &Value, in_any_case: &[&str]) -> Result<Vec<Name>, String> {
    let listed = value.as_array().ok_or_else(|| format!("{at} is no list"))?;
    let mut out = Vec::with_capacity(listed.len());
    for one in listed {
        let text = one.as_str().unwrap_or_default().to_ascii_lowercase();
        let part = text.strip_suffix('*').or_else(|| text.strip_prefix('*')).unwrap_or(&text);
        let is_name = HeaderName::from_bytes(part.as_bytes()).is_ok() && !part.contains('*');
        if !is_name && text != "*" {
            return Err(format!("{at}: {one} is no header's name, and no beginning (x-*) or end (*-x) of one"));
        }
        if part == text
            && !in_any_case.contains(&part)
            && HeaderName::from_bytes(part.as_bytes()).is_ok_and(|it| is_fixed(&it))
        {
            return Err(format!("{at}: {text} belongs to one connection or message, and is not passed on"));
        }
        out.push(text.into());
    }
    Ok(out)
}

/// Headers with fixed values.
fn added(at: &str, value: &Value) -> Result<Vec<(Name, Name)>, String> {
    let listed = value.as_object().ok_or_else(|| format!("{at} is no mapping"))?;
    let mut out = Vec::with_capacity(listed.len());
    for (name, value) in listed {
        let header = HeaderName::from_bytes(name.as_bytes()).ok().filter(|header| !is_fixed(header));
        let header = header.ok_or_else(|| format!("{at}: {name:?} is no header that can be added"))?;
        // Envoy would put something of the request in the place of %…%.
        let value = value.as_str().filter(|text| HeaderValue::from_str(text).is_ok() && !text.contains('%'));
        let value = value.ok_or_else(|| format!("{at}.{name} is not a fixed text (and %…% is not filled in)"))?;
        out.push((header.as_str().into(), value.into()));
    }
    Ok(out)
}
