//! Settings of the host's kernel that a kubelet changes for all, not only for its node: they are kept and put back.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context as _, Result};

use super::layout::{Layout, remove};
use crate::whole_file;

/// Below `/proc/sys`. None of them belongs to a namespace.
const CHANGED: [&str; 5] = [
    "vm/overcommit_memory",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
];

/// Keeps the values of now, unless those of an earlier time wait to be put back.
pub(crate) fn keep(layout: &Layout) -> Result<()> {
    if layout.sysctls().exists() {
        return Ok(());
    }
    let values: BTreeMap<&str, String> = CHANGED
        .iter()
        .filter_map(|name| Some((*name, fs::read_to_string(format!("/proc/sys/{name}")).ok()?.trim().to_owned())))
        .collect();
    whole_file::write(&layout.sysctls(), &serde_json::to_vec(&values)?, 0o644)
}

/// Puts back what was kept.
pub(crate) fn restore(layout: &Layout) -> Result<()> {
    let Ok(kept) = fs::read(layout.sysctls()) else { return Ok(()) };
    let values: BTreeMap<String, String> =
        serde_json::from_slice(&kept).with_context(|| format!("reading {}", layout.sysctls().display()))?;
    for (name, value) in values.iter().filter(|(name, _)| CHANGED.contains(&name.as_str())) {
        let path = format!("/proc/sys/{name}");
        if fs::read_to_string(&path).is_ok_and(|now| now.trim() != value) {
            fs::write(&path, value).with_context(|| format!("writing {path}"))?;
        }
    }
    remove(&layout.sysctls())
}
