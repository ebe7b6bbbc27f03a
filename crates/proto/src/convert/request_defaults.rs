//! Conversion between what happens to requests without a route and its message.

use std::time::Duration;

use leno_model as model;
use leno_model::http;

use super::fields::{port, service_name};
use crate::ConvertError;
use crate::waypoint as wire;

/// Reads what happens to requests without a route.
///
/// # Errors
/// If it lacks something, or has a number that means nothing.
pub fn request_defaults_from_proto(defaults: wire::RequestDefaults) -> Result<http::RequestDefaults, ConvertError> {
    if defaults.name.is_empty() {
        return Err(ConvertError::Missing { field: "name" });
    }
    let retry = |retry: wire::DefaultRetry| {
        let codes = retry.codes.into_iter().map(|code| port("retry.codes", code)).collect::<Result<_, _>>()?;
        let backoff = retry.backoff_ms.map(Duration::from_millis);
        Ok::<_, ConvertError>(http::Retry { codes, attempts: retry.attempts, backoff })
    };
    let abort = |abort: wire::Abort| {
        use wire::abort::Failure;
        let failure = match abort.failure.ok_or(ConvertError::Missing { field: "abort.failure" })? {
            Failure::Status(status) => http::Abort::Status(port("abort.status", status)?),
            Failure::GrpcStatus(status) => http::Abort::Grpc(port("abort.grpc_status", status)?),
        };
        Ok::<_, ConvertError>((abort.share, failure))
    };
    let delay = defaults.delay.map(|delay| (delay.share, Duration::from_millis(delay.ms)));
    let abort = defaults.abort.map(abort).transpose()?;
    Ok(http::RequestDefaults {
        id: model::PolicyName { namespace: defaults.namespace.into(), name: defaults.name.into() },
        services: defaults.services.iter().map(|name| service_name("service", name)).collect::<Result<_, _>>()?,
        timeout: defaults.timeout_ms.map(Duration::from_millis),
        attempt_timeout: defaults.attempt_timeout_ms.map(Duration::from_millis),
        retry: defaults.retry.map(retry).transpose()?,
        fault: (delay.is_some() || abort.is_some()).then_some(http::Fault { delay, abort }),
    })
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Writes what happens to requests without a route.
pub fn request_defaults_to_proto(defaults: &http::RequestDefaults) -> wire::RequestDefaults {
    use wire::abort::Failure;
    let fault = defaults.fault.unwrap_or_default();
    wire::RequestDefaults {
        namespace: defaults.id.namespace.to_string(),
        name: defaults.id.name.to_string(),
        services: defaults.services.iter().map(ToString::to_string).collect(),
        timeout_ms: defaults.timeout.map(milliseconds),
        attempt_timeout_ms: defaults.attempt_timeout.map(milliseconds),
        retry: defaults.retry.as_ref().map(|retry| wire::DefaultRetry {
            codes: retry.codes.iter().map(|code| u32::from(*code)).collect(),
            attempts: retry.attempts,
            backoff_ms: retry.backoff.map(milliseconds),
        }),
        delay: fault.delay.map(|(share, wait)| wire::Delay { share, ms: milliseconds(wait) }),
        abort: fault.abort.map(|(share, failure)| wire::Abort {
            share,
            failure: Some(match failure {
                http::Abort::Status(status) => Failure::Status(status.into()),
                http::Abort::Grpc(status) => Failure::GrpcStatus(status.into()),
            }),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let defaults = http::RequestDefaults {
            id: model::PolicyName { namespace: "shop".into(), name: "web".into() },
            services: vec![model::ServiceName { namespace: "shop".into(), hostname: "web.shop.svc".into() }],
            timeout: Some(Duration::from_secs(1)),
            attempt_timeout: Some(Duration::from_millis(200)),
            retry: Some(http::Retry { codes: vec![503], attempts: Some(2), backoff: None }),
            fault: Some(http::Fault {
                delay: Some((1, Duration::from_secs(5))),
                abort: Some((1_000_000, http::Abort::Grpc(14))),
            }),
        };
        assert_eq!(request_defaults_from_proto(request_defaults_to_proto(&defaults)), Ok(defaults.clone()));
        let plain = http::RequestDefaults { retry: None, fault: None, timeout: None, ..defaults.clone() };
        assert_eq!(request_defaults_from_proto(request_defaults_to_proto(&plain)), Ok(plain));
        let mut message = request_defaults_to_proto(&defaults);
        message.abort = Some(wire::Abort { share: 1, failure: None });
        assert!(request_defaults_from_proto(message).is_err());
    }
}
