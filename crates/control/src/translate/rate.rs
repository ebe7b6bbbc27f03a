//! How many requests may follow a route: its annotations.

use std::time::Duration;

use leno_model::http::RateLimit;
use leno_objects::{ObjectMeta, RATE_LIMIT, RATE_LIMIT_BURST};

/// What a route's annotations say; `None` if they say nothing.
///
/// # Errors
/// What is wrong with them.
pub(super) fn of(metadata: &ObjectMeta) -> Result<Option<RateLimit>, String> {
    let burst = metadata.annotation(RATE_LIMIT_BURST);
    let Some(text) = metadata.annotation(RATE_LIMIT) else {
        return match burst {
            None => Ok(None),
            Some(_) => Err(format!("annotation {RATE_LIMIT_BURST} means nothing without {RATE_LIMIT}")),
        };
    };
    let number = |text: &str| text.parse::<u32>().ok().filter(|number| *number > 0 && !text.starts_with('+'));
    let parsed = text.split_once('/').and_then(|(requests, unit)| {
        let seconds = match unit {
            "s" => 1,
            "m" => 60,
            "h" => 3600,
            _ => return None,
        };
        Some((number(requests)?, Duration::from_secs(seconds)))
    });
    let Some((requests, per)) = parsed else {
        return Err(format!(
            "annotation {RATE_LIMIT}={text:?} is not a number of requests in a second, minute or hour, such as 100/s, 10/m \
             or 5/h"
        ));
    };
    let burst = match burst {
        None => requests,
        Some(text) => number(text)
            .ok_or_else(|| format!("annotation {RATE_LIMIT_BURST}={text:?} is not a number of requests from 1 on"))?,
    };
    Ok(Some(RateLimit { requests, per, burst }))
}
