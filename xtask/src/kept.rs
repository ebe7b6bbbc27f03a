//! What is kept on this machine outside of the source tree: where, and under which names.

use std::path::PathBuf;

use sha2::{Digest as _, Sha256};

/// The directory that a variable names, else one of this name where the user's caches are. `None` without a home.
pub(crate) fn directory(variable: &str, name: &str) -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set(variable)
        .or_else(|| set("XDG_CACHE_HOME").map(|caches| caches.join(name)))
        .or_else(|| set("HOME").map(|home| home.join(".cache").join(name)))
}

/// What went into a hash, as part of a file's name.
pub(crate) fn key(hash: Sha256) -> String {
    hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}
