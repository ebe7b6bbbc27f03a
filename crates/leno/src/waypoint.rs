//! `leno waypoint`: the proxy that looks at the requests of services.

use leno_waypoint::Config;

use crate::memory;

/// Runs until told to stop.
pub(crate) fn run(config: Config) -> anyhow::Result<()> {
    let log = leno_proxy::init_log(&config.proxy)?;
    leno_waypoint::run(config, &log, memory::trim)?;
    Ok(())
}
