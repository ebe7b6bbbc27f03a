//! Manifests from files: read as a whole, and again when one of them changes.

mod manifests;
pub(crate) mod watch;

pub use manifests::{Manifests, Origin, Sourced, follow, parse, read};
