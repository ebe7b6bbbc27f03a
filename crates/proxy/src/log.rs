//! The process log and the access log, as the settings say.

use std::io::{self, Write};

use leno_telemetry::Metrics;
use leno_telemetry::access_log::{self, AccessLog, DEFAULT_CAPACITY};
use leno_telemetry::logging::{self, LogHandle};

use crate::config::{Config, setting};
use crate::error::Error;

/// Sets up the process log from the settings. Call it once, before [`crate::run`].
///
/// # Errors
/// If the format, or the filter in `RUST_LOG`, is not valid.
pub fn init_log(config: &Config) -> Result<LogHandle, Error> {
    let format: logging::Format = setting("LOG_FORMAT", &config.log_format)?;
    logging::init(format, logging::Target::Stdout, "info").map_err(|e| Error::Setting {
        setting: "RUST_LOG",
        value: std::env::var("RUST_LOG").unwrap_or_default(),
        reason: e.to_string(),
    })
}

/// The access log. Dropped lines are counted in `metrics`.
pub(crate) fn access_log(config: &Config, to: Box<dyn Write + Send>, metrics: &Metrics) -> Result<AccessLog, Error> {
    let format = setting("LOG_FORMAT", &config.log_format)?;
    let dropped = metrics.access_log_dropped().clone();
    AccessLog::new(to, format, access_log_level(), DEFAULT_CAPACITY, dropped)
        .map_err(|e| Error::Runtime(io::Error::other(e)))
}

/// The access log's level is that of the process log's target `access`, as in ztunnel: `RUST_LOG` may contain
/// `access=error`.
fn access_log_level() -> access_log::Level {
    let filter = std::env::var("RUST_LOG").unwrap_or_default();
    filter.split(',').find_map(|part| part.trim().strip_prefix("access=")?.parse().ok()).unwrap_or_default()
}
