//! Taking a cluster away, whole or half made. Everything is found by what it is called, not by a record: nothing that was
//! started a moment before `up` was killed is missed, and to do it twice is to do it once.

use std::fs;

use anyhow::{Context as _, Result};

use super::cgroups::Cgroups;
use super::layout::Layout;
use super::{host, sysctls};

/// Removes processes, control groups, links, routes and files. Logs stay until the next cluster is started.
pub(crate) fn run(layout: &Layout, cgroups: &Cgroups) -> Result<()> {
    // With the processes of a node go its namespaces, and with these its mounts.
    cgroups.remove_all()?;
    host::remove()?;
    sysctls::restore(layout)?;
    if layout.cluster().exists() {
        fs::remove_dir_all(layout.cluster()).with_context(|| format!("removing {}", layout.cluster().display()))?;
    }
    layout.forget()
}

/// Whether there is anything to remove.
pub(crate) fn anything(layout: &Layout, cgroups: &Cgroups) -> Result<bool> {
    Ok(cgroups.any() || !host::links()?.is_empty() || layout.cluster().exists() || layout.state().is_some())
}
