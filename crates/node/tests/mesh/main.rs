//! A whole mesh in one process: programs in network namespaces, real rules, real proxies.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "test code")]

mod bulk;
mod carry;
mod closed;
mod dump;
mod late;
mod limits;
mod live;
mod names;
mod saved;
mod silent;
mod stalled;
#[path = "../support/mod.rs"]
mod support;
mod untold;
