//! `leno node`: the proxy of one node.

use leno_node::Config;

use crate::memory;

/// Runs until told to stop.
pub(crate) fn run(config: Config) -> anyhow::Result<()> {
    let log = leno_proxy::init_log(&config.proxy)?;
    leno_node::run(config, &log, memory::trim)?;
    Ok(())
}
