//! Conversion between what is said of an authoriser and its message.

use std::sync::Arc;
use std::time::Duration;

use leno_model::http::{Authorizer, CheckedBody};

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
    }))
}

fn body(body: wire::AuthorizerBody) -> Result<CheckedBody, ConvertError> {
    match body.max_bytes {
        0 => Err(ConvertError::Missing { field: "max_bytes" }),
        most => Ok(CheckedBody { most, partial: body.allow_partial, raw: body.raw }),
    }
}

/// Whether a waypoint that knows only what the first version of the message had can ask it as its author meant.
pub(super) fn is_known_to_all(authorizer: &Authorizer) -> bool {
    authorizer.body.is_none()
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
    }
}
