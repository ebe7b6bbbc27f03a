//! How many requests may come in a time. Tokens fall into a bucket one after the other, and a request takes one (the generic cell
//! rate algorithm): all that has to be kept is one moment.

use std::time::Duration;

use leno_model::http::RateLimit;

/// Decides about a request that comes at `now`. `full` is when the bucket is full again, as this function returned it before,
/// or 0; both in nanoseconds from any moment on. Returns when it is full again after this request.
///
/// # Errors
/// If the bucket is empty: how long until it has one token.
pub fn admit(full: u64, now: u64, rate: RateLimit) -> Result<u64, Duration> {
    let per = u64::try_from(rate.per.as_nanos()).unwrap_or(u64::MAX);
    let one = (per / u64::from(rate.requests.max(1))).max(1);
    let most = one.saturating_mul(u64::from(rate.burst.max(1)));
    let after = full.max(now).saturating_add(one);
    match after.saturating_sub(now.saturating_add(most)) {
        0 => Ok(after),
        wait => Err(Duration::from_nanos(wait)),
    }
}

/// In words.
pub fn said(rate: RateLimit) -> String {
    format!(
        "each pod of the waypoint lets {} requests in {:?} follow the route, {} at once",
        rate.requests, rate.per, rate.burst
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn rate(requests: u32, burst: u32) -> RateLimit {
        RateLimit { requests, per: Duration::from_secs(1), burst }
    }

    #[test]
    fn so_many_come_at_once_and_then_one_after_the_other() {
        let (rate, start) = (rate(10, 3), 5 * SECOND);
        let mut full = 0;
        for _ in 0..3 {
            full = admit(full, start, rate).expect("room");
        }
        assert_eq!(admit(full, start, rate), Err(Duration::from_millis(100)));
        assert_eq!(admit(full, start + SECOND / 20, rate), Err(Duration::from_millis(50)));
        full = admit(full, start + SECOND / 10, rate).expect("room");
        assert!(admit(full, start + SECOND / 10, rate).is_err());
        // After a pause, no more than at once.
        let later = start + 60 * SECOND;
        for _ in 0..3 {
            full = admit(full, later, rate).expect("room");
        }
        assert!(admit(full, later, rate).is_err());
    }

    #[test]
    fn over_a_long_time_it_is_the_rate() {
        let rate = rate(7, 2);
        let (mut full, mut admitted) = (0, 0);
        for step in 0..10_000 {
            if let Ok(after) = admit(full, step * SECOND / 1000, rate) {
                (full, admitted) = (after, admitted + 1);
            }
        }
        assert!((70..=72).contains(&admitted), "{admitted}");
    }

    #[test]
    fn what_is_no_number_does_no_harm() {
        let strange = RateLimit { requests: u32::MAX, per: Duration::MAX, burst: u32::MAX };
        assert!(admit(u64::MAX, u64::MAX, strange).is_ok() && admit(0, 0, strange).is_ok());
    }
}
