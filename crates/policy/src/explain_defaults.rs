//! What a VirtualService does to requests that follow no route, in words.

use std::time::Duration;

use leno_model::http::{Abort, RequestDefaults};

/// All of a million.
const ALL: u32 = 1_000_000;

/// One sentence for each thing that it does.
pub(crate) fn said(defaults: &RequestDefaults) -> Vec<String> {
    let RequestDefaults { id, timeout, attempt_timeout, retry, fault, .. } = defaults;
    let mut out = Vec::new();
    let fault = fault.unwrap_or_default();
    if let Some((share, wait)) = fault.delay.filter(|(share, _)| *share > 0) {
        out.push(format!("VirtualService {id} has {} wait {wait:?} (fault.delay)", of_requests(share)));
    }
    if let Some((share, failure)) = fault.abort.filter(|(share, _)| (1..ALL).contains(share)) {
        let (requests, failure) = (of_requests(share), failed(failure));
        out.push(format!("VirtualService {id} has {requests} fail on purpose with {failure} (fault.abort)"));
    }
    let limited = |limit: &Option<Duration>| limit.filter(|limit| !limit.is_zero());
    if let Some(limit) = limited(timeout) {
        out.push(format!("VirtualService {id} gives the request {limit:?}, with its response (timeout)"));
    }
    if let Some(limit) = limited(attempt_timeout) {
        out.push(format!("VirtualService {id} gives each attempt {limit:?} (retries.perTryTimeout)"));
    }
    // Without a status that is a reason, it changes nothing.
    if let Some(retry) = retry.as_ref().filter(|retry| !retry.codes.is_empty()) {
        let codes = retry.codes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let most = retry.attempts.map(|most| format!(", at most so often: {most}")).unwrap_or_default();
        out.push(format!(
            "VirtualService {id} has a request without a body sent again after status {codes}{most} (retries)"
        ));
    }
    out
}

/// The status of a failure that every request gets, with the sentence on it.
pub(crate) fn always_fails(defaults: &RequestDefaults) -> Option<(u16, String)> {
    let (share, failure) = defaults.fault?.abort?;
    let status = match failure {
        Abort::Status(status) => status,
        Abort::Grpc(_) => 200,
    };
    let said =
        || format!("VirtualService {} has every request fail with {} (fault.abort)", defaults.id, failed(failure));
    (share >= ALL).then(|| (status, said()))
}

fn failed(failure: Abort) -> String {
    match failure {
        Abort::Status(status) => format!("status {status}"),
        Abort::Grpc(status) => format!("gRPC status {status}"),
    }
}

fn of_requests(share: u32) -> String {
    match share {
        ALL.. => "every request".to_owned(),
        share => format!("{} % of requests", f64::from(share) / 10_000.0),
    }
}

#[cfg(test)]
mod tests {
    use leno_model::PolicyName;
    use leno_model::http::{Fault, Retry};

    use super::*;

    fn defaults(fault: Fault) -> RequestDefaults {
        RequestDefaults {
            id: PolicyName { namespace: "shop".into(), name: "slow".into() },
            services: Vec::new(),
            timeout: None,
            attempt_timeout: None,
            retry: None,
            fault: Some(fault),
        }
    }

    #[test]
    fn each_effect_is_said_once() {
        let fault = Fault { delay: Some((ALL, Duration::from_secs(2))), abort: Some((125_000, Abort::Status(503))) };
        let retry = Some(Retry { codes: vec![503, 429], attempts: Some(2), backoff: None });
        let all = RequestDefaults {
            timeout: Some(Duration::from_secs(5)),
            attempt_timeout: Some(Duration::from_millis(500)),
            retry,
            ..defaults(fault)
        };
        assert_eq!(
            said(&all),
            [
                "VirtualService shop/slow has every request wait 2s (fault.delay)",
                "VirtualService shop/slow has 12.5 % of requests fail on purpose with status 503 (fault.abort)",
                "VirtualService shop/slow gives the request 5s, with its response (timeout)",
                "VirtualService shop/slow gives each attempt 500ms (retries.perTryTimeout)",
                "VirtualService shop/slow has a request without a body sent again after status 503, 429, at most so often: 2 \
                 (retries)",
            ]
        );
        assert_eq!(always_fails(&all), None);
    }

    #[test]
    fn what_happens_to_none_is_not_said_and_what_happens_to_all_is_a_refusal() {
        let none = Fault { delay: Some((0, Duration::from_secs(2))), abort: Some((0, Abort::Status(503))) };
        assert!(said(&defaults(none)).is_empty());
        let all = defaults(Fault { delay: None, abort: Some((ALL, Abort::Grpc(14))) });
        let (status, reason) = always_fails(&all).expect("a failure");
        assert_eq!((status, said(&all).len()), (200, 0));
        assert_eq!(reason, "VirtualService shop/slow has every request fail with gRPC status 14 (fault.abort)");
    }
}
