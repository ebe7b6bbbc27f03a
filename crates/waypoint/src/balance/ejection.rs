//! When an endpoint gets no requests for a while, because it failed too often ("outlier detection").

use std::time::Duration;

use leno_model::ServiceName;
use leno_model::http::{Ejection, EndpointRules};

/// Longest time for which an endpoint is left out, unless a rule's first time is longer.
const LONGEST: Duration = Duration::from_secs(300);

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// With an answer that blames nobody, or the client.
    Well,
    /// With a status.
    Status(u16),
    /// Before there was an answer: there was no connection, it broke, or it took too long.
    Locally,
}

/// Failures in a row, of each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct InARow {
    pub(super) any: u32,
    pub(super) gateway: u32,
    pub(super) local: u32,
}

/// An endpoint that is left out, for the log.
pub(super) struct Ejected<'a> {
    pub(super) rules: &'a EndpointRules,
    pub(super) service: &'a ServiceName,
    pub(super) endpoint: &'a str,
    pub(super) cause: &'static str,
}

impl InARow {
    /// The counts after one more request, and why the endpoint is to be left out, if it is.
    pub(super) fn and(self, ended: Ended, rules: &Ejection) -> (Self, Option<&'static str>) {
        let mut next = self;
        match ended {
            Ended::Well => return (Self::default(), None),
            Ended::Locally if rules.split_local => next.local += 1,
            Ended::Locally => {
                next.any += 1;
                next.gateway += 1;
            }
            Ended::Status(status) => {
                next.any += 1;
                next.gateway = if matches!(status, 502..=504) { next.gateway + 1 } else { 0 };
                next.local = 0;
            }
        }
        let reached = |count: u32, threshold: Option<u32>| threshold.is_some_and(|threshold| count >= threshold);
        let cause = if reached(next.any, rules.consecutive_5xx) {
            Some("consecutive5xxErrors")
        } else if reached(next.gateway, rules.consecutive_gateway) {
            Some("consecutiveGatewayErrors")
        } else if reached(next.local, rules.consecutive_local) {
            Some("consecutiveLocalOriginFailures")
        } else {
            None
        };
        (if cause.is_some() { Self::default() } else { next }, cause)
    }
}

/// How many of `all` endpoints may be left out: one if the share is less than that, but never the only one.
pub(super) fn allowed(all: usize, percent: u32) -> usize {
    if all < 2 || percent == 0 {
        return 0;
    }
    (all * percent as usize / 100).max(1)
}

/// How often an endpoint counts as left out, that was left out `times` and has been in for a while since.
pub(super) fn times(times: u32, well_for: Duration, rules: &Ejection) -> u32 {
    let forgiven = well_for.as_millis() / rules.interval.as_millis().max(1);
    times.saturating_sub(u32::try_from(forgiven).unwrap_or(u32::MAX))
}

/// For how long one is left out for the `times`th time.
pub(super) fn lasts(times: u32, rules: &Ejection) -> Duration {
    rules.base.saturating_mul(times).min(LONGEST.max(rules.base))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> Ejection {
        Ejection {
            consecutive_5xx: Some(3),
            consecutive_gateway: Some(2),
            consecutive_local: None,
            split_local: false,
            interval: Duration::from_secs(10),
            base: Duration::from_secs(30),
            max_percent: 10,
            min_health_percent: 0,
        }
    }

    /// The cause after these, one after the other.
    fn after(all: &[Ended], rules: &Ejection) -> Option<&'static str> {
        all.iter().fold((InARow::default(), None), |(row, _), ended| row.and(*ended, rules)).1
    }

    #[test]
    fn failures_count_in_a_row() {
        use Ended::{Locally, Status, Well};
        let rules = rules();
        assert_eq!(after(&[Status(500), Status(500), Status(500)], &rules), Some("consecutive5xxErrors"));
        assert_eq!(after(&[Status(500), Status(500), Well, Status(500)], &rules), None);
        assert_eq!(after(&[Status(503), Status(504)], &rules), Some("consecutiveGatewayErrors"));
        assert_eq!(after(&[Status(503), Status(500), Status(503)], &rules), Some("consecutive5xxErrors"));
        assert_eq!(after(&[Locally, Locally], &rules), Some("consecutiveGatewayErrors"));
        let split = Ejection { split_local: true, consecutive_local: Some(2), ..rules.clone() };
        assert_eq!(after(&[Locally, Status(500), Locally], &split), None);
        assert_eq!(after(&[Locally, Locally], &split), Some("consecutiveLocalOriginFailures"));
        let none = Ejection { consecutive_5xx: None, consecutive_gateway: None, ..rules };
        assert_eq!(after(&[Status(503); 100], &none), None);
    }

    #[test]
    fn a_share_of_the_endpoints_may_be_left_out() {
        assert_eq!([0, 1, 2, 10, 25].map(|all| allowed(all, 10)), [0, 0, 1, 1, 2]);
        assert_eq!([2, 3, 10].map(|all| allowed(all, 50)), [1, 1, 5]);
        assert_eq!((allowed(10, 0), allowed(4, 100)), (0, 4));
    }

    #[test]
    fn each_time_lasts_longer_and_good_behaviour_is_forgiven() {
        let rules = rules();
        assert_eq!([1, 2, 3, 20].map(|times| lasts(times, &rules).as_secs()), [30, 60, 90, 300]);
        let long = Ejection { base: Duration::from_secs(1000), ..rules.clone() };
        assert_eq!(lasts(5, &long).as_secs(), 1000);
        assert_eq!(times(3, Duration::from_secs(25), &rules), 1);
        assert_eq!(times(3, Duration::from_secs(1000), &rules), 0);
        assert_eq!(times(3, Duration::ZERO, &rules), 3);
    }
}
