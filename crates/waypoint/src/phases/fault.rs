//! Failures that are made on purpose, to see how clients bear them.

use std::time::Duration;

use http::StatusCode;
use leno_model::http::{Abort, RequestDefaults};

use crate::request::refusal::{Flag, Refusal};

/// How long a request waits, if its draw says that it does.
pub(crate) fn delay(defaults: &RequestDefaults) -> Option<Duration> {
    let (share, wait) = defaults.fault?.delay?;
    is_drawn(share, rand::random()).then_some(wait)
}

/// The failure of a request, if its draw says that it fails.
pub(crate) fn abort(defaults: &RequestDefaults) -> Option<Refusal> {
    let (share, failure) = defaults.fault?.abort?;
    is_drawn(share, rand::random()).then(|| refusal(failure))
}

/// Whether a random number is among a share, in millionths.
fn is_drawn(share: u32, random: u64) -> bool {
    random % 1_000_000 < u64::from(share)
}

fn refusal(failure: Abort) -> Refusal {
    let told = Some("fault filter abort");
    let reason = "a VirtualService has this request fail on purpose (fault.abort)";
    let (status, grpc) = match failure {
        Abort::Status(status) => (StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), None),
        Abort::Grpc(status) => (StatusCode::OK, Some(status)),
    };
    Refusal { told, grpc, ..Refusal::new(status, Flag::Fault, reason) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_a_million() {
        assert!(is_drawn(1_000_000, 999_999) && !is_drawn(0, 0));
        assert!(is_drawn(1, 1_000_000) && !is_drawn(1, 1) && !is_drawn(999_999, 999_999));
    }

    #[test]
    fn a_failure_is_told_from_others() {
        let plain = refusal(Abort::Status(418));
        assert_eq!((plain.status.as_u16(), plain.grpc, plain.flag), (418, None, Flag::Fault));
        let grpc = refusal(Abort::Grpc(8));
        assert_eq!(grpc.response(true).headers()["grpc-status"], "8");
        assert_eq!(grpc.response(false).headers()["grpc-status"], "8", "whoever asks gets it");
    }
}
