//! What an `envoyExtAuthzHttp` provider says that one of gRPC does not.

use http::header::{HeaderName, HeaderValue};
use leno_model::Name;
use leno_model::http::HttpCheck;
use leno_policy::http::authorizer::{DEPTH, is_fixed};
use serde_json::Value;

/// What a question has anyway, so naming it changes nothing.
const ALWAYS_SENT: [&str; 2] = ["host", "content-length"];

/// Reads a field; `at` names it with its provider's kind. Returns whether there is such a field.
///
/// # Errors
/// If it can't be honoured, with its name.
pub(super) fn read(out: &mut HttpCheck, field: &str, at: &str, value: &Value) -> Result<bool, String> {
    match field {
        "pathPrefix" => out.path_prefix = path_prefix(at, value)?,
        // The older name counts where the newer one is not used, whichever stands first.
        "includeRequestHeadersInCheck" | "includeHeadersInCheck" => {
            let named = patterns(at, value, &ALWAYS_SENT)?;
            if out.request_headers.is_empty() || field == "includeRequestHeadersInCheck" && !named.is_empty() {
                out.request_headers = named;
            }
        }
        "includeAdditionalHeadersInCheck" => out.added = added(at, value)?,
        "headersToUpstreamOnAllow" => out.to_upstream = patterns(at, value, &[])?,
        "headersToDownstreamOnDeny" => out.to_client_denied = patterns(at, value, &["content-length"])?,
        "headersToDownstreamOnAllow" => out.to_client_allowed = patterns(at, value, &[])?,
        _ => return Ok(false),
    }
    Ok(true)
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
        let header =
            HeaderName::from_bytes(name.as_bytes()).ok().filter(|header| !is_fixed(header) && *header != DEPTH);
        let header = header.ok_or_else(|| format!("{at}: {name:?} is no header that can be added"))?;
        // Envoy would put something of the request in the place of %…%.
        let value = value.as_str().filter(|text| HeaderValue::from_str(text).is_ok() && !text.contains('%'));
        let value = value.ok_or_else(|| format!("{at}.{name} is not a fixed text (and %…% is not filled in)"))?;
        out.push((header.as_str().into(), value.into()));
    }
    Ok(out)
}
