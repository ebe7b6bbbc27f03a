//! How many files and connections this process may have open.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the limit as far as this process may, and returns it: a pod costs the supervisor about
/// ten descriptors, a proxy costs a control plane two, and the usual soft limit is 1024.
pub fn raise_descriptor_limit() -> u64 {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return 1024 };
    if soft < hard
        && let Err(reason) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    {
        tracing::debug!(%reason, "the limit of open files stays at {soft}");
        return soft;
    }
    hard
}
