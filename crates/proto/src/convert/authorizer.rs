//! Conversion between what is said of an authoriser and its message.

use std::sync::Arc;
use std::time::Duration;

use leno_model::Name;
use leno_model::http::{Authorizer, CheckedBody, HttpCheck};

use super::fields::port;
use crate::ConvertError;
use crate::waypoint as wire;

pub(super) fn from_proto(authorizer: wire::Authorizer) -> Result<Arc<Authorizer>, ConvertError> {
    if authorizer.hostname.is_empty() {
        return Err(ConvertError::Missing { field: "hostname" });
    }
    let status = authorizer.status_on_error;
    let known = u16::try_from(status).ok().filter(|status| (200..600).contains(status));
    Ok(Arc::new(Authorizer {
        provider: authorizer.provider.into(),
        namespace: authorizer.namespace.into(),
        hostname: authorizer.hostname.into(),
        port: port("port", authorizer.port)?,
        timeout: Duration::from_millis(authorizer.timeout_ms),
        fail_open: authorizer.fail_open,
        status_on_error: known.ok_or(ConvertError::UnknownEnum {
            field: "status_on_error",
            value: i32::try_from(status).unwrap_or(i32::MAX),
        })?,
        body: authorizer.body.map(body).transpose()?,
        http: authorizer.http.map(|over| Box::new(over_http(over))),
    }))
}

fn body(body: wire::AuthorizerBody) -> Result<CheckedBody, ConvertError> {
    match body.max_bytes {
        0 => Err(ConvertError::Missing { field: "max_bytes" }),
        most => Ok(CheckedBody { most, partial: body.allow_partial, raw: body.raw }),
    }
}

fn over_http(over: wire::AuthorizerOverHttp) -> HttpCheck {
    let names = |texts: Vec<String>| texts.into_iter().map(Name::from).collect();
    HttpCheck {
        path_prefix: over.path_prefix.into(),
        request_headers: names(over.request_headers),
        added: over.added_headers.into_iter().map(|added| (added.name.into(), added.value.into())).collect(),
        to_upstream: names(over.to_upstream),
        to_client_denied: names(over.to_client_denied),
        to_client_allowed: names(over.to_client_allowed),
    }
}

fn over_http_to_proto(how: &HttpCheck) -> wire::AuthorizerOverHttp {
    let texts = |names: &[Name]| names.iter().map(ToString::to_string).collect();
    let added = |(name, value): &(Name, Name)| wire::AddedHeader { name: name.to_string(), value: value.to_string() };
    wire::AuthorizerOverHttp {
        path_prefix: how.path_prefix.to_string(),
        request_headers: texts(&how.request_headers),
        added_headers: how.added.iter().map(added).collect(),
        to_upstream: texts(&how.to_upstream),
        to_client_denied: texts(&how.to_client_denied),
        to_client_allowed: texts(&how.to_client_allowed),
    }
}

/// Whether a waypoint that knows only what the first version of the message had can ask it as its author meant.
pub(super) fn is_known_to_all(authorizer: &Authorizer) -> bool {
    authorizer.body.is_none() && authorizer.http.is_none()
}

pub(super) fn to_proto(authorizer: &Authorizer) -> wire::Authorizer {
    wire::Authorizer {
        provider: authorizer.provider.to_string(),
        namespace: authorizer.namespace.to_string(),
        hostname: authorizer.hostname.to_string(),
        port: authorizer.port.into(),
        timeout_ms: u64::try_from(authorizer.timeout.as_millis()).unwrap_or(u64::MAX),
        fail_open: authorizer.fail_open,
        status_on_error: authorizer.status_on_error.into(),
        body: authorizer.body.map(|body| wire::AuthorizerBody {
            max_bytes: body.most,
            allow_partial: body.partial,
            raw: body.raw,
        }),
        http: authorizer.http.as_deref().map(over_http_to_proto),
    }
}
