//! The time now, as Kubernetes writes it.

use std::time::SystemTime;

use time::OffsetDateTime;
use time::macros::format_description;

/// As a `MicroTime`.
#[must_use]
pub fn timestamp() -> String {
    let format = format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:6]Z");
    // Every part of the format is there.
    OffsetDateTime::from(SystemTime::now()).format(format).unwrap_or_default()
}

/// As a `Time`, in whole seconds.
#[must_use]
pub fn seconds() -> String {
    let format = format_description!("[year]-[month]-[day]T[hour]:[minute]:[second]Z");
    OffsetDateTime::from(SystemTime::now()).format(format).unwrap_or_default()
}
